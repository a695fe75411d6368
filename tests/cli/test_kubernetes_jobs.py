"""Jobs on Kubernetes from `submit` to `stop`, by the real kubectl against the stand-in of an API server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.cli_calls import Call, Said, call, folder
from tests.conftest import skip
from tests.hosts.api_server import Cluster, ended, kubeconfig, problems_of, serving, unschedulable, waiting

__all__ = ["call", "folder"]  # fixtures
pytestmark = pytest.mark.slow  # each call starts kubectl several times

IMAGE = "registry/train:1"
SUBMIT = ("submit", "2", "--to", "kubernetes", "--device", "cpu", "--image", IMAGE)
FAILS = """
import torch.distributed as dist

dist.init_process_group("gloo")
print("rank", dist.get_rank(), flush=True)
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("bad batch")
dist.barrier()
"""


@pytest.fixture
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Return a cluster to which kubectl's configuration leads, in a namespace called team."""
    if shutil.which("kubectl") is None:
        skip("there is no kubectl (Debian: kubernetes-client)")
    found = Cluster()
    with serving(found, folder) as config:
        monkeypatch.setenv("KUBECONFIG", str(config))
        monkeypatch.setenv("COLUMNS", "80")
        yield found


def submitted(call: Call, *words: str) -> Said:
    answer = call(*SUBMIT, *words, "--", "train.py")
    assert answer.status == 0, answer.err
    return answer


def said(answer: Said) -> str:
    return " ".join((answer.out + answer.err).split())


@pytest.mark.parametrize("kind", ["trainjob", "pytorchjob", "jobset"])
def test_a_job_is_made_listed_explained_and_deleted(call: Call, cluster: Cluster, kind: str) -> None:
    answer = submitted(call, "--kind", kind, "--nnodes", "2")
    assert answer.out == "train\n" and "namespace team of lab" in answer.err
    assert len(cluster.pods) == 2
    (job,) = json.loads(call("ps", "--json").out)["kubernetes"]
    assert (job["name"], job["state"], job["nodes"], len(job["pods"])) == ("train", "running", 2, 2)
    first, second = cluster.pods
    cluster.logs = {first: b"step 1\nstep 2\n", second: b"other\n"}
    shown = call("logs", "train", "--lines", "1")
    assert shown.status == 0 and f"[{first}] step 2\n" in shown.out and "step 1" not in shown.out
    assert call("logs", "train", "--grep", "oth").out == f"[{second}] other\n"
    cluster.pods[second]["status"] = ended(137, "OOMKilled")
    explained = call("explain", "train")
    assert explained.status == 1 and f"pod {second} used more memory than its limit on gpu-1" in said(explained)
    assert call("stop", "train").status == 0 and not cluster.pods and not cluster.objects
    assert "deleted by `ddplaunch stop`" in said(call("explain", "train"))
    assert call("logs", "train").status == 2
    assert json.loads(call("ps", "--json").out)["kubernetes"] == []
    assert json.loads(call("ps", "--all", "--json").out)["kubernetes"][0]["state"] == "gone"


@pytest.mark.parametrize(
    ("words", "code", "fix"),
    [
        (("--namespace", "nope"), 'namespaces "nope" not found', "`--namespace NAME`"),
        (("--set", "spec.bogus=1"), 'unknown field "spec.bogus"', "correct `--set` or `--patch`, or `--trainer`"),
        (("--trainer", "2.1"), 'unknown field "spec.podTemplateOverrides"', "`--trainer` for the cluster's version"),
        (("--set", "spec.trainer.numNodes=two"), "numNodes", "`--dry-run` prints the manifest"),
        (("--set", "metadata.name=Train_1"), 'metadata.name: Invalid value: "Train_1"', "`--dry-run`"),
    ],
)
def test_what_the_cluster_refuses_is_told_with_a_fix(
    call: Call, cluster: Cluster, words: tuple[str, ...], code: str, fix: str
) -> None:
    answer = call(*SUBMIT, *words, "--", "train.py")
    assert answer.status == 4 and not cluster.objects
    assert answer.out == "" and code in said(answer) and fix in said(answer) and "nothing was submitted" in answer.err
    assert json.loads(call("ps", "--json").out)["kubernetes"] == []


def test_a_name_is_given_once(call: Call, cluster: Cluster) -> None:
    submitted(call)
    answer = call(*SUBMIT, "--", "train.py")
    assert answer.status == 4 and "`--job-name NAME` for another one, or `ddplaunch stop train`" in said(answer)
    submitted(call, "--job-name", "second")


def test_who_has_no_right_is_told_whom_to_ask(
    call: Call, cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(json.loads(Path(os.environ["KUBECONFIG"]).read_text())["clusters"][0]["cluster"]["server"][17:])
    for user, words in (("may-not", "kubectl auth can-i create trainjobs -n team"), ("stranger", "does not know who")):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(folder / user, port, user, "team")))
        answer = call(*SUBMIT, "--", "train.py")
        assert answer.status == 4 and words in said(answer) and not cluster.objects


def test_a_cluster_without_the_kind_says_so(call: Call, cluster: Cluster) -> None:
    cluster.installed = {each for each in cluster.installed if each[1] != "trainjobs"}
    answer = call(*SUBMIT, "--", "train.py")
    assert answer.status == 4 and "the cluster has no TrainJob" in said(answer) and "`--kind`" in said(answer)


def test_no_cluster_no_context_no_kubectl(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("kubectl") is None:
        skip("there is no kubectl (Debian: kubernetes-client)")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(folder / "nobody", 1, "may", "team")))
    answer = call(*SUBMIT, "--", "train.py")
    assert answer.status == 4 and "cluster-unreachable" in answer.err and "kubectl cluster-info" in said(answer)
    monkeypatch.setenv("KUBECONFIG", str(folder / "none"))
    assert "kubectl has no current context" in said(call(*SUBMIT, "--", "train.py"))
    monkeypatch.setenv("PATH", str(folder))
    answer = call(*SUBMIT, "--", "train.py")
    assert answer.status == 4 and "kubectl-missing" in answer.err and "`--dry-run` prints the manifest" in said(answer)


@pytest.mark.parametrize(
    ("status", "shown", "cause"),
    [
        (
            unschedulable("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
            "Unschedulable: 0/3",
            "fits no node",
        ),
        (waiting("ImagePullBackOff", 'Back-off pulling image "x"'), "ImagePullBackOff: Back-off", "has no image"),
        (
            waiting("CreateContainerConfigError", 'secret "hf" not found'),
            "CreateContainerConfigError: s",
            "is not there",
        ),
    ],
)
def test_what_a_job_waits_for_is_shown_and_explained(
    call: Call, cluster: Cluster, status: dict[str, object], shown: str, cause: str
) -> None:
    cluster.story = lambda pod: pod.update(status=status)
    submitted(call)
    assert "pending" in call("ps").out and f"train: {shown}" in said(call("ps"))
    answer = call("explain", "train", "--json")
    assert answer.status == 1 and cause in json.loads(answer.out)["diagnosis"]["what"]


def test_an_image_that_is_none_and_one_that_the_registry_lacks(call: Call, cluster: Cluster) -> None:
    for number, (image, reason) in enumerate((("UPPER/x", "InvalidImageName"), ("other/x:2", "ImagePullBackOff"))):
        answer = call(*SUBMIT[:-1], image, "--job-name", f"j{number}", "--", "train.py")
        assert answer.status == 0 and reason in call("explain", f"j{number}").out


def test_a_job_in_a_queue_waits_there(call: Call, cluster: Cluster) -> None:
    for kind in ("trainjob", "jobset", "pytorchjob"):
        submitted(call, "--queue", "research", "--kind", kind, "--job-name", kind)
    jobs = json.loads(call("ps", "--json").out)["kubernetes"]
    assert {job["state"] for job in jobs} == {"queued"} and not cluster.pods
    assert "in Kueue's queue research" in call("ps").out


def test_a_note_of_somebody_elses_is_no_job(call: Call, cluster: Cluster, folder: Path) -> None:
    submitted(call)
    note = folder / ".ddplaunch" / "kubernetes" / "team.train.json"
    assert note.stat().st_mode & 0o077 == 0
    note.rename(folder / "elsewhere.json")
    note.symlink_to(folder / "elsewhere.json")
    assert json.loads(call("ps", "--json").out)["kubernetes"] == []


def test_the_cluster_is_asked_where_the_job_was_made(
    call: Call, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(call, "--namespace", "default")
    assert any("/namespaces/default/trainjobs" in each for each in cluster.asked)
    assert json.loads(call("ps", "--json").out)["kubernetes"][0]["state"] == "running"
    cluster.trainer = "2.0"
    submitted(call, "--trainer", "2.0", "--job-name", "older")


@pytest.mark.parametrize("words", [("--rank", "0")])
def test_what_has_no_meaning_for_a_job_is_refused(call: Call, cluster: Cluster, words: tuple[str, ...]) -> None:
    submitted(call)
    assert call("logs", "train", *words).status == 2
    assert call("stop", "train", "--grace", "5").status == 2 and cluster.objects


def test_the_printed_manifest_is_applied_by_kubectl_once(call: Call, cluster: Cluster) -> None:
    text = call(*SUBMIT, "--dry-run", "--", "train.py").out
    assert problems_of(yaml.safe_load(text)) == []

    def applied(manifest: str) -> subprocess.CompletedProcess[str]:
        words = ["kubectl", "apply", "--validate=false", "-f", "-"]
        return subprocess.run(words, input=manifest, capture_output=True, text=True, timeout=60, check=False)

    assert applied(text).returncode == 0 and cluster.pods
    again = applied(text.replace("numNodes: 1", "numNodes: 2"))
    assert again.returncode == 1 and "immutable" in again.stderr


def test_a_job_that_runs_is_followed_explained_and_stopped(folder: Path, cluster: Cluster) -> None:
    cluster.folder = folder
    (folder / "train.py").write_text(FAILS)

    def ddplaunch(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ddplaunch", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    done = ddplaunch(*SUBMIT, "--wait", "--", "train.py")
    assert done.returncode == 1 and "rank 0\n" in done.stdout and "ended first, with exit status 1" in done.stderr
    explained = ddplaunch("explain", "train", "--json")
    found = json.loads(explained.stdout)
    assert (found["state"], found["diagnosis"]["code"], found["diagnosis"]["rank"]) == ("failed", "script-exception", 1)
    assert "bad batch" in found["diagnosis"]["what"]
    (folder / "train.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(300)\n")
    assert ddplaunch(*SUBMIT, "--job-name", "long", "--", "train.py").returncode == 0
    end_s = time.monotonic() + 100
    while b"begun" not in cluster.log("long-node-0-0-x0") and time.monotonic() < end_s:
        time.sleep(0.1)
    assert ddplaunch("stop", "long").returncode == 0
    process = cluster.processes.get("long-node-0-0-x0")
    assert process is None or process.poll() is not None
