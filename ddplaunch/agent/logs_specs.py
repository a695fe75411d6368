"""The plug-in that torchrun loads by ``--logs-specs=ddplaunch``; it sends ranks' output to the guard.

torchrun builds the object right after importing torch, before any rendezvous or rank exists. Its interface is
``LogsSpecs``, https://docs.pytorch.org/docs/stable/elastic/multiprocessing.html. A failure of the plug-in never stops
a training or changes its exit status: without pipes or a guard, ranks write to the console.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.elastic.multiprocessing import api

from ddplaunch.agent import has_other_nodes
from ddplaunch.agent.open_files import raise_limit
from ddplaunch.agent.plugin.outlets import console_kinds, path_of
from ddplaunch.agent.plugin.session import Session
from ddplaunch.agent.plugin.signals import Signals
from ddplaunch.agent.plugin.torchrun_end import Ending, failures_of
from ddplaunch.agent.rank_site import OBSERVE, PHASES, breakpoints, taking_part
from ddplaunch.agent.rank_site.sitecustomize import ENDED, LIMIT, STACKS
from ddplaunch.agent.torch_names import ON_SIGNAL, unknown_names
from ddplaunch.agent.torch_patches import (
    RankCpus,
    judge_failures,
    limit_files_of_ranks,
    logs_destination,
    notice_start,
    skip_the_spread,
    spare_children_of_ranks,
    wait_for_ranks,
)
from ddplaunch.machine.cgroups import OOM_KILLS_BEFORE, oom_kills
from ddplaunch.planning.settings import Settings
from ddplaunch.prove.in_rank import VARIABLE
from ddplaunch.records.directory import metrics_path, note_path, through_path
from ddplaunch.records.own.run_lock import end_with_this_program, set_aside
from ddplaunch.values.variable_names import METRICS, SETTINGS, TYPED

if TYPE_CHECKING:
    from ddplaunch.agent.warm.spares import Spares


class CapturedLogs(api.LogsSpecs):
    """Sends every rank's output to the guard; without a guard, ranks write to the console as under plain torchrun."""

    def __init__(self, log_dir: str | None = None, *_: Any, **__: Any) -> None:
        self._log_dir = log_dir
        self._session: Session | None = None
        self._signals: Signals | None = None
        self._spares: Spares | None = None
        self._ranks: dict[int, int] = {}  # global rank by local rank, in the current attempt
        signal.setitimer(signal.ITIMER_REAL, 0)  # the guard goes on with the line that ``sitecustomize`` shows
        try:
            settings = _settings()
            _tell_of_an_unknown_torch()
            self._spares = self._prepared(settings)  # first: forked ranks share whatever this process did earlier
            self._open(settings)
        except Exception as exception:
            self._do_without(exception)

    @property
    def root_log_dir(self) -> str:
        """The run's directory, for torchrun's own messages."""
        return str(self._log_dir or "")

    def reify(self, envs: dict[int, dict[str, str]]) -> Any:
        """Return where each local rank's stdout and stderr go in the attempt that is about to start."""
        session = self._session
        if self._signals is not None:
            self._signals.ranks_start()
        if session is not None and session.alive:
            try:
                return self._captured(session, envs)
            except Exception as exception:
                self._do_without(exception)
        console = dict.fromkeys(envs, "")
        return logs_destination(console, console, dict.fromkeys(envs, os.devnull))

    def _prepared(self, settings: Settings) -> Spares | None:
        """Fork the spare processes of a warm start, if requested. In the forks, a BaseException leaves this call."""
        cpus = RankCpus(settings.cpus, self._say) if settings.cpus else None
        spares = None
        try:
            if settings.start == "warm":
                from ddplaunch.agent.warm.spares import prepare

                spares = prepare(int(os.environ.get("DDPLAUNCH_NPROC", "0")), settings.preload, self._say, cpus)
        except Exception as exception:
            _warn(f"cold start: {type(exception).__name__}: {exception}")
        if not has_other_nodes():
            skip_the_spread()
        if cpus is not None:
            cpus.bind()
        return spares

    def _say(self, line: str) -> None:
        _warn(line, 2 if self._session is None else self._session.stderr)

    def _close(self) -> None:
        if self._spares is not None:
            self._spares.close()

    def _open(self, settings: Settings) -> None:
        signals = self._signals = Signals()
        if settings.directory:
            self._log_dir = settings.directory
            with contextlib.suppress(OSError):
                set_aside(Path(settings.directory), settings.node)
        before = {OOM_KILLS_BEFORE: str(oom_kills() or 0)}
        session = Session(settings, {**os.environ, **before, SETTINGS: settings.to_json()}, console_kinds())
        ending = Ending(session, signals, self._close)
        ending.install()  # first: even if the rest fails, the end is reported and the exit status is the ranks'
        self._session = session
        end_with_this_program()
        os.environ.pop(TYPED, None)
        os.environ.pop(SETTINGS, None)  # for this torchrun only, not for one that a rank starts
        limit_files_of_ranks(raise_limit())
        session.start()
        session.watch()
        for take in (session.take_stderr, session.take_signals):
            with contextlib.suppress(OSError):  # else torchrun writes to the console; the guard learns of signals later
                take()
        signals.only_heard()
        signals.before_ranks(ending.by_signal)

        def all_started(pids: dict[int, int]) -> None:
            ending.others.listen()
            session.started({self._ranks[each]: pid for each, pid in pids.items() if each in self._ranks})
            signals.ranks_run(ON_SIGNAL.value())  # torch has just set it; ours run first

        def is_final(failures: dict[int, Any]) -> bool:
            """Tell the guard how ranks failed, which it may not have seen; return whether a restart cannot help."""
            with contextlib.suppress(Exception):
                return session.is_final(failures_of(failures))
            return False

        notice_start(all_started)
        judge_failures(is_final)
        wait_for_ranks(settings.grace_s, lambda: session.closing(signals.first))
        spare_children_of_ranks()

    def _captured(self, session: Session, envs: dict[int, dict[str, str]]) -> Any:
        ranks = [(int(envs[each].get("RANK", each)), each) for each in sorted(envs)]
        self._ranks = {local_rank: rank for rank, local_rank in ranks}
        writers = session.begin(ranks)
        directory, settings = session.directory(), session.settings
        outs, errs, errors = {}, {}, {}
        for (rank, local_rank), descriptors in zip(ranks, writers, strict=True):
            outs[local_rank] = path_of(descriptors[0]) if descriptors else ""
            errs[local_rank] = path_of(descriptors[-1]) if descriptors else ""
            errors[local_rank] = os.devnull if directory is None else str(directory / f"rank-{rank}.error.json")
            environ = envs[local_rank]
            environ.update(breakpoints(os.environ, stdin_terminal=os.isatty(0), alone=settings.shows_alone(rank)))
            environ["TORCHELASTIC_ERROR_FILE"] = "" if directory is None else errors[local_rank]
            wanted: dict[str, object] = {STACKS: settings.stacks and 1, LIMIT: settings.memory_bytes}
            if directory is not None:
                wanted[OBSERVE] = settings.observe and note_path(directory, rank)
                wanted[PHASES] = settings.phases and f"{directory}/rank-{rank}.phases.jsonl"
                wanted[VARIABLE] = settings.prove and not has_other_nodes() and f"3::{directory}"
                wanted[ENDED] = through_path(directory, rank)
                wanted[METRICS] = rank == 0 and metrics_path(directory)
            environ.update(taking_part(os.environ, **wanted))
        return logs_destination(outs, errs, errors)

    def _do_without(self, exception: Exception) -> None:
        if self._signals is not None:
            self._signals.let_go()
        if self._session is not None:
            self._session.give_up(exception)
        else:
            _warn(f"output is not recorded: {type(exception).__name__}: {exception}")


def _settings() -> Settings:
    """Return the launch's settings, with the directory made absolute from torchrun's working directory."""
    settings = Settings.from_json(os.environ.get(SETTINGS) or "{}")
    return settings._replace(directory=str(Path.cwd() / settings.directory)) if settings.directory else settings


def _tell_of_an_unknown_torch() -> None:
    """Warn once which of torch's internals differ from the known ones, and what ddplaunch does without each."""
    version = str(torch.__version__)
    for place, each in enumerate(unknown_names(version)):
        if not place:
            _warn(f"torch {version} is unlike those that this ddplaunch knows, which does without:")
        _warn(f"  `{each.name}`: {each.fallback}")


def _warn(text: str, descriptor: int = 2) -> None:
    with contextlib.suppress(OSError):
        os.write(descriptor, f"ddplaunch: {text}\n".encode(errors="backslashreplace"))
