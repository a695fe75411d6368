"""Which git commit a directory is at, read from git's files; refuses to start git, which would cost milliseconds."""

from __future__ import annotations

import re
from pathlib import Path

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def git_commit(cwd: Path) -> str | None:
    """Return the commit of the work tree around ``cwd``, or None. Changes that are not committed are not looked for.

    The layout is https://git-scm.com/docs/gitrepository-layout.
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
