"""Commands as data: each command's help, examples and options, from the top of the file that contains its body.

Typer's application (``typer_app``), the quick parser (``typed_words``), completion and the website's page of options
are built from this. An option of a launch is a field of ``planning.options.Options`` and belongs to all commands that
take a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from ddplaunch.planning.flag import Flag
from ddplaunch.planning.options import CHECKING, flags_of_options

OUTPUT, SEVERAL_HOSTS, TRIALS = "Output", "Hosts over ssh", "Trials"


class Listed(NamedTuple):
    """A command's heading on the first page of help, which its folder has for a name, and its line there."""

    stage: str
    line: str


#: All commands, in the order of the first page of help.
_FIRST_PAGE = """\
Launch
  run      Check the launch, then start it with torchrun.
  plan     Show everything that run would decide; start nothing.
  scale    Measure 1, 2, 4 … processes, and what holds them back.
  fit      Find the batch that fits into memory, and the fastest.
  prove    Measure whether N ranks train what one process would.
  submit   Submit the same launch to Slurm; print it for Kubernetes.
  doctor   Check this machine; with a launch, check that too.
  convert  Translate torchrun, accelerate or srun commands.
  init     Write a ddplaunch.toml, and a script that trains.
While it runs
  ps       List running and recent runs.
  logs     Show what the ranks of a run printed.
  top      Watch step rate, CPU, memory and GPU of every rank.
  stacks   Show where every rank of a run is now.
  stop     End a run and the processes that it started.
Afterwards
  explain  Name the root cause of a failed run or of any log.
  report   Write one page about a run, for a colleague.
  clean    End processes whose launcher is gone; remove old records.
  env      Print what a bug report needs.
"""


def _listed() -> Mapping[str, Listed]:
    commands, stage = {}, ""
    for text in _FIRST_PAGE.splitlines():
        if text.startswith(" "):
            name, line = text.split(maxsplit=1)
            commands[name] = Listed(stage, line)
        else:
            stage = text
    return commands


#: Each command's heading and line. A command's file is imported only when it is used.
COMMANDS = _listed()
#: Commands that take the options of a launch, and a script after ``--``.
LAUNCHING = ("run", "plan", "doctor", "submit", "scale", "fit", "prove")
#: Kinds of options whose values are a list.
REPEATED = ("many", "arguments")

_SIZES = "Numbers of processes: 1,2,4 [1, 2, 4 … up to the GPUs, or CPUs, of this machine]."

PROFILE = Flag("profile", "text", CHECKING, "Named profile of ddplaunch.toml.", "NAME", offers="profiles")
RUN_DIR = Flag("run_dir", "text", "", "Where records are [.ddplaunch].", "DIR")
RECORDED_RUN = Flag("run", "argument", "", "Id of the run, or a part of it [the newest].", "RUN", offers="runs")
LIVE_RUN = Flag(
    "run", "argument", "", "Id of the run, or a part of it [the newest running one here].", "RUN", offers="live runs"
)
#: Options that name hosts, for the commands that reach them over ssh.
HOSTS = (
    Flag("hosts", "many", SEVERAL_HOSTS, "ssh host names, comma-separated: gpu-a,gpu-b. The first has rank 0.", "LIST"),
    Flag("hostfile", "text", SEVERAL_HOSTS, "A file of hosts: `gpu-a slots=8` or `gpu-a:8`, one a line.", "FILE"),
    Flag("exclude", "many", SEVERAL_HOSTS, "Leave out this host (repeatable).", "HOST"),
    Flag("chdir", "text", SEVERAL_HOSTS, "Directory on every host [this one].", "DIR"),
    Flag("python", "text", SEVERAL_HOSTS, "Interpreter on every host [the path of this one].", "PATH"),
    Flag(
        "join_timeout",
        "duration",
        SEVERAL_HOSTS,
        "Time for hosts to answer [60]; without --hosts, for all nodes to join [600; 0: do not wait].",
        "TIME",
    ),
    Flag(
        "host_timeout",
        "duration",
        SEVERAL_HOSTS,
        "How long a run continues without hearing from a host [300].",
        "TIME",
    ),
)


def names_hosts(flags: Mapping[str, Any]) -> bool:
    """Return whether a launch over ssh is meant by the options in ``HOSTS``."""
    return any(value not in (None, []) for name, value in flags.items() if name != "join_timeout")


def trial_options(usual_s: int) -> tuple[Flag, ...]:
    """Return the options for how long trials measure (``usual_s`` seconds by default), and where they write."""
    return (
        Flag("steps", "integer", TRIALS, f"Steps to measure [those of {usual_s} s, and at least 10].", "N", least=1),
        Flag("in_place", "switch", TRIALS, "Let trials change files as the script does."),
    )


class Command(NamedTuple):
    """One command: two examples with what each does, its own options, and further text for its page of help."""

    examples: tuple[tuple[str, str], ...]
    options: tuple[Flag, ...]
    more: str = ""


def command_named(name: str) -> Command:
    """Return a command of ``COMMANDS``."""
    command: Command = _file_of(name).COMMAND
    return command


def body_of(name: str) -> Callable[..., int]:
    """Return the function that executes a command and returns its exit status."""
    body: Callable[..., int] = getattr(_file_of(name), name)
    return body


def _file_of(name: str) -> Any:
    folder = COMMANDS[name].stage.lower().replace(" ", "_")
    return import_module(f"ddplaunch.cli.commands.{folder}.{name}")


def options_of(name: str) -> tuple[Flag, ...]:
    """Return every option and argument of a command, those of a launch first."""
    own_options = command_named(name).options
    if name not in LAUNCHING:
        return own_options
    launch = flags_of_options()
    if name == "scale":
        launch = {**launch, "nproc": launch["nproc"]._replace(metavar="SIZES", text=_SIZES)}
    return (*launch.values(), PROFILE, *own_options)


def spellings(options: tuple[Flag, ...]) -> dict[str, tuple[Flag, bool | None]]:
    """Return the options by spelling; the second value is what a spelling without a value means, else None."""
    flags: dict[str, tuple[Flag, bool | None]] = {}
    for option in options:
        if option.kind in ("argument", "arguments"):
            continue
        meaning = True if option.kind in ("switch", "pair") else None
        flags[option.flag] = (option, meaning)
        if option.short:
            flags[option.short] = (option, meaning)
        if option.kind == "pair":
            flags["--no-" + option.flag[2:]] = (option, False)
    return flags


def own_values(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the command's own options: integers, and durations in seconds. Raises UsageError."""
    return {option.name: option.typed(values[option.name]) for option in command_named(name).options}
