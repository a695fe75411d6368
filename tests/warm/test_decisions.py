"""What makes a start cold, each with a case that does not; the pieces that need no torchrun."""

import os
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddplaunch.agent import protocol
from ddplaunch.agent.rank_site import sitecustomize, taking_part
from ddplaunch.agent.warm import why_cold
from ddplaunch.agent.warm.requests import Request
from ddplaunch.agent.warm.spares import WarmProcess, first_path
from ddplaunch.agent.warm.why_cold import why_no_fork, why_not_forked
from tests.agent.guarded import PATIENCE_S
from tests.warm.programs import ROOT

ENVIRON = {"OMP_NUM_THREADS": "1"}
AS_MODULE = ["-u", "-m", "torch.distributed.run"]
#: One of each library.
READ_AT_LOAD = ["GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OPENBLAS_NUM_THREADS", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX"]
READ_AT_LOAD += ["GLIBC_TUNABLES", "PYTHONHASHSEED"]


@pytest.mark.parametrize(
    ("words", "gpus", "modules", "reason"),
    [
        (AS_MODULE, (), {}, None),
        (AS_MODULE[1:], (), {}, "was not started as"),
        (AS_MODULE, ("/dev/nvidiactl",), {}, "/dev/nvidiactl is in use"),
        (AS_MODULE, (), {"usercustomize": "/home/me/user.py"}, "/home/me/user.py is run by each interpreter"),
        (AS_MODULE, (), {"sitecustomize": "/home/me/site.py"}, "/home/me/site.py is run by each interpreter"),
        (AS_MODULE, (), {"sitecustomize": f"{sysconfig.get_path('stdlib')}/sitecustomize.py"}, None),  # Debian's
        (AS_MODULE, (), {"sitecustomize": sitecustomize.__file__}, None),
    ],
)
def test_what_a_process_that_is_forked_must_be_like(
    words: list[str],
    gpus: tuple[str, ...],
    modules: dict[str, str],
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", *words])
    monkeypatch.setattr(why_cold, "gpu_devices", lambda _: gpus)
    monkeypatch.setattr(why_cold, "POPEN", SimpleNamespace(is_known=lambda: True))  # else it imports torch
    for name, file in modules.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__file__=file))
    found = why_no_fork()
    assert found is None if reason is None else found is not None and reason in found and "\n" not in found
    for follows in ("gettrace", "getprofile"):
        with monkeypatch.context() as followed:
            followed.setattr(sys, follows, lambda: print)
            assert why_no_fork() is not None and (found or "debugger" in str(why_no_fork()))
    monkeypatch.setattr(why_cold, "POPEN", SimpleNamespace(is_known=lambda: False))
    assert why_no_fork() == "this torch starts its ranks in a way unknown to ddplaunch"


@pytest.mark.parametrize(
    ("args", "environ", "reason"),
    [
        (("python", "-u", "train.py", "--x"), {**ENVIRON, "RANK": "0", "CUDA_VISIBLE_DEVICES": "1"}, None),
        (("python", "-u", "-m", "package.train"), ENVIRON, None),
        (("other", "-u", "train.py"), ENVIRON, "`other` is not the interpreter"),
        (("python", "-u", "-c", "pass"), ENVIRON, "not the interpreter"),
        (("python", "-u", "train.py"), {**ENVIRON, "OMP_NUM_THREADS": "4"}, "OMP_NUM_THREADS was set"),
        (("python", "-u", "train.py"), {**ENVIRON, "PYTHONPATH": "a", "MKL_NUM_THREADS": "2"}, "MKL_NUM_THREADS was"),
        (("python", "-u", "train.py"), {}, "OMP_NUM_THREADS was set"),
        # ddplaunch's own
        (("python", "-u", "train.py"), {**ENVIRON, **taking_part({}), "PYTHONBREAKPOINT": "0"}, None),
        (("python", "train.py", "-u"), ENVIRON, "not the interpreter"),
        (("python", "-u"), ENVIRON, "not the interpreter"),
        (("python", "-u", "-m"), ENVIRON, "not the interpreter"),
        *((("python", "-u", "train.py"), {**ENVIRON, name: "1"}, f"{name} was set") for name in READ_AT_LOAD),
    ],
)
def test_what_a_rank_that_is_forked_must_be_like(
    args: tuple[str, ...], environ: dict[str, str], reason: str | None
) -> None:
    found = why_not_forked(Request(args, environ), "python", {"OMP_NUM_THREADS": "1"})
    assert found is None if reason is None else found is not None and reason in found


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"])
@pytest.mark.parametrize(
    ("value", "cpus", "cold"),
    [("close", (0,), True), ("False", (0,), False), ("", (0,), False), ("close", None, False)],
)
def test_threads_that_openmp_has_bound_stay_where_torch_was_loaded(
    name: str, value: str, cpus: tuple[int, ...] | None, cold: bool
) -> None:
    request = Request(("python", "-u", "train.py"), {**ENVIRON, name: value}, cpus)
    found = why_not_forked(request, "python", request.environ)
    assert found is None if not cold else found is not None and f"{name} is set" in found


def test_the_environment_that_was_loaded_with_is_that_of_the_start() -> None:
    shows = "from ddplaunch.agent.warm.why_cold import environ_at_load as at_load; import os; os.environ['A'] = '2'\n"
    words = [sys.executable, "-c", f"{shows}print(at_load().get('A'), at_load().get('PYTHONPATH'))"]
    environ = {**taking_part({"PYTHONPATH": str(ROOT)}), "A": "1"}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == f"1 {ROOT}\n", done.stderr


def test_messages_arrive_whole_with_their_descriptors(tmp_path: Path) -> None:
    here, there = socket.socketpair(type=socket.SOCK_SEQPACKET)
    request = Request(["python", "-u", "\udcff.py"], {"LARGE": "x" * 3_000_000, "ODD": "\udcfe"}, [0, 1])
    with (tmp_path / "file").open("w") as file:
        pid = os.fork()
        if pid == 0:
            protocol.send(here, {"op": "become", "rank": vars(request)}, [file.fileno()])
            os._exit(0)
        here.close()
        message, (descriptor,) = protocol.receive(there)
    os.waitpid(pid, 0)
    assert message is not None and Request(**message["rank"]) == request
    os.write(descriptor, b"through")
    os.close(descriptor)
    assert (tmp_path / "file").read_text() == "through"
    assert protocol.receive(there) == (None, []), "the other side is gone"
    there.close()


def test_what_leads_the_path_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert first_path(["run", "--nproc-per-node=2", "--", "a/train.py", "--", "--module"]) == str(tmp_path / "a")
    assert first_path(["run", "--module", "--", "package.train"]) == str(tmp_path)
    assert first_path(["run", "train.py"]) is None


def test_a_process_answers_as_popen_does() -> None:
    process = WarmProcess(["sleep"], subprocess.Popen(["sleep", "60"]).pid)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.terminate()
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    assert process.poll() == -signal.SIGTERM
    process.kill()  # long gone, and no error
    assert WarmProcess(["false"], subprocess.Popen(["false"]).pid).wait() == 1


LEAVES = """
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


def test_a_fork_ends_with_all_that_is_its_own_and_leaves_out_what_was_there_before() -> None:
    words = [sys.executable, "-ISuc", f"import sys; sys.path.append({str(ROOT)!r})\n{LEAVES}"]
    done = subprocess.run(words, env={}, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 7, done.stderr
    assert sorted(line.strip() for line in done.stdout.splitlines()) == ["C handler", "atexit", "buffered"]
