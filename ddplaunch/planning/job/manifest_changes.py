"""Changes of a manifest by hand: a file that is merged into it, and single values at a path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ddplaunch.planning.job.submission import impossible_value

_STEP = re.compile(r"\[([^\]]+)\]|((?:[^.\[\\]|\\.)+)|\.")
_LISTED_BY = ("name", "mountPath", "key")


def change(manifest: dict[str, Any], files: Sequence[str], settings: Sequence[str]) -> None:
    """Merge what the files hold into the manifest, then set single values; raises UsageError for what is neither."""
    kind = manifest["kind"]
    for file in files:
        for roots, value in _patches(manifest, _read_patch(file)):
            for root in roots:
                _merge(root, value)
    for text in settings:
        _set(manifest, text)
    metadata, containers = manifest.get("metadata"), [pod["containers"][:1] for pod in pods_in(manifest)]
    whole = (
        isinstance(metadata, dict) and isinstance(metadata.get("name"), str) and isinstance(manifest.get("spec"), dict)
    )
    if not whole or manifest.get("kind") != kind or not all(each and isinstance(each[0], dict) for each in containers):
        text = next(iter([*settings, *files]))
        raise impossible_value("set" if settings else "patch", text, "the rest is no job any more", "pod.hostIPC=true")


def pods_in(manifest: Any) -> list[dict[str, Any]]:
    """Return the specifications of pods in a manifest, or what of them it changes: whatever has containers."""
    if isinstance(manifest, list):
        return [pod for each in manifest for pod in pods_in(each)]
    if not isinstance(manifest, dict):
        return []
    if isinstance(manifest.get("containers"), list):
        return [manifest]
    return [pod for each in manifest.values() for pod in pods_in(each)]


def _read_patch(file: str) -> dict[str, Any]:
    """Return what a file of YAML or JSON says of the manifest. Raises UsageError where it is neither."""
    import yaml

    try:
        value = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is neither YAML nor JSON"
        raise impossible_value("patch", file, f"it cannot be read: {reason}", "patch.yaml") from error
    if not isinstance(value, dict) or not _is_json(value):
        raise impossible_value("patch", file, "it holds a part of the manifest: names with values", "patch.yaml")
    return value


def _is_json(value: Any) -> bool:
    try:
        return bool(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):  # YAML knows dates
        return False


def _patches(manifest: dict[str, Any], patch: dict[str, Any]) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Yield where the parts of a patch belong; ``pod`` and ``container`` mean those of every node."""
    for head, value in patch.items():
        if head not in ("pod", "container") or not isinstance(value, dict):
            yield [manifest], {head: value}
            continue
        for name, inner in value.items():
            roots, name = _roots(manifest, head, name)
            yield roots, {name: inner}


def _roots(manifest: dict[str, Any], head: str, name: str) -> tuple[list[dict[str, Any]], str]:
    """Return where the field ``name`` of all pods, or of their training container, stands, and what it is called."""
    trainer = manifest["spec"].get("trainer") if isinstance(manifest.get("spec"), dict) else None
    if head == "container" and isinstance(trainer, dict) and name in ("image", "command", "args", "env", "resources"):
        return [trainer], "resourcesPerNode" if name == "resources" else name
    pods = pods_in(manifest)
    return [
        each for pod in pods for each in pod["containers"][:1] if isinstance(each, dict)
    ] if head == "container" else pods, name


def _merge(target: dict[str, Any], patch: Mapping[str, Any]) -> None:
    """Merge as `kubectl patch` does: null removes, objects of a list are told apart by their names, others replace."""
    for name, value in patch.items():
        old = target.get(name)
        if value is None:
            target.pop(name, None)
        elif isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value)
        elif isinstance(old, list) and isinstance(value, list) and (key := _key_of([*old, *value])):
            for each in value:
                same = next((entry for entry in old if entry[key] == each[key]), None)
                if same is None:
                    old.append(each)
                else:
                    _merge(same, each)
        else:
            target[name] = json.loads(json.dumps(value))  # two pods share no value


def _key_of(entries: Sequence[Any]) -> str | None:
    return next((key for key in _LISTED_BY if all(isinstance(each, dict) and key in each for each in entries)), None)


def _set(manifest: dict[str, Any], text: str) -> None:
    """Set one value, as in ``spec.replicatedJobs[name=node].replicas=2`` or ``pod.priorityClassName=high``.

    Raises UsageError where the path or the value cannot be read, or the path leads through something else.
    """
    import yaml

    path, value = _split_setting(text)
    steps = [
        (match[1] or "", re.sub(r"\\(.)", r"\1", match[2] or "")) for match in _STEP.finditer(path) if match[0] != "."
    ]
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        parsed = value
    if not steps or not _is_json(parsed) or steps[0][0]:
        raise impossible_value(
            "set", text, "it is a path in the manifest, `=`, and a value", "pod.priorityClassName=high"
        )
    roots: list[Any] = [manifest]
    if steps[0][1] in ("pod", "container") and len(steps) > 1:
        roots, name = _roots(manifest, steps[0][1], steps[1][1])
        steps = [("", name), *steps[2:]]
    for root in roots:
        place = root
        for step, following in pairwise(steps):
            place = _entered(place, step, [] if following[0] else {}, text)
        last = json.loads(json.dumps(parsed))
        if isinstance(place, dict) and not steps[-1][0]:
            place[steps[-1][1]] = last
        else:
            _entered(place, steps[-1], last, text, replace=True)


def _split_setting(text: str) -> tuple[str, str]:
    """Return path and value; the ``=`` in ``[name=node]`` is none between them."""
    match = re.match(r"((?:\[[^\]]*\]|\\.|[^=\[])+)=(.*)\Z", text, re.DOTALL)
    return (match[1], match[2]) if match else ("", "")


def _entered(place: Any, step: tuple[str, str], new: Any, text: str, replace: bool = False) -> Any:
    """Return what ``step`` leads to, made where there is nothing: a field, or ``[0]``, ``[+]``, ``[name=node]``."""
    listed, name = step
    if not listed and isinstance(place, dict):
        return place.setdefault(name, new)
    key, _, value = listed.partition("=")
    if listed and isinstance(place, list):
        at = len(place) if listed == "+" else int(listed) if listed.isdecimal() else None
        if at is None and value:
            found = (i for i, each in enumerate(place) if isinstance(each, dict) and each.get(key) == value)
            at = next(found, len(place))
            new = new if replace or not isinstance(new, dict) else {key: value, **new}
        if at is not None and at <= len(place):
            if at == len(place):
                place.append(new)
            elif replace:
                place[at] = new
            return place[at]
    shown = f"[{listed}]" if listed else name
    raise impossible_value("set", text, f"`{shown}` is not there in the manifest", "pod.priorityClassName=high")
