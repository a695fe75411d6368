"""Decides a launch from options, facts and the script's report: what ``run`` executes and ``plan`` shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace

from ddplaunch.machine.facts import Facts, NvmlFacts, TorchFacts
from ddplaunch.planning import capture
from ddplaunch.planning.flag import DeviceWord, Processes
from ddplaunch.planning.gpus import Selection, VisibleGpu, cuda_visible, exported, shown_gpus
from ddplaunch.planning.launch import Device, Launch, Placement, Target, Topology, Variable
from ddplaunch.planning.options import Options
from ddplaunch.planning.ranks import environment
from ddplaunch.planning.ranks.placement import Surroundings, resolve_placement
from ddplaunch.planning.ranks.topology import resolve_topology
from ddplaunch.planning.script_numbers.forward import Forwarded, forward
from ddplaunch.planning.script_numbers.handed_out import Plan, complete_from_script, given_numbers, withheld_numbers
from ddplaunch.planning.settings import OBSERVED, Settings
from ddplaunch.planning.torchrun import extra_arguments, shared_id, torchrun_argv
from ddplaunch.scaling.compute import compute
from ddplaunch.scaling.numbers import NumbersRequest
from ddplaunch.script.script_report import ScriptReport
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source, Unavailable, value_of
from ddplaunch.values.variable_names import PLAN, RUN_ID
from ddplaunch.values.words import count


@dataclass(frozen=True)
class Situation:
    """The facts gathered before deciding.

    ``pairs`` are the variables of --env in order, ``record`` is the run's directory, ``python`` the interpreter with
    its options, ``selection`` the GPUs that ``--gpus`` picked (None: not given), ``plugin`` where torchrun finds
    ddplaunch's entry point. ``cwd`` is the directory in which torchrun starts, ``shadowing`` a file there that it would
    import instead of a library.
    """

    facts: Facts
    script: ScriptReport | Unavailable
    environ: Mapping[str, str]
    pairs: tuple[tuple[str, str, Source], ...]
    selection: Selection | None
    python: tuple[str, ...]
    run_id: str
    record: str
    plugin: str | Unavailable = Unavailable("the plug-in was not looked for")
    cwd: str = ""
    shadowing: str | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The shell's environment, with the variables of --env."""
        return {**self.environ, **{name: value for name, value, _ in self.pairs}}


def resolve(options: Options, target: Target | None, situation: Situation) -> Launch:
    """Return the decided launch. Raises UsageError for options that contradict each other or cannot be met."""
    facts = situation.facts
    device = resolve_device(options.device, options.gpus, situation)
    topology = resolve_topology(
        resolve_processes(options.nproc, device.value, situation),
        options.nnodes,
        options.node_rank,
        options.master_addr,
        options.master_port,
        situation.environ,
    )
    _refuse_memory(options.memory_bytes, device)
    completed = complete_from_script(options, target, topology, situation.script)
    numbers = compute(request_numbers(completed, topology))
    handed_out = Plan(
        numbers,
        topology.nproc_per_node.value,
        topology.nnodes.value,
        given_numbers(options, numbers),
        value_of(options.forward, True),
        withheld_numbers(options),
        executable=target is not None and target.kind == "executable",
    )
    forwarded = forward(target.args, handed_out, situation.script) if target else Forwarded((), ())
    index = situation.environ.get("SLURM_ARRAY_TASK_ID", "{array_index}")  # outside of an array it stays as typed
    args = tuple(word.replace("{array_index}", index) for word in forwarded.args)
    final = None if target is None else replace(target, args=args)
    flags = facts.torch if isinstance(facts.torch, Unavailable) else facts.torch.torchrun_flags
    extra = extra_arguments(options.torchrun_arg, flags)
    capture.refuse_absent(options.show, topology.world_size)
    grace, grace_notes = capture.shutdown_timeout(options.grace_s, flags, extra)
    # relative to the working directory: shorter, and still right in a pasted command
    directory = situation.record.removeprefix(f"{situation.cwd}/") if situation.cwd else situation.record
    node = value_of(topology.node_rank, 0)
    uncaptured = capture.why_not(options.capture, flags, situation.plugin, extra)
    start = StartDecision(False)
    if uncaptured is None:
        start = decide_start(options, target, topology.nproc_per_node.value, device.value, situation)
    placement = _place(options, topology, device.value, extra, situation, captured=uncaptured is None)
    about = Settings(
        situation.run_id, directory, "warm" if start.warm else "cold", start.preload, node, cpus=placement.cpus
    )
    settings = plugin_settings(options, about)._replace(others=_others(topology))
    lacks = "nothing is recorded or explained, and no time-out of ddplaunch ends the run"
    capture_notes = () if uncaptured is None else (f"no capture: {uncaptured}; {lacks}",)
    selection = situation.selection if device.value == "cuda" else None
    gpus = None if selection is None else tuple(entry.text for entry in selection.entries)
    variables = [
        *environment.of_every_rank(placement),
        *capture.debugged(options.debug, topology.world_size),
        *_variables(options, topology, device.value, gpus, situation),
        *plan_variables(situation.run_id, handed_out),
        *([capture.settings_variable(settings)] if uncaptured is None else []),
    ]
    return Launch(
        run_id=situation.run_id,
        target=final,
        topology=topology,
        device=device,
        gpus=gpus,
        numbers=numbers,
        passed=forwarded.passed,
        missing=forwarded.missing,
        receives=forwarded.receives,
        doubts=forwarded.doubts,
        environment=environment.with_the_users(variables, situation.environ, situation.pairs),
        argv=torchrun_argv(
            capture.interpreter_for(situation.python, start.warm),
            topology,
            final,
            *_rendezvous(options.run_id, topology, final, situation),
            restarts=settings.max_restarts,
            extra=extra,
            capture=(*([capture.LOGS_SPECS] if uncaptured is None else []), *grace),
        ),
        options=options,
        placement=placement,
        notes=(*(selection.notes if selection else ()), *grace_notes, *capture_notes, *start.notes),
    )


#: Variables of tools that look at a process from its start to its end, or replace its memory allocator. Every Jupyter
#: kernel sets PYDEVD_USE_FRAME_EVAL, debugged or not: importing debugpy does.
_TOOLS = "LD_PRELOAD LD_AUDIT MALLOC_CONF COVERAGE_ PYDEVD DEBUGPY CUDA_INJECTION NVTX_INJECTION LLVM_PROFILE GCOV"


@dataclass(frozen=True)
class StartDecision:
    """Whether ranks are forked (``warm``), the modules that are imported before, and notes for the plan."""

    warm: bool
    preload: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def decide_start(
    options: Options, target: Target | None, ranks: int, device: Device, situation: Situation
) -> StartDecision:
    """Decide whether the ``ranks`` of this node are forked from one process that has imported torch.

    ``auto`` forks where that was proven equal to cold starts: two or more ranks on CPUs, a torch for CPUs, a script
    that can be read.
    """
    torch, script, shadowing = situation.facts.torch, situation.script, situation.shadowing
    start, preload = value_of(options.start, "auto"), value_of(options.preload, ())
    of_cpus = isinstance(torch, TorchFacts) and not (torch.cuda or torch.hip)
    is_read = isinstance(script, ScriptReport) and script.code
    proven = ranks > 1 and device == "cpu" and of_cpus and is_read
    if start == "cold" or (start == "auto" and not proven):
        without = "`--preload` without effect: the ranks start cold; `--start warm` imports once, then forks"
        return StartDecision(False, (), (without,) if preload else ())
    found = (name for name in situation.variables if name.startswith(tuple(_TOOLS.split())))
    tool = next((name for name in found if name != "PYDEVD_USE_FRAME_EVAL"), "")
    if target is not None and (target.before or target.kind == "executable"):
        name = next(iter(target.before), target.name)
        reason = f"`{name}` is a program of its own, and only Python files and modules can be forked"
    elif shadowing:
        reason = (
            f"`{shadowing}` in this directory is named like what torchrun imports; a cold start keeps it out by "
            "`python -P`, which ranks must not have"
        )
    elif tool:
        reason = f"{tool} is set"
    elif not isinstance(script, Unavailable) and script.early:
        reason = script.early
    else:
        return StartDecision(True, preload, ("start warm: torch is imported once",))
    return StartDecision(False, (), (f"cold start: {reason}",))


def resolve_device(
    typed: Resolved[DeviceWord] | None, gpus: Resolved[str] | None, situation: Situation
) -> Resolved[Device]:
    """Decide between CUDA and CPU. Raises UsageError if ``--device`` contradicts ``--gpus``."""
    if typed is not None and typed.value != "auto":
        if typed.value == "cpu" and gpus is not None:
            raise usage("`--device cpu` contradicts `--gpus`", why="one asks for GPUs, one for none", fix="drop one")
        return Resolved(typed.value, typed.source)
    if gpus is not None:
        return Resolved("cuda", gpus.source)
    torch = situation.facts.torch
    if isinstance(torch, Unavailable):
        return Resolved("cpu", Source("detected", "torch is not installed"))
    number = visible_gpus(situation)
    if torch.hip is not None and (number or isinstance(number, Unavailable)):  # in WSL2 nothing reports AMD GPUs
        return Resolved("cuda", Source("detected", f"torch for ROCm {torch.hip}"))
    if torch.cuda is None and torch.hip is None:
        return Resolved("cpu", Source("detected", "torch is a CPU build"))
    if isinstance(number, Unavailable):
        return Resolved("cpu", Source("detected", number.reason))
    return Resolved("cuda" if number else "cpu", Source("detected", count(number, "visible GPU")))


def _refuse_memory(typed: Resolved[int] | None, device: Resolved[Device]) -> None:
    """Raise UsageError for ``--memory`` if ranks train on GPUs."""
    if typed is not None and device.value == "cuda":
        raise usage(
            "`--memory` limits ranks on the CPU, and these run on GPUs",
            why="a GPU's memory is shared out by torch's allocator, and the kernel counts what CUDA maps of the host's",
            fix="leave it out, or add `--device cpu`; `torch.cuda.set_per_process_memory_fraction` limits a GPU's",
            where=str(typed.source),
        )


def visible_gpus(situation: Situation) -> int | Unavailable:
    """Return how many GPUs a rank would see, after ``--gpus`` or CUDA_VISIBLE_DEVICES."""
    gpus = _seen(situation)
    return gpus if isinstance(gpus, Unavailable) else len(gpus)


def _seen(situation: Situation) -> tuple[VisibleGpu, ...] | Unavailable:
    if situation.selection is not None:
        return situation.selection.entries
    nvml = situation.facts.nvml
    if isinstance(nvml, Unavailable):
        return nvml
    within = exported(situation.environ, situation.pairs, nvml)
    if nvml.vendor == "nvidia":  # without `--gpus`, ranks count GPUs in the order that the user has set
        return cuda_visible(nvml, within.devices, situation.variables.get("CUDA_DEVICE_ORDER")).entries
    return shown_gpus(nvml, within).entries


def _place(
    options: Options,
    topology: Topology,
    device: Device,
    extra: tuple[str, ...],
    situation: Situation,
    *,
    captured: bool,
) -> Placement:
    """Decide on which CPUs this node's ranks run."""
    facts, visible = situation.facts, _seen(situation)
    gpus = () if isinstance(visible, Unavailable) else tuple(entry.gpu.pci_bus_id for entry in visible)
    surroundings = Surroundings(
        variables=situation.variables,
        gpus=gpus if device == "cuda" else None,
        extra=extra,
        plugin=captured,
    )
    return resolve_placement(
        options.placement, topology.nproc_per_node.value, facts.cpu, facts.cpu_layout, surroundings
    )


def resolve_processes(typed: Resolved[Processes] | None, device: Device, situation: Situation) -> Resolved[int]:
    """Decide the number of ranks on this node. Raises UsageError if ``auto`` cannot count GPUs."""
    if typed is not None and typed.value != "auto":
        return Resolved(typed.value, typed.source)
    if device == "cpu":
        return Resolved(1, Source("detected", "no GPU: one process unless you name a number"))
    number = visible_gpus(situation)
    if isinstance(number, Unavailable) or number == 0:
        reason = number.reason if isinstance(number, Unavailable) else "no GPU is visible"
        raise usage(
            f"`auto` cannot count GPUs: {reason}",
            why="`auto` is one process for each visible GPU",
            fix="a number in the place of `auto`, or `--device cpu`",
            code="no-gpu-to-count",
        )
    return Resolved(number, Source("detected", count(number, "visible GPU")))


def request_numbers(options: Options, topology: Topology) -> NumbersRequest:
    """Return the input of ``compute``: the topology's world size, and the options named like its other fields."""
    nodes, processes = topology.nnodes, topology.nproc_per_node
    source = processes.source
    if nodes.value > 1:
        source = Source("computed", f"{nodes.value} nodes × {processes.value}")
    request = {
        field.name: getattr(options, field.name) for field in fields(NumbersRequest) if field.name != "world_size"
    }
    return NumbersRequest(Resolved(topology.world_size, source), **request)


def plan_variables(run_id: str, handed_out: Plan) -> tuple[Variable, ...]:
    """Return DDPLAUNCH_RUN_ID, one variable for each known number, and the whole plan as JSON."""
    source = Source("computed")
    texts, numbers = handed_out.texts(), handed_out.numbers
    plan: dict[str, object] = {"schema": 1, "run_id": run_id}
    for name, text in texts.items():
        plan[name] = float(text) if name in ("lr", "lr_factor") else int(text)
    for name in ("steps_per_epoch", "dataset_size"):
        resolved = getattr(numbers, name)
        if resolved is not None:
            plan[name] = resolved.value
    reason = "for `os.environ` and `ddplaunch.current()`"
    variables = [Variable(f"DDPLAUNCH_{name.upper()}", text, source, reason) for name, text in texts.items()]
    return (
        Variable(RUN_ID, run_id, source, "finds the processes of this run"),
        *variables,
        Variable(PLAN, json.dumps(plan, separators=(",", ":")), source, reason),
    )


def _others(topology: Topology) -> str:
    """Return where nodes learn of each other's end, "" if they need not: an elastic launch continues without a node."""
    address, port = topology.master_addr, topology.master_port
    on_one_host = topology.nnodes.value == 1 or topology.min_nodes < topology.nnodes.value
    if on_one_host or address is None or port is None:
        return ""
    return f"{address.value.strip('[]')} {port.value}"


#: Options that have the same names in ``Settings``.
_AS_SAID = (
    *("verbose", "timeout_s", "hang_timeout_s", "on_hang", "stacks", "log_max_bytes", "phases", "memory_bytes"),
    *("grace_s", "max_restarts", "restart_always", "observe", "prove", "quiet"),
)


def plugin_settings(options: Options, settings: Settings) -> Settings:
    """Return ``settings``, which already has run, node and start, completed from the options."""
    typed = {name: getattr(options, name).value for name in _AS_SAID if getattr(options, name) is not None}
    if typed.get("prove"):
        typed["observe"] = True  # it begins and reports what proves
    show = value_of(options.show, (0,))
    shown = show if show == "all" else ",".join(map(str, show))
    ignore = tuple(item.value for item in options.ignore if item.value in OBSERVED)
    outputs = tuple(path.value for path in options.output)
    return settings._replace(**{"show": shown, "ignore": ignore, "outputs": outputs, **typed})


def _variables(
    options: Options, topology: Topology, device: Device, gpus: tuple[str, ...] | None, situation: Situation
) -> list[Variable]:
    """Return the variables that the launch would set if the user had set none."""
    facts, nnodes = situation.facts, topology.nnodes.value
    if device == "cpu":
        of_the_device = environment.on_cpus(facts.nvml, options.device)
    else:
        of_the_device = [
            *environment.shown_gpus(gpus, options.gpus, amd=_amd(facts)),
            *environment.nccl(options.nccl_debug, facts.network),
            *environment.flight_recorder(
                situation.record,
                None if isinstance(facts.torch, Unavailable) else facts.torch.version,
                situation.variables,
            ),
        ]
    return [
        *of_the_device,
        *environment.interfaces(options.socket_ifname, nnodes, facts.network, device),
        *environment.restarts(value_of(options.max_restarts, 0)),
    ]


def _amd(facts: Facts) -> bool:
    nvml, torch = facts.nvml, facts.torch
    return isinstance(nvml, NvmlFacts) and nvml.vendor == "amd" and not (isinstance(torch, TorchFacts) and torch.cuda)


def _rendezvous(
    run_id: Resolved[str] | None, topology: Topology, target: Target | None, situation: Situation
) -> tuple[str, str | None]:
    """Return the id by which nodes find each other, and this node's address on the route to rank 0."""
    if topology.master_addr is None:
        return situation.run_id, None
    network = situation.facts.network
    route = network if isinstance(network, Unavailable) else network.route_to_master
    identity = run_id.value if run_id else shared_id(topology, target)
    return identity, None if isinstance(route, Unavailable) else route.local_address
