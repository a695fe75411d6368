"""A submission as a Kubernetes object: a TrainJob, a PyTorchJob or a JobSet.

https://www.kubeflow.org/docs/components/trainer/, https://www.kubeflow.org/docs/components/trainer/legacy-v1/,
https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.planning.job.submission import Submission, impossible_value
from ddplaunch.values.finding import usage

_PORT = 29500
_QUANTITY = re.compile(r"([1-9][0-9]{0,9})(?:([KMGT])i?)?\Z", re.IGNORECASE)
_SECRET = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)/([A-Za-z0-9._-]+)\Z")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*\Z")
_OF_SECRETS = "it is VARIABLE=SECRET/KEY; a Secret is named by lower-case letters, digits, `-` and `.`"
_DEFAULT_SHM = "16Gi"
_PATCH_OWNER = "ddplaunch.dev/submit"  # the Trainer wants to know whose patch it is


def decide_manifest(submission: Submission, asked: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """Return the object for ``kubectl apply``; ``command`` is ``run`` with what follows, for the image's ddplaunch.

    Raises UsageError for an unknown kind, no image, and values that the cluster would refuse.
    """
    kinds = {"trainjob": _train_job, "pytorchjob": _pytorch_job, "jobset": _job_set}
    kind = (asked.get("kind") or "trainjob").lower()
    if kind not in kinds:
        raise impossible_value("kind", kind, "it is `trainjob`, `pytorchjob` or `jobset`", "trainjob")
    image = asked.get("image")
    if not image or not _IMAGE.match(image):
        raise impossible_value(
            "image", image or "", "the pods need an image that holds ddplaunch, torch and the script", "IMAGE:TAG"
        )
    words = _literal(["ddplaunch", *command])
    container: dict[str, Any] = {"image": image, "command": words, "resources": _resources(submission)}
    if secrets := [_secret(text) for text in asked.get("secret") or ()]:
        container["env"] = secrets
    _refuse_what_the_kind_cannot(kind, submission)
    return kinds[kind](submission, container, _shm(submission, asked.get("shm_size")))


def _refuse_what_the_kind_cannot(kind: str, submission: Submission) -> None:
    if kind == "trainjob" and submission.requeue:
        raise usage(
            "`--requeue` cannot be said in a TrainJob",
            why="how often it starts again stands in its runtime, as `failurePolicy`",
            fix="`--kind jobset` or `--kind pytorchjob`, or leave `--requeue` out",
            where="flag: --requeue",
        )
    if kind != "trainjob" and submission.gpus_per_node is None and submission.processes is None:
        raise usage(
            "no GPUs are asked for",
            why="a pod sees the GPUs that its resources name, and no other",
            fix="`--gpus-per-node 4`, or `ddplaunch submit 4 --device cpu …` for four ranks on the CPU",
            where="flag: --gpus-per-node",
        )


def _shm(submission: Submission, asked: str | None) -> str:
    """Return the size of /dev/shm, which counts as memory of the pod: by default 16 GiB, or half of little memory."""
    if asked is not None and asked.isdecimal():
        raise impossible_value("shm_size", asked, "without a unit it would be so many bytes", f"{asked}Gi")
    memory = None if submission.memory is None else _bytes(_quantity("mem", submission.memory))
    if asked is None:
        small = memory is not None and memory < 2 * _bytes(_DEFAULT_SHM)
        return f"{max(1, (memory or 0) >> 21)}Mi" if small else _DEFAULT_SHM
    size = _quantity("shm_size", asked)
    if memory is not None and _bytes(size) >= memory:
        raise usage(
            f"`--shm-size {asked}` leaves nothing of `--mem {submission.memory}`",
            why="what lies in /dev/shm counts as memory of the pod, which is killed when that is full",
            fix=f"`--mem` for more than both, or `--shm-size {max(1, memory >> 21)}Mi`",
            where="flag: --shm-size",
        )
    return size


def _bytes(quantity: str) -> int:
    """Return what a quantity with a binary unit, or none, is in bytes."""
    number, unit = quantity.rstrip("KMGTi"), quantity.lstrip("0123456789")
    return int(number) << 10 * " KMGT".index(unit[:1] or " ")


def _train_job(submission: Submission, container: dict[str, Any], shm: str) -> dict[str, Any]:
    """Kubeflow Trainer v2. It sets ``PET_*`` in the pods, from which ddplaunch learns nodes, ranks and master."""
    resources = container.pop("resources")
    trainer = {"numNodes": submission.nodes, **container, "resourcesPerNode": resources}
    if ranks := submission.gpus_per_node or submission.processes:
        trainer["numProcPerNode"] = submission.processes or ranks
    pod = _pod(submission, {"name": "node"}, shm)
    node = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    patch = {"manager": _PATCH_OWNER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}}}
    runtime = {"name": "torch-distributed"}
    spec = {"runtimeRef": runtime, "trainer": trainer, "runtimePatches": [patch], **_deadline(submission)}
    return _object("trainer.kubeflow.org/v1alpha1", "TrainJob", submission, spec)


def _pytorch_job(submission: Submission, container: dict[str, Any], shm: str) -> dict[str, Any]:
    """The training operator (v1). It sets MASTER_ADDR, and PET_NNODES and PET_NODE_RANK because of nprocPerNode."""
    pod = _pod(submission, {"name": "pytorch", **container}, shm)  # the operator looks for this name
    policy = "OnFailure" if submission.requeue else "Never"
    replica = {"restartPolicy": policy, "template": {"spec": pod}}
    replicas = {"Master": {"replicas": 1, **replica}}
    if submission.nodes > 1:
        replicas["Worker"] = {"replicas": submission.nodes - 1, **replica}
    spec = {
        "nprocPerNode": str(submission.processes or submission.gpus_per_node or "auto"),
        "runPolicy": {"cleanPodPolicy": "Running", **_deadline(submission)},
        "pytorchReplicaSpecs": replicas,
    }
    return _object("kubeflow.org/v1", "PyTorchJob", submission, spec)


def _job_set(submission: Submission, container: dict[str, Any], shm: str) -> dict[str, Any]:
    """A JobSet knows nothing of torch: master and rank come from the names and indices that it gives to its pods."""
    master = f"{submission.name}-node-0-0.{submission.name}"
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    if submission.nodes > 1:
        container["env"] = [
            {"name": "MASTER_ADDR", "value": master},
            {"name": "MASTER_PORT", "value": str(_PORT)},
            {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}},
            *container.get("env", []),
        ]
        at = container["command"].index("--")
        container["command"][at:at] = ["--nnodes", str(submission.nodes)]
    pod = {**_pod(submission, {"name": "node", **container}, shm), "restartPolicy": "Never"}
    job = {
        "completionMode": "Indexed",
        "completions": submission.nodes,
        "parallelism": submission.nodes,
        "backoffLimit": 0,  # a pod that comes back alone would wait for ranks that are gone
        "template": {"spec": pod},
        **_deadline(submission),
    }
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": 3 if submission.requeue else 0},
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
    }
    return _object("jobset.x-k8s.io/v1alpha2", "JobSet", submission, spec)


def _pod(submission: Submission, container: dict[str, Any], shm: str) -> dict[str, Any]:
    """Return a pod with ``shm`` of memory for /dev/shm: a container's 64 MiB are too little for NCCL and DataLoaders.

    Kubernetes sends SIGTERM and, after the grace, SIGKILL; it is some more than the ranks get.
    https://kubernetes.io/docs/concepts/storage/volumes/#emptydir
    """
    pod: dict[str, Any] = {
        "containers": [{**container, "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}}],
    }
    if submission.grace_s is not None:
        pod["terminationGracePeriodSeconds"] = submission.grace_s + 10
    return pod


def _deadline(submission: Submission) -> dict[str, int]:
    return {} if submission.time_s is None else {"activeDeadlineSeconds": submission.time_s}


def _resources(submission: Submission) -> dict[str, dict[str, Any]]:
    """Limits; what is not requested apart is requested as limited."""
    limits: dict[str, Any] = {}
    if submission.gpus_per_node is not None:
        limits["nvidia.com/gpu"] = submission.gpus_per_node
    if submission.cpus_per_task is not None:
        limits["cpu"] = submission.cpus_per_task
    if submission.memory is not None:
        limits["memory"] = _quantity("mem", submission.memory)
    return {"limits": limits} if limits else {}


def _object(version: str, kind: str, submission: Submission, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": submission.name}, "spec": spec}


def _literal(words: Sequence[str]) -> list[str]:
    """Return arguments that mean themselves: Kubernetes replaces ``$(NAME)`` by a value and ``$$`` by one ``$``.

    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    for word in words:
        if any(0xD800 <= ord(char) <= 0xDFFF or char == "\0" for char in word):
            raise usage(
                "an argument of the script is not UTF-8",
                why="a manifest is text, and text cannot carry these bytes",
                fix="write it to a file in the image, and pass the file's name",
            )
    return [word.replace("$", "$$") for word in words]


def _secret(text: str) -> dict[str, Any]:
    match = _SECRET.match(text)
    if match is None:
        raise impossible_value("secret", text.partition("=")[0], _OF_SECRETS, "HF_TOKEN=hf/token")
    return {"name": match[1], "valueFrom": {"secretKeyRef": {"name": match[2], "key": match[3]}}}


def _quantity(flag: str, text: str) -> str:
    """Return a quantity in Kubernetes' spelling: ``200G`` of Slurm's is binary, ``200Gi`` there."""
    match = _QUANTITY.match(text)
    if match is None:
        raise impossible_value(flag, text, "it is a number with Ki, Mi, Gi or Ti behind it", "16Gi")
    unit = match[2] or ("M" if flag == "mem" else "")  # Slurm counts in MiB
    return f"{match[1]}{unit.upper()}i" if unit else match[1]
