"""Asks py-spy, where it is installed and may look, for the stacks of a process; refuses to ask for more rights.

https://github.com/benfred/py-spy: it reads another process's memory, for which Linux wants the rights of a debugger
(PTRACE_MODE_ATTACH in ptrace(2)): root, or a parent's, or CAP_SYS_PTRACE in a container.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ddplaunch.values import Unavailable

_DEADLINE_S = 10.0


def find_py_spy() -> str | None:
    """Return py-spy's program: in PATH, or beside the interpreter, where pip puts it."""
    beside = Path(sys.executable).parent / "py-spy"
    return shutil.which("py-spy") or (str(beside) if os.access(beside, os.X_OK) else None)


def dump(program: str, pid: int) -> str | Unavailable:
    """Return what `py-spy dump --json` prints of ``pid``, or why it does not; the process pauses for a moment."""
    try:
        done = subprocess.run(
            [program, "dump", "--json", "--pid", str(pid)],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Unavailable(f"py-spy took more than {_DEADLINE_S:.0f} s")
    except OSError as error:
        return Unavailable(f"py-spy cannot be run: {error.strerror}")
    if done.returncode == 0:
        return done.stdout
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if any("permission" in line.lower() for line in said):
        return Unavailable("py-spy may not look into the process (no right to trace it)")
    return Unavailable(f"py-spy: {said[0].removeprefix('Error: ') if said else f'exit status {done.returncode}'}")
