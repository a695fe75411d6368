"""Whether a run that failed is launched again as a whole, and after how long; refuses to look at it or to launch it.

A run that failed at once fails at once again. So it has to have lived for a while, or to have left a checkpoint behind
that is newer than at its start. There is no random part in the back-off: all nodes have to come to the same end of it.

What ddplaunch leaves with torchrun's plug-in so that it can become ddplaunch again, and what it then finds.

Both travel in the environment of one process, which stays the same through all of it. It refuses to start anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ddplaunch.launch.options import Options
from ddplaunch.machine.paths import NewestCheckpoint
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import duration_s

#: From the plug-in to the ddplaunch that it becomes: which run this one follows. It names the process, so that no
#: launch inside a rank takes it for its own.
RETURN = "DDPLAUNCH_RELAUNCHED"
#: The code of what all nodes are told where they stay as they ended.
NOT_RELAUNCHED = "not-relaunched"
#: Why there is no output to look at: behind "`--output`".
NOT_GIVEN = "was not given"
AFTER_S = 60.0  # importing torch, reading data and the first step are behind most runs by then
WAIT_S = 10.0
LONGEST_WAIT_S = 300.0

Reason = Literal["advanced", "lived", "short", "spent"]


@dataclass(frozen=True)
class Policy:
    """``times`` a run may be launched again, if it lived ``after_s`` seconds or its output advanced; ``wait_s`` is the
    pause before the first time, doubled for each that follows.
    """

    times: int
    after_s: float = AFTER_S
    wait_s: float = WAIT_S


@dataclass(frozen=True)
class Evidence:
    """What one node knows of a run that failed.

    ``lived_s``: from the start of its ranks to the end of the first one, None where nobody saw it. ``advanced`` is the
    file below `--output` that is newer than at the start, None without one; ``unseen`` says why nobody could look.
    """

    lived_s: float | None = None
    advanced: str | None = None
    unseen: str | None = None


@dataclass(frozen=True)
class Decision:
    """``reason`` decided it; ``evidence`` is that of all nodes together."""

    again: bool
    reason: Reason
    evidence: Evidence


def relaunch_policy(options: Options) -> Policy | None:
    """Return what `--relaunch` asks for, None without it. Raises UsageError."""
    times = options.relaunch.value if options.relaunch else 0
    for flag, said in (("--relaunch-after", options.relaunch_after), ("--relaunch-wait", options.relaunch_wait)):
        if said is not None and options.relaunch is None:
            raise usage(
                f"`{flag}` without `--relaunch`",
                why="it says when a failed run is launched again, and that was not asked for",
                fix=f"`--relaunch 3 {flag} {said.value}`",
                where=str(said.source),
            )
    if not times:
        return None
    after, wait = options.relaunch_after, options.relaunch_wait
    return Policy(
        times,
        AFTER_S if after is None else duration_s("--relaunch-after", after.value),
        WAIT_S if wait is None else duration_s("--relaunch-wait", wait.value),
    )


def decide(evidence: Sequence[Evidence], policy: Policy, number: int) -> Decision:
    """Decide whether to launch for the ``number``-th time again (from 1), from what all nodes know.

    One node that saw a checkpoint is enough: output may lie on its own disk. The node that failed first knows best how
    long the run lived; the others' ranks may have waited for it long after.
    """
    lived = [each.lived_s for each in evidence if each.lived_s is not None]
    together = Evidence(
        min(lived, default=None),
        next((each.advanced for each in evidence if each.advanced is not None), None),
        next((each.unseen for each in evidence if each.unseen is not None), None),
    )
    if number > policy.times:
        return Decision(False, "spent", together)
    if together.advanced is not None:
        return Decision(True, "advanced", together)
    if together.lived_s is not None and together.lived_s >= policy.after_s:
        return Decision(True, "lived", together)
    return Decision(False, "short", together)


def pause_s(policy: Policy, number: int) -> float:
    """Return the seconds to wait before the ``number``-th relaunch: doubled each time, up to five minutes."""
    return min(policy.wait_s * 2.0 ** min(number - 1, 30), max(LONGEST_WAIT_S, policy.wait_s))


def lived_s(outcome: Mapping[str, Any]) -> float | None:
    """Return how long the ranks of a node's ``outcome.json`` ran until the first one ended badly, in seconds.

    Of several attempts the longest counts: torchrun's own restarts may have failed at once, after hours of training.
    """
    found = []
    for attempt in outcome.get("attempts") or ():
        ranks = attempt.get("ranks") or ()
        ends = [each["ended_s"] for each in ranks if each.get("ended_s") and (each.get("exit_code") or each["signal"])]
        found.append(min(ends, default=attempt["ended_s"]) - attempt["started_s"])
    return max(0.0, round(max(found), 3)) if found else None


def relaunched_id(run_id: str, number: int) -> str:
    """Return what the ``number``-th relaunch of a run is called whose name the user chose; 0 is the first launch."""
    return f"{run_id}-relaunch-{number}" if number else run_id


def evidence_json(evidence: Evidence) -> dict[str, Any]:
    """Return it as JSON values."""
    return {"lived_s": evidence.lived_s, "advanced": evidence.advanced, "unseen": evidence.unseen}


def evidence_from_json(data: Mapping[str, Any]) -> Evidence:
    """Return what ``evidence_json`` was made of; of anything else what can be understood."""
    lived, advanced, unseen = data.get("lived_s"), data.get("advanced"), data.get("unseen")
    return Evidence(
        float(lived) if isinstance(lived, (int, float)) else None,
        advanced if isinstance(advanced, str) else None,
        unseen if isinstance(unseen, str) else None,
    )


@dataclass(frozen=True)
class Order:
    """``number`` is how many times this was launched again already, ``command`` program and arguments to become, empty
    where somebody else launches. ``restore`` are variables as they were, None for one that was not set; ``outputs``
    what was below each `--output` at the start. ``alone``: this node decides, and no others have to be asked.
    """

    run_id: str
    number: int
    policy: Policy
    command: tuple[str, ...]
    restore: Mapping[str, str | None]
    outputs: tuple[tuple[str, NewestCheckpoint], ...]
    alone: bool


@dataclass(frozen=True)
class Return:
    """The ``number``-th relaunch begins: ``of`` is the run that failed, ``status`` its exit status."""

    number: int
    of: str
    status: int
    evidence: Evidence


def order_json(order: Order) -> dict[str, Any]:
    """Return the order as JSON values."""
    policy = order.policy
    return {
        "run_id": order.run_id,
        "number": order.number,
        "policy": [policy.times, policy.after_s, policy.wait_s],
        "command": list(order.command),
        "restore": dict(order.restore),
        "outputs": [[path, at.path, at.changed_ns, at.bytes, at.problem] for path, at in order.outputs],
        "alone": order.alone,
    }


def order_from_json(data: Mapping[str, Any]) -> Order:
    """Return the order that ``data`` was made of. Raises KeyError or TypeError for anything else."""
    return Order(
        run_id=data["run_id"],
        number=data["number"],
        policy=Policy(*data["policy"]),
        command=tuple(data["command"]),
        restore=data["restore"],
        outputs=tuple((path, NewestCheckpoint(*newest)) for path, *newest in data["outputs"]),
        alone=data["alone"],
    )


def return_text(back: Return, pid: int) -> str:
    """Return what the process ``pid`` finds when it is ddplaunch again."""
    data = {"pid": pid, "number": back.number, "of": back.of, "status": back.status}
    return json.dumps({**data, "evidence": evidence_json(back.evidence)})


def read_return(text: str | None, pid: int) -> Return | None:
    """Return what was left for the process ``pid``; None where there is nothing, or it is another's."""
    try:
        data: dict[str, Any] = json.loads(text or "{}")
        if data.get("pid") != pid:
            return None
        return Return(data["number"], data["of"], data["status"], evidence_from_json(data["evidence"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
