"""``ddplaunch ps``: lists running and recent runs of this machine."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ddplaunch.cli.streams import answer, answer_json
from ddplaunch.hosts.kubernetes import ClusterJob, ClusterState, noted_jobs, state_of
from ddplaunch.machine.files import owner_name
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.run_states import summaries
from ddplaunch.ui.ps_view import jobs_json, jobs_text, ps_json, ps_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus
from ddplaunch.values.words import host_name, own_id

_RECENT = 10
_AT_ONCE = 8


def ps(all: bool | None, json: bool | None, run_dir: str | None) -> int:
    """List what runs, of every user whose processes may be read, and what ended lately under the run directory."""
    base, host, now_s = runs_directory(os.environ, run_dir, Path.cwd()), host_name(), time.time()
    runs, more = summaries(base, process_table(), host, None if all else _RECENT)
    jobs = _cluster_jobs(base, bool(all))
    if json:
        answer_json({**ps_json(runs, more, host, now_s), "kubernetes": jobs_json(jobs)})
        return ExitStatus.DONE
    me, out = owner_name(own_id()), sys.stdout
    if runs or not jobs:
        answer(ps_text(runs, more, now_s, me, Terminal.of(out), base.resolve()))
    if jobs:
        answer(jobs_text(jobs, now_s, Terminal.of(out)))
    return ExitStatus.DONE


def _cluster_jobs(base: Path, all: bool) -> list[tuple[ClusterJob, ClusterState]]:
    """Return the jobs on Kubernetes that were submitted from here with their states; those that are gone if ``all``."""
    jobs = noted_jobs(base)
    if not jobs:
        return []
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        states = pool.map(lambda job: state_of(job, os.environ), jobs if all else jobs[:_RECENT])
        return [(job, state) for job, state in zip(jobs, states, strict=False) if all or state.state != "gone"]
