"""Why a Slurm job waits, in words: what comes by itself, what never comes; refuses to ask Slurm.

https://slurm.schedmd.com/job_reason_codes.html, https://slurm.schedmd.com/resource_limits.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NEVER: Mapping[str, str] = {
    "PartitionNodeLimit": "the partition has not that many nodes",
    "PartitionTimeLimit": "the time is over the partition's limit",
    "BadConstraints": "no node meets the constraint",
    "AccountNotAllowed": "the account may not use the partition",
    "QOSNotAllowed": "the QOS may not be used here",
    "InvalidAccount": "the account does not exist",
    "InvalidQOS": "the QOS does not exist",
}
_OF_ONE_JOB = re.compile(r"(Assoc|QOS)Max([A-Za-z]+?)Per(Job|Node)(?:Limit)?\Z")
_THINGS = {
    "Node": "nodes",
    "Cpu": "CPUs",
    "GRES": "GPUs",
    "Mem": "memory",
    "Memory": "memory",
    "WallDuration": "time",
    "CPUMinutes": "CPU minutes",
    "GRESMinutes": "GPU minutes",
    "BillingMinutes": "billed minutes",
}
_WAITS: tuple[tuple[str, str], ...] = (
    (r"Resources|Nodes?NotAvail", "waits until enough is free"),
    (r"Priority", "other jobs come first"),
    (r"PartitionConfig", "no node of the partition has what it asks for, unless Slurm has not looked yet"),
    (r"Dependency", "waits for another job"),
    (r"BeginTime", "may not start yet; a job that was requeued waits two minutes"),
    (r"JobHeldUser", "held; `scontrol release JOB` lets it go"),
    (r"JobHeldAdmin", "held by an administrator"),
    (r"launch_failed_requeued_held|JobLaunchFailure", "could not be started on its node, and is held"),
    (r"ReqNodeNotAvail|NodeDown", "nodes that it needs are down, drained or reserved; `sinfo -R` says why"),
    (r"Reservation", "waits for its reservation"),
    (r"Partition(?:Down|Inactive)", "the partition starts no jobs now"),
    (r"Licenses", "waits for a license"),
    (
        r"(?:Assoc|QOS)Grp\w*Minutes\w*",
        "the account's hours are used up; it starts when more are granted or old ones expire",
    ),
    (r"(?:Assoc|QOS)(?:Grp|Max)\w*", "a limit of the account or QOS is reached; it starts when other jobs end"),
)


def never(reason: str) -> str | None:
    """Return why a pending job will not start however long it waits, None where waiting may help."""
    match = _OF_ONE_JOB.match(reason)
    if match is None:
        return _NEVER.get(reason)
    owner = "account" if match[1] == "Assoc" else "QOS"
    thing = _THINGS.get(match[2], match[2])
    return f"the {owner}'s limit of {thing} for one {match[3].lower()} is lower"


def waits_for(reason: str) -> str:
    """Return what a pending job waits for, "" for a reason that is not known here."""
    return next((words for pattern, words in _WAITS if re.match(rf"(?:{pattern})\b", reason)), "")
