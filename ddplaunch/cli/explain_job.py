"""What a Slurm job left for ``explain`` when asked by its number: record, log, Slurm's word; refuses to read a log.

A record and a log end with a signal where Slurm kills; the controller remembers why for a while, accounting for longer.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ddplaunch.explain.diagnosis import Explanation
from ddplaunch.hosts.slurm import job_state
from ddplaunch.hosts.slurm_end import diagnosis
from ddplaunch.records.find import RunRecord
from ddplaunch.records.first_failure import newest_run

_ASKED = re.compile(r"(?:slurm-)?([0-9]{1,10})(?:_[0-9]+)?\Z")
_LOG = re.compile(r"slurm-([0-9]{1,10}(?:_[0-9]+)?)\.(?:out|err)\Z")
_RUN = re.compile(r"slurm-([0-9]{1,10})\.[0-9]+(?:-r([0-9]+))?\Z")
_DEADLINE_S = 5.0


def of_job(word: str, base: Path) -> Path | None:
    """Return the newest run or else the log of the job that ``word`` names (``12``, ``slurm-12``), None for neither."""
    match = _ASKED.match(word)
    if match is None:
        return None
    job = word.removeprefix("slurm-")
    log = Path(f"slurm-{job}.out")
    return newest_run(base, f"slurm-{job}.") or (log if log.is_file() else None)


def with_slurms_word(explanation: Explanation, name: str, record: RunRecord | None) -> Explanation:
    """Return the explanation, or what Slurm says of the job that ``name``, a run id or log, belongs to.

    It is asked where the logs name nothing, and not of a run that a later one of the same job followed.
    """
    match = _RUN.match(record.run_id) if record is not None else _LOG.match(Path(name).name)
    if match is None:
        return explanation
    restarts = int(match[2] or 0) if record is not None else 0
    state = job_state(match[1], os.environ, _DEADLINE_S)
    if state is None or (record is not None and state.restarts > restarts):
        return explanation
    found = diagnosis(match[1], state, state.restarts)
    return explanation if found is None else Explanation(found, explanation.cascade)
