"""``run.json``, a launch's record of what was typed, decided and found. A launch goes on if it cannot be written."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddplaunch import __version__
from ddplaunch.machine.facts import Facts
from ddplaunch.machine.files import read_plain
from ddplaunch.planning.launch import Launch, Variable
from ddplaunch.records.directory import run_directory
from ddplaunch.records.json_files import replace_file
from ddplaunch.records.own.own_files import closing, open_base, open_file
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.secrets import hide_json, hide_value, hide_words, recorded_value

SCHEMA = 1
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def write_record(
    launch: Launch,
    argv: Sequence[str],
    environment: Mapping[str, str],
    facts: Facts,
    findings: Sequence[Finding],
    base: Path,
    code: Sequence[tuple[str, str]] = (),
    token: str = "",
) -> Path | str:
    """Write ``runs/<run-id>/run.json`` under ``base`` and return the run's directory, or why that failed. Never raises.

    ``argv`` is the command as typed, ``environment`` is torchrun's, ``code`` has the script's files with their digests,
    ``token`` is the launch's (``LAUNCH``). Only the owner can read the file, since command lines and paths say more
    than a group needs to know. Nodes after the first write ``node-K/run.json``, because all nodes may share the run's
    directory.
    """
    try:
        directory = run_directory(base, launch.run_id)
        rank = launch.topology.node_rank
        # Nodes that are numbered by torchrun share one run.json.
        one_writer = rank is not None or launch.topology.nnodes.value == 1
        record = {**_record(launch, argv, environment, facts, findings), "code": dict(code)}
        record["launch"] = token if one_writer else ""
        _own(base)
        holder = directory if rank is None or rank.value == 0 else directory / f"node-{rank.value}"
        replace_file(holder / "run.json", _lines(record))
    except OSError as error:
        return f"{error.strerror or error}: {error.filename or base}"
    except Exception as error:  # a record is worth less than the training it describes
        return f"{type(error).__name__}: {error}"
    _point_latest(base, launch.run_id)
    return directory


def _lines(record: Mapping[str, Any]) -> str:
    """Return JSON with one line per key; ``indent`` would not use json's C encoder (5 ms instead of 1)."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()) + "\n}\n"


def _record(
    launch: Launch, argv: Sequence[str], environment: Mapping[str, str], facts: Facts, findings: Sequence[Finding]
) -> dict[str, Any]:
    host = {key: value for key, value in plain(facts).items() if key != "environment"}
    if not isinstance(facts.torch, Unavailable):
        del host["torch"]["torchrun_flags"]  # a long list that follows from the version
    cwd = Path.cwd()
    return {
        "schema": SCHEMA,
        "run_id": launch.run_id,
        "created_s": round(time.time(), 3),
        "cwd": str(cwd),
        "git_commit": git_commit(cwd),
        "argv": hide_words(argv),
        "torchrun_argv": hide_words(launch.argv),
        "plan": _plan(launch),
        "environment": {name: recorded_value(name, environment[name]) for name in sorted(environment)},
        "findings": hide_json(plain(findings)),
        "versions": {
            "ddplaunch": __version__,
            "python": sys.version.split()[0],
            "torch": None if isinstance(facts.torch, Unavailable) else facts.torch.version,
        },
        "host": hide_json(host),
    }


def _plan(launch: Launch) -> dict[str, Any]:
    """Return every decided value with its source; without the options, because their results are here."""
    names = ("target", "topology", "device", "gpus", "numbers", "passed", "missing", "receives")
    plan = {name: plain(getattr(launch, name)) for name in names}
    plan["numbers"] = {key: value for key, value in plan["numbers"].items() if value is not None}
    if launch.target is not None:
        plan["target"]["args"] = hide_words(launch.target.args)
    return {**plan, "environment": [_variable(variable) for variable in launch.environment]}


def _variable(variable: Variable) -> dict[str, Any]:
    return {**plain(variable), "value": variable.value and hide_value(variable.name, variable.value)}


def _own(base: Path) -> None:
    """Create ``base`` with a .gitignore for everything in it; leave a custom directory that already exists as it is."""
    elsewhere = base.name != ".ddplaunch" and os.path.lexists(base)
    with closing(open_base(base, create=True)) as folder:
        if not elsewhere:
            with contextlib.suppress(OSError):  # it exists, or cannot be written: go on with the record
                descriptor = open_file(folder, ".gitignore", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                with closing(descriptor):
                    os.write(descriptor, b"*\n")


def _point_latest(base: Path, run_id: str) -> None:
    """Point the ``latest`` link to this run; failures are ignored, because the record does not need it."""
    latest, draft = "latest", f".latest.{run_id}.{os.getpid()}"
    with contextlib.suppress(OSError), closing(open_base(base)) as folder:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISLNK(os.stat(latest, dir_fd=folder, follow_symlinks=False).st_mode):
                return  # not ours
        os.symlink(f"runs/{run_id}", draft, dir_fd=folder)
        try:
            os.replace(draft, latest, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(draft, dir_fd=folder)


def git_commit(cwd: Path) -> str | None:
    """Return the commit of the work tree around ``cwd``, or None. Uncommitted changes are not looked for.

    It is read from git's files (https://git-scm.com/docs/gitrepository-layout), because starting git takes
    milliseconds.
    """
    try:
        git = _git_directory(cwd)
        if git is None:
            return None
        head = _text(git / "HEAD")
        if not head.startswith("ref: "):
            return head if _HASH.fullmatch(head) else None
        return _reference(git, head[len("ref: ") :])
    except (OSError, UnicodeDecodeError):
        return None


def _text(path: Path) -> str:
    return read_plain(path, 1 << 24).decode().strip()


def _git_directory(cwd: Path) -> Path | None:
    for directory in (cwd, *cwd.parents):
        git = directory / ".git"
        if git.is_dir():
            return git
        if git.is_file():  # a linked work tree or a submodule
            text = _text(git)
            return directory / text[len("gitdir: ") :] if text.startswith("gitdir: ") else None
    return None


def _reference(git: Path, name: str) -> str | None:
    """Return the commit of a branch from ``git``, the folder shared with other work trees, or the packed references."""
    common_file = git / "commondir"
    common = git / _text(common_file) if common_file.is_file() else git
    for root in (git, common):
        if (root / name).is_file():
            text = _text(root / name)
            return text if _HASH.fullmatch(text) else None
    packed = common / "packed-refs"
    for line in _text(packed).splitlines() if packed.is_file() else ():
        commit, _, reference = line.partition(" ")
        if reference == name:
            return commit
    return None
