"""What ddplaunch leaves with torchrun's plug-in so that it can become ddplaunch again, and what it then finds.

Both travel in the environment of one process, which stays the same through all of it. It refuses to start anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ddplaunch.frozen import dataclass
from ddplaunch.launch.relaunch import Evidence, Policy, evidence_from_json, evidence_json
from ddplaunch.probes.newest import Newest


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
    outputs: tuple[tuple[str, Newest], ...]
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
        outputs=tuple((path, Newest(*newest)) for path, *newest in data["outputs"]),
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
