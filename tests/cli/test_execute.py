"""The last step of a launch: torchrun's environment, what is too long for the kernel, and what is shown."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ddplaunch.cli import execute as launching
from ddplaunch.cli.commands.launch.run import _speaks_elsewhere
from ddplaunch.cli.execute import detach, environment_of, execute, refuse_too_long, show_launch
from ddplaunch.planning.launch import Variable
from ddplaunch.planning.options import Options
from ddplaunch.values.finding import RefusedError
from ddplaunch.values.resolved import DEFAULT, Resolved, Source
from ddplaunch.values.variable_names import LAUNCH, SETTINGS, TYPED
from tests.cli.cli_calls import Call
from tests.planning.sample_launch import FILES, facts, launch

FIRST, SECOND = (Resolved(rank, Source("Slurm", "SLURM_PROCID")) for rank in (0, 1))
LONGEST = 32 * 4096  # MAX_ARG_STRLEN with 4 KiB pages, the null byte included


def test_variables_are_set_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GONE", "KEPT", "SET"):
        monkeypatch.setenv(name, "before")
    ours = (Variable("GONE", None, DEFAULT, ""), Variable("SET", "now", DEFAULT, ""))
    environment = environment_of(launch(environment=ours))
    assert "GONE" not in environment and (environment["KEPT"], environment["SET"]) == ("before", "now")


@pytest.mark.parametrize(
    ("argv", "environment", "named"),
    [
        (["x" * (LONGEST - 1)], {"A": "x" * (LONGEST - 3)}, ""),
        (["short", "x" * LONGEST], {}, "the argument `xxxxxxxxxxxxxxxxxxxx…` has 131072 bytes"),
        ([], {"A": "é" * (LONGEST // 2 - 1)}, "the variable `A` has 131072 bytes"),
    ],
)
def test_what_the_kernel_takes(argv: list[str], environment: dict[str, str], named: str) -> None:
    if not named:
        refuse_too_long(argv, environment)
        return
    with pytest.raises(RefusedError) as refused:
        refuse_too_long(argv, environment)
    assert refused.value.findings[0].what.startswith(named)


@pytest.mark.parametrize(
    ("rank", "silent"), [(None, False), (FIRST, False), (SECOND, True), (replace(SECOND, source=Source("flag")), False)]
)
def test_under_srun_node_0_alone_shows_the_launch(rank: Resolved[int] | None, silent: bool) -> None:
    shown = launch()
    assert _speaks_elsewhere(replace(shown, topology=replace(shown.topology, node_rank=rank))) is silent


LOCK: Any = type("Lock", (), {"told": staticmethod(str)})


@pytest.mark.parametrize(
    ("quiet", "silent", "panel", "finding"),
    [(False, {}, True, True), (True, {"silent": False}, False, True), (False, {"silent": True}, False, False)],
)
def test_what_is_shown(
    capsys: pytest.CaptureFixture[str], quiet: bool, silent: dict[str, bool], panel: bool, finding: bool
) -> None:
    options = Options(quiet=Resolved(quiet, Source("flag")))
    show_launch(launch(options=options), (FILES,), facts(), LOCK, Path("/runs/r"), **silent)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert ("  run " in shown.err, "warning[open-files-low]" in shown.err) == (panel, finding)


@pytest.mark.parametrize("option", ["-P", "-I"])
def test_torchrun_replaces_this_process(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    """Ctrl-C waits where the interpreter reads what lets it end torchrun; with `-I` it does not."""
    blocked: list[Any] = []
    executed: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *words: executed.append(words))
    monkeypatch.setattr(signal, "pthread_sigmask", lambda how, numbers: blocked.append((how, numbers)))
    argv = ("/python", option, "-m", "torch.distributed.run")
    cases: tuple[dict[str, str], ...] = ({}, {SETTINGS: "{}"})
    for given in cases:
        execute(launch(argv=argv), given, "token")
        ((path, words, environment),) = executed
        assert (path, words, environment[LAUNCH]) == ("/python", [*argv], "token")
        assert (TYPED in environment) is (SETTINGS in environment)
        assert ("DDPLAUNCH_INTERRUPTIBLE" in environment) is bool(blocked) is (option == "-P")
        executed.clear()
    assert blocked == [(signal.SIG_BLOCK, {signal.SIGINT})] * 2 * (option == "-P")


def test_a_launch_is_recorded_and_becomes_torchrun_which_keeps_its_locks(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[Any] = []

    def become(path: str, words: list[str], environment: dict[str, str]) -> NoReturn:
        executed.append((words, environment[LAUNCH]))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", become)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    said = call("run", "1", "--device", "cpu", "--run-id", "one", "--", "train.py")
    opened = [int(path.name) for path in Path("/proc/self/fd").iterdir() if "/runs/one/.lock" in os.path.realpath(path)]
    kept = [os.get_inheritable(lock) for lock in opened]
    for lock in opened:
        os.close(lock)
    recorded = json.loads((folder / ".ddplaunch/runs/one/run.json").read_text())
    assert kept == [True, True] and executed == [(recorded["torchrun_argv"], recorded["launch"])]
    assert "  run " in said.err


def test_a_detached_launch_that_ends_before_it_launched_hands_its_status_on() -> None:
    for status in (0, 3, 128 + signal.SIGKILL):
        starter, shown = os.getpid(), detach()
        if os.getpid() != starter:
            os.kill(os.getpid(), signal.SIGKILL) if status > 128 else os._exit(status)
        assert shown == status


def test_a_detached_launch_without_a_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_AWAITED", [-1])
    for noted, problem in (("a full disk", "a full disk"), (Path("/proc/gone"), "No such file")):
        with pytest.raises(RefusedError, match=f"cannot be written: {problem}"):
            show_launch(launch(), (), facts(), LOCK, noted)


def test_a_detached_launch_says_its_id_and_the_rest_into_its_record(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "console.log").write_text("an older one, " * 9)
    pids, fork = [0], os.fork
    monkeypatch.setattr(os, "fork", lambda: pids.insert(0, fork()) or pids[0])  # type: ignore[func-returns-value]
    if (status := detach()) is None:
        try:
            show_launch(launch(), (), facts(), LOCK, tmp_path)
            os.write(1, b"rank")
            os.write(2, b" 0")
        finally:
            os._exit(9)
    said = capfd.readouterr()
    assert (status, said.out) == (0, f"{launch().run_id}\n") and "`ddplaunch stop" in said.err
    assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 9
    assert (tmp_path / "console.log").read_text() == "rank 0"
