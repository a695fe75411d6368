"""A submission as a Kubernetes object: a TrainJob, a PyTorchJob or a JobSet.

https://www.kubeflow.org/docs/components/trainer/, https://www.kubeflow.org/docs/components/trainer/legacy-v1/,
https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.planning.job.manifest_changes import change, pods_in
from ddplaunch.planning.job.submission import Submission, impossible_value
from ddplaunch.values.finding import usage

_PORT = 29500
_QUANTITY = re.compile(r"([1-9][0-9]{0,9})(?:([KMGT])i?)?\Z", re.IGNORECASE)
_SECRET = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)/([A-Za-z0-9._-]+)\Z")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*\Z")
_OF_SECRETS = "it is VARIABLE=SECRET/KEY; a Secret is named by lower-case letters, digits, `-` and `.`"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?\Z")
_VOLUME = re.compile(r"(/[^:]*|[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?):(/[^:]+)(?::(ro|rw))?\Z")
_LABEL = r"(?:[A-Za-z0-9.-]+/)?[A-Za-z0-9][A-Za-z0-9._-]*"
_SELECTOR = re.compile(rf"({_LABEL})=([A-Za-z0-9._-]*)\Z")
_TOLERATION = re.compile(rf"({_LABEL})(?:=([A-Za-z0-9._-]*))?(?::(NoSchedule|PreferNoSchedule|NoExecute))?\Z")
_RDMA = re.compile(rf"({_LABEL})(?:=([1-9][0-9]{{0,3}}))?\Z")
#: How a TrainJob says what its pods have, by the first version of the Trainer that reads it.
TRAINERS = ("2.0", "2.1", "2.2", "2.3")
#: What older ones cannot say: https://pypi.org/project/kubeflow-trainer-api/#history, whose models were compared.
_SINCE = (("image_pull_secret", "2.1"), ("time", "2.2"), ("rdma", "2.2"), ("grace", "2.3"))
_QUEUE = "kueue.x-k8s.io/queue-name"
_DEFAULT_SHM = "16Gi"
_PATCH_OWNER = "ddplaunch.dev/submit"  # the Trainer wants to know whose patch it is


def decide_manifest(
    submission: Submission, asked: Mapping[str, Any], command: Sequence[str], paths: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Return the object for the cluster; ``command`` is ``run`` with what follows, for the image's ddplaunch.

    ``paths`` are files and folders that the launch names, each with its flag. Raises UsageError for an unknown kind, no
    image, values that the cluster would refuse, and paths that would be gone with the pod.
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
    container: dict[str, Any] = {"image": image, "command": words, "resources": _resources(submission, asked)}
    if secrets := [_secret(text) for text in asked.get("secret") or ()]:
        container["env"] = secrets
    _refuse_what_the_kind_cannot(kind, submission)
    if kind == "trainjob":
        _refuse_what_the_trainer_cannot(submission, asked)
    manifest: dict[str, Any] = kinds[kind](submission, container, asked)
    for flag in ("namespace", "queue"):
        if asked.get(flag) and not _NAME.match(asked[flag]):
            raise impossible_value(flag, asked[flag], "names have lower-case letters, digits, `-` and `.`", "training")
    metadata = manifest["metadata"]
    if asked.get("namespace"):
        metadata["namespace"] = asked["namespace"]
    if asked.get("queue"):
        metadata["labels"] = {_QUEUE: asked["queue"]}
    change(manifest, asked.get("patch") or (), asked.get("set") or ())
    _refuse_paths_of_no_volume(paths, manifest)
    return manifest


def _refuse_paths_of_no_volume(paths: Sequence[tuple[str, str]], manifest: dict[str, Any]) -> None:
    """Raise UsageError for a path outside of all volumes, and for one to be written in a volume that is read only."""
    mounts = [mount for pod in pods_in(manifest) for mount in pod["containers"][0].get("volumeMounts") or ()]
    writable = {str(each.get("mountPath")): not each.get("readOnly") for each in mounts if isinstance(each, dict)}
    for flag, path in paths:
        place = os.path.normpath(path)
        holder = max((at for at in writable if f"{place}/".startswith(f"{at.rstrip('/')}/")), key=len, default=None)
        claim = f"`--volume CLAIM:{place if place.startswith('/') else '/' + place.lstrip('./')}`"
        if holder is None:
            why = "what is written there is gone with the pod" if flag != "--data" else "a pod has what its image has"
            own = ", or leave `--data` out if the image holds it" if flag == "--data" else ""
            relative = "" if path.startswith("/") else ", and a relative path depends on the image; name a full path"
            raise usage(
                f"`{flag} {path}` is in no volume",
                why=why + relative,
                fix=f"{claim} mounts a PersistentVolumeClaim there{own}",
                where=f"flag: {flag}",
            )
        if flag != "--data" and not writable[holder]:
            raise usage(
                f"`{flag} {path}` is in a volume that is read only",
                why=f"`{holder}` was given with `:ro`",
                fix="leave `:ro` out, or name a path in another volume",
                where=f"flag: {flag}",
            )


def _refuse_what_the_trainer_cannot(submission: Submission, asked: Mapping[str, Any]) -> None:
    version = asked.get("trainer") or TRAINERS[-1]
    if version not in TRAINERS:
        raise impossible_value("trainer", version, f"it is one of {', '.join(TRAINERS)}", TRAINERS[-1])
    others = "`--kind jobset` or `--kind pytorchjob`"
    if asked.get("host_network"):
        raise usage(
            "`--host-network` cannot be said in a TrainJob",
            why="the pods' network stands in its runtime",
            fix=f"{others}, or a runtime with `hostNetwork: true`: `--set spec.runtimeRef.name=NAME`",
            where="flag: --host-network",
        )
    given = {**asked, "grace": submission.grace_s}
    for name, since in _SINCE:
        if given.get(name) and _number(version) < _number(since):
            flag = "--" + name.replace("_", "-")
            raise usage(
                f"`{flag}` cannot be said to Trainer {version}",
                why=f"a TrainJob has a field for it since Trainer {since}",
                fix=f"`--trainer {since}` if the cluster has it, {others}, or leave `{flag}` out",
                where=f"flag: {flag}",
            )


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


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


def _train_job(submission: Submission, container: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Kubeflow Trainer v2. It sets ``PET_*`` in the pods, from which ddplaunch learns nodes, ranks and master."""
    resources = container.pop("resources")
    trainer = {"numNodes": submission.nodes, **container, "resourcesPerNode": resources}
    if ranks := submission.gpus_per_node or submission.processes:
        trainer["numProcPerNode"] = submission.processes or ranks
    pod = _pod(submission, {"name": "node"}, asked)
    target = {"targetJobs": [{"name": "node"}]}
    version = asked.get("trainer") or TRAINERS[-1]
    if version == "2.0":
        said: dict[str, Any] = {"podSpecOverrides": [{**target, **pod}]}
    elif version == "2.1":
        said = {"podTemplateOverrides": [{**target, "spec": pod}]}
    else:
        node = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
        patch = {"manager": _PATCH_OWNER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}}}
        said = {"runtimePatches": [patch]}
    runtime = {"name": "torch-distributed"}
    spec = {"runtimeRef": runtime, "trainer": trainer, **said, **_deadline(submission)}
    return _object("trainer.kubeflow.org/v1alpha1", "TrainJob", submission, spec)


def _pytorch_job(submission: Submission, container: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The training operator (v1). It sets MASTER_ADDR, and PET_NNODES and PET_NODE_RANK because of nprocPerNode."""
    policy = "OnFailure" if submission.requeue else "Never"

    def replica(number: int) -> dict[str, Any]:
        pod = _pod(submission, {"name": "pytorch", **container}, asked)  # the operator looks for this name
        return {"replicas": number, "restartPolicy": policy, "template": {"spec": pod}}

    replicas = {"Master": replica(1)}
    if submission.nodes > 1:
        replicas["Worker"] = replica(submission.nodes - 1)
    spec = {
        "nprocPerNode": str(submission.processes or submission.gpus_per_node or "auto"),
        "runPolicy": {"cleanPodPolicy": "Running", **_deadline(submission)},
        "pytorchReplicaSpecs": replicas,
    }
    return _object("kubeflow.org/v1", "PyTorchJob", submission, spec)


def _job_set(submission: Submission, container: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
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
    pod = {**_pod(submission, {"name": "node", **container}, asked), "restartPolicy": "Never"}
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


def _pod(submission: Submission, container: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod with memory for /dev/shm: a container's 64 MiB are too little for NCCL and DataLoaders.

    Kubernetes sends SIGTERM and, after the grace, SIGKILL; it is some more than the ranks get.
    https://kubernetes.io/docs/concepts/storage/volumes/#emptydir
    """
    memory = {"medium": "Memory", "sizeLimit": _shm(submission, asked.get("shm_size"))}
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": memory}]
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    for text in asked.get("volume") or ():
        _add_volume(text, volumes, mounts)
    container = {**json.loads(json.dumps(container)), "volumeMounts": mounts}
    if asked.get(
        "rdma"
    ):  # memory for the network card is locked: https://github.com/Mellanox/k8s-rdma-shared-dev-plugin
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    pod: dict[str, Any] = {"containers": [container], "volumes": volumes}
    if submission.grace_s is not None:
        pod["terminationGracePeriodSeconds"] = submission.grace_s + 10
    if asked.get("node_selector"):
        why = "it is the label of a node, KEY=VALUE"
        pairs = [_matched("node_selector", _SELECTOR, text, why, "gpu=h100") for text in asked["node_selector"]]
        pod["nodeSelector"] = {match[1]: match[2] for match in pairs}
    if asked.get("toleration"):
        pod["tolerations"] = [_toleration(text) for text in asked["toleration"]]
    if asked.get("image_pull_secret"):
        why = "a Secret is named by lower-case letters, digits, `-` and `.`"
        names = [_matched("image_pull_secret", _NAME, text, why, "registry") for text in asked["image_pull_secret"]]
        pod["imagePullSecrets"] = [{"name": match[0]} for match in names]
    if asked.get("host_network"):
        pod.update(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")  # or the pods' names are not found
    return pod


def _matched(flag: str, pattern: re.Pattern[str], text: str, why: str, example: str) -> re.Match[str]:
    match = pattern.match(text)
    if match is None:
        raise impossible_value(flag, text, why, example)
    return match


def _add_volume(text: str, volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]) -> None:
    why = "it is CLAIM:/PATH, or /HOST/PATH:/PATH, with `:ro` behind it for one that is only read"
    match = _matched("volume", _VOLUME, text, why, "datasets:/data:ro")
    source: dict[str, Any] = {"persistentVolumeClaim": {"claimName": match[1]}}
    if match[1].startswith("/"):
        source = {"hostPath": {"path": match[1]}}
    name = next((str(each["name"]) for each in volumes if each.items() >= source.items()), f"volume-{len(volumes)}")
    if all(each["name"] != name for each in volumes):
        volumes.append({"name": name, **source})
    at = os.path.normpath(match[2])
    if any(mount["mountPath"] == at for mount in mounts):
        raise impossible_value("volume", text, f"`{at}` has a volume already", "datasets:/data:ro")
    mounts.append({"name": name, "mountPath": at, **({"readOnly": True} if match[3] == "ro" else {})})


def _toleration(text: str) -> dict[str, str]:
    why = "it is a node's taint: KEY, KEY=VALUE or KEY=VALUE:EFFECT, the effect NoSchedule or NoExecute"
    match = _matched("toleration", _TOLERATION, text, why, "nvidia.com/gpu:NoSchedule")
    value = {"operator": "Exists"} if match[2] is None else {"operator": "Equal", "value": match[2]}
    return {"key": match[1], **value, **({"effect": match[3]} if match[3] else {})}


def _deadline(submission: Submission) -> dict[str, int]:
    return {} if submission.time_s is None else {"activeDeadlineSeconds": submission.time_s}


def _resources(submission: Submission, asked: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Limits; what is not requested apart is requested as limited."""
    limits: dict[str, Any] = {}
    if submission.gpus_per_node is not None:
        limits["nvidia.com/gpu"] = submission.gpus_per_node
    if submission.cpus_per_task is not None:
        limits["cpu"] = submission.cpus_per_task
    if submission.memory is not None:
        limits["memory"] = _quantity("mem", submission.memory)
    for text in asked.get("rdma") or ():
        why = "it is what the cluster calls its network cards, with their number: `kubectl describe node` lists it"
        match = _matched("rdma", _RDMA, text, why, "rdma/hca_shared_devices_a=1")
        limits[match[1]] = int(match[2] or 1)
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
