"""Small logs in the forms that launchers print, for tests of the engine."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from ddplaunch.explain.diagnosis import Diagnosis, Explanation, LogSource, RankEnd, RunFacts
from ddplaunch.explain.explain_logs import explain_texts
from ddplaunch.explain.read.lines import Line, read_lines

#: What stands in front of a line of a fixture: the code that it wins, or that it decided.
MARK = re.compile(r"(?m)^=> ([\w-]+): ")
EVERY_CODE = Path(__file__).with_name("every_code.txt")
TORCH = "/opt/env/lib/python3.11/site-packages/torch"


def every_code() -> list[str]:
    """Return a short log for each thing that can go wrong, without marks; neighbours stand side by side."""
    return MARK.sub("", EVERY_CODE.read_text(encoding="utf-8")).split("===\n")


def explained(text: str, facts: RunFacts | None = None) -> Explanation:
    """Return what is said about one log."""
    return explain_texts([LogSource("train.log", io.BytesIO(text.encode()))], facts)


def diagnosed(text: str, facts: RunFacts | None = None) -> Diagnosis:
    """Return the diagnosis of a log that must have one."""
    found = explained(text, facts).diagnosis
    assert found is not None
    return found


def recorded(*ranks: tuple[str, RankEnd], **known: Any) -> Diagnosis:
    """Return the diagnosis of a record: what each rank printed, how it ended, and what else is ``known``."""
    sources = [LogSource(f"rank-{end.rank}.err", io.BytesIO(text.encode()), end.rank, end.host) for text, end in ranks]
    facts = RunFacts(ranks=tuple(end for _, end in ranks), state="failed", **known)
    found = explain_texts(sources, facts).diagnosis
    assert found is not None
    return found


def ended(rank: int, status: int | str, at_s: float = 5.0) -> RankEnd:
    """Return a rank that ended by itself, with an exit code or by a signal."""
    if isinstance(status, str):
        return RankEnd(rank, "a", None, status, at_s, "itself")
    return RankEnd(rank, "a", status, None, at_s, "itself")


def told(rank: int, at_s: float = 6.0) -> RankEnd:
    """Return a rank that torchrun ended."""
    return RankEnd(rank, "a", None, "SIGTERM", at_s, "launcher")


def lines_of(text: str) -> list[Line]:
    """Return the lines of a log with their speakers."""
    return list(read_lines(enumerate(text.split("\n"), start=1), "train.log"))


def raised(rank: int | None, error: str, file: str = "/home/kim/train.py", number: int = 31) -> str:
    """Return a traceback as a rank prints it."""
    prefix = "" if rank is None else f"[rank{rank}]: "
    lines = ["Traceback (most recent call last):", f'  File "{file}", line {number}, in main', "    step()", error]
    return "".join(f"{prefix}{line}\n" for line in lines)


def lost(rank: int) -> str:
    """Return how a rank notices with gloo that another one is gone."""
    return raised(
        rank,
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:4411",
    )


def failed(code: int, local: int, pid: int) -> str:
    """Return torchrun's line for the first failure that it saw."""
    return (
        f"E0131 12:00:00.000000 900 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {code}) "
        f"local_rank: {local} (pid: {pid}) of binary: /opt/env/bin/python\n"
    )


def summary(*entries: tuple[int, int, int]) -> str:
    """Return torchrun's table of (rank, exit code, pid); the last one stands under "Root Cause"."""
    text = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    text += f"{'=' * 60}\ntrain.py FAILED\n{'-' * 60}\nFailures:\n"
    for number, (rank, code, pid) in enumerate(entries):
        if number == len(entries) - 1:
            text += f"{'-' * 60}\nRoot Cause (first observed failure):\n"
        text += (
            f"[{number}]:\n  time      : 2026-01-31_12:00:00\n  host      : node-7\n  rank      : {rank} (local_rank: "
            f"{rank})\n  exitcode  : {code} (pid: {pid})\n  error_file: <N/A>\n"
            "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n"
        )
    return text + "=" * 60 + "\n"
