"""Jobs on Kubernetes: made, asked, read and deleted by kubectl, and noted below the runs' directory.

kubectl's ``--raw`` speaks to the API server directly: the same in every version, checked by the server, and without the
rights to list what else a cluster has. https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.explain.diagnosis import Diagnosis, Evidence
from ddplaunch.records.json_files import as_number, as_text, as_whole, objects, read_object, replace_file
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding, RefusedError, error
from ddplaunch.values.frozen import dataclass

_FOLDER = "kubernetes"
_ASK_S = 5
_MAKE_S = 30  # a cluster's webhooks may look at an object first
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_PLURALS = {"TrainJob": "trainjobs", "PyTorchJob": "pytorchjobs", "JobSet": "jobsets"}
#: The label by which a job's pods are found; a TrainJob becomes a JobSet of its name.
_LABELS = {"PyTorchJob": "training.kubeflow.org/job-name"}
_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_ENDED = {"Complete": "succeeded", "Completed": "succeeded", "Succeeded": "succeeded", "Failed": "failed"}
_ERROR = re.compile(r"Error from server(?: \((\w+)\))?: (.*)", re.DOTALL)
#: Why a container does not start: https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/images/types.go
_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_MAKING = ("ContainerCreating", "PodInitializing")


@dataclass(frozen=True)
class ClusterPlace:
    """Where kubectl's configuration leads: its context, empty in a pod, and the namespace."""

    context: str
    namespace: str


@dataclass(frozen=True)
class ClusterJob:
    """A job that was submitted from here, as its note tells. ``submitted_s`` is in seconds since the epoch.

    ``stopped_s`` is when ``ddplaunch stop`` deleted it.
    """

    name: str
    namespace: str
    context: str
    kind: str
    api_version: str
    nodes: int
    processes: int | None
    script: str
    submitted_s: float
    stopped_s: float | None = None

    @property
    def uri(self) -> str:
        """Where the API server has it."""
        return f"{_collection(self.api_version, self.kind, self.namespace)}/{self.name}"


@dataclass(frozen=True)
class Pod:
    """A pod: its phase, why it waits or ended, and of its training container the exit status, None while it lives.

    ``ended_s`` is in seconds since the epoch; ``reason`` is Kubernetes' word, as ``OOMKilled`` or ``Unschedulable``.
    """

    name: str
    phase: str
    reason: str = ""
    message: str = ""
    node: str = ""
    exit_status: int | None = None
    ended_s: float | None = None


@dataclass(frozen=True)
class ClusterState:
    """A job as the cluster tells: queued, pending, running, succeeded, failed, gone, or unknown with the ``why``."""

    state: str
    why: str = ""
    pods: tuple[Pod, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether nothing of it will run any more."""
        return self.state in ("succeeded", "failed", "gone")


def current_place(environ: Mapping[str, str], namespace: str | None) -> ClusterPlace:
    """Return where a job is made. Raises RefusedError where there is no kubectl, or it knows no cluster."""
    if shutil.which("kubectl", path=environ.get("PATH")) is None:
        raise RefusedError(
            error(
                "kubectl-missing",
                "there is no `kubectl` on PATH",
                why="jobs are made, asked and deleted by Kubernetes' own program",
                fix="install it (https://kubernetes.io/docs/tasks/tools/); `--dry-run` prints the manifest anywhere",
            )
        )
    done = _kubectl(["config", "view", "--minify", "-o", "json"], environ)
    if done.returncode:
        with suppress(OSError):
            return ClusterPlace("", namespace or _SERVICE_ACCOUNT.read_text(encoding="utf-8").strip())
        raise RefusedError(
            error(
                "cluster-unreachable",
                "kubectl has no current context",
                why="it says which cluster is meant, and as whom; `--dry-run` prints the manifest without one",
                fix="`kubectl config get-contexts` lists them, `kubectl config use-context NAME` takes one",
            )
        )
    config = json.loads(done.stdout)
    context = next((each.get("context") or {} for each in objects(config.get("contexts"))), {})
    return ClusterPlace(
        as_text(config.get("current-context")) or "", namespace or context.get("namespace") or "default"
    )


def create(manifest: Mapping[str, Any], place: ClusterPlace, environ: Mapping[str, str]) -> None:
    """Make the object; the server takes it as a whole or not at all. Raises RefusedError with what it said."""
    kind = str(manifest["kind"])
    uri = _collection(str(manifest["apiVersion"]), kind, place.namespace) + "?fieldValidation=Strict"
    done = _kubectl([*_of(place.context), "create", "--raw", uri, "-f", "-"], environ, json.dumps(manifest), _MAKE_S)
    if done.returncode:
        raise RefusedError(_refusal(done.stderr, kind, str(manifest["metadata"]["name"]), place))


def _refusal(said: str, kind: str, name: str, place: ClusterPlace) -> Finding:
    """Return the finding for what kubectl said, with the fix for the server's reason."""
    match = _ERROR.search(said)
    reason, message = (match[1] or "", match[2]) if match else ("", said)
    message = " ".join(message.split()).removeprefix("error: ") or "kubectl said nothing"
    plural = _PLURALS.get(kind, kind)
    fix = "correct what it names; `--dry-run` prints the manifest"
    code, what, why = (
        "cluster-refused",
        f"the cluster refused the {kind}: {message}",
        "its API server checks each object",
    )
    if reason == "AlreadyExists":
        fix = f"`--job-name NAME` for another one, or `ddplaunch stop {name}` deletes it"
    elif "must be logged in" in message:
        what, why = "the cluster does not know who asks", "kubectl's context names a user without valid credentials"
        fix = "log in as your cluster wants it; `kubectl auth whoami` shows as whom kubectl asks"
    elif reason == "Forbidden":
        fix = f"`--namespace` for one that is yours; `kubectl auth can-i create {plural} -n {place.namespace}` asks"
        why = "who asks has no right to do this there"
    elif "namespaces" in message and "not found" in message:
        fix = "`--namespace NAME`; `kubectl get namespaces` lists them"
    elif "could not find the requested resource" in message:
        what, why = f"the cluster has no {kind}", "what makes pods of it is not installed, or in another version"
        fix = "`kubectl api-resources | grep -iE 'trainjob|pytorchjob|jobset'`, then `--kind` for what is there"
    elif "unknown field" in message:
        why = "it knows no such field: the name is wrong, or its version is another one"
        fix = "correct `--set` or `--patch`" + (
            ", or `--trainer` for the cluster's version" if kind == "TrainJob" else ""
        )
    elif match is None and " is invalid" not in message:
        code, what, why = "cluster-unreachable", f"the cluster does not answer: {message}", "kubectl asked it"
        fix = "`kubectl cluster-info` shows whether it can be reached"
    return error(code, what, why=why, fix=fix)


def note(base: Path, job: ClusterJob) -> None:
    """Write down what was submitted, in one step. Raises OSError."""
    replace_file(base / _FOLDER / f"{job.namespace}.{job.name}.json", json.dumps({"schema": 1, **plain(job)}) + "\n")


def noted_jobs(base: Path) -> list[ClusterJob]:
    """Return the jobs that were submitted from here, the newest first; a note of somebody else's says nothing."""
    found = []
    names = sorted(each.name for each in (base / _FOLDER).glob("*.json")) if (base / _FOLDER).is_dir() else []
    for name in names:
        with suppress(OSError, ValueError, KeyError, TypeError):
            data = read_object(base / _FOLDER / name, 1 << 16)
            words = {key: str(data[key]) for key in ("name", "namespace", "context", "kind", "api_version", "script")}
            if f"{words['namespace']}.{words['name']}.json" != name or words["kind"] not in _PLURALS:
                continue
            submitted, stopped = as_number(data.get("submitted_s")) or 0.0, as_number(data.get("stopped_s"))
            nodes, processes = as_whole(data.get("nodes")) or 1, as_whole(data.get("processes"))
            found.append(
                ClusterJob(**words, nodes=nodes, processes=processes, submitted_s=submitted, stopped_s=stopped)
            )
    return sorted(found, key=lambda job: -job.submitted_s)


def job_called(base: Path, name: str | None) -> ClusterJob | None:
    """Return the newest job from here that is called so, ``train`` or ``NAMESPACE/train``; None where there is none."""
    jobs = noted_jobs(base) if name else []
    return next((job for job in jobs if name in (job.name, f"{job.namespace}/{job.name}")), None)


def state_of(job: ClusterJob, environ: Mapping[str, str]) -> ClusterState:
    """Ask the cluster for a job and its pods; at most 20 seconds, and not at all for one that was deleted from here."""
    if job.stopped_s is not None:
        return ClusterState("gone", "it is no longer in the cluster")
    answered = _get(job, job.uri, environ)
    if isinstance(answered, str):
        if "NotFound" in answered:
            return ClusterState("gone", "it is no longer in the cluster")
        return ClusterState("unknown", answered)
    pods = _pods(job, environ)
    for condition in objects((answered.get("status") or {}).get("conditions")):
        word = _ENDED.get(str(condition.get("type")))
        if word is not None and condition.get("status") == "True":
            why = "" if word == "succeeded" else str(condition.get("message") or condition.get("reason") or "")
            return ClusterState(word, why, pods)
    held = answered.get("spec") or {}
    if held.get("suspend") or (held.get("runPolicy") or {}).get("suspend"):
        queue = ((answered.get("metadata") or {}).get("labels") or {}).get("kueue.x-k8s.io/queue-name")
        return ClusterState("queued", f"in Kueue's queue {queue}" if queue else "it is suspended", pods)
    if any(pod.phase == "Running" and not pod.reason for pod in pods):
        return ClusterState("running", "", pods)
    waits = next((pod for pod in pods if pod.reason and pod.reason not in _MAKING), None)
    return ClusterState("pending", f"{waits.reason}: {waits.message}".rstrip(": ") if waits else "", pods)


def _pods(job: ClusterJob, environ: Mapping[str, str]) -> tuple[Pod, ...]:
    label = f"{_LABELS.get(job.kind, _JOBSET_LABEL)}%3D{job.name}"
    answered = _get(job, f"/api/v1/namespaces/{job.namespace}/pods?labelSelector={label}", environ)
    found = [] if isinstance(answered, str) else [_pod(each) for each in objects(answered.get("items"))]
    return tuple(sorted(found, key=lambda pod: [int(part) if part.isdigit() else 0 for part in pod.name.split("-")]))


def _pod(value: Mapping[str, Any]) -> Pod:
    """Return a pod from its object; the first container is the one that trains."""
    status: Mapping[str, Any] = value.get("status") or {}
    pod = Pod(
        str((value.get("metadata") or {}).get("name")),
        str(status.get("phase") or "Pending"),
        str(status.get("reason") or ""),
        str(status.get("message") or ""),
        str((value.get("spec") or {}).get("nodeName") or ""),
    )
    for condition in objects(status.get("conditions")):
        kind, holds = condition.get("type"), condition.get("status") == "True"
        if (kind == "PodScheduled" and not holds) or (kind == "DisruptionTarget" and holds):
            pod = replace(pod, reason=str(condition.get("reason")), message=str(condition.get("message") or ""))
    state = next((each.get("state") or {} for each in objects(status.get("containerStatuses"))), {})
    if waiting := state.get("waiting"):
        pod = replace(pod, reason=str(waiting.get("reason")), message=str(waiting.get("message") or ""))
    if ended := state.get("terminated"):
        reason = pod.reason or str(ended.get("reason") or "")
        status_code, at_s = as_whole(ended.get("exitCode")), _epoch_s(ended.get("finishedAt"))
        pod = replace(pod, reason=reason, exit_status=status_code, ended_s=at_s)
    return pod


def _epoch_s(text: Any) -> float | None:
    try:
        return time.mktime(time.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    except ValueError:
        return None


#: A pod's end or wait that Kubernetes knows, and no log tells: the code, what, why and what to do.
_REASONS: Mapping[str, tuple[str, str, str, str]] = {
    "OOMKilled": (
        "host-out-of-memory",
        "used more memory than its limit",
        "the kernel kills what goes over a container's memory; what lies in /dev/shm counts",
        "`--mem` for more, or fewer DataLoader workers",
    ),
    "Evicted": (
        "scheduler-error",
        "was evicted by its node",
        "a node that runs short of memory or disk gets rid of pods",
        "`--mem` for what it needs, or `--volume` for what it writes",
    ),
    "DeadlineExceeded": (
        "time-limit",
        "reached its time limit",
        "Kubernetes ends a job when its time is over; what the program did then is not the cause",
        "`--time` for more",
    ),
    "Unschedulable": (
        "scheduler-error",
        "fits no node now",
        "it waits until a node has what it asks for",
        "ask for less, or `--toleration` and `--node-selector` for the nodes that are meant; `kubectl describe nodes`",
    ),
    "PreemptionByScheduler": (
        "terminated",
        "was preempted",
        "a pod of higher priority took its place",
        "`--set pod.priorityClassName=NAME` for a higher one, or submit it again",
    ),
    "CreateContainerConfigError": (
        "scheduler-error",
        "has no container: what it refers to is not there",
        "a Secret or ConfigMap that the pod names is missing in its namespace",
        "`kubectl get secrets` lists them; `--secret VAR=SECRET/KEY` names one",
    ),
}
_OF_IMAGES = (
    "scheduler-error",
    "has no image",
    "the node could not get it: the name is wrong, or the registry wants a password",
    "correct `--image`, or `--image-pull-secret NAME`; `ddplaunch stop JOB` deletes this one",
)


def diagnosis_of(state: ClusterState) -> Diagnosis | None:
    """Return what Kubernetes itself knows of the first pod that ended badly or cannot start; None where it does not."""
    ended = sorted((pod for pod in state.pods if pod.reason), key=lambda pod: pod.ended_s or float("inf"))
    for pod in ended:
        known = _OF_IMAGES if pod.reason in _NO_IMAGE else _REASONS.get(pod.reason)
        if known is not None:
            code, what, why, fix = known
            said = f"{pod.reason}: {pod.message}".rstrip(": ")
            where = f" on {pod.node}" if pod.node else ""
            return Diagnosis(
                code, "observed", f"pod {pod.name} {what}{where}", why, (fix,), evidence=(Evidence(pod.name, 0, said),)
            )
    if state.state == "failed" and "DeadlineExceeded" in state.why:
        code, what, why, fix = _REASONS["DeadlineExceeded"]
        return Diagnosis(code, "observed", f"the job {what}", why, (fix,))
    return None


def log_words(
    job: ClusterJob, pod: Pod, follow: bool = False, since_s: int | None = None, last: int | None = None
) -> list[str]:
    """Return the command that prints what the training container of a pod wrote."""
    container = "pytorch" if job.kind == "PyTorchJob" else "node"
    asked = {"follow": "true" if follow else None, "sinceSeconds": since_s, "tailLines": last}
    more = "".join(f"&{name}={value}" for name, value in asked.items() if value is not None)
    uri = f"/api/v1/namespaces/{job.namespace}/pods/{pod.name}/log?container={container}{more}"
    return ["kubectl", *_of(job.context), "get", "--raw", uri]


def logs_of(job: ClusterJob, pods: Sequence[Pod], environ: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Return what the pods have printed so far, the one that ended first in front; one without a log is left out."""
    found = []
    for pod in sorted(pods, key=lambda each: each.ended_s or float("inf")):
        done = subprocess.run(
            log_words(job, pod), env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if done.returncode == 0:
            found.append((pod.name, done.stdout))
    return found


def delete(job: ClusterJob, environ: Mapping[str, str], deadline_s: float) -> ClusterState:
    """Delete a job and wait until its pods are gone, ``deadline_s`` at most; return what is left of it.

    Raises RefusedError where the cluster does not take it.
    """
    done = _kubectl([*_of(job.context), "delete", "--raw", job.uri], environ, "", _MAKE_S)
    if done.returncode and "NotFound" not in done.stderr:
        raise RefusedError(_refusal(done.stderr, job.kind, job.name, ClusterPlace(job.context, job.namespace)))
    until_s = time.monotonic() + deadline_s
    while (pods := _pods(job, environ)) and time.monotonic() < until_s:
        time.sleep(0.5)
    return ClusterState("gone" if not pods else "running", "", pods)


def _collection(version: str, kind: str, namespace: str) -> str:
    return f"/apis/{version}/namespaces/{namespace}/{_PLURALS[kind]}"


def _of(context: str) -> list[str]:
    return ["--context", context] if context else []


def _get(job: ClusterJob, uri: str, environ: Mapping[str, str]) -> dict[str, Any] | str:
    """Return an object of the cluster, or what kubectl said instead of it."""
    done = _kubectl([*_of(job.context), "get", "--raw", uri], environ)
    with suppress(ValueError):
        if done.returncode == 0 and isinstance(value := json.loads(done.stdout), dict):
            return value
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else "kubectl said nothing"


def _kubectl(
    words: Sequence[str], environ: Mapping[str, str], text: str = "", wait_s: int = _ASK_S
) -> subprocess.CompletedProcess[str]:
    command = ["kubectl", f"--request-timeout={wait_s}s", *words]
    as_text: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "check": False}
    try:
        return subprocess.run(command, env=dict(environ), input=text, timeout=2 * wait_s, **as_text)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {2 * wait_s} s")
    except OSError as problem:
        return subprocess.CompletedProcess(command, 1, "", f"kubectl cannot be run: {problem.strerror}")
