"""What missing, raced and unreadable data prints, and what it is mistaken for."""

from __future__ import annotations

#: Each of them has a root among the signatures of the family.
CODES = (
    "dataset-missing",
    "dataset-race",
    "download-failed",
    "checkpoint-mismatch",
    "checkpoint-corrupt",
)

#: A line, and the code that it alone is given within the family.
LINES: tuple[tuple[str, str | None], ...] = (
    ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'", "dataset-missing"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/data/.cache/x.incomplete'", "dataset-race"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'out/ckpt_3.pth'", None),
    ("FileNotFoundError: [Errno 2] No such file or directory: './train.py'", None),
    ("FileExistsError: [Errno 17] File exists: '/data/mnist/raw'", "dataset-race"),
    ("FileExistsError: [Errno 17] File exists: '/home/a/runs/exp1'", None),
    ("urllib.error.HTTPError: HTTP Error 404: Not Found", "download-failed"),
    ("WARNING:urllib3.connectionpool:Retrying (Retry(total=4)) after connection broken by 'x': /gpt2", None),
    ("RuntimeError: Error(s) in loading state_dict for Net:", "checkpoint-mismatch"),
    ("Some weights of Net were not initialized from the model checkpoint and are newly initialized", None),
    ("_pickle.UnpicklingError: invalid load key, '<'.", "checkpoint-corrupt"),
    ("RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed", None),
)
