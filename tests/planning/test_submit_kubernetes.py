"""Manifests for Kubernetes: what people read, whether the published schemas and kubectl take it, and what pods run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplaunch.ui.submit_view import yaml_text
from tests.agent.guarded import until
from tests.cli.cli_calls import Call
from tests.conftest import Golden
from tests.hosts.launching import clean_environment, ddplaunch
from tests.hosts.namespaces import nodes
from tests.ssh.launched import TRAIN

WORDS = (
    *("submit", "2x4", "--to", "kubernetes", "--image", "registry.example/team/train:1.2", "--time", "24:00:00"),
    *("--mem", "200G", "--cpus-per-task", "32", "--shm-size", "64G", "--grace", "120", "--env", "NOTE=a b"),
    *("--secret", "HF_TOKEN=hugging-face/token", "--batch-size", "8"),
    *("--volume", "datasets:/data:ro", "--volume", "/scratch:/scratch", "--volume", "datasets:/again"),
    *("--data", "/data/train", "--output", "/scratch/out", "--run-dir", "/scratch/runs"),
)
SMALL = ("submit", "2", "--to", "kubernetes", "--image", "a", "--dry-run")
SCRIPT = ("--", "train.py", "--epochs", "20", "it's", "$(HOME) $$", "a\nb", "yes", "1e3", "é")
#: The oldest version of Kubernetes that has the label by which the Service finds the pods, and a recent one.
VERSIONS = ("1.27", "1.35")


def manifest(call: Call, *words: str) -> list[dict[str, Any]]:
    """Return the objects that are printed, each as Kubernetes' own schemas have it, without a field that they lack."""
    import kubernetes_validate  # takes a second, which is not for collecting tests

    answer = call(*words)
    assert answer.status == 0, answer.err
    objects = list(yaml.safe_load_all(answer.out))
    for each in objects:
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)
    return objects


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    pod = job["spec"]["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod_of(job)["containers"]
    assert isinstance(container, dict)
    return container


def test_the_manifest_and_what_is_said_of_it_read_well(call: Call, golden: Golden) -> None:
    answer = call(*WORDS, *SCRIPT)
    assert len(manifest(call, *WORDS, *SCRIPT)) == 2
    golden("submit-kubernetes", answer.out + answer.err)
    alone = call(*WORDS, "--dry-run", *SCRIPT)
    assert (alone.status, alone.out, alone.err) == (0, answer.out, "")


@pytest.mark.slow
@pytest.mark.root
def test_what_the_pods_run_trains_also_where_the_first_has_no_name_yet(call: Call, tmp_path: Path) -> None:
    """Two nodes stand for the pods: each runs the manifest's command as Kubernetes would start it there."""
    words = ("submit", "2x1", "--device", "cpu", "--to", "kubernetes", "--image", "a", "--dry-run")
    _, job = manifest(call, *words, "--", "train.py")
    command = [word.replace("$$", "$") for word in container_of(job)["command"]]
    work = [tmp_path / "pod-0", tmp_path / "pod-1"]
    for place in work:
        place.mkdir()
        (place / "train.py").write_text(TRAIN)
    environment = clean_environment(KUBERNETES_SERVICE_HOST="10.96.0.1")
    with nodes(2, tmp_path) as pods:

        def start(index: int) -> subprocess.Popen[str]:
            words = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in command]
            return pods[index].start(ddplaunch(*words[1:]), work[index], environment)

        second = start(1)
        assert second.stdout is not None
        told = ""
        while "train-0.train" not in told and (line := second.stdout.readline()):
            told += line
        for pod in pods:  # the cluster's name server knows the first pod once that has started
            with (tmp_path / f"hosts.{pod.name}").open("a") as hosts:
                hosts.write(f"{pods[0].address} train-0.train\n")
        first = start(0)
        said = [first.communicate(timeout=500)[0], told + second.communicate(timeout=500)[0]]
    assert [first.returncode, second.returncode] == [0, 0], said
    until(lambda: all((place / f"saw-{rank}.json").exists() for rank, place in enumerate(work)), "both have trained")
    assert [yaml.safe_load((place / f"saw-{rank}.json").read_text())["sum"] for rank, place in enumerate(work)] == [
        3.0,
        3.0,
    ]


def test_a_job_of_one_node_needs_no_service(call: Call) -> None:
    (job,) = manifest(call, *SMALL, "--", "train.py")
    (volume,) = pod_of(job)["volumes"]
    assert job["kind"] == "Job" and "subdomain" not in pod_of(job)
    assert container_of(job)["command"] == ["ddplaunch", "run", "2", "--", "train.py"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}, "more than the 64 MiB of a container"
    of_image = ("submit", "--to", "kubernetes", "--image", "a", "--dry-run")
    (job,) = manifest(call, *of_image, "--gpus-per-node", "4", "--", "-m", "pkg.train")  # not in this directory
    assert job["metadata"]["name"] == "pkg-train" and job["spec"]["completions"] == 1
    said = call(*of_image, "--", "train.py")
    assert said.status == 2 and "`--gpus-per-node 4`" in said.err
    (job,) = manifest(call, *of_image, "2", "--device", "cpu", "--", "train.py")
    assert "resources" not in container_of(job) and "cpu" in container_of(job)["command"]


def test_a_secret_and_bytes_that_are_no_text_are_refused(call: Call) -> None:
    said = call(*WORDS, "--env", "HF_TOKEN=hf_0123456789abcdef", *SCRIPT)
    assert said.status == 2 and "hf_0123456789abcdef" not in said.err and "--secret HF_TOKEN=SECRET/KEY" in said.err
    said = call(*SMALL, "--", "train.py", "\udcff")
    assert said.status == 2 and "not UTF-8" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--image", ""), "`--image` is missing"),
        (("--image", "a b"), "`--image a b`"),
        (("--image", "a", "--secret", "HF_TOKEN"), "VARIABLE=SECRET/KEY"),
        (("--image", "a", "--secret", "A=My_Secret/key"), "lower-case letters"),
        (("--image", "a", "--shm-size", "64"), "`--shm-size 64Gi`"),
        (("--image", "a", "--requeue"), "`--requeue` is not an option for kubernetes"),
        (("--image", "a", "--volume", "datasets"), "CLAIM:/PATH"),
        (("--image", "a", "--volume", "a:/data", "--volume", "b:/data/"), "`/data` has a volume already"),
        (("--image", "a", "--volume", "a:/dev/shm"), "`/dev/shm` has a volume already"),
    ],
)
def test_what_the_cluster_would_refuse_is_refused_here(call: Call, words: tuple[str, ...], said: str) -> None:
    answer = call("submit", "2", "--to", "kubernetes", "--dry-run", *words, "--", "train.py")
    assert answer.status == 2 and said in " ".join(answer.err.split()), answer.err


LEAVES = st.one_of(st.booleans(), st.integers(), st.text("ayn1:-#'\" \n\té", max_size=6))
KEYS = st.sampled_from(["yes", "a", "nvidia.com/gpu", "1", ""])
#: Lists directly in lists do not occur in Kubernetes, and the writer leaves them out.
INNER = st.dictionaries(KEYS, st.one_of(LEAVES, st.lists(LEAVES, max_size=3)), max_size=2)


@settings(max_examples=60)
@given(st.dictionaries(KEYS, st.one_of(LEAVES, INNER, st.lists(INNER, max_size=2)), max_size=3))
def test_yaml_readers_get_back_what_was_written(value: dict[str, Any]) -> None:
    assert yaml.safe_load(yaml_text(value)) == value
