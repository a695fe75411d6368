"""A stateful stand-in for a cluster: an API server that refuses what a real one refuses, controllers, and a kubelet.

Objects are held to the published models: those of kubeflow-trainer-api, which is installed, and the fields of older
versions and of the training operator in ``kubernetes_fields.json``. Unknown fields are refused (strict field
validation), as are missing namespaces, whoever has no right, a second object of a name, and changes of a running job.
Its kubelet starts the containers' commands as processes if it has a folder to start them in, or tells the story that a
test gives it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.ports import free_port

RESOURCES = {
    ("trainer.kubeflow.org/v1alpha1", "trainjobs"): "TrainJob",
    ("kubeflow.org/v1", "pytorchjobs"): "PyTorchJob",
    ("jobset.x-k8s.io/v1alpha2", "jobsets"): "JobSet",
}
_PATH = re.compile(
    r"/apis/(?P<version>[^/]+/[^/]+)/namespaces/(?P<namespace>[^/]+)/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?\Z"
)
_PODS = re.compile(r"/api/v1/namespaces/([^/]+)/pods(?:/([^/]+)/log)?\Z")
_DNS = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?\Z")
_IMAGE = re.compile(r"[a-z0-9]+(?:[._/:-][a-z0-9._-]+)*(?:@sha256:[0-9a-f]{64})?\Z")
_IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
FIELDS = json.loads(Path(__file__).with_name("kubernetes_fields.json").read_text())


class Refused(Exception):
    """What the API server answers instead: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            **{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"},
            **{"message": message, "reason": reason, "details": details, "code": code},
        }


@cache
def published() -> Any:
    """Return the installed models; their import takes longer than all else here."""
    from kubeflow_trainer_api import models

    return models


def unknown_fields(model: str, value: dict[str, Any], at: str = "") -> list[str]:
    """Return the fields of ``value`` that an installed model does not know. Raises ValueError for wrong types."""
    kept = getattr(published(), model).from_dict(value).to_dict()
    return list(_lost(value, kept, at))


def _lost(value: Any, kept: Any, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            where = f"{at}.{name}" if at else name
            if not isinstance(kept, dict) or name not in kept:
                yield where
            else:
                yield from _lost(inner, kept[name], where)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _lost(inner, kept[i] if isinstance(kept, list) and i < len(kept) else None, f"{at}[{i}]")


def wrong_fields(fields: dict[str, dict[str, str]], kind: str, value: Any, at: str = "") -> Iterator[str]:
    """Yield what is unknown, missing or of another type in ``value``, by the fields of a version."""
    required = kind.endswith("!")
    kind = kind.rstrip("!")
    if value is None and not required:
        return
    if kind[0] in "[{":
        if not isinstance(value, list if kind[0] == "[" else dict):
            yield f"{at}: a {kind} is wanted"
            return
        for name, inner in enumerate(value) if isinstance(value, list) else value.items():
            yield from wrong_fields(fields, kind[1:-1], inner, f"{at}[{name}]")
    elif kind in fields:
        yield from _wrong_in(fields, fields[kind], value, at)
    elif kind in ("str", "int", "bool"):
        if type(value).__name__ != kind:
            yield f"{at}: Invalid value: {type(value).__name__}, {kind} is wanted"
    elif re.match(r"IoK8s\w+\Z|V1\w+\Z", kind) and isinstance(value, dict):
        model = kind if kind.startswith("Io") else f"IoK8sApiCore{kind}"
        if hasattr(published(), model):
            with suppress_into() as problems:
                yield from (f'unknown field "{each}"' for each in unknown_fields(model, value, at))
            yield from problems


def _wrong_in(fields: dict[str, dict[str, str]], known: dict[str, str], value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: an object is wanted"
        return
    places = {name: f"{at}.{name}" if at else name for name in {*value, *known}}
    yield from (f'unknown field "{places[name]}"' for name in value if name not in known)
    yield from (f"{places[name]}: Required value" for name, of in known.items() if of[-1] == "!" and name not in value)
    for name, inner in value.items():
        yield from wrong_fields(fields, known.get(name, "any"), inner, places[name])


@contextmanager
def suppress_into() -> Iterator[list[str]]:
    problems: list[str] = []
    try:
        yield problems
    except ValueError as error:
        problems.append(" ".join(str(error).split())[:300])


def problems_of(value: dict[str, Any], trainer: str = "2.3") -> list[str]:
    """Return what the published models have against a manifest, as a cluster with this version of the Trainer would."""
    kind = value.get("kind")
    if kind == "PyTorchJob":
        return list(wrong_fields(FIELDS["pytorchjob"], "KubeflowOrgV1PyTorchJob", value))
    if kind == "TrainJob" and trainer != "2.3":
        return list(wrong_fields(FIELDS[trainer], "TrainerV1alpha1TrainJob", value))
    model = {"TrainJob": "TrainerV1alpha1TrainJob", "JobSet": "JobsetV1alpha2JobSet"}[str(kind)]
    with suppress_into() as problems:
        problems += [f'unknown field "{each}"' for each in unknown_fields(model, value)]
    return problems


class Cluster:
    """The cluster. Users are ``may`` who has every right, and ``may-not`` with none; others are unknown."""

    def __init__(self, folder: Path | None = None, namespaces: tuple[str, ...] = ("default", "team")) -> None:
        self.namespaces, self.trainer, self.folder = namespaces, "2.3", folder
        self.images = {"registry/train:1"}
        self.installed = set(RESOURCES)
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, bytes] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.story: Callable[[dict[str, Any]], None] | None = None
        self.asked: list[str] = []
        self.lock = threading.RLock()

    # objects

    def create(self, version: str, plural: str, namespace: str, value: dict[str, Any], strict: bool) -> dict[str, Any]:
        kind = RESOURCES[version, plural]
        name = (value.get("metadata") or {}).get("name", "")
        group = f"{plural}.{version.partition('/')[0]}"
        self._refuse_misplaced(value, kind, version, namespace)
        problems = problems_of(value, self.trainer)
        if (unknown := [each for each in problems if each.startswith("unknown field")]) and strict:
            raise Refused(400, "BadRequest", f"strict decoding error: {', '.join(unknown)}")
        causes = [each for each in problems if not each.startswith("unknown field")]
        if not _DNS.match(name):
            causes.append(f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain is wanted')
        causes += [f"{each}: Required value" for each in _unmounted(value)]
        if causes:
            details = [{"field": each.partition(": ")[0], "message": each.partition(": ")[2]} for each in causes]
            raise Refused(
                422, "Invalid", f'{kind} "{name}" is invalid: {causes[0]}', name=name, kind=kind, causes=details
            )
        if (namespace, kind, name) in self.objects:
            raise Refused(409, "AlreadyExists", f'{group} "{name}" already exists', name=name, kind=plural)
        made = {**value, "metadata": {**value["metadata"], "namespace": namespace, "uid": str(len(self.asked))}}
        if "kueue.x-k8s.io/queue-name" in (made["metadata"].get("labels") or {}):
            place = made["spec"].setdefault("runPolicy", {}) if kind == "PyTorchJob" else made["spec"]
            place["suspend"] = True  # as Kueue's webhook does
        self.objects[namespace, kind, name] = made
        if not made["spec"].get("suspend") and not made["spec"].get("runPolicy", {}).get("suspend"):
            self._make_pods(made)
        return made

    def _refuse_misplaced(self, value: dict[str, Any], kind: str, version: str, namespace: str) -> None:
        if (value.get("kind"), value.get("apiVersion")) != (kind, version):
            raise Refused(400, "BadRequest", "the object provided is unrecognized")
        if namespace not in self.namespaces:
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found', name=namespace, kind="namespaces")
        if (value.get("metadata") or {}).get("namespace", namespace) != namespace:
            raise Refused(400, "BadRequest", "the namespace of the provided object does not match the request")

    def change(self, key: tuple[str, str, str], patch: dict[str, Any]) -> dict[str, Any]:
        old = self.objects[key]
        new: dict[str, Any] = _merged(old, patch)
        if {**new["spec"], "suspend": 0} != {**old["spec"], "suspend": 0}:
            message = f'{key[1]} "{key[2]}" is invalid: spec: Invalid value: field is immutable'
            cause = {"field": "spec", "message": "Invalid value: field is immutable"}
            raise Refused(422, "Invalid", message, name=key[2], kind=key[1], causes=[cause])
        self.objects[key] = new
        return new

    def delete(self, key: tuple[str, str, str]) -> None:
        del self.objects[key]
        for name, pod in list(self.pods.items()):
            if pod["metadata"]["ownerName"] == key[2] and pod["metadata"]["namespace"] == key[0]:
                if process := self.processes.get(name):
                    process.send_signal(signal.SIGTERM)
                else:
                    del self.pods[name]

    # controllers and the kubelet

    def _make_pods(self, job: dict[str, Any]) -> None:
        kind, name = job["kind"], job["metadata"]["name"]
        for number, (pod_name, spec, env) in enumerate(_pods_of(job)):
            label = "training.kubeflow.org/job-name" if kind == "PyTorchJob" else "jobset.sigs.k8s.io/jobset-name"
            metadata = {"name": pod_name, "namespace": job["metadata"]["namespace"], "labels": {label: name}}
            pod = {"metadata": {**metadata, "ownerName": name}, "spec": {**spec, "nodeName": f"gpu-{number}"}}
            self.pods[pod_name] = pod
            self._begin(pod, env)

    def _begin(self, pod: dict[str, Any], env: dict[str, str]) -> None:
        container = pod["spec"]["containers"][0]
        if not _IMAGE.match(container["image"]):
            message = f'Failed to apply default image tag "{container["image"]}": invalid reference format'
            pod["status"] = waiting("InvalidImageName", message)
        elif container["image"] not in self.images:
            pod["status"] = waiting("ImagePullBackOff", f'Back-off pulling image "{container["image"]}"')
        elif self.folder is not None:
            self._start(pod, container, env)
        else:
            pod["status"] = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
        if self.story is not None:
            self.story(pod)

    def _start(self, pod: dict[str, Any], container: dict[str, Any], env: dict[str, str]) -> None:
        assert self.folder is not None
        name = pod["metadata"]["name"]
        words = [re.sub(r"\$\$", "$", word) for word in container["command"]]
        program = [sys.executable, "-m", "ddplaunch", *words[1:]] if words[0] == "ddplaunch" else words
        given = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                program, cwd=self.folder, env={**os.environ, **_IN_A_POD, **env, **given}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        pod["status"] = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}

    def look(self) -> None:
        """Bring the state of pods and jobs up to date with their processes."""
        for name, process in list(self.processes.items()):
            if process.poll() is None or name not in self.pods:
                continue
            pod = self.pods[name]
            owner = next((key for key in self.objects if key[2] == pod["metadata"]["ownerName"]), None)
            if owner is None:
                del self.pods[name], self.processes[name]
            elif pod["status"]["phase"] == "Running":
                code = process.returncode if process.returncode >= 0 else 128 - process.returncode
                pod["status"] = ended(code)
                condition = (
                    "Failed" if code else {"TrainJob": "Complete", "JobSet": "Completed"}.get(owner[1], "Succeeded")
                )
                self.objects[owner]["status"] = {
                    "conditions": [{"type": condition, "status": "True", "reason": "Ended"}]
                }

    def log(self, name: str) -> bytes:
        if self.folder is not None and (self.folder / f"{name}.log").exists():
            return (self.folder / f"{name}.log").read_bytes()
        return self.logs.get(name, b"")

    def end(self) -> None:
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def waiting(reason: str, message: str) -> dict[str, Any]:
    """Return the status of a pod whose container does not start."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"state": state}]}


def ended(code: int, reason: str = "") -> dict[str, Any]:
    """Return the status of a pod whose container has ended."""
    finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    said = {"exitCode": code, "reason": reason or ("Error" if code else "Completed"), "finishedAt": finished}
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"state": {"terminated": said}}]}


def unschedulable(message: str) -> dict[str, Any]:
    """Return the status of a pod that fits no node."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def _pods_of(job: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
    """Yield name, specification and the environment that the controller adds, of every pod of a job."""
    name, spec, port = job["metadata"]["name"], job["spec"], str(free_port())
    if job["kind"] == "PyTorchJob":
        number = 0
        for role, replica in spec["pytorchReplicaSpecs"].items():
            for i in range(replica["replicas"]):
                nodes = sum(each["replicas"] for each in spec["pytorchReplicaSpecs"].values())
                env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PET_NNODES": str(nodes)}
                yield f"{name}-{role.lower()}-{i}", replica["template"]["spec"], {**env, "PET_NODE_RANK": str(number)}
                number += 1
    elif job["kind"] == "JobSet":
        for replicated in spec["replicatedJobs"]:
            of_job = replicated["template"]["spec"]
            for i in range(of_job["completions"]):
                yield f"{name}-{replicated['name']}-0-{i}-x{i}", of_job["template"]["spec"], {"NODE_RANK": str(i)}
    else:
        trainer = spec["trainer"]
        container = {"name": "node", **{each: trainer[each] for each in ("image", "command", "env") if each in trainer}}
        for i in range(trainer["numNodes"]):
            pet = {
                "NNODES": trainer["numNodes"],
                "NPROC_PER_NODE": trainer.get("numProcPerNode", "auto"),
                "NODE_RANK": i,
            }
            env = {f"PET_{key}": str(value) for key, value in pet.items()}
            env |= {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
            yield f"{name}-node-0-{i}-x{i}", {"containers": [container]}, env


def _unmounted(value: Any) -> Iterator[str]:
    """Yield mounts of volumes that the pod does not have."""
    if isinstance(value, dict):
        named = {each.get("name") for each in value.get("volumes") or ()}
        for container in value.get("containers") or ():
            mounts = container.get("volumeMounts") or ()
            yield from (f"volumeMounts.name: {each['name']}" for each in mounts if each["name"] not in named)
        for inner in value.values():
            yield from _unmounted(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _unmounted(inner)


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    new = {**old, **{name: _merged(old.get(name), value) for name, value in patch.items()}}
    return {name: value for name, value in new.items() if value is not None}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def answer(self) -> None:
        body = self._body()
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            with self.cluster.lock:
                self.cluster.asked.append(f"{self.command} {self.path}")
                found = self._answer(url.path, query, body)
            self._send(200, found)
        except Refused as refused:
            self._send(refused.code, refused.status)
        except (BrokenPipeError, ConnectionResetError):
            pass

    do_GET = do_POST = do_DELETE = do_PATCH = answer

    def _answer(self, path: str, query: dict[str, str], body: bytes) -> Any:
        cluster = self.cluster
        user = self.headers.get("Impersonate-User")  # kubectl sends no token without TLS
        if user not in ("may", "may-not"):
            raise Refused(401, "Unauthorized", "Unauthorized")
        cluster.look()
        if pods := _PODS.match(path):
            if pods[2] is not None:
                return self._log(pods[2], query)
            label, _, value = query.get("labelSelector", "").partition("=")
            found = [each for each in cluster.pods.values() if each["metadata"]["labels"].get(label) == value]
            return {
                "kind": "PodList",
                "apiVersion": "v1",
                "items": [p for p in found if p["metadata"]["namespace"] == pods[1]],
            }
        if (discovered := _discovery(path, cluster.installed)) is not None:
            return discovered
        match = _PATH.match(path)
        if match is None or (match["version"], match["plural"]) not in cluster.installed:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        version, plural, namespace = match["version"], match["plural"], match["namespace"]
        group = f"{plural}.{version.partition('/')[0]}"
        verb = {"POST": "create", "GET": "get", "DELETE": "delete", "PATCH": "patch"}[self.command]
        if user == "may-not":
            message = f'{group} is forbidden: User "may-not" cannot {verb} resource "{plural}" in API group '
            raise Refused(403, "Forbidden", f'{message}"{version.partition("/")[0]}" in the namespace "{namespace}"')
        if self.command == "POST":
            return cluster.create(
                version, plural, namespace, json.loads(body), query.get("fieldValidation") == "Strict"
            )
        key = (namespace, RESOURCES[version, plural], match["name"] or "")
        if key not in cluster.objects:
            raise Refused(404, "NotFound", f'{group} "{key[2]}" not found', name=key[2], kind=plural)
        if self.command == "DELETE":
            cluster.delete(key)
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        return cluster.change(key, json.loads(body)) if self.command == "PATCH" else cluster.objects[key]

    def _log(self, name: str, query: dict[str, str]) -> bytes:
        pod = self.cluster.pods.get(name)
        if pod is None:
            raise Refused(404, "NotFound", f'pods "{name}" not found')
        if query["container"] not in [each["name"] for each in pod["spec"]["containers"]]:
            raise Refused(400, "BadRequest", f"container {query['container']} is not valid for pod {name}")
        if pod["status"]["phase"] == "Pending":
            raise Refused(400, "BadRequest", f'container "{query["container"]}" in pod "{name}" is waiting to start')
        if query.get("follow") == "true":
            return b""
        text = self.cluster.log(name)
        if "tailLines" in query:
            text = b"".join(text.splitlines(keepends=True)[-int(query["tailLines"]) :])
        return text

    def _send(self, code: int, value: Any) -> None:
        if isinstance(value, bytes):
            return self._stream(value)
        text = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        return None

    def _stream(self, text: bytes) -> None:
        """Send a log; one that is followed is sent as it grows, until the container ends."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)
        if "follow=true" not in self.path:
            return
        name, sent = self.path.rpartition("/log")[0].rpartition("/")[2], 0
        while True:
            with self.cluster.lock:
                self.cluster.look()
                pod = self.cluster.pods.get(name)
            more = self.cluster.log(name)[sent:]
            self.wfile.write(more)
            self.wfile.flush()
            sent += len(more)
            if not more and (pod is None or pod["status"]["phase"] not in ("Running", "Pending")):
                return
            time.sleep(0.05)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def log_message(self, *_: object) -> None:
        pass


def _discovery(path: str, installed: set[tuple[str, str]]) -> Any:
    """Answer what `kubectl apply` asks before it speaks of an object; None for all else."""
    versions = {version for version, _ in installed}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/api/v1":
        return {"kind": "APIResourceList", "groupVersion": "v1", "resources": []}
    if path == "/apis":
        groups = []
        for version in sorted(versions):
            group, _, number = version.partition("/")
            entry = {"groupVersion": version, "version": number}
            groups.append({"name": group, "versions": [entry], "preferredVersion": entry})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path.removeprefix("/apis/") in versions:
        version = path.removeprefix("/apis/")
        resources = [
            {
                "name": plural,
                "singularName": kind.lower(),
                "namespaced": True,
                "kind": kind,
                "verbs": ["create", "get", "patch"],
            }
            for (each, plural), kind in RESOURCES.items()
            if each == version
        ]
        return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    if path == "/openapi/v3":
        return {"paths": {f"apis/{each}": {"serverRelativeURL": f"/openapi/v3/apis/{each}"} for each in versions}}
    if path.startswith("/openapi/v3/apis/"):
        return _openapi(path.removeprefix("/openapi/v3/apis/"))
    return None


def _openapi(version: str) -> Any:
    """Say that a PATCH takes ``fieldValidation``, which is where kubectl looks before it leaves validation to us."""
    group, _, number = version.partition("/")
    paths = {}
    for (each, plural), kind in RESOURCES.items():
        if each == version:
            meant = {"group": group, "version": number, "kind": kind}
            parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
            operation = {"parameters": [parameter], "responses": {}, "x-kubernetes-group-version-kind": meant}
            paths[f"/apis/{version}/namespaces/{{namespace}}/{plural}/{{name}}"] = {"patch": operation}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1"}, "paths": paths}


@contextmanager
def serving(cluster: Cluster, folder: Path, user: str = "may", namespace: str = "team") -> Iterator[Path]:
    """Serve the cluster, and yield the kubeconfig that leads there."""
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", free_port()), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield kubeconfig(folder / f"{user}.kubeconfig", server.server_port, user, namespace)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        cluster.end()


def kubeconfig(path: Path, port: int, user: str, namespace: str) -> Path:
    """Write a configuration of kubectl."""
    config = {
        **{"apiVersion": "v1", "kind": "Config", "current-context": "lab"},
        "clusters": [{"name": "lab", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": user, "user": {"as": user}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user, "namespace": namespace}}],
    }
    path.write_text(json.dumps(config))
    return path
