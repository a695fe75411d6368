"""Checks of the Python that a launch runs in; refuses to look for torch, which has a family of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from shlex import quote

from ddplaunch.checks.check import Check, declare
from ddplaunch.finding import Finding, warning
from ddplaunch.probes.facts import PythonFacts


def torchrun_of_another_python(python: PythonFacts) -> Iterator[Finding]:
    """The first torchrun on PATH belongs to another Python than ddplaunch.

    ddplaunch runs torchrun in its own interpreter, so its launches are not affected. A `torchrun` typed in the same
    shell uses another environment, with another torch or none. https://github.com/pytorch/pytorch/issues/92132
    Remedy: activate one environment, or `python -m torch.distributed.run`.
    """
    other = python.torchrun_python
    if other is None or not other.startswith("/") or _folder(other) == _folder(python.executable):
        return
    yield warning(
        "torchrun-of-another-python",
        f"`torchrun` on PATH is {python.torchrun_on_path}, which runs {other}, not {python.executable}",
        why="ddplaunch uses its own interpreter; a `torchrun` typed in this shell uses the other one's packages",
        fix=f"`export PATH={quote(str(PurePosixPath(python.executable).parent))}:$PATH`, or "
        f"`{quote(python.executable)} -m torch.distributed.run` instead of `torchrun`",
        where="PATH",
    )


def _folder(executable: str) -> str:
    """Return the directory of an interpreter; /bin is a link to /usr/bin on current distributions."""
    folder = str(PurePosixPath(executable).parent)
    return "/usr/bin" if folder == "/bin" else folder


CHECKS: tuple[Check, ...] = (declare("python_env", torchrun_of_another_python),)
