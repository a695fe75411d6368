import inspect
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddplaunch.agent.torch_patches import Pause, method_name
from tests.hosts.launching import clean_environment

LONG_S = 300.0  # no test waits for it
WAITED_S = 2.0


def child() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def end(process: subprocess.Popen[bytes]) -> None:
    process.communicate(b"\n", timeout=60)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_pause_is_over_when_the_last_rank_has_ended() -> None:
    ranks = [child(), child()]
    pause = Pause()
    pause.watch(rank.pid for rank in ranks)
    end(ranks[0])
    began = time.monotonic()
    pause.sleep(0.2)
    assert time.monotonic() - began >= 0.2, "it was cut short although a rank runs"
    assert ranks[1].stdin is not None
    ranks[1].stdin.write(b"\n")
    ranks[1].stdin.close()
    pause.sleep(LONG_S)
    assert ranks[1].wait(timeout=60) == 0
    assert time.monotonic() - began < LONG_S


def test_nothing_spins_when_no_rank_runs() -> None:
    rank = child()
    pause = Pause()
    pause.watch([rank.pid])
    end(rank)
    pause.sleep(LONG_S)
    for unwatched in (pause, Pause()):
        began = time.monotonic()
        unwatched.sleep(0.1)
        assert time.monotonic() - began >= 0.1


def test_a_restart_is_watched_anew() -> None:
    first, second = child(), child()
    before = descriptors()
    pause = Pause()
    pause.watch([first.pid])
    pause.watch([second.pid])
    assert descriptors() == before + 1
    end(first)
    began = time.monotonic()
    pause.sleep(0.1)
    assert time.monotonic() - began >= 0.1
    end(second)
    pause.sleep(LONG_S)
    assert descriptors() <= before


def test_a_process_that_cannot_be_watched_leaves_pauses_as_they_are() -> None:
    pause = Pause()
    pause.watch([2**30])
    began = time.monotonic()
    pause.sleep(0.1)
    assert time.monotonic() - began >= 0.1


def test_methods_are_named_as_torch_names_them() -> None:
    def of_torch(depth: int = 2) -> str | None:
        return inspect.stack()[depth].function if len(inspect.stack()) > depth else None

    def record() -> tuple[str | None, str | None]:
        return method_name(), of_torch()

    def next_rendezvous() -> tuple[str | None, str | None]:
        return record()

    assert next_rendezvous() == ("next_rendezvous", "next_rendezvous")
    assert method_name(10_000) is None


SCRIPT = f"""
import os, pathlib, time

def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

agent = os.getppid()
tasks = pathlib.Path(f"/proc/{{agent}}/task").iterdir()
beside = {{int(word) for task in tasks for word in (task / "children").read_text().split()}} - {{os.getpid()}}
assert beside, "no guard"
before = {{pid: cpu_s(pid) for pid in (agent, *beside)}}
time.sleep({WAITED_S})
print(max(cpu_s(pid) - earlier for pid, earlier in before.items()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["cold", "warm"])
def test_a_launch_ends_with_its_rank_and_waits_without_work(start: str, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "ddplaunch", "run", "1", "--start", start]
    done = subprocess.run(
        [*command, f"--torchrun-arg=--monitor-interval={LONG_S:.0f}", "--", "s.py"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LONG_S / 2,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < WAITED_S / 10, (
        "torchrun's process, the guard, or the template is busy while a rank runs"
    )
