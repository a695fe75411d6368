"""Sets the variables in $EARLY, NAME=VALUE, before `import torch`; writes what torch made of them.

The source has no name, so that nothing but the rank itself can notice them.
"""

import json
import os
from pathlib import Path
from typing import Any

os.environ.update({word.partition("=")[0]: word.partition("=")[2] for word in os.environ["EARLY"].split()})

import ctypes
import logging

import torch
import torch.distributed

distributed: Any = torch.distributed


def blas_threads() -> object:
    """Return the threads of numpy's OpenBLAS."""
    import numpy  # noqa: F401

    for line in Path("/proc/self/maps").read_text().splitlines():
        if "openblas" in line:
            library = ctypes.CDLL(line.split()[-1])
            for function in ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads"):
                if hasattr(library, function):
                    return getattr(library, function)()
    return None


answers = {
    "torch threads": torch.get_num_threads(),
    "blas threads": blas_threads(),
    "debug level": str(distributed.get_debug_level()),
    "log level": logging.getLogger("torch._dynamo").getEffectiveLevel(),
}
Path(os.environ["PROBE"], f"{os.environ['RANK']}.json").write_text(json.dumps(answers))
