import subprocess
import sys

import pytest

from tests.warm.launching import ROOT

PROGRAM = """
import atexit, ctypes, os, sys
from ddplaunch.agent.warm.fresh import leave_libraries_alone

def at_c_exit(text): libc.__cxa_atexit(libc.puts, ctypes.c_void_p(libc.strdup(text)), None)
libc = ctypes.CDLL(None)
libc.strdup.restype = ctypes.c_void_p
at_c_exit(b"library's destructor")
leave_libraries_alone(os.environ)
atexit.register(print, "atexit")
at_c_exit(b"C handler")
libc.printf(b"buffered\\n")
if os.fork():
    status = os.waitstatus_to_exitcode(os.wait()[1])
    os._exit(status)
sys.exit(7)
"""


def ended(**environ: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-ISuc", f"import sys; sys.path.append({str(ROOT)!r})\n{PROGRAM}"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 7, done.stderr
    return sorted(line.strip() for line in done.stdout.splitlines())


def test_a_fork_ends_with_all_that_is_its_own_and_leaves_out_what_was_there_before() -> None:
    assert ended() == ["C handler", "atexit", "buffered"]


@pytest.mark.parametrize("tool", ["LD_AUDIT", "LLVM_PROFILE_FILE"])
def test_a_tool_that_writes_at_the_end_gets_the_whole_end(tool: str) -> None:
    assert "library's destructor" in ended(**{tool: "/nonexistent"})
