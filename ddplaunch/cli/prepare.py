"""From options to a checked launch: gathers facts, decides and checks, for ``run``, ``plan`` and ``doctor``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path, PurePath

from ddplaunch.checks.all_checks import run_all
from ddplaunch.checks.check import CheckOutcome, available
from ddplaunch.checks.mistakes import needs_of
from ddplaunch.cli.configuration import variables
from ddplaunch.machine.facts import Facts, NvmlFacts, ProbeRequest
from ddplaunch.machine.gather import gather
from ddplaunch.machine.software import probe_plugin
from ddplaunch.planning.flag import COUNT
from ddplaunch.planning.gpus import Exported, Selection, exported, select
from ddplaunch.planning.inside.complete import complete, notes, within_allocation
from ddplaunch.planning.launch import Launch, Needs, Target
from ddplaunch.planning.options import Options
from ddplaunch.planning.ranks.topology import meeting_place
from ddplaunch.planning.resolve import Situation, resolve
from ddplaunch.planning.script_numbers.as_said import understood_as_said
from ddplaunch.records.directory import new_run_id, run_directory, runs_directory
from ddplaunch.records.gpu_lock import GpuLocks, pick_free
from ddplaunch.script.read import read_script
from ddplaunch.script.script_report import ScriptReport
from ddplaunch.script.source import locate, read_text
from ddplaunch.values.finding import Finding, Severity, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable, value_of

_MOST_OF_A_SCRIPT = 1 << 20  # bytes of a shell script after `--` that are searched for launchers


@dataclass(frozen=True)
class Prepared:
    """A decided launch, the facts it was decided from, and every check's outcome; ``base`` contains the records.

    ``script`` is what was read from the script's source. ``decide`` returns the same launch with another run id.
    """

    launch: Launch
    facts: Facts
    outcomes: tuple[CheckOutcome, ...]
    base: Path
    script: ScriptReport | Unavailable
    decide: Callable[[str], Launch]

    @property
    def code(self) -> tuple[tuple[str, str], ...]:
        """The script's files, each with a digest."""
        return () if isinstance(self.script, Unavailable) else self.script.code

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings of the checks, errors first."""
        findings = (finding for outcome in self.outcomes for finding in outcome.findings)
        return tuple(sorted(findings, key=lambda finding: finding.severity is not Severity.ERROR))


def errors(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings that stop the launch."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)


def prepare(
    options: Options,
    target: Target | None,
    *,
    locks: GpuLocks | None = None,
    import_torch: bool = False,
) -> Prepared:
    """Gather facts, decide the launch and check it.

    ``locks`` holds the GPUs that ``--gpus free:N`` picks, and the cores to which ranks are bound; ``import_torch`` also
    asks a child interpreter, which takes seconds. Raises UsageError or RefusedError where no launch can be decided.
    """
    environ, cwd = with_listed_nodes(os.environ), Path.cwd()
    options = complete(options, environ)
    facts = within_allocation(gather(probe_request(options, environ, import_torch=import_torch)), environ)
    facts = replace(facts, launch_lines=launch_lines(target))
    script = script_report(options, target, cwd)
    plugin, run_id = probe_plugin(), run_id_of(options)
    situation = situation_of(options, facts, script, environ, cwd, interpreter(), plugin, run_id, locks)
    situation = replace(situation, shadowing=shadowing(options, cwd))
    base = Path(situation.record).parents[1]

    def decide(run_id: str) -> Launch:
        record = str(record_directory(base, run_id))
        launch = resolve(options, target, replace(situation, run_id=run_id, record=record))
        return replace(launch, notes=(*notes(environ, time.time(), launch.topology.nnodes.value), *launch.notes))

    launch = decide(run_id)
    launch = replace(launch, needs=needs(launch, cwd))
    return Prepared(launch, facts, check(options, launch, facts, script), base, script, decide)


def situation_of(
    options: Options,
    facts: Facts,
    script: ScriptReport | Unavailable,
    environ: Mapping[str, str],
    cwd: Path,
    python: tuple[str, ...],
    plugin: str | Unavailable,
    run_id: str,
    locks: GpuLocks | None = None,
) -> Situation:
    """Return the input for deciding a launch on a machine with these facts, in its directory ``cwd``.

    Raises UsageError for missing GPUs, for invalid variables, and for an id that cannot name a directory.
    """
    pairs = variables(options)
    return Situation(
        facts=facts,
        script=script,
        environ=environ,
        pairs=pairs,
        selection=choose_gpus(options, facts, exported(environ, pairs, facts.nvml), locks),
        python=python,
        run_id=run_id,
        record=str(record_directory(runs_directory(value_of(options.run_dir, None), environ, cwd), run_id)),
        plugin=plugin,
        cwd=str(cwd),
    )


def launch_lines(target: Target | None) -> tuple[str, ...]:
    """Return the launch lines in a shell script that the ranks would run, translated to ddplaunch."""
    if target is None or PurePath(target.name).name not in ("bash", "sh", "zsh"):
        return ()
    name = next(iter(target.args), "")
    if not Path(name).is_file():
        return ()
    from ddplaunch.planning.convert.launcher_options import named_in  # needed only where ranks are shell scripts

    data = Path(name).read_bytes()[:_MOST_OF_A_SCRIPT]
    if not named_in(data):
        return ()
    from ddplaunch.planning.convert.shell_script import sites_of  # a parser of bash: only for scripts with a launcher

    return tuple(site.said.source for site in sites_of(data) if site.replacement)


def needs(launch: Launch, cwd: Path) -> Needs:
    """Return what the script needs for certain; nothing where another program runs it, or it cannot be read."""
    target = launch.target
    if target is None or target.kind != "script" or target.before or (source := read_text(cwd / target.name)) is None:
        return Needs()
    given = {one.name: one.value or "" for one in launch.environment}
    paths = given.get("PYTHONPATH")  # an empty entry is the working directory, an empty variable none
    search = [str((cwd / target.name).resolve().parent), *(paths.split(":") if paths else ())]
    return needs_of(source.text, target.name, search, on_cpu=launch.device.value == "cpu")


def with_listed_nodes(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables, with the names in PBS's file of nodes in the place of its path."""
    with suppress(KeyError, OSError):
        return {**environ, "PBS_NODEFILE": Path(environ["PBS_NODEFILE"]).read_text()}
    return environ


def check(
    options: Options,
    launch: Launch | Unavailable,
    facts: Facts,
    script: ScriptReport | Unavailable,
) -> tuple[CheckOutcome, ...]:
    """Run the checks: none with ``--no-checks``, and without those of ``--ignore``."""
    return run_all(available(facts, launch, script), ignored(options)) if checked(options) else ()


def checked(options: Options) -> bool:
    """Whether the launch is to be checked at all."""
    return value_of(options.checks, True)


def ignored(options: Options) -> set[str]:
    """Return the codes of the checks that `--ignore` names."""
    return {item.value for item in options.ignore}


def run_id_of(options: Options) -> str:
    """Return the name of the run: `--run-id`, or a new one."""
    return new_run_id() if options.run_id is None else options.run_id.value


def probe_request(options: Options, environ: Mapping[str, str], *, import_torch: bool = False) -> ProbeRequest:
    """Return what to probe for these options; an explicit port counts only on node 0, which will bind it."""
    exported_port = environ.get("MASTER_PORT", "")
    port = value_of(options.master_port, int(exported_port) if COUNT.match(exported_port) else 0)
    place = meeting_place(options.master_addr, environ) if options.nnodes else {}
    return ProbeRequest(
        data_paths=tuple(item.value for item in options.data),
        output_paths=tuple(item.value for item in options.output),
        master_addr=value_of(place.get("master_addr"), None),
        master_port=port if not value_of(options.node_rank, 0) and 0 < port < 65536 else None,
        import_torch=import_torch,
        packages=import_torch,  # for bug reports
    )


def choose_gpus(options: Options, facts: Facts, within: Exported, locks: GpuLocks | None) -> Selection | None:
    """Return the GPUs of ``--gpus``, None where it was not given. Raises UsageError or RefusedError."""
    if options.gpus is None or value_of(options.device, None) == "cpu":
        return None  # ``resolve`` refuses the contradiction
    if not isinstance(facts.nvml, NvmlFacts):
        raise usage(
            f"`--gpus {options.gpus.value}`, but GPUs cannot be queried: {facts.nvml.reason}",
            why="GPUs are found through NVML, the driver's library",
            fix="`ddplaunch doctor` says what is wrong with the driver; `--device cpu` runs without GPUs",
            where=str(options.gpus.source),
            code="gpu-not-found",
        )
    need = None if options.nproc is None or options.nproc.value == "auto" else options.nproc.value
    if locks is not None:
        return pick_free(options.gpus.value, facts.nvml, within, locks, need)
    return select(options.gpus.value, facts.nvml, within, frozenset(), need)


def record_directory(base: Path, run_id: str) -> Path:
    """Return the directory of the run's record. Raises UsageError for an id that cannot name a directory."""
    try:
        return run_directory(base, run_id)
    except ValueError as exception:
        raise usage(str(exception), why="it names the run's record", fix="`--run-id my-run-1`") from exception


def script_report(options: Options, target: Target | None, cwd: Path) -> ScriptReport | Unavailable:
    """Read the target's source, with its arguments, and adjust the report by what the options say about the script.

    Raises UsageError for a module that does not exist, and for an option that the script does not declare.
    """
    if target is None:
        return Unavailable("no script was named")
    return understood_as_said(_read(target, cwd), options, target)


def _read(target: Target, cwd: Path) -> ScriptReport | Unavailable:
    search = tuple(Path(entry) for entry in sys.path if entry)
    path = locate(target.kind, target.name, cwd, search)
    homes = _homes(target.name) if target.kind == "module" and not isinstance(path, Path) else ()
    if homes:
        path = locate(target.kind, target.name, homes[0], homes)
    if isinstance(path, Path):
        report = read_script(path, cwd, search, target.args)
        return replace(report, needs_env=tuple(each for each in report.needs_env if each[0] not in os.environ))
    if target.kind == "module" and not (cwd / target.name.split(".")[0]).exists() and not homes:
        raise usage(
            f"there is no module `{target.name}`",
            why=f"neither {cwd} nor {sys.executable} has it",
            fix="leave out `-m`, or `.py`"
            if (cwd / target.name).exists()
            else "`cd` to the directory that holds the package, or install it",
            code="script-not-found",
        )
    return path


def _homes(module: str) -> tuple[Path, ...]:
    """Return the folders that contain an installed package, including an editable install."""
    try:
        spec = find_spec(module.split(".")[0])
    except (ImportError, ValueError):
        return ()
    if spec is None:
        return ()
    places = spec.submodule_search_locations or ([spec.origin] if spec.origin else [])
    return tuple(Path(place).parent for place in places) or (Path(sys.prefix),)


def shadowing(options: Options, cwd: Path) -> str | None:
    """Return the file that ``-P`` would hide from torchrun, where a warm start cannot use ``-P``."""
    if value_of(options.start, "auto") == "cold" or "-P" not in interpreter():
        return None
    from ddplaunch.machine.software import shadowing_file  # needed by few launches

    return None if os.environ.get("PYTHONSAFEPATH") else shadowing_file(str(cwd))


def interpreter() -> tuple[str, ...]:
    """Return the command that runs torchrun's interpreter.

    ``-P`` keeps a ``logging.py`` or ``types.py`` in the working directory from shadowing the standard library
    inside torchrun; the ranks start without it.
    """
    return (sys.executable, "-P") if sys.version_info >= (3, 11) else (sys.executable,)
