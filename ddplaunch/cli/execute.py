"""The last step of a launch: this process becomes torchrun, with `--detach` in a child that no terminal ends."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import ddplaunch
from ddplaunch.cli.prepare import Prepared
from ddplaunch.cli.streams import (
    answer,
    get_signal_at_parents_end,
    say,
    tell,
    tell_findings,
    tell_findings_to_starter,
    tell_launch_to_starter,
)
from ddplaunch.machine.facts import Facts
from ddplaunch.planning.launch import Launch
from ddplaunch.records.directory import path_text
from ddplaunch.records.own.own_files import open_to_write
from ddplaunch.records.own.run_lock import HeldRun
from ddplaunch.records.write import write_record
from ddplaunch.ui.launch_view import launch_panel
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, Finding, RefusedError, error, usage
from ddplaunch.values.resolved import value_of
from ddplaunch.values.variable_names import LAUNCH, SETTINGS, TYPED

_TYPED_S = time.time()  # a moment after the command was typed
_LONGEST_WORD = 32 * 4096  # bytes, with the null byte at the end
#: In a detached launch that has not launched yet: the pipe to the process for which the terminal waits.
_AWAITED: list[int] = []


def environment_of(launch: Launch) -> dict[str, str]:
    """Return torchrun's environment: this process's, with the launch's variables set and removed."""
    changed = {variable.name: variable.value for variable in launch.environment}
    return {name: value for name, value in {**os.environ, **changed}.items() if value is not None}


def refuse_too_long(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise RefusedError for an argument or variable too long for the kernel (MAX_ARG_STRLEN, execve(2))."""
    words = [(f"the argument `{word[:20]}…`", word) for word in argv]
    words += [(f"the variable `{name}`", f"{name}={value}") for name, value in environment.items()]
    for what, word in words:
        size = len(os.fsencode(word))
        if size >= _LONGEST_WORD:
            raise RefusedError(
                error(
                    "argument-too-long",
                    f"{what} has {size} bytes; Linux passes at most {_LONGEST_WORD - 1} to a program",
                    why="torchrun could not be started with it",
                    fix="write it to a file, and pass the file's name",
                )
            )


def new_token() -> str:
    """Return a random token that identifies the processes of one launch."""
    return os.urandom(16).hex()


def interruptible(argv: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that let Ctrl-C end torchrun without a traceback while it imports torch.

    ``agent/rank_site/sitecustomize.py`` reads them, and removes them again, before torchrun does anything. The result
    is empty for an interpreter that would not read that file.
    """
    if not {*argv[1 : argv.index("-m")]} <= {"-u", "-P"}:
        return {}
    python_path, folder = (
        environment.get("PYTHONPATH", ""),
        str(Path(ddplaunch.__file__).parent / "agent" / "rank_site"),
    )
    path = f"{folder}:{python_path}" if python_path else folder
    return {"DDPLAUNCH_INTERRUPTIBLE": "1", "DDPLAUNCH_SITE": python_path, "PYTHONPATH": path}


def record_and_execute(
    prepared: Prepared,
    launch: Launch,
    environment: dict[str, str],
    lock: HeldRun,
    argv: Sequence[str],
    token: str,
    *,
    silent: bool,
) -> NoReturn:
    """Record the launch typed as ``argv``, whose run id ``lock`` holds; show it unless ``silent``; execute it."""
    lock.pass_on()
    findings, base, code = prepared.findings, prepared.base, prepared.code
    noted = write_record(launch, argv, environment, prepared.facts, findings, base, code, token)
    show_launch(launch, findings, prepared.facts, lock, noted, silent=silent)
    execute(launch, environment, token)


def show_launch(
    launch: Launch, findings: Sequence[Finding], facts: Facts, lock: HeldRun, noted: Path | str, *, silent: bool = False
) -> None:
    """Report the launch to the program that started this one and, on stderr, to the user: with `--quiet` only findings.

    ``noted`` is the run's record, or a sentence that explains why there is none.
    """
    tell_findings_to_starter(findings)
    record = f"none: {noted}" if isinstance(noted, str) else lock.told(path_text(noted))
    if silent:
        pass
    elif value_of(launch.options.quiet, False):
        tell_findings(findings)
    else:
        tell(launch_panel(launch, findings, Terminal.of(sys.stderr), facts=facts, record=record))
    tell_launch_to_starter(launch.run_id, noted)
    if _AWAITED:
        _leave_terminal(launch.run_id, noted)


def execute(launch: Launch, environment: dict[str, str], token: str) -> NoReturn:
    """Replace this process by torchrun; ``token`` marks all processes that it starts."""
    environment[LAUNCH] = token
    quiet = interruptible(launch.argv, environment)
    if SETTINGS in environment:
        environment[TYPED] = str(_TYPED_S)
    if quiet:
        environment.update(quiet)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until sitecustomize has set its handling of Ctrl-C
    os.execve(launch.argv[0], list(launch.argv), environment)


def detach() -> int | None:
    """Continue in a child with its own session, where this returns None.

    In the parent it returns an exit status: after printing the run id once the child has launched, or when the child
    has ended. Raises UsageError in a task of Slurm.
    """
    if "SLURM_PROCID" in os.environ:
        raise usage(
            "`--detach` inside a job of Slurm",
            why="Slurm ends all processes of a step that ends",
            fix="leave it out, or `ddplaunch submit … -- train.py` where jobs are submitted",
            where="flag: --detach",
        )
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        get_signal_at_parents_end(signal.SIGTERM)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _AWAITED.append(writing)
        return None
    os.close(writing)
    with open(reading) as pipe:
        try:
            run_id = pipe.read()
        except KeyboardInterrupt:
            os.kill(child, signal.SIGINT)
            run_id = pipe.read()
    if run_id:
        answer(f"{run_id}\n")
        return ExitStatus.DONE
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


def _leave_terminal(run_id: str, record: Path | str) -> None:
    """Redirect a detached launch's output to its record, and send the run id to the process that waits for it.

    Raises RefusedError where there is no record.
    """
    try:
        if isinstance(record, str):
            raise OSError(0, record)
        console = open_to_write(record / "console.log", os.O_WRONLY | os.O_APPEND | os.O_TRUNC)
    except OSError as problem:
        raise RefusedError(
            error(
                "record-not-writable",
                f"the record of {run_id} cannot be written: {problem.strerror}",
                why="what a detached launch says is kept there",
                fix="`--run-dir DIR` names another place",
                where="flag: --detach",
            )
        ) from problem
    say(f"detached: `ddplaunch logs {run_id} --follow` shows what it prints, `ddplaunch stop {run_id}` ends it")
    for descriptor in (1, 2):
        os.dup2(console, descriptor)
    os.close(console)
    get_signal_at_parents_end(0)
    with open(_AWAITED.pop(), "w") as pipe:
        pipe.write(run_id)
