"""Where the records of runs lie; refuses to create anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def runs_directory(environ: Mapping[str, str], run_dir_option: str | None, cwd: Path) -> Path:
    """Return what holds ``runs/``: ``--run-dir``, else ``DDPLAUNCH_DIR``, else ``.ddplaunch`` in ``cwd``."""
    return cwd / (run_dir_option or environ.get("DDPLAUNCH_DIR") or ".ddplaunch")


def run_directory(base: Path, run_id: str) -> Path:
    """Return the directory of one run.

    Raises ValueError if ``run_id`` is not the name of one directory, so that no name leads outside of ``base``.
    """
    if run_id in ("", ".", "..", "latest") or "/" in run_id or "\0" in run_id:
        raise ValueError(f"the run id {run_id!r} cannot be the name of a directory")
    return base / "runs" / run_id
