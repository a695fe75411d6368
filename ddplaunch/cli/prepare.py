"""From options to a checked launch: gathers facts, decides and checks, for ``run``, ``plan`` and ``doctor``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ddplaunch.checks.all_checks import run_all
from ddplaunch.checks.check import Outcome, available
from ddplaunch.cli.configuration import variables
from ddplaunch.launch.gpus import Selection, select
from ddplaunch.launch.inside.complete import complete, notes, within_allocation
from ddplaunch.launch.launch import Launch, Target
from ddplaunch.launch.options import Options
from ddplaunch.launch.relaunch import relaunched_id
from ddplaunch.launch.resolve import Situation, resolve
from ddplaunch.machine.facts import Facts, NvmlFacts, ProbeRequest
from ddplaunch.machine.gather import gather
from ddplaunch.machine.software import probe_plugin
from ddplaunch.records.directory import new_run_id, run_directory, runs_directory
from ddplaunch.records.gpu_lock import GpuLocks, pick_free
from ddplaunch.script.read import read_script
from ddplaunch.script.report import ScriptReport
from ddplaunch.script.source import locate
from ddplaunch.values.finding import Finding, Severity, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable


@dataclass(frozen=True)
class Prepared:
    """A decided launch, the facts it was decided from and every check's outcome; ``base`` holds the records."""

    launch: Launch
    facts: Facts
    outcomes: tuple[Outcome, ...]
    base: Path

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything the checks found, errors first."""
        every = [finding for outcome in self.outcomes for finding in outcome.findings]
        return tuple(sorted(every, key=lambda finding: finding.severity is not Severity.ERROR))

    def refusing(self) -> tuple[Finding, ...]:
        """Return the errors, which stop the launch."""
        return tuple(item for item in self.findings if item.severity is Severity.ERROR)


def prepare(
    options: Options,
    target: Target | None,
    *,
    locks: GpuLocks | None = None,
    import_torch: bool = False,
    relaunch: int = 0,
) -> Prepared:
    """Gather facts, decide the launch and check it. ``locks`` holds the GPUs that ``--gpus free:N`` picks;
    ``import_torch`` asks a child interpreter as well (seconds). ``relaunch`` counts how many times it failed before.

    Raises UsageError or RefusedError where no launch can be decided at all.
    """
    environ, cwd = os.environ, Path.cwd()
    options = complete(options, environ)
    pairs = variables(options)
    facts = within_allocation(gather(probe_request(options, environ, import_torch=import_torch)), environ)
    script = script_report(target, cwd)
    run_id = new_run_id() if options.run_id is None else relaunched_id(options.run_id.value, relaunch)
    base = runs_directory(environ, options.run_dir.value if options.run_dir else None, cwd)
    situation = Situation(
        facts=facts,
        script=script,
        environ=environ,
        pairs=pairs,
        selection=choose_gpus(options, facts, environ, locks, run_id),
        python=interpreter(),
        run_id=run_id,
        record=str(record_directory(base, run_id)),
        plugin=probe_plugin(),
        cwd=str(cwd),
        shadowing=shadowing(options, cwd),
    )
    launch = resolve(options, target, situation)
    launch = replace(launch, notes=(*surroundings_notes(environ), *launch.notes))
    return Prepared(launch, facts, check(options, launch, facts, script), base)


def surroundings_notes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return who else set this job up and how much time it has left, for the panel."""
    if "SLURM_JOB_ID" in environ:
        from ddplaunch.hosts.slurm.programs import (
            with_end_of_job,  # a program to ask, which only Slurm's users wait for
        )

        environ = with_end_of_job(environ)
    return notes(environ, time.time())


def check(
    options: Options, launch: Launch | Unavailable, facts: Facts, script: ScriptReport | Unavailable
) -> tuple[Outcome, ...]:
    """Run the checks: none with ``--no-checks``, not those of ``--ignore``."""
    if options.checks is not None and not options.checks.value:
        return ()
    return run_all(available(facts, launch, script), {item.value for item in options.ignore})


def probe_request(options: Options, environ: Mapping[str, str], *, import_torch: bool = False) -> ProbeRequest:
    """Return what to look at for these options; an explicit port counts on the node that will bind it."""
    port = options.master_port.value if options.master_port else _port(environ)
    rank = options.node_rank.value if options.node_rank else 0
    addr = options.master_addr.value if options.master_addr else environ.get("MASTER_ADDR")
    return ProbeRequest(
        data_paths=tuple(item.value for item in options.data),
        output_paths=tuple(item.value for item in options.output),
        master_addr=None if options.nnodes is None else addr,
        master_port=port if rank == 0 and port and 0 < port < 65536 else None,
        import_torch=import_torch,
    )


def _port(environ: Mapping[str, str]) -> int | None:
    text = environ.get("MASTER_PORT", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else None


def choose_gpus(
    options: Options, facts: Facts, environ: Mapping[str, str], locks: GpuLocks | None, run_id: str
) -> Selection | None:
    """Return the GPUs of ``--gpus``, None where it was not given. Raises UsageError or RefusedError."""
    if options.gpus is None or (options.device is not None and options.device.value == "cpu"):
        return None  # a contradiction is refused in ``resolve``
    if not isinstance(facts.nvml, NvmlFacts):
        raise usage(
            f"`--gpus {options.gpus.value}`, but no GPU can be asked: {facts.nvml.reason}",
            why="GPUs are found through NVML, the driver's library",
            fix="`ddplaunch doctor` says what is wrong with the driver; `--device cpu` runs without GPUs",
            where=str(options.gpus.source),
            code="gpu-not-found",
        )
    seen = environ.get("CUDA_VISIBLE_DEVICES")
    need = None if options.nproc is None or options.nproc.value == "auto" else options.nproc.value
    if locks is not None:
        return pick_free(options.gpus.value, facts.nvml, seen, locks, run_id, need)
    return select(options.gpus.value, facts.nvml, seen, frozenset(), need)


def record_directory(base: Path, run_id: str) -> Path:
    """Return the directory of the run's record. Raises UsageError for an id that cannot name a directory."""
    try:
        if not run_id.isprintable():
            raise ValueError(f"the run id {run_id!r} holds a character that cannot be printed")
        return run_directory(base, run_id)
    except ValueError as exception:
        raise usage(str(exception), why="it names the run's record", fix="`--run-id my-run-1`") from exception


def script_report(target: Target | None, cwd: Path) -> ScriptReport | Unavailable:
    """Read the target's source. Raises UsageError for a module that exists nowhere."""
    if target is None:
        return Unavailable("no script was named")
    search = tuple(Path(entry) for entry in sys.path if entry)
    path = locate(target.kind, target.name, cwd, search)
    if isinstance(path, Path):
        return read_script(path, cwd, search)
    if target.kind == "module" and not (cwd / target.name.split(".")[0]).exists() and not _installed(target.name):
        raise usage(
            f"there is no module `{target.name}`",
            why=f"neither {cwd} nor {sys.executable} has it",
            fix="`cd` to the directory that holds the package, or install it",
            code="script-not-found",
        )
    return path


def _installed(module: str) -> bool:
    try:
        return find_spec(module.split(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def shadowing(options: Options, cwd: Path) -> str | None:
    """Return what ``-P`` would keep out of torchrun, where a warm start has to do without it."""
    if options.start is None or options.start.value != "warm" or "-P" not in interpreter():
        return None
    from ddplaunch.machine.software import shadowing_file  # for the few launches that need it

    return None if os.environ.get("PYTHONSAFEPATH") else shadowing_file(str(cwd))


def interpreter() -> tuple[str, ...]:
    """Return the interpreter that torchrun runs in.

    ``-P`` keeps a ``logging.py`` or ``types.py`` of the working directory from shadowing the standard library
    inside torchrun; the ranks are started without it.
    """
    return (sys.executable, "-P") if sys.version_info >= (3, 11) else (sys.executable,)
