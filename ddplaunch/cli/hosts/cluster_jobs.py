"""What ``logs``, ``explain``, ``stop`` and ``submit --wait`` do with a job on Kubernetes."""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from ddplaunch.cli.streams import answer, answer_json, say, tell_findings
from ddplaunch.explain.diagnosis import VAGUE, Explanation, LogSource, explanation_json
from ddplaunch.hosts.kubernetes import (
    ClusterJob,
    ClusterState,
    delete,
    diagnosis_of,
    job_called,
    log_words,
    logs_of,
    state_of,
)
from ddplaunch.hosts.kubernetes import note as note_job
from ddplaunch.records.log_files import LogFile
from ddplaunch.ui.logs_view import Lines
from ddplaunch.ui.terminal import Terminal, write_bytes
from ddplaunch.values.finding import ExitStatus, Finding, RefusedError, error, usage

_ASK_AGAIN_S = 2.0
_MOST_PODS = 64
_PODS_S = 120.0  # in which the pods of a job end; many give their ranks a minute


def job_meant(base: Path, name: str | None) -> ClusterJob | None:
    """Return the job on Kubernetes of this name, unless a run here has it."""
    return None if name is None or (base / "runs" / name).is_dir() else job_called(base, name)


def job_logs(
    job: ClusterJob,
    follow: bool,
    last: int | None = None,
    since_s: float | None = None,
    pattern: re.Pattern[bytes] | None = None,
) -> int:
    """Print the ``last`` lines (None: all) that each pod of a job wrote after ``since_s``, as far as they match.

    With ``follow`` go on, with new pods too, until the job is over. ``since_s`` is in seconds since the epoch.
    """
    age_s = None if since_s is None else max(1, round(time.time() - since_s))
    readers: dict[str, subprocess.Popen[bytes]] = {}
    show = Lines(
        lambda file: f"[{file.path.name}] ".encode(),
        pattern,
        sys.stdout is not None and sys.stdout.isatty(),
    )
    told = ""
    try:
        while True:
            state = state_of(job, os.environ)
            if state.state == "unknown" and not follow:
                raise RefusedError(_unanswered(job, state))
            for pod in state.pods if len(readers) < _MOST_PODS else ():
                if pod.name not in readers and pod.phase != "Pending":
                    words = log_words(job, pod, follow, age_s, last)
                    readers[pod.name] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            if not readers and not follow:
                why, fix = state.why or "no pod of it has started", f"`ddplaunch explain {job.name}` says why"
                if state.state == "gone":
                    why, fix = (
                        "it is no longer in the cluster, nor are its pods",
                        "`--run-dir` in a `--volume` keeps it",
                    )
                raise usage(f"job {job.name} has no output", why=why, fix=fix, code="no-output-recorded")
            if (
                follow
                and not readers
                and told != (told := f"job {job.name} is {state.state}: {state.why}".rstrip(": "))
            ):
                say(told)
            if not _pass_on(readers, show, until_end=not follow or state.ended) or not follow or state.ended:
                break
        write_bytes(show.end())
    finally:
        for reader in readers.values():
            reader.kill()
            reader.wait()
    return ExitStatus.DONE


def _pass_on(readers: Mapping[str, subprocess.Popen[bytes]], show: Lines, until_end: bool) -> bool:
    """Show what comes for some seconds, or to the end of all; return False if the reader of stdout has gone."""
    with selectors.DefaultSelector() as selector:
        for number, (name, reader) in enumerate(readers.items()):
            if reader.stdout is not None and not reader.stdout.closed:
                selector.register(
                    reader.stdout, selectors.EVENT_READ, (LogFile(Path(name), number, 0, 0, "out"), reader)
                )
        end_s = time.monotonic() + _ASK_AGAIN_S
        while selector.get_map() and (until_end or time.monotonic() < end_s):
            for key, _ in selector.select(_ASK_AGAIN_S / 4):
                file, reader = key.data
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                    reader.stdout.close()
                elif not write_bytes(show.take(file, data)):
                    return False
        if not until_end:
            time.sleep(max(0.0, end_s - time.monotonic()))
    return True


def job_status(job: ClusterJob) -> int:
    """Say how a job on Kubernetes ended, and return 0, the exit status of the pod that failed first, or 1."""
    state = state_of(job, os.environ)
    if state.state == "succeeded":
        return ExitStatus.DONE
    failed = sorted((pod for pod in state.pods if pod.exit_status), key=lambda pod: pod.ended_s or 0)
    status = failed[0].exit_status if failed and failed[0].exit_status else 1
    where = (
        f"pod {failed[0].name} ended first, with exit status {status}" if failed else (state.why or "it says no more")
    )
    what = f"job {job.name} {'was deleted' if state.state == 'gone' else f'is {state.state}'}"
    tell_findings([error("job-failed", what, why=where, fix=f"`ddplaunch explain {job.name}`", where=job.namespace)])
    return status


def explain_job(job: ClusterJob, json: bool) -> int:
    """Explain a job on Kubernetes: what its pods printed, and what the cluster knows that no log tells."""
    from ddplaunch.explain.explain_logs import explain_texts
    from ddplaunch.ui.outcome_view import told_in_log

    state = state_of(job, os.environ)
    if state.state == "unknown":
        raise RefusedError(_unanswered(job, state))
    logs = logs_of(job, state.pods, os.environ)
    sources = [LogSource(name, BytesIO(text), None, name) for name, text in logs]
    found = explain_texts(sources) if sources else Explanation(None)
    of_cluster = diagnosis_of(state)
    if found.diagnosis is None or found.diagnosis.code in VAGUE:
        told = (told_in_log(text.decode(errors="replace"), name) for name, text in logs)
        of_cluster = of_cluster or next(filter(None, told), None)
        going = state.state in ("running", "queued", "pending", "succeeded")
        found = Explanation(of_cluster) if of_cluster else Explanation(None) if going else found
    names = f"job {job.name}, which is {state.state}"
    if state.state == "gone":
        by = "deleted by `ddplaunch stop`" if job.stopped_s else "no longer in the cluster"
        names = f"what is left of job {job.name}: it was {by}, its output with it"
    if json:
        answer_json({**explanation_json(found), "job": job.name, "namespace": job.namespace, "state": state.state})
    else:
        from ddplaunch.ui.explain_view import explanation_text

        names += f" ({state.why})" if state.why and state.state != "gone" else ""
        answer(explanation_text(found, names, Terminal.of(sys.stdout)))
    return ExitStatus.DONE if found.diagnosis is None else ExitStatus.FINDINGS


def delete_job(job: ClusterJob, base: Path, grace_s: float | None, json: bool) -> int:
    """Delete a job on Kubernetes, whose pods get SIGTERM and the grace that they were submitted with."""
    if grace_s is not None:
        raise usage(
            f"`--grace` of {job.name}, a job on Kubernetes",
            why="its pods have the grace that they were made with, and deleting the job cannot change it",
            fix=f"`ddplaunch stop {job.name}`; `submit --grace` says it beforehand",
            where="flag: --grace",
        )
    say(f"deleting {job.kind} {job.name} in namespace {job.namespace}; its pods get SIGTERM")
    left = delete(job, os.environ, _PODS_S)
    note_job(base, replace(job, stopped_s=round(time.time(), 3)))
    names = [pod.name for pod in left.pods]
    if json:
        answer_json({"schema": 1, "job": job.name, "namespace": job.namespace, "remaining": names})
    elif names:
        say(f"still ending after {_PODS_S:.0f} s: {', '.join(names)}")
    else:
        say(f"{job.name} and its pods are gone")
    return ExitStatus.FINDINGS if names else ExitStatus.DONE


def _unanswered(job: ClusterJob, state: ClusterState) -> Finding:
    """Return the finding for a cluster that does not tell about a job."""
    return error(
        "cluster-unreachable",
        f"the cluster does not tell about {job.name}: {state.why}",
        why=f"kubectl asked for it in namespace {job.namespace}, context {job.context or 'of this pod'}",
        fix="`kubectl cluster-info` shows whether it can be reached",
    )
