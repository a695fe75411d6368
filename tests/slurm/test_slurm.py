"""The whole way through a real Slurm: jobs, steps and tasks, with GPUs that are granted, failures, and refusals."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.planted import PLANTED
from ddplaunch.records.find import read_record, runs_of_job
from ddplaunch.records.first_failure import first_failed_node
from ddplaunch.records.outcome import RunOutcome, read_outcome
from tests.agent.plugin_runs import of_folder, within
from tests.slurm.cluster import GPUS, HERE, Cluster, explained, submit

pytestmark = [pytest.mark.slow, pytest.mark.root]

#: Says who it is, without torch, whose import takes longer than all else.
TRAIN = """
import os, sys
names = ("RANK", "WORLD_SIZE", "SLURMD_NODENAME", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES")
print("rank", *(os.environ[name] for name in names), sys.argv[1:], flush=True)
"""
#: Fails, or waits to be ended and saves then, as its first argument tells.
ENDS = """
import os, signal, sys, time
rank = os.environ["RANK"]
def save(number, frame):
    time.sleep(1)
    open(f"saved-{rank}", "w").close()
    sys.exit(0)
if sys.argv[1] == "wait":
    signal.signal(signal.SIGTERM, save)
    open(f"ready-{rank}", "w").close()
elif rank == "1":
    time.sleep(2)
    os._exit(42)
time.sleep(1000)
"""
HOSTILE = 'it\'s "a" 5 $HOME `id` é'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("slurm"), nodes=2) as running:
        yield running


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "ends.py").write_text(ENDS)
    return tmp_path


def test_a_job_from_a_hostile_directory_runs_on_two_nodes(cluster: Cluster, tmp_path: Path) -> None:
    place = tmp_path / HOSTILE
    place.mkdir()
    (place / "train.py").write_text(TRAIN)
    arguments = ["a b", "$x", "it's", '"', "two\nlines", "*"]
    size = ("--nodes", "2", "--gpus-per-node", "1", "--cpus-per-task", "4", "--time", "5")
    comment = ("--sbatch-arg", "--comment='it\"s 5% \\ #1'", "--sbatch-arg", "--open-mode=append")
    options = (*size, *comment, "--setup", "export FROM_SETUP=1", "--show", "all", *HERE)
    done = cluster.ddplaunch("submit", *options, "--", "train.py", *arguments, cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = cluster.finished("1", timeout_s=200)
    log = (place / "slurm-1.out").read_text()
    assert ended["ExitCode"] == "0:0", log
    expected = [f"rank {rank} 2 vn{rank + 1} 0 0 {arguments!r}" for rank in range(2)]
    assert sorted(re.findall(r"rank [01] 2 .*", log)) == expected, log
    assert "Slurm job 1.0: node 0 of 2 nodes (vn[1-2]), 1 GPU on this node, 4 CPUs a task" in " ".join(log.split()), log
    assert "submitted job 1: train.py on 2 nodes with 1 GPU each" in done.stderr
    shown = cluster.run(["scontrol", "show", "job", "1"], place).stdout
    assert 'Comment=it"s 5% \\ #1' in shown
    assert log.count("ddplaunch: done after") == 1, "one node speaks for all"
    record = place / ".ddplaunch/runs/slurm-1.0"
    assert (record / "run.json").exists() and (record / "node-1/run.json").exists()


WHO = """
import os
from ddplaunch.planning.gpus import exported
print(exported(os.environ, ()).by, "then", exported({**os.environ, "CUDA_VISIBLE_DEVICES": "9"}, ()).by)
"""


def test_the_gpus_of_a_step_are_slurms_and_a_task_for_each_is_one_rank(cluster: Cluster, place: Path) -> None:
    for asked in ("--gpus-per-node=2", "--gpus=2", "--gpus-per-task=1", "--gres=gpu:h100:3"):
        who = cluster.run(["srun", "-N1", "-n1", "-t2", asked, sys.executable, "-c", WHO], place)
        assert who.stdout.strip() == "Slurm then the shell's environment", who.stderr

    def step(*words: str) -> subprocess.CompletedProcess[str]:
        launch = (sys.executable, "-m", "ddplaunch", "run", "--show", "all", *HERE)
        argv = ("srun", "-N1", "--ntasks-per-node=2", *words[:1], *launch, *words[1:])
        return cluster.run(argv, place, timeout_s=200)

    done = step("--gpus-per-task=1", "--", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"rank [01] 2 vn\d (.*)", done.stdout)) == ["0 0 []", "0 1 []"]
    assert "node-rank-0-not-master" not in done.stderr
    seen_by_all = step("--gpus-per-node=2", "--dry-run", "--", "train.py")
    assert seen_by_all.returncode == 0, seen_by_all.stderr
    assert sorted(re.findall("CUDA_VISIBLE_DEVICES=(.)", seen_by_all.stdout)) == ["0", "1"]


def test_a_batch_script_without_srun_gets_its_step_and_a_failure_ends_all(cluster: Cluster, place: Path) -> None:
    command = f"{sys.executable} -m ddplaunch run {' '.join(HERE)} -- ends.py fail"
    (place / "job.sh").write_text(f"#!/bin/bash\n#SBATCH -N2 --gpus-per-node=1 -t 5 -o job.out\n{command}\n")
    job = cluster.run(["sbatch", "--parsable", "job.sh"], place).stdout.strip()
    ended = cluster.finished(job, timeout_s=120)
    log = (place / "job.out").read_text()
    assert ended["JobState"] == "FAILED" and ended["ExitCode"] == "42:0", log
    assert "rank 1 ended with exit code 42" in " ".join(log.split())
    record = next(iter(runs_of_job(place / ".ddplaunch", str(job)).values()), None)
    first = None if record is None else first_failed_node(read_record(record).outcomes)
    assert record is not None and first is not None
    assert (first.run_id, first.node, first.exit_status, first.first_failed_rank) == (f"slurm-{job}.0", 1, 42, 1)
    assert "because node 1 did: error[unknown] rank 1 ended with exit code 42" in " ".join(log.split())
    whole = json.loads((record / "outcome.json").read_text())  # of node 0, which srun ended
    assert (whole["state"], whole["exit_status"], whole["first_failed_rank"]) == ("failed", 42, 1)
    for word in (job, "job.out"):
        assert "rank 1 ended with exit code 42" in explained(cluster, place, word)
    assert "one task on each node, by `srun --kill-on-bad-exit=1 --wait=60" in " ".join(log.split())
    within(lambda: not of_folder(place))


#: Saves when USR1 comes, and has more to do; the second time it goes on from there and is through.
CHECKPOINTING = """
import os, signal, sys, time
from pathlib import Path
rank = os.environ["RANK"]
saved = Path(f"checkpoint-{rank}")
if saved.exists():
    print(f"rank {rank} resumed in restart {os.environ['SLURM_RESTART_COUNT']}", flush=True)
    sys.exit(0)
def save(number, frame):
    saved.write_text(signal.Signals(number).name)
    sys.exit(75)
signal.signal(signal.SIGUSR1, save)
Path(f"ready-{rank}").touch()
time.sleep(1000)
"""


def test_a_signal_is_handed_on_and_the_job_queued_again_once(cluster: Cluster, place: Path) -> None:
    (place / "save.py").write_text(CHECKPOINTING)
    job = submit(cluster, place, "2x1", "--gpus-per-node", "1", "--signal", "USR1@120", "--requeue", "--", "save.py")
    within(lambda: (place / "ready-0").exists() and (place / "ready-1").exists())
    cluster.run(["scancel", "--batch", "--signal=USR1", job], place)  # what Slurm does before the limit
    cluster.shown(job, lambda fields: (fields["Restarts"], fields["JobState"]) == ("1", "PENDING"))
    assert (place / "checkpoint-0").read_text() == (place / "checkpoint-1").read_text() == "SIGUSR1"
    said = " ".join((place / f"slurm-{job}.out").read_text().split())
    assert said.count("error[") == 1 and "ended with exit code 75 after SIGUSR1, " in said, said
    assert f"s before the time limit of job {job}" in said and "error[time-limit]" in said, said

    time.sleep(3)  # a job that starts in the second in which it was killed is refused by its node

    def begins(fields: dict[str, str]) -> bool:
        cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], place)  # it would wait two minutes
        return fields["JobState"] != "PENDING"

    cluster.shown(job, begins)
    ended = cluster.finished(job)
    log = (place / f"slurm-{job}.out").read_text()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), log
    assert "rank 0 resumed in restart 1" in log
    within(lambda: not of_folder(place))


def test_a_job_that_is_preempted_says_so_in_its_record(cluster: Cluster, place: Path) -> None:
    job = submit(cluster, place, "1x1", "--gpus-per-node", str(GPUS), "--", "ends.py", "wait")
    within(lambda: (place / "ready-0").exists())
    first = ("srun", "--partition=first", "--nodes=2", f"--gpus-per-node={GPUS}", "true")
    assert cluster.run(first, place).returncode == 0
    ended = cluster.finished(job)
    assert ended["JobState"] == "PREEMPTED" and (place / "saved-0").exists(), ended
    outcome = json.loads((place / f".ddplaunch/runs/slurm-{job}.0/outcome.json").read_text())
    assert outcome["state"] == "terminated" and outcome["diagnosis"]["what"] == f"job {job} was preempted"
    within(lambda: not of_folder(place))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("1", "--partition", "nowhere"), ("Invalid partition name specified",)),
        (("1", "--gpus-per-node", "64"), ("error[sbatch-failed]",)),
        (("9x1",), ("PartitionNodeLimit", "was cancelled")),
        (("1", "--partition", "short", "--time", "10"), ("PartitionTimeLimit",)),
    ],
)
def test_what_slurm_refuses_leaves_no_job(
    cluster: Cluster, place: Path, words: tuple[str, ...], said: tuple[str, ...]
) -> None:
    done = cluster.ddplaunch("submit", *words, "--", "train.py", cwd=place)
    told = " ".join(done.stderr.split())
    assert done.returncode == 4 and all(each in told for each in said), done.stderr
    for typed in re.findall(r"`(s(?:info|control) [^`]*)`", told):
        assert "gpu" in cluster.run(["sh", "-c", typed], place).stdout, typed
    assert cluster.run(["squeue", "-h"], place).stdout == ""


def test_sizes_are_those_of_one_node_of_an_allocation(cluster: Cluster, place: Path) -> None:
    (place / "train.py").write_text(PLANTED)
    flags = f"--device cpu --steps 15 --json --in-place {shlex.join(HERE)}"
    command = f"{sys.executable} -m ddplaunch scale 2 {flags} -- train.py > scale.json"
    wrapped = ["sbatch", "--parsable", "-N2", "-c3", "-o", "scale.out", "--wrap", command]
    cluster.finished(cluster.run(wrapped, place).stdout.strip(), timeout_s=400)
    said = (place / "scale.out").read_text() + (place / "scale.json").read_text()
    (two,) = json.loads((place / "scale.json").read_text())["sizes"]
    assert two["processes"] == 2 and len(two["ranks"]) == 2, said
    outcome = read_outcome(Path(two["record"]))
    assert isinstance(outcome, RunOutcome) and outcome.state == "terminated"  # both ranks are here; with their grace


def test_doctor_measures_the_nodes_of_an_allocation(cluster: Cluster, place: Path) -> None:
    words = ("doctor", "1", "--device", "cpu", "--comm", "--comm-timeout", "100", "--json", *HERE)
    done = cluster.run(("salloc", "-N2", "-c3", sys.executable, "-m", "ddplaunch", *words), place, timeout_s=400)
    comm = json.loads(done.stdout)["comm"]
    assert comm["ended"], done.stdout + done.stderr
    assert [(group["test"], group["ranks"], group["problem"]) for group in comm["groups"]] == [
        ("all", 2, None),
        ("pair", 2, None),
    ]
