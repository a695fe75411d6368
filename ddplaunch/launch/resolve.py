"""One decided launch from options, facts and the script's report: what ``run`` executes and ``plan`` shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from ddplaunch.launch.capture import CaptureDecision, decide_capture, decide_start, interpreter_for
from ddplaunch.launch.environment import Surroundings, decide_environment
from ddplaunch.launch.gpus import Selection, visible
from ddplaunch.launch.launch import Device, Launch, Target, Topology, Variable
from ddplaunch.launch.options import Options
from ddplaunch.launch.script_arguments import Forwarded, complete_from_script, forward, texts
from ddplaunch.launch.settings import Settings
from ddplaunch.launch.topology import resolve_topology
from ddplaunch.launch.torchrun import Rendezvous, extra_arguments, shared_id, torchrun_argv
from ddplaunch.machine.facts import Facts
from ddplaunch.scaling.compute import compute
from ddplaunch.scaling.numbers import Numbers, NumbersRequest
from ddplaunch.script.report import ScriptReport
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from ddplaunch.values.variable_names import RUN_ID


@dataclass(frozen=True)
class Situation:
    """What was gathered before deciding.

    ``pairs`` are the variables of --env-file and --env in order, ``record`` the run's directory, ``python`` the
    interpreter with its options, ``selection`` the GPUs that were picked (None: not asked for), ``plugin`` where
    torchrun finds ddplaunch's entry point. ``cwd`` is the directory that torchrun starts in,
    ``shadowing`` a file there that it would import in the place of a library.
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


def resolve(options: Options, target: Target | None, situation: Situation) -> Launch:
    """Decide the launch. Raises UsageError for options that contradict each other or cannot be met."""
    device = resolve_device(options, situation)
    count = resolve_processes(options, device.value, situation)
    topology = resolve_topology(options, situation.environ, count)
    completed = complete_from_script(options, target, situation.script)
    numbers = compute(request_numbers(completed, topology))
    forwarded = _forward(options, target, numbers, topology, situation.script)
    final = None if target is None else replace(target, args=forwarded.args)
    torch = situation.facts.torch
    extra = extra_arguments(options.torchrun_arg, torch if isinstance(torch, Unavailable) else torch.torchrun_flags)
    below = f"{situation.cwd}/" if situation.cwd else ""  # a shorter path, which a pasted command takes elsewhere too
    start = decide_start(options, target, situation.shadowing)
    directory = situation.record.removeprefix(below)
    about = Settings(situation.run_id, directory, "warm" if start.warm else "cold", start.preload)
    capture = decide_capture(options, topology, torch, situation.plugin, extra, about)
    plan = (*plan_variables(situation.run_id, numbers, topology), *capture.variables)
    gpus = None if device.value == "cpu" else _entries(situation.selection)
    surroundings = Surroundings(
        environ=situation.environ,
        facts=situation.facts,
        device=device.value,
        gpus=gpus,
        gpus_source=options.gpus.source if options.gpus else Source("detected"),
        pairs=situation.pairs,
        record=situation.record,
    )
    return Launch(
        run_id=situation.run_id,
        target=final,
        topology=topology,
        device=device,
        gpus=gpus,
        numbers=numbers,
        passed=forwarded.passed,
        environment=decide_environment(options, topology, surroundings, plan),
        argv=_argv(options, topology, final, situation, extra, capture, warm=start.warm and bool(capture.variables)),
        options=options,
        notes=(
            *(situation.selection.notes if situation.selection is not None and gpus is not None else ()),
            *capture.notes,
            *start.notes,
        ),
    )


def resolve_device(options: Options, situation: Situation) -> Resolved[Device]:
    """Decide between CUDA and CPU. Raises UsageError where ``--device`` contradicts ``--gpus``."""
    asked = options.device
    if asked is not None and asked.value == "cpu":
        if options.gpus is not None:
            raise usage("`--device cpu` contradicts `--gpus`", why="one asks for GPUs, one for none", fix="drop one")
        return Resolved("cpu", asked.source)
    if asked is not None and asked.value == "cuda":
        return Resolved("cuda", asked.source)
    if options.gpus is not None:
        return Resolved("cuda", options.gpus.source)
    torch = situation.facts.torch
    if isinstance(torch, Unavailable):
        return Resolved("cpu", Source("detected", "torch is not installed"))
    if torch.hip is not None:
        return Resolved("cuda", Source("detected", f"torch for ROCm {torch.hip}"))
    if torch.cuda is None:
        return Resolved("cpu", Source("detected", "torch is a CPU build"))
    count = visible_gpus(situation)
    if isinstance(count, Unavailable):
        return Resolved("cpu", Source("detected", count.reason))
    return Resolved("cuda" if count else "cpu", Source("detected", f"{count} visible GPUs"))


def visible_gpus(situation: Situation) -> int | Unavailable:
    """Return how many GPUs a rank would see, after ``--gpus`` or CUDA_VISIBLE_DEVICES."""
    if situation.selection is not None:
        return len(situation.selection.entries)
    nvml = situation.facts.nvml
    if isinstance(nvml, Unavailable):
        return nvml
    environ = {**situation.environ, **{name: value for name, value, _ in situation.pairs}}
    seen = visible(nvml, environ.get("CUDA_VISIBLE_DEVICES"), environ.get("CUDA_DEVICE_ORDER"))
    return len(seen.entries)


def resolve_processes(options: Options, device: Device, situation: Situation) -> Resolved[int]:
    """Decide the ranks of this node. Raises UsageError where ``auto`` cannot count."""
    if options.nproc is not None and options.nproc.value != "auto":
        return Resolved(options.nproc.value, options.nproc.source)
    if device == "cpu":
        return Resolved(1, Source("detected", "no GPU: one process unless you name a number"))
    count = visible_gpus(situation)
    if isinstance(count, Unavailable) or count == 0:
        reason = count.reason if isinstance(count, Unavailable) else "no GPU is visible"
        raise usage(
            f"`auto` cannot count GPUs: {reason}",
            why="`auto` is one process for each visible GPU",
            fix="say the number, as in `ddplaunch run 4 -- train.py`, or add `--device cpu`",
            code="no-gpu-to-count",
        )
    return Resolved(count, Source("detected", f"{count} visible GPUs"))


def request_numbers(options: Options, topology: Topology) -> NumbersRequest:
    """Return the question for the arithmetic: the options' numbers and the world size of the topology."""
    nodes, processes = topology.nnodes, topology.nproc_per_node
    source = processes.source
    if nodes.value > 1:
        source = Source("computed", f"{nodes.value} nodes × {processes.value}")
    return NumbersRequest(
        world_size=Resolved(topology.world_size, source),
        batch_size=options.batch_size,
        accum=options.accum,
        global_batch_size=options.global_batch_size,
        base_lr=options.base_lr,
        base_batch_size=options.base_batch_size,
        lr=options.lr,
        lr_scaling=options.lr_scaling,
        lr_max_factor=options.lr_max_factor,
        base_warmup=options.base_warmup,
        dataset_size=options.dataset_size,
    )


def plan_variables(run_id: str, numbers: Numbers, topology: Topology) -> tuple[Variable, ...]:
    """Return DDPLAUNCH_RUN_ID, one variable for each known number, and the whole plan as JSON."""
    source = Source("computed")
    known = texts(numbers, topology.nproc_per_node.value, topology.nnodes.value)
    plan: dict[str, object] = {"schema": 1, "run_id": run_id}
    for name, text in known.items():
        plan[name] = float(text) if name == "lr" else int(text)
    if numbers.lr_factor is not None:
        plan["lr_factor"] = numbers.lr_factor.value
    for name in ("steps_per_epoch", "dataset_size"):
        resolved = getattr(numbers, name)
        if resolved is not None:
            plan[name] = resolved.value
    reason = "for `os.environ` and `ddplaunch.current()`"
    variables = [Variable(f"DDPLAUNCH_{name.upper()}", text, source, reason) for name, text in known.items()]
    return (
        Variable(RUN_ID, run_id, source, "finds the processes of this run"),
        *variables,
        Variable("DDPLAUNCH_PLAN", json.dumps(plan, separators=(",", ":")), source, reason),
    )


def _forward(
    options: Options, target: Target | None, numbers: Numbers, topology: Topology, script: ScriptReport | Unavailable
) -> Forwarded:
    if target is None:
        return Forwarded((), ())
    automatic = options.forward is None or options.forward.value
    known = texts(numbers, topology.nproc_per_node.value, topology.nnodes.value)
    usable = {name: text for name, text in known.items() if not _from_script(numbers, name)}
    return forward(target.args, known, usable, script, automatic)


def _from_script(numbers: Numbers, name: str) -> bool:
    """Whether the script has this number already, so that passing it on would only repeat it."""
    resolved = getattr(numbers, name, None)
    return isinstance(resolved, Resolved) and resolved.source.kind == "script"


def _entries(selection: Selection | None) -> tuple[str, ...] | None:
    return None if selection is None else tuple(entry.text for entry in selection.entries)


def _argv(
    options: Options,
    topology: Topology,
    target: Target | None,
    situation: Situation,
    extra: tuple[str, ...],
    capture: CaptureDecision,
    *,
    warm: bool,
) -> tuple[str, ...]:
    if topology.master_addr is None:
        rendezvous = Rendezvous(situation.run_id)
    else:
        network = situation.facts.network
        route = network if isinstance(network, Unavailable) else network.route_to_master
        address = None if isinstance(route, Unavailable) else route.local_address
        identity = options.run_id.value if options.run_id else shared_id(topology, target)
        rendezvous = Rendezvous(identity, address)
    python = interpreter_for(situation.python, warm)
    restarts = options.max_restarts.value if options.max_restarts else 0
    return torchrun_argv(python, rendezvous, topology, restarts, extra, target, capture.argv)
