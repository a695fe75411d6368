"""Manifests for Kubernetes: what people read, and whether the published schemas take it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplaunch.ui.plan_view import yaml_text
from tests.cli.cli_calls import Call, call, folder
from tests.conftest import Golden

__all__ = ["call", "folder"]  # fixtures

WORDS = (
    *("submit", "2x4", "--to", "kubernetes", "--image", "registry.example/team/train:1.2", "--time", "24:00:00"),
    *("--mem", "200G", "--cpus-per-task", "32", "--shm-size", "64G", "--grace", "120", "--env", "NOTE=a b"),
    *("--secret", "HF_TOKEN=hugging-face/token", "--batch-size", "8", "--dry-run"),
)
SMALL = ("submit", "2", "--to", "kubernetes", "--image", "a", "--dry-run")
SCRIPT = ("--", "train.py", "--epochs", "20", "it's", "$(HOME) $$", "a\nb", "yes", "1e3", "é")


@cache
def published() -> Any:
    """Return the published models; their import takes longer than all else here, and is not for collecting tests."""
    from kubeflow_trainer_api import models

    return models


def manifest(call: Call, *words: str) -> dict[str, Any]:
    answer = call(*words)
    assert (answer.status, answer.err) == (0, "")
    value = yaml.safe_load(answer.out)
    assert isinstance(value, dict)
    return value


def same(model: type[Any], value: dict[str, Any]) -> None:
    """Hold ``value`` to a published model. It drops what it does not know, so everything has to come out again."""
    assert model.from_dict(value).to_dict() == value


@pytest.mark.parametrize("kind", ["trainjob", "pytorchjob", "jobset"])
def test_each_kind_reads_well(call: Call, golden: Golden, kind: str) -> None:
    answer = call(*WORDS, "--kind", kind, *SCRIPT)
    assert (answer.status, answer.err) == (0, "")
    golden(f"submit-{kind}", answer.out)


def test_a_train_job_is_what_kubeflow_publishes(call: Call) -> None:
    job = manifest(call, *WORDS, *SCRIPT)
    same(published().TrainerV1alpha1TrainJob, job)
    trainer, (patch,) = job["spec"]["trainer"], job["spec"]["runtimePatches"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 4)
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]["spec"]
    assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    container = {**pod["containers"][0], **{name: trainer[name] for name in ("image", "command", "env")}}
    same(
        published().IoK8sApiCoreV1PodSpec,
        {**pod, "containers": [{**container, "resources": trainer["resourcesPerNode"]}]},
    )


def test_a_job_set_is_what_its_project_publishes(call: Call) -> None:
    job = manifest(call, *WORDS, "--kind", "jobset", *SCRIPT)
    same(published().JobsetV1alpha2JobSet, job)
    (node,) = job["spec"]["replicatedJobs"]
    (container,) = node["template"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "MASTER_ADDR", "value": "train-node-0-0.train"} in container["env"]
    assert "--nnodes" in container["command"]


def test_the_pods_of_a_pytorch_job_are_pods_and_its_replicas_are_the_nodes(call: Call) -> None:
    job = manifest(call, *WORDS, "--kind", "pytorchjob", *SCRIPT)
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {name: replica["replicas"] for name, replica in replicas.items()} == {"Master": 1, "Worker": 1}
    for replica in replicas.values():
        same(published().IoK8sApiCoreV1PodSpec, replica["template"]["spec"])
        assert replica["template"]["spec"]["containers"][0]["name"] == "pytorch"
    known = {"nprocPerNode", "runPolicy", "pytorchReplicaSpecs", "elasticPolicy"}
    assert set(job["spec"]) <= known and job["spec"]["runPolicy"]["cleanPodPolicy"] in ("All", "Running", "None")
    assert all(set(each) == {"replicas", "restartPolicy", "template"} for each in replicas.values())
    assert job["spec"]["nprocPerNode"] == "4" and job["spec"]["runPolicy"]["activeDeadlineSeconds"] == 86400


@pytest.mark.parametrize(
    ("words", "size"),
    [((), "16Gi"), (("--mem", "200G"), "16Gi"), (("--mem", "8G"), "4096Mi"), (("--shm-size", "2G"), "2Gi")],
)
def test_shared_memory_leaves_room_for_the_rest_of_the_pod(call: Call, words: tuple[str, ...], size: str) -> None:
    job = manifest(call, *SMALL, "--kind", "pytorchjob", *words, "--", "train.py")
    (volume,) = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["volumes"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": size}


@pytest.mark.parametrize(("kind", "expected"), [("jobset", 3), ("pytorchjob", "OnFailure")])
def test_a_job_that_may_start_again(call: Call, kind: str, expected: object) -> None:
    spec = manifest(call, *SMALL, "--kind", kind, "--requeue", "--", "train.py")["spec"]
    master = spec.get("pytorchReplicaSpecs", {}).get("Master", {}).get("restartPolicy")
    assert expected == (master or spec["failurePolicy"]["maxRestarts"])


def test_the_schemas_do_refuse(call: Call) -> None:
    job = manifest(call, *WORDS, *SCRIPT)
    job["spec"]["trainer"]["numNodes"] = "2"
    with pytest.raises(ValueError, match="numNodes"):
        published().TrainerV1alpha1TrainJob.from_dict(job)
    with pytest.raises(AssertionError):
        same(published().IoK8sApiCoreV1PodSpec, {"containers": [{"name": "a", "comand": ["x"]}]})


def test_arguments_arrive_as_they_were_typed_once_kubernetes_has_expanded_them(call: Call) -> None:
    command = manifest(call, *WORDS, *SCRIPT)["spec"]["trainer"]["command"]
    assert [word.replace("$$", "$") for word in command[command.index("--") :]] == list(SCRIPT)
    assert "$(HOME)" not in "".join(command).replace("$$", "")


def test_secrets_are_references(call: Call) -> None:
    env = manifest(call, *WORDS, *SCRIPT)["spec"]["trainer"]["env"]
    assert env == [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hugging-face", "key": "token"}}}]
    said = call(*WORDS, "--env", "HF_TOKEN=hf_0123456789abcdef", *SCRIPT)
    assert said.status == 2 and "hf_0123456789abcdef" not in said.err and "--secret HF_TOKEN=SECRET/KEY" in said.err


def test_the_script_may_exist_in_the_image_alone(call: Call) -> None:
    job = manifest(call, "submit", "--to", "kubernetes", "--image", "a", "--dry-run", "--", "-m", "pkg.train")
    assert job["metadata"]["name"] == "pkg-train" and job["spec"]["trainer"]["numNodes"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--image", ""), "`--image` is missing"),
        (("--image", "a b"), "`--image a b`"),
        (("--image", "a", "--kind", "pod"), "`--kind pod`"),
        (("--image", "a", "--secret", "HF_TOKEN"), "VARIABLE=SECRET/KEY"),
        (("--image", "a", "--secret", "A=My_Secret/key"), "lower-case letters"),
        (("--image", "a", "--shm-size", "big"), "`--shm-size big`"),
        (("--image", "a", "--shm-size", "64"), "`--shm-size 64Gi`"),
        (("--image", "a", "--shm-size", "64G", "--mem", "64G"), "`--shm-size 32768Mi`"),
        (("--image", "a", "--requeue"), "`--kind jobset`"),
        (("--image", "a", "--partition", "gpu"), "is not an option for kubernetes"),
    ],
)
def test_what_the_cluster_would_refuse_is_refused_here(call: Call, words: tuple[str, ...], said: str) -> None:
    answer = call("submit", "2", "--to", "kubernetes", "--dry-run", *words, "--", "train.py")
    assert answer.status == 2 and said in " ".join(answer.err.split())


def test_a_pod_without_gpus_is_refused_unless_the_cpu_is_meant(call: Call) -> None:
    words = ("submit", "--to", "kubernetes", "--image", "a", "--kind", "jobset", "--dry-run")
    said = call(*words, "--", "train.py")
    assert said.status == 2 and "`--gpus-per-node 4`" in said.err
    job = manifest(call, *words, "2", "--device", "cpu", "--", "train.py")
    (container,) = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {} and "cpu" in container["command"]


def test_bytes_that_are_no_text_are_refused(call: Call) -> None:
    answer = call("submit", "--to", "kubernetes", "--image", "a", "--dry-run", "--", "train.py", "\udcff")
    assert answer.status == 2 and "not UTF-8" in answer.err


LEAVES = st.one_of(st.booleans(), st.integers(), st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("aYn1-/.", max_size=5), inner, max_size=3)
    ),
)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["yes", "a", "nvidia.com/gpu", "1", ""]),
        TREES.filter(lambda tree: not _nested(tree)),
        max_size=3,
    )
)
def test_yaml_readers_get_back_what_was_written(value: dict[str, Any]) -> None:
    assert yaml.safe_load(yaml_text(value)) == value


def _nested(tree: Any) -> bool:
    """Lists directly in lists do not occur in Kubernetes, and the writer leaves them out."""
    if isinstance(tree, list):
        return any(isinstance(each, list) or _nested(each) for each in tree)
    return isinstance(tree, dict) and any(_nested(each) for each in tree.values())


def test_the_golden_files_are_the_ones_that_are_compared() -> None:
    kept = {path.stem for path in (Path(__file__).parents[1] / "golden").glob("submit-*.txt")}
    assert kept == {"submit-full", "submit-short", "submit-trainjob", "submit-pytorchjob", "submit-jobset"}
