"""This interpreter and the torchrun that PATH would find; refuses to run either."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ddplaunch.probes.facts import PythonFacts


def probe_python(environ: Mapping[str, str]) -> PythonFacts:
    """Return the interpreter's path and version and whose torchrun comes first on PATH."""
    torchrun = _on_path("torchrun", environ)
    return PythonFacts(
        executable=sys.executable,
        version=".".join(str(part) for part in sys.version_info[:3]),
        torchrun_on_path=torchrun,
        torchrun_python=_shebang(torchrun, environ) if torchrun else None,
    )


def _on_path(program: str, environ: Mapping[str, str]) -> str | None:
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        candidate = f"{folder or '.'}/{program}"
        if Path(candidate).is_file() and os.access(candidate, os.X_OK):
            return candidate
    return None


def _shebang(script: str, environ: Mapping[str, str]) -> str | None:
    """Return the interpreter that runs ``script``; None for a binary or a shell wrapper.

    Installers write ``#!/bin/sh`` and an exec line where the interpreter's path is too long for the kernel or
    has a blank (distlib's "simple launcher").
    """
    try:
        with open(script, "rb") as file:
            head = os.fsdecode(file.read(4096)).splitlines()
    except OSError:
        return None
    if not head or not head[0].startswith("#!"):
        return None
    words = head[0][2:].split()
    if words and Path(words[0]).name == "env":
        names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return _on_path(names[0], environ) if names else None
    if words and Path(words[0]).name == "sh":
        return _exec_line(head[1]) if len(head) > 1 else None
    return words[0] if words else None


def _exec_line(line: str) -> str | None:
    """Return PATH of distlib's second line, `'''exec' "PATH" "$0" "$@"`, with or without the quotes."""
    if not line.startswith("'''exec' "):
        return None
    rest = line[len("'''exec' ") :].lstrip()
    if rest.startswith('"'):
        return rest[1:].partition('"')[0] or None
    return rest.split(" ")[0] or None
