"""A stateful stand-in for Slurm's programs, for what a small real one does not come into; refuses the unexpected.

``sbatch`` takes a job, ``scontrol show job`` moves it one step on in its story and tells its state, ``scancel`` ends
it, ``sacct`` remembers it. All are this file, called by the name that it has; the cluster is a JSON file beside it.
Whatever no test foresaw is written to ``unexpected``, and fails.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

PROGRAMS = ("sbatch", "scontrol", "scancel", "sacct")
QOS = ("normal", "high")
SHOWN = """\
JobId={id} JobName={name}
   Priority=1 Nice=0 Account=lab QOS={qos}
   JobState={state} Reason={reason} Dependency=(null)
   Requeue={requeue} Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode={exit}
   RunTime=00:00:02 TimeLimit=00:05:00 TimeMin=N/A
   StartTime=2030-01-02T03:04:05 EndTime=2030-01-02T03:09:05 Deadline=N/A
   PreemptEligibleTime=2030-01-02T03:04:05 PreemptTime={preempted}
   NodeList={nodes}
   StdOut={log}
"""
#: What a word of a story does to a job; "preempt" and "lose" depend on ``--requeue``. At "silent" nothing answers.
GOING_ON = ("PENDING", "RUNNING", "SIGNALING", "COMPLETING")
STEPS: dict[str, dict[str, str]] = {
    "queue": {"state": "PENDING", "reason": "Priority", "nodes": "(null)"},
    "run": {"state": "RUNNING", "reason": "None", "nodes": "vn[1-2]"},
    "signal": {"state": "SIGNALING"},
    "wind-down": {"state": "COMPLETING"},
    "complete": {"state": "COMPLETED", "reason": "None", "exit": "0:0"},
    "fail": {"state": "FAILED", "reason": "NonZeroExitCode", "exit": "143:0"},
    "exceed": {"state": "TIMEOUT", "reason": "TimeLimit", "exit": "0:15"},
    "swell": {"state": "OUT_OF_MEMORY", "reason": "OutOfMemory", "exit": "0:125"},
    "preempt": {"state": "PREEMPTED", "reason": "None", "exit": "0:15", "preempted": "2030-01-02T03:05:05"},
    "lose": {"state": "NODE_FAIL", "reason": "NodeDown", "exit": "1:0"},
}


class FakeSlurm:
    """The cluster in ``folder``, as tests see it; put ``folder`` in front of PATH."""

    def __init__(self, folder: Path, story: str) -> None:
        """Install the programs. ``story`` is what becomes of each job: words of STEPS, and reasons to wait."""
        self.folder = folder
        folder.mkdir(exist_ok=True)
        for name in PROGRAMS:
            program = folder / name
            program.write_text(f"#!{sys.executable} -IS\n" + Path(__file__).read_text())
            program.chmod(0o755)
        (folder / "cluster.json").write_text(json.dumps({"story": story.split(), "jobs": {}, "forgetful": False}))

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """Every job that was ever taken, by its number, as Slurm would know it."""
        found = json.loads((self.folder / "cluster.json").read_text())["jobs"]
        assert isinstance(found, dict) and not (self.folder / "unexpected").exists()
        return found

    def forget(self) -> None:
        """From now on the controller knows of no job that has ended; accounting does."""
        path = self.folder / "cluster.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "forgetful": True}))


def main(name: str, words: list[str]) -> int:
    """Be one of the programs; return its exit status."""
    path = Path(sys.argv[0]).with_name("cluster.json")
    cluster = json.loads(path.read_text())
    status = {"sbatch": sbatch, "scontrol": scontrol, "scancel": scancel, "sacct": sacct}[name](cluster, words)
    path.write_text(json.dumps(cluster))
    return status


def sbatch(cluster: dict[str, Any], words: list[str]) -> int:
    """Take the job on stdin, or refuse its QOS as Slurm does."""
    given = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", sys.stdin.read(), re.MULTILINE))
    if words != ["--parsable"]:
        return unexpected("sbatch", words)
    if given.get("qos", "normal") not in QOS:
        sys.stderr.write("sbatch: error: Batch job submission failed: Invalid qos specification\n")
        return 1
    number = str(len(cluster["jobs"]) + 1)
    log = str(Path.cwd() / given["output"].replace("%j", number))
    job = {"id": number, "name": given["job-name"], "qos": given.get("qos", "normal"), "log": log, "restarts": 0}
    more = {
        "requeue": int("requeue" in given),
        "exit": "0:0",
        "preempted": "None",
        "story": cluster["story"],
        "silent": False,
    }
    cluster["jobs"][number] = {**job, **more, **STEPS["queue"]}
    sys.stdout.write(f"{number}\n")
    return 0


def scontrol(cluster: dict[str, Any], words: list[str]) -> int:
    """Show a job, and let the next thing happen to it; or queue it again."""
    job = cluster["jobs"].get(words[-1])
    if words[:-1] != ["show", "job"]:
        return unexpected("scontrol", words)
    if job is not None and job["story"][:1] == ["silent"]:
        job["silent"], job["story"] = True, job["story"][1:] or ["silent"]
        return 1
    ended = job is not None and job["state"] not in GOING_ON
    if job is None or (ended and cluster["forgetful"]):
        sys.stderr.write("slurm_load_jobs error: Invalid job id specified\n")
        return 1
    job["silent"] = False
    if not ended and job["story"]:
        advance(job)
    sys.stdout.write(SHOWN.format(**job))
    return 0


def advance(job: dict[str, Any]) -> None:
    """Do the next word of the story."""
    word, *job["story"] = job["story"]
    if word in ("preempt", "lose") and job["requeue"]:
        job.update(STEPS["queue"], reason="BeginTime", restarts=job["restarts"] + 1)
    elif word in STEPS:
        job.update(STEPS[word])
    else:
        job.update(STEPS["queue"], reason=word, story=job["story"] or [word])
    if job["state"] == "RUNNING":
        with open(job["log"], "a") as log:
            log.write(f"life {job['restarts']}\n")


def scancel(cluster: dict[str, Any], words: list[str]) -> int:
    """Cancel one job."""
    if words[0] not in cluster["jobs"] or words[1:]:
        return unexpected("scancel", words)
    cluster["jobs"][words[0]].update(state="CANCELLED", reason="None", exit="0:15")
    return 0


def sacct(cluster: dict[str, Any], words: list[str]) -> int:
    """Tell the state of a job in the one form that is asked for."""
    if words != ["-X", "-n", "-P", "-j", words[4], "-o", "State,ExitCode,NodeList"]:
        return unexpected("sacct", words)
    job = cluster["jobs"][words[4]]
    if job["silent"]:
        return 1
    sys.stdout.write(f"{job['state']}|{job['exit']}|{job['nodes']}\n")
    return 0


def unexpected(name: str, words: list[str]) -> int:
    """Keep what no test foresaw."""
    with Path(sys.argv[0]).with_name("unexpected").open("a") as file:
        file.write(f"{name} {words}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[0]).name, sys.argv[1:]))
