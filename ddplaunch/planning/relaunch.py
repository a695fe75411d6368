"""Whether, and after how long, a failed run is launched again as a whole, and the values with which that travels.

A run that failed at once fails at once again, and so is not launched again: it has to have lived for a while, or to
have left a checkpoint behind that is newer than at its start. The back-off has no random part, because all nodes have
to come to the same end of it.

A ``RelaunchOrder`` goes with torchrun's environment to the plug-in, which can become ddplaunch again. How far the run
got, ``RunProgress``, goes back to that ddplaunch in ``Relaunched``, in the environment of the same process, and to a
launcher over ssh in ``node-K/relaunch.json``; the nodes of a roll call tell each other theirs. All are written and read
by ``values/codec.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ddplaunch.machine.paths import NewestCheckpoint
from ddplaunch.values import codec
from ddplaunch.values.frozen import dataclass

#: From the plug-in to the ddplaunch that it becomes: which run this one follows. It names the process, so that no
#: launch inside a rank takes it for its own.
RELAUNCHED = "DDPLAUNCH_RELAUNCHED"
#: The code of what all nodes are told where they stay as they ended.
NOT_RELAUNCHED = "not-relaunched"
#: Why there is no output to look at: behind "`--output`".
NOT_GIVEN = "was not given"
_LONGEST_WAIT_S = 300.0

Reason = Literal["advanced", "lived", "short", "spent"]


@dataclass(frozen=True)
class RelaunchPolicy:
    """``times`` a run may be launched again, if it lived ``after_s`` seconds or its output advanced; ``wait_s`` is the
    pause before the first time, doubled for each that follows.
    """

    times: int
    after_s: float = 60.0  # importing torch, reading data and the first step are behind most runs by then
    wait_s: float = 10.0


@dataclass(frozen=True)
class RunProgress:
    """What one node knows of a run that failed.

    ``lived_s``: from the start of its ranks to the end of the first one, None where nobody saw it. ``advanced`` is the
    file below `--output` that is newer than at the start, None without one; ``unseen`` says why nobody could look.
    """

    lived_s: float | None = None
    advanced: str | None = None
    unseen: str | None = None


@dataclass(frozen=True)
class RelaunchDecision:
    """``reason`` decided it; ``progress`` is that of all nodes together."""

    again: bool
    reason: Reason
    progress: RunProgress


def decide(progress: Sequence[RunProgress], policy: RelaunchPolicy, number: int) -> RelaunchDecision:
    """Decide whether to launch for the ``number``-th time again (from 1), from what all nodes know.

    One node that saw a checkpoint is enough: output may lie on its own disk. The node that failed first knows best how
    long the run lived; the others' ranks may have waited for it long after.
    """
    lived = [each.lived_s for each in progress if each.lived_s is not None]
    together = RunProgress(
        min(lived, default=None),
        next((each.advanced for each in progress if each.advanced is not None), None),
        next((each.unseen for each in progress if each.unseen is not None), None),
    )
    if number > policy.times:
        return RelaunchDecision(False, "spent", together)
    if together.advanced is not None:
        return RelaunchDecision(True, "advanced", together)
    if together.lived_s is not None and together.lived_s >= policy.after_s:
        return RelaunchDecision(True, "lived", together)
    return RelaunchDecision(False, "short", together)


def pause_s(policy: RelaunchPolicy, number: int) -> float:
    """Return the seconds to wait before the ``number``-th relaunch: doubled each time, up to five minutes."""
    return min(policy.wait_s * 2.0 ** min(number - 1, 30), max(_LONGEST_WAIT_S, policy.wait_s))


def relaunched_id(run_id: str, number: int) -> str:
    """Return what the ``number``-th relaunch of a run is called whose name the user chose; 0 is the first launch."""
    return f"{run_id}-relaunch-{number}" if number else run_id


@dataclass(frozen=True)
class RelaunchOrder:
    """``number`` is how many times this was launched again already, ``command`` program and arguments to become, empty
    where somebody else launches. ``restore`` are variables as they were, None for one that was not set; ``outputs``
    what was below each `--output` at the start. ``alone``: this node decides, and no others have to be asked.
    """

    run_id: str
    number: int
    policy: RelaunchPolicy
    command: tuple[str, ...]
    restore: dict[str, str | None]
    outputs: tuple[tuple[str, NewestCheckpoint], ...]
    alone: bool


@dataclass(frozen=True)
class Relaunched:
    """The ``number``-th relaunch begins: ``of`` is the run that failed, ``status`` its exit status.

    ``pid`` is the process that it was left for.
    """

    number: int
    of: str
    status: int
    progress: RunProgress
    pid: int = 0


def read_relaunched(text: str | None, pid: int) -> Relaunched | None:
    """Return what was left for the process ``pid``; None where there is nothing, or it is another's."""
    try:
        back = codec.from_json(text or "{}", Relaunched)
    except ValueError:
        return None
    return back if back.pid == pid else None
