import subprocess
import sys

from tests.warm.launching import ROOT

PROGRAM = """
import atexit, ctypes, os, sys
from ddplaunch.agent.warm.fresh import leave_libraries_alone

def at_c_exit(text): libc.__cxa_atexit(libc.puts, ctypes.c_void_p(libc.strdup(text)), None)
libc = ctypes.CDLL(None)
libc.strdup.restype = ctypes.c_void_p
at_c_exit(b"library's destructor")
leave_libraries_alone()
atexit.register(print, "atexit")
at_c_exit(b"C handler")
libc.printf(b"buffered\\n")
if os.fork():
    status = os.waitstatus_to_exitcode(os.wait()[1])
    os._exit(status)
sys.exit(7)
"""


def ended() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-ISuc", f"import sys; sys.path.append({str(ROOT)!r})\n{PROGRAM}"],
        env={},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 7, done.stderr
    return sorted(line.strip() for line in done.stdout.splitlines())


def test_a_fork_ends_with_all_that_is_its_own_and_leaves_out_what_was_there_before() -> None:
    assert ended() == ["C handler", "atexit", "buffered"]
