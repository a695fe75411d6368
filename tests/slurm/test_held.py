"""A real Slurm that has the kernel hold a job to the CPUs and the memory that it got."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.plugin_runs import of_folder, within
from tests.slurm.cluster import HERE, Cluster, explained, submit

pytestmark = [pytest.mark.slow, pytest.mark.root]

CPUS = os.cpu_count() or 1
CONFINES = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("slurm"), nodes=1, binds=True, confines=CONFINES) as running:
        yield running


@pytest.mark.skipif(CPUS < 2, reason="one CPU cannot be chosen from")
def test_slurm_binds_and_wins(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nprint('on', *sorted(os.sched_getaffinity(0)), flush=True)\n")
    run = (sys.executable, "-m", "ddplaunch", "run", "2", "--device", "cpu", "--show", "all", *HERE, "--no-quiet")
    srun = ("srun", "--ntasks=1", f"--cpus-per-task={CPUS}", "--cpu-bind=map_cpu:1")
    bound = cluster.run([*srun, *run, "--", "train.py"], tmp_path, timeout_s=150)
    assert bound.stdout.count("on 1\n") == 2, bound.stdout + bound.stderr
    assert f"CPUs 1 of {CPUS}, bound by Slurm" in bound.stderr


#: Rank 1 takes 1.5 GB, for which rank 0 waits.
TAKES = """
import os, pathlib, time
if os.environ["RANK"] == "1":
    kept = [b"x" * (1 << 20) for _ in range(1500)]
    pathlib.Path("taken").touch()
while not pathlib.Path("taken").exists():
    time.sleep(0.1)
"""


@pytest.mark.skipif(not CONFINES, reason="Slurm confines jobs by cgroups of version 1, which this kernel lacks")
def test_a_job_that_takes_more_memory_than_slurm_gave_it_is_ended_by_the_kernel_and_says_so(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TAKES)
    job = submit(cluster, tmp_path, "2", "--device", "cpu", "--mem", "1200M", "--", "train.py")
    cluster.finished(job, timeout_s=240)
    outcome = json.loads((tmp_path / f".ddplaunch/runs/slurm-{job}.0/outcome.json").read_text())
    assert (outcome["diagnosis"]["code"], outcome["diagnosis"]["rank"]) == ("host-out-of-memory", 1)
    assert "Memory cgroup out of memory: Killed process" in outcome["diagnosis"]["what"], outcome["diagnosis"]
    assert any("--mem" in fix for fix in outcome["diagnosis"]["fixes"]), outcome["diagnosis"]
    for word in (job, f"slurm-{job}.out"):
        assert "error[host-out-of-memory]: " in explained(cluster, tmp_path, word)
    within(lambda: not of_folder(tmp_path))
    job = submit(cluster, tmp_path, "2", "--device", "cpu", "--mem", "3G", "--", "train.py")
    assert cluster.finished(job, timeout_s=240)["JobState"] == "COMPLETED", "as the fix says"
