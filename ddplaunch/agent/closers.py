"""Which ranks torchrun ended by its own decision, from its own messages; refuses to guess from signals alone.

The guard sees that a rank died of SIGTERM, not who sent it. On a node without a failure of its own, torchrun ends the
ranks because another node failed or came, and says so: ``SubprocessContext._close`` in
torch/distributed/elastic/multiprocessing/api.py logs ``Sending process PID closing signal SIGTERM`` for each.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ddplaunch.agent.ended import EndedAttempt, EndedRank
from ddplaunch.agent.protocol import Settings

_CLOSING = re.compile(rb"Sending process (\d+) closing signal")
_TAIL_BYTES = 1 << 20


def closed_by_torchrun(settings: Settings) -> frozenset[int]:
    """Return the pids that torchrun says it has ended; none where its messages are not recorded."""
    path = Path(settings.get("directory") or ".") / f"node-{settings.get('node', 0)}" / "launcher.err"
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            return frozenset(int(pid) for pid in _CLOSING.findall(file.read(_TAIL_BYTES)))
    except OSError:
        return frozenset()


def attributed(attempt: EndedAttempt, closed: frozenset[int]) -> EndedAttempt:
    """Return the attempt with ``ended_by`` "launcher" for each rank of ``closed``, and ``first`` none of them."""
    ranks = tuple(replace(each, ended_by="launcher") if each.pid in closed else each for each in attempt.ranks)
    own = {each.rank for each in ranks if failed_by_itself(each)}
    return replace(attempt, ranks=ranks, first=attempt.first if attempt.first in own else None)


def failed_by_itself(rank: EndedRank) -> bool:
    """Whether the rank failed before anybody asked it to end."""
    return rank.ended_by != "launcher" and bool(rank.exit_code or rank.signal)
