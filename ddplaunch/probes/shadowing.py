"""Which file of a directory Python would import in the place of a library; refuses to import anything.

`python -m` looks in the working directory first, unless it is started with ``-P``:
https://docs.python.org/3/using/cmdline.html#cmdoption-P
"""

from __future__ import annotations

import sys
from pathlib import Path

from ddplaunch.probes import files

#: What `import torch.distributed.run` imports beside the standard library, some of it only where it is installed.
_OF_TORCH = {
    *("filelock", "fsspec", "functorch", "jinja2", "markupsafe", "mpmath", "networkx", "numpy", "packaging", "psutil"),
    *("pynvml", "setuptools", "sympy", "torch", "torchgen", "tqdm", "triton", "typing_extensions", "yaml"),
}
#: Of the standard library, but nothing that a library imports; a `test.py` is in many directories.
_HARMLESS = {"antigravity", "idlelib", "test", "this", "turtle", "turtledemo"}
_SUFFIXES = (".py", ".pyc", ".so")


def shadowing_file(directory: str) -> str | None:
    """Return the name of the first file or package in ``directory`` that is named like what torchrun imports."""
    libraries = (sys.stdlib_module_names | _OF_TORCH) - _HARMLESS
    for name in sorted(files.names(directory)):
        stem, dot, _ = name.partition(".")
        if stem not in libraries:
            continue
        if name.endswith(_SUFFIXES) if dot else Path(directory, name, "__init__.py").exists():
            return name
    return None
