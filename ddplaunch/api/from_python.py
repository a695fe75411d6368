"""``ddplaunch.launch``: ``ddplaunch run`` from a Python program or a notebook."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, overload

from ddplaunch.api.child import Ended, held_folder, run_child
from ddplaunch.api.rank_call import read_result, write_call
from ddplaunch.cli.parsing.command import options_of
from ddplaunch.cli.parsing.removed import removed
from ddplaunch.cli.parsing.typed_words import words_of
from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.planning.flag import Flag
from ddplaunch.records.find import last_metrics
from ddplaunch.records.outcome import RunOutcome, read_outcome
from ddplaunch.values.finding import DdplaunchError, ExitStatus, Finding
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.variable_names import RANK_CALL
from ddplaunch.values.words import nearest

T = TypeVar("T")
#: A value of an option: one word, a sequence if it may be repeated or takes a list, a mapping for ``env``.
Option: TypeAlias = "str | int | float | bool | os.PathLike[str] | Sequence[object] | Mapping[str, object] | None"


NOT_HERE = ("dry_run", "detach")  # they leave no outcome to return
_CALLS = 3  # most calls to show on the way to a failure


@dataclass(frozen=True)
class Outcome:
    """How a launch ended.

    ``status`` is the exit status of the command (0: all ranks succeeded), ``record`` the run's directory, None if the
    run could not be recorded. ``diagnosis`` is the root cause of a failure, ``findings`` are from before and during the
    run. ``metrics`` contains the last value of each name that rank 0 passed to ``ddplaunch.log_metrics``. ``run`` is
    the recorded end, rank by rank; None without a record.
    """

    status: int
    run_id: str
    record: Path | None
    diagnosis: Diagnosis | None
    findings: tuple[Finding, ...]
    metrics: dict[str, float]
    run: RunOutcome | None

    def __repr__(self) -> str:
        return f"<Outcome: {'; '.join(self._parts())}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows of it."""
        head, *rest = map(escape, self._parts())
        return "<br>".join([f"<b>{head}</b>", *rest, f"<code>{escape(str(self.record or 'no record'))}</code>"])

    def _parts(self) -> list[str]:
        """Return how the launch ended, why, and the metrics, a clause each."""
        cause = self.diagnosis
        place = "" if not cause or cause.rank is None else f"rank {cause.rank}"
        causes = [] if not cause else [cause.what if place in cause.what else f"{place}: {cause.what}"]
        metrics = [f"{name} {value:.6g}" for name, value in self.metrics.items()]
        return [f"run {self.run_id} ended with status {self.status}", *causes, *metrics]


class _ToldInFull(Exception):
    """What a notebook shows without a traceback: its text names the line."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback."""
        return f"{type(self).__name__}: {self}".splitlines()


class LaunchTypeError(_ToldInFull, TypeError):
    """``launch`` was called with an option that it does not have, or that does not fit."""


class LaunchRefused(_ToldInFull, DdplaunchError):
    """Nothing was launched: ``findings`` say what is wrong, why, and how to fix it.

    ``exit_status`` is the command's: 2 if the options are wrong, 4 if the launch would have failed.
    """

    def __init__(self, status: int, *findings: Finding) -> None:
        super().__init__(*findings)
        self.exit_status = status

    def __str__(self) -> str:
        return "\n".join(map(_in_python, self.findings))


def _in_python(finding: Finding) -> str:
    """Return a finding as text that names arguments of ``launch``; an option that the script lacks is a word of it."""
    text = "\n  --> ".join((finding.what, *finding.where)) + f"\n  why: {finding.why}\n  fix: {finding.fix}"
    text = _LAUNCH.sub(_call, re.sub(r"\n  --> flag: .*", "", text)).replace("NPROC", "nproc")
    return text if finding.code == "script-arguments" else _FLAG.sub(_argument, text)


def _call(line: re.Match[str]) -> str:
    return f"`launch({line[2]!r}, {line[1]}, args={shlex.split(line[3])})`".replace(", args=[]", "")


_LAUNCH = re.compile(r"`ddplaunch run(?: (\d+))? -- ([^`\s]+)([^`\n]*)`")
#: An option alone in backticks, ``--batch-size 8``: a command that has more is for a terminal.
_FLAG = re.compile("`--(no-)?([a-z][a-z-]+)(?:[ =]([^`]+))?`")


def _argument(option: re.Match[str]) -> str:
    """Return ``batch_size=8`` for ``--batch-size 8``, ``capture=False`` for ``--no-capture``.

    An option of the script is one of its words, whoever launches it.
    """
    name = option[2].replace("-", "_")
    if name not in _flag_by_name():
        return option[0]
    value = "False" if option[1] else option[3] or ""
    return f"`{name}={value if re.fullmatch('[0-9.]*|False', value) else repr(value)}`"


class RunFailed(_ToldInFull):
    """The ranks were launched, but not all succeeded; ``outcome`` says how the launch ended."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome

    def __str__(self) -> str:
        cause = self.outcome.diagnosis
        lines = self.outcome._parts()[: 1 + bool(cause)]
        if cause:
            calls = [f"    {call.place}  {call.source}".rstrip() for call in cause.calls[-_CALLS:]]
            lines += [*calls, f"  why: {cause.why}", *(f"  fix: {fix}" for fix in cause.fixes[:1])]
        return "\n".join(lines)


@overload
def launch(
    what: str | os.PathLike[str], nproc: int | str | None = None, *, args: Sequence[object] = (), **options: Any
) -> Outcome: ...
@overload
def launch(
    what: Callable[..., T],
    nproc: int | str | None = None,
    *,
    all_ranks: Literal[True],
    args: Sequence[object] = (),
    **options: Any,
) -> list[T]: ...
@overload
def launch(
    what: Callable[..., T], nproc: int | str | None = None, *, args: Sequence[object] = (), **options: Any
) -> T: ...
def launch(
    what: Any,
    nproc: int | str | None = None,
    *words_of_script: Any,
    args: Sequence[object] = (),
    kwargs: Any = None,
    module: Any = False,
    all_ranks: Any = False,
    show_output: bool = True,
    check: Any = True,
    **options: Any,
) -> Any:
    """Check, launch and wait, as ``ddplaunch run NPROC [options] -- WHAT [args]`` does.

    ``what`` is a script, an executable, or with ``module`` the name of a module; it gets ``args`` as words, and the
    launch returns its ``Outcome``. Or it is a function: each rank calls it with ``args`` and ``kwargs`` in its own
    process, and the launch returns rank 0's result, or with ``all_ranks`` a list of all results. Function, arguments
    and results are sent by cloudpickle. Return tensors on the CPU: CUDA tensors in a result would occupy the GPU in
    this process.

    ``options`` are those of ``ddplaunch run`` with underscores: ``batch_size=8``, ``gpus="free:1"``,
    ``hosts=["a", "b"]``, ``env={"NAME": "value"}``, ``capture=False`` for ``--no-capture``. Rank 0's output is shown
    here unless ``show_output`` is False. An interrupt ends the ranks as Ctrl-C does, and is raised again when they have
    ended.

    Raises LaunchRefused if the command would refuse, RunFailed if ranks failed (with ``check`` False, a script's
    Outcome is returned instead), TypeError for an unknown option, or for a function or arguments that cannot be
    pickled. For a function, RunFailed has the exception of the first failed rank as its ``__cause__``.
    """
    if words_of_script:
        raise LaunchTypeError("launch() takes a script's words, and a function's arguments, by name: `args=[…]`")
    if isinstance(args, str):
        raise LaunchTypeError(f"`args` is one string; a script's words are `args={shlex.split(args)}`")
    words = [] if nproc is None else [str(nproc)]
    words += _option_words(options)
    if not callable(what):
        if kwargs or all_ranks:
            raise LaunchTypeError("`kwargs` and `all_ranks` are for a function; a script gets `args`")
        target = ["-m", os.fspath(what)] if module else [os.fspath(what)]
        outcome = _outcome(run_child(["run", *words, "--", *target, *map(str, args)], show=show_output))
        if outcome.status and check:
            raise RunFailed(outcome)
        return outcome
    if elsewhere := [option for option in ("hosts", "hostfile", "nnodes") if options.get(option)]:
        raise LaunchTypeError(f"`{elsewhere[0]}`: a function runs on this machine; launch a script on several")
    with held_folder() as folder:
        write_call(folder, what, args, kwargs or {})
        target = ["-m", RANK_CALL, str(folder), getattr(what, "__name__", type(what).__name__)]
        outcome = _outcome(run_child(["run", *words, "--", *target], show=show_output))
        if outcome.status:
            rank = outcome.run and outcome.run.first_failed_rank
            failed = read_result(folder, rank or 0)
            raise RunFailed(outcome) from (failed[1] if failed and not failed[0] else None)
        results = list[Any]()
        while (result := read_result(folder, len(results))) is not None:
            results.append(result[1])
        return results if all_ranks else results[0]


@cache
def _flag_by_name() -> Mapping[str, Flag]:
    """Return the options of ``run`` that ``launch`` takes."""
    return {flag.name: flag for flag in options_of("run") if flag.name not in NOT_HERE}


def _option_words(options: Mapping[str, Option]) -> list[str]:
    """Return options as words of the command line. Raises TypeError for an unknown name."""
    flag_by_name = _flag_by_name()
    words: list[str] = []
    for name, value in options.items():
        if name not in flag_by_name:
            if (removal := removed("run", f"--{name}")) is not None:
                raise LaunchTypeError(f"launch() has no option `{name}`: {removal.findings[0].fix}")
            near = "args" if name.endswith("args") else nearest(name, flag_by_name)
            hint = f"; did you mean `{near}`?" if near else ""
            raise LaunchTypeError(f"launch() has no option `{name}`{hint} (`ddplaunch run --help` lists them)")
        if value is not None:
            words += _words_of(flag_by_name[name], value)
    return words


def _words_of(flag: Flag, value: Option) -> list[str]:
    if flag.kind in ("switch", "pair"):
        if not isinstance(value, bool):
            raise LaunchTypeError(f"`{flag.name}` is True or False")
        return words_of(flag, value) if value or flag.kind == "pair" else []
    values: Sequence[object] = [value]
    if isinstance(value, Mapping):
        values = [f"{name}={item}" for name, item in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        values = value if flag.kind == "many" else [",".join(map(str, value))]
    return [f"{flag.flag}={os.fspath(item) if isinstance(item, os.PathLike) else item}" for item in values]


def _outcome(ended: Ended) -> Outcome:
    """Return how the child's launch ended. Raises LaunchRefused, KeyboardInterrupt, or RuntimeError if none began."""
    status = ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
    report = ended.told
    if ended.interrupted and (report.run_id is None or status):
        raise KeyboardInterrupt
    if report.run_id is None:
        if status in (ExitStatus.USAGE, ExitStatus.REFUSED) and report.findings:
            raise LaunchRefused(status, *report.findings)
        raise RuntimeError(f"`ddplaunch run` ended with status {status} before it launched anything")
    run = report.directory and read_outcome(report.directory)
    recorded = run if isinstance(run, RunOutcome) else None
    findings = dict.fromkeys((*report.findings, *(recorded.findings if recorded else ())))
    return Outcome(
        status,
        report.run_id,
        report.directory,
        recorded.diagnosis if recorded else None,
        tuple(findings),
        last_metrics(report.directory) if report.directory else {},
        recorded,
    )
