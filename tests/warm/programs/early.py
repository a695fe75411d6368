"""Sets the variable of its rank, of the arguments NAME=VALUE, before `import torch`; writes what torch made of it.

The source has no name, so that nothing but the rank itself can notice it.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

rank = int(os.environ["RANK"])
name, _, value = sys.argv[1 + rank].partition("=")
os.environ[name] = value

import ctypes  # noqa: E402
import logging  # noqa: E402
import tempfile  # noqa: E402

import torch  # noqa: E402
import torch._inductor.config  # noqa: E402
import torch.distributed  # noqa: E402

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


def error_text() -> str:
    """Return the beginning of each part of an error of C++."""
    try:
        torch.ones(2) @ torch.ones(3)
    except RuntimeError as error:
        return "C++ CapturedTraceback" if "CapturedTraceback" in str(error) else "plain"
    return ""


def lines_of_c10d() -> int:
    """Return how many lines a store writes to stderr."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        distributed.TCPStore("localhost", 0, 1, True)
        os.dup2(kept, 2)
        return int(os.fstat(file.fileno()).st_size > 0)


answers = {
    "torch threads": torch.get_num_threads(),
    "mkl threads": torch.__config__.parallel_info().split("mkl_get_max_threads() : ")[-1].split("\n")[0],
    "blas threads": blas_threads(),
    "debug level": str(distributed.get_debug_level()),
    "log level": logging.getLogger("torch._dynamo").getEffectiveLevel(),
    "lines of c10d": lines_of_c10d(),
    "error": error_text(),
    "scripted": type(torch.jit.script(torch.nn.Linear(1, 1))).__name__,
    "caches off": torch._inductor.config.force_disable_caches,
}
Path(os.environ["PROBE"], f"{rank}.json").write_text(json.dumps(answers))
