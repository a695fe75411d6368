"""What commands that could not become ranks print, and what it is mistaken for."""

from __future__ import annotations

#: Each of them has a root among the signatures of the family.
CODES = (
    "missing-rank-environment",
    "local-rank-argument",
    "script-arguments",
    "launcher-arguments",
    "script-not-found",
    "module-not-found",
    "syntax-error",
    "extension-build-failed",
)

#: A line, and the code that it alone is given within the family.
LINES: tuple[tuple[str, str | None], ...] = (
    ("KeyError: 'RANK'", "missing-rank-environment"),
    ("KeyError: 'rank'", None),
    ("train.py: error: unrecognized arguments: --local-rank=3", "local-rank-argument"),
    ("train.py: error: unrecognized arguments: --epoch", "script-arguments"),
    ("torchrun: error: unrecognized arguments: --epoch", "launcher-arguments"),
    (
        "run.py: error: the following arguments are required: training_script, training_script_args",
        "launcher-arguments",
    ),
    ("run.py: error: unrecognized arguments: --epoch", "script-arguments"),
    ("python: can't open file 'x.py': [Errno 2] No such file or directory", "script-not-found"),
    ("/usr/bin/python: No module named train", "script-not-found"),
    ("/usr/bin/python: No module named torchrun", "launcher-arguments"),
    ("ModuleNotFoundError: No module named 'train'", "module-not-found"),
    ("ImportError: /opt/a.so: undefined symbol: _ZN2at", "extension-build-failed"),
    ("ImportError: /opt/libtorch_cuda.so: undefined symbol: ncclCommRegister", None),
    ("UserWarning: Failed to initialize NumPy: No module named 'numpy'", None),
    ('  File "a.py", line 3', None),
    ("SyntaxError: invalid syntax", "syntax-error"),
)
