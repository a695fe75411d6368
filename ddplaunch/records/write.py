"""``run.json``, the record that a launch leaves: what was typed, decided and found. A launch goes on without it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddplaunch import __version__
from ddplaunch.launch.launch import Launch, Variable
from ddplaunch.machine.environ import redact
from ddplaunch.machine.facts import Facts
from ddplaunch.records.directory import run_directory
from ddplaunch.records.json_files import replace_file
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Unavailable

SCHEMA = 1
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def write_record(
    launch: Launch,
    argv: Sequence[str],
    environment: Mapping[str, str],
    facts: Facts,
    findings: Sequence[Finding],
    base: Path,
    relaunch_of: str | None = None,
) -> Path | str:
    """Write ``runs/<run-id>/run.json`` under ``base`` and return the run's directory, or the reason why not.

    ``argv`` is the command as typed, ``environment`` what torchrun gets, ``relaunch_of`` the id of the run that failed
    before this one. Never raises. Only the owner can read the file, since command lines and paths say more than a group
    needs to know. Nodes beyond the first write ``node-K/run.json``: all nodes may share the run's directory.
    """
    try:
        directory = run_directory(base, launch.run_id)
        record = _record(launch, argv, environment, facts, findings)
        text = _lines(record if relaunch_of is None else {**record, "relaunch_of": relaunch_of})
        _own(base)
        rank = launch.topology.node_rank
        holder = directory if rank is None or rank.value == 0 else directory / f"node-{rank.value}"
        holder.mkdir(parents=True, exist_ok=True)
        replace_file(holder / "run.json", text)
    except OSError as error:
        return f"{error.strerror or error}: {error.filename or base}"
    except Exception as error:  # a record is worth less than the training that it is about
        return f"{type(error).__name__}: {error}"
    _point_latest(base, launch.run_id)
    return directory


def _lines(record: Mapping[str, Any]) -> str:
    """Return JSON with one line for each key; with ``indent`` json would do without its encoder in C (5 ms, not 1)."""
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
        "argv": hide_secrets(argv),
        "torchrun_argv": hide_secrets(launch.argv),
        "plan": _plan(launch),
        "environment": {name: redact(name, environment[name]) for name in sorted(environment)},
        "findings": plain(findings),
        "versions": {
            "ddplaunch": __version__,
            "python": sys.version.split()[0],
            "torch": None if isinstance(facts.torch, Unavailable) else facts.torch.version,
        },
        "host": host,
    }


def _plan(launch: Launch) -> dict[str, Any]:
    """Every decided value with its source; the options are left out, because what became of them is here."""
    numbers = {key: value for key, value in plain(launch.numbers).items() if value is not None}
    target = plain(launch.target)
    if launch.target is not None:
        target["args"] = hide_secrets(launch.target.args)
    return {
        "target": target,
        "topology": plain(launch.topology),
        "device": plain(launch.device),
        "gpus": plain(launch.gpus),
        "numbers": numbers,
        "passed": plain(launch.passed),
        "environment": [_variable(variable) for variable in launch.environment],
    }


def _variable(variable: Variable) -> dict[str, Any]:
    shown = None if variable.value is None else redact(variable.name, variable.value)
    return {**plain(variable), "value": shown}


def hide_secrets(argv: Sequence[str]) -> list[str]:
    """Return ``argv`` with the values in ``--env NAME=VALUE`` and ``--token=VALUE`` hidden where names look secret."""
    hidden: list[str] = []
    option = ""  # the one whose value may come next
    for word in argv:
        name, equals, value = word.partition("=")
        if name == "--env" and equals:
            inner, again, value = value.partition("=")
            hidden.append(f"--env={inner}{again}{redact(inner, value)}" if again else word)
        elif equals:
            hidden.append(f"{name}={redact(_variable_name(name), value)}")
        elif option and not word.startswith("-") and not word.replace(".", "").isdecimal():  # not --max-tokens 512
            hidden.append(redact(_variable_name(option), word))
        else:
            hidden.append(word)
        option = word if word.startswith("--") and not equals else ""
    return hidden


def _variable_name(option: str) -> str:
    return option.lstrip("-").replace("-", "_").upper()


def _own(base: Path) -> None:
    """Create ``base`` and keep git away from it; a directory that the user already had is left as it is."""
    try:
        base.mkdir(parents=True)
    except FileExistsError:
        if base.name != ".ddplaunch":
            return
    ignore = base / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")


def _point_latest(base: Path, run_id: str) -> None:
    """Move the ``latest`` link to this run; the record counts without it, so failing is silent."""
    latest, draft = base / "latest", base / f".latest.{run_id}.{os.getpid()}"
    try:
        if latest.exists() and not latest.is_symlink():
            return  # not ours
        draft.symlink_to(Path("runs") / run_id)
        draft.replace(latest)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def git_commit(cwd: Path) -> str | None:
    """Return the commit of the work tree around ``cwd``, or None. Changes that are not committed are not looked for.

    It is read from git's files, because starting git would cost milliseconds. The layout is https://git-scm.com/docs/gitrepository-layout.
    """
    try:
        git = _git_directory(cwd)
        if git is None:
            return None
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head if _HASH.fullmatch(head) else None
        return _reference(git, head[len("ref: ") :])
    except (OSError, UnicodeDecodeError):
        return None


def _git_directory(cwd: Path) -> Path | None:
    for directory in (cwd, *cwd.parents):
        git = directory / ".git"
        if git.is_dir():
            return git
        if git.is_file():  # a linked work tree or a submodule
            text = git.read_text().strip()
            return directory / text[len("gitdir: ") :] if text.startswith("gitdir: ") else None
    return None


def _reference(git: Path, name: str) -> str | None:
    """Look a branch up in ``git``, in what it shares with other work trees, and among the packed ones."""
    common_file = git / "commondir"
    common = git / common_file.read_text().strip() if common_file.is_file() else git
    for root in (git, common):
        if (root / name).is_file():
            text = (root / name).read_text().strip()
            return text if _HASH.fullmatch(text) else None
    packed = common / "packed-refs"
    for line in packed.read_text().splitlines() if packed.is_file() else ():
        commit, _, reference = line.partition(" ")
        if reference == name:
            return commit
    return None
