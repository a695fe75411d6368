"""Manifests for Kubernetes: what people read, and whether the published schemas take it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplaunch.planning.job.manifest import TRAINERS
from ddplaunch.planning.job.manifest_changes import pods_in
from ddplaunch.ui.plan_view import yaml_text
from tests.cli.cli_calls import Call, call, folder
from tests.conftest import Golden
from tests.hosts.api_server import problems_of

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


#: Every flag of Kubernetes alone, as far as all kinds and versions of the Trainer have it.
EVERYWHERE = (
    *("--namespace", "team", "--volume", "datasets:/data:ro", "--volume", "/scratch:/scratch", "--data", "/data/train"),
    *("--volume", "datasets:/again", "--toleration", "nvidia.com/gpu:NoSchedule", "--toleration", "team=vision"),
    *("--node-selector", "gpu=h100", "--queue", "research", "--output", "/scratch/out", "--run-dir", "/scratch/runs"),
    *("--cpus-per-task", "8", "--mem", "64G"),
)
SINCE = {"2.1": ("--image-pull-secret", "registry"), "2.2": ("--time", "60", "--rdma", "rdma/hca=2")}


@pytest.mark.parametrize("version", TRAINERS)
def test_every_version_of_the_trainer_takes_what_is_said_to_it(call: Call, version: str) -> None:
    more = [word for since, words in SINCE.items() if since <= version for word in words]
    job = manifest(call, *SMALL, "--trainer", version, *EVERYWHERE, *more, "--", "train.py")
    assert problems_of(job, version) == []
    assert all(problems_of(job, other) for other in TRAINERS if other < "2.2" and other != version)
    (pod,) = pods_in(job)
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "vision"},
    ]
    assert [volume["name"] for volume in pod["volumes"]] == ["shm", "volume-1", "volume-2"]
    assert [(mount["name"], mount["mountPath"]) for mount in pod["containers"][0]["volumeMounts"][1:]] == [
        ("volume-1", "/data"),
        ("volume-2", "/scratch"),
        ("volume-1", "/again"),
    ]
    assert job["metadata"] == {
        "name": "train",
        "namespace": "team",
        "labels": {"kueue.x-k8s.io/queue-name": "research"},
    }


@pytest.mark.parametrize("kind", ["pytorchjob", "jobset"])
def test_the_other_kinds_take_every_flag(call: Call, kind: str) -> None:
    more = [word for words in SINCE.values() for word in words]
    job = manifest(
        call, *SMALL, "--kind", kind, "--nnodes", "2", "--host-network", *EVERYWHERE, *more, "--", "train.py"
    )
    assert problems_of(job) == []
    for pod in pods_in(job):
        (container,) = pod["containers"]
        assert container["resources"]["limits"]["rdma/hca"] == 2
        assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
        assert pod["hostNetwork"] is True and pod["dnsPolicy"] == "ClusterFirstWithHostNet"
        assert pod["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--data", "/data"), "`--volume CLAIM:/data` mounts a PersistentVolumeClaim there, or leave"),
        (("--output", "out"), "a relative path depends on the image; name a full path"),
        (("--output", "/data/out", "--volume", "datasets:/data:ro"), "in a volume that is read only"),
        (("--output", "/database", "--volume", "datasets:/data"), "`--output /database` is in no volume"),
        (("--run-dir", "/runs"), "`--run-dir /runs` is in no volume"),
        (("--volume", "datasets"), "CLAIM:/PATH"),
        (("--volume", "a:/data", "--volume", "b:/data/"), "`/data` has a volume already"),
        (("--volume", "a:/dev/shm"), "`/dev/shm` has a volume already"),
        (("--toleration", "a=b:Never"), "NoSchedule or NoExecute"),
        (("--node-selector", "gpu"), "KEY=VALUE"),
        (("--image-pull-secret", "My_Secret"), "lower-case"),
        (("--queue", "My Queue"), "lower-case"),
        (("--rdma", "rdma/hca=none"), "kubectl describe node"),
        (("--host-network",), "cannot be said in a TrainJob"),
        (("--trainer", "1.9"), "2.0, 2.1, 2.2, 2.3"),
        (("--trainer", "2.0", "--image-pull-secret", "a"), "since Trainer 2.1"),
        (("--trainer", "2.1", "--time", "60"), "since Trainer 2.2"),
        (("--trainer", "2.2", "--grace", "60"), "since Trainer 2.3"),
        (("--set", "nothing"), "it is a path in the manifest"),
        (("--set", "spec.trainer.numNodes.more=1"), "`more` is not there"),
        (("--set", "pod.containers[7].name=x"), "`[7]` is not there"),
        (("--set", "spec.when=2026-01-01"), "it is a path in the manifest"),
        (("--set", "container.env[+].value=hf_0123456789abcdef"), "`--secret"),
        (("--set", "spec=1"), "the rest is no job any more"),
        (("--set", "metadata=[]", "--set", "pod.a=1"), "the rest is no job any more"),
        (("--set", "pod.containers=[]", "--set", "container.a=1"), "the rest is no job any more"),
        (("--set", "kind=Pod"), "the rest is no job any more"),
        (("--patch", "missing.yaml"), "No such file"),
        (("--patch", "train.py"), "neither YAML nor JSON"),
    ],
)
def test_what_a_pod_would_lose_or_not_take_is_refused(call: Call, words: tuple[str, ...], said: str) -> None:
    answer = call(*SMALL, *words, "--", "train.py")
    assert answer.status == 2 and said in " ".join(answer.err.split()), answer.err
    assert "hf_0123456789abcdef" not in answer.err


@pytest.mark.parametrize("kind", ["trainjob", "pytorchjob", "jobset"])
def test_single_values_are_set_in_all_pods(call: Call, kind: str) -> None:
    words: tuple[str, ...] = (
        "--set",
        "pod.serviceAccountName=trainer",
        "--set",
        "container.env[name=NCCL_DEBUG].value='1'",
    )
    words = (
        *words,
        "--set",
        "container.resources.limits.memory=8Gi",
        "--set",
        "pod.volumes[name=shm].emptyDir.sizeLimit=2Gi",
    )
    words = (*words, "--set", r"metadata.annotations.example\.com/owner=me", "--set", "container.args[+]=a=b")
    job = manifest(call, *SMALL, "--nnodes", "2", "--kind", kind, *words, "--", "train.py")
    assert problems_of(job) == []
    found = pods_in(job)
    assert len(found) == (2 if kind == "pytorchjob" else 1)
    for pod in found:
        trains = job["spec"].get("trainer") or pod["containers"][0]
        assert pod["serviceAccountName"] == "trainer" and trains["args"] == ["a=b"]
        assert trains["env"][-1] == {"name": "NCCL_DEBUG", "value": "1"}
        assert (trains.get("resources") or trains["resourcesPerNode"])["limits"]["memory"] == "8Gi"
        assert pod["volumes"][0]["emptyDir"]["sizeLimit"] == "2Gi"
    assert job["metadata"]["annotations"] == {"example.com/owner": "me"}


@pytest.mark.parametrize("kind", ["trainjob", "pytorchjob", "jobset"])
def test_a_file_is_merged_by_names(call: Call, folder: Path, kind: str) -> None:
    (folder / "patch.yaml").write_text(
        "metadata: {labels: {team: vision}}\n"
        "pod:\n  volumes:\n  - {name: scratch, emptyDir: {}}\n  - {name: shm, emptyDir: {sizeLimit: 2Gi}}\n"
        "  terminationGracePeriodSeconds: null\n"
        "container:\n  volumeMounts:\n  - {name: scratch, mountPath: /out}\n"
    )
    words = ("--patch", "patch.yaml", "--output", "/out/checkpoints", "--grace", "60")
    job = manifest(call, *SMALL, "--kind", kind, *words, "--", "train.py")
    assert problems_of(job) == []
    for pod in pods_in(job):
        assert [volume["name"] for volume in pod["volumes"]] == ["shm", "scratch"]
        assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
        assert [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]] == ["/dev/shm", "/out"]
        assert "terminationGracePeriodSeconds" not in pod
    assert job["metadata"]["labels"] == {"team": "vision"}


def test_the_stand_ins_schemas_refuse(call: Call) -> None:
    for kind, version in (("trainjob", "2.0"), ("trainjob", "2.3"), ("pytorchjob", "2.3"), ("jobset", "2.3")):
        job = manifest(call, *SMALL, "--kind", kind, "--trainer", version, "--", "train.py")
        assert problems_of(job, version) == []
        pods_in(job)[0]["volumes"][0]["emptyDirs"] = {}
        (problem,) = problems_of(job, version)
        assert problem.startswith("unknown field") and "emptyDirs" in problem
