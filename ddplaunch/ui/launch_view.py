"""What `run` shows until torchrun takes over: a launch in phrases and as a panel, and the progress of a roll call."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from ddplaunch.checks.check import LaunchGpus
from ddplaunch.machine.facts import Facts
from ddplaunch.planning.launch import Launch, Passed, Target
from ddplaunch.planning.ranks.topology import endpoint
from ddplaunch.scaling.numbers import Numbers, format_factor, format_lr, round_significant
from ddplaunch.ui.speech import findings_text
from ddplaunch.ui.table import panel
from ddplaunch.ui.terminal import Terminal, cut, speak, visible
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Resolved, Unavailable
from ddplaunch.values.secrets import hide_text, hide_value, hide_words
from ddplaunch.values.variable_names import RANK_CALL
from ddplaunch.values.words import count, listed, numbers_text, tallied

if TYPE_CHECKING:  # most launches have no roll call
    from ddplaunch.hosts.roll_call.messages import Status


def number_text(value: float | str) -> str:
    """Return a number without the noise of binary fractions, ``0.0004``, ``1e-05``, ``60000``; a word unchanged."""
    if not isinstance(value, float):
        return str(value)
    text = format_lr(value)
    return text if len(text) <= 12 else format_factor(value)


def target_text(target: Target | None) -> str:
    """Return what every rank runs as it was typed, without its arguments; ``name()`` for a Python function."""
    if target is None:
        return "no script"
    if target.name == RANK_CALL and len(target.args) > 1:
        return f"{target.args[1]}()"
    named = f"-m {target.name}" if target.kind == "module" else target.name
    return " ".join((*target.before, named))


def nodes_text(launch: Launch) -> str:
    """Return ``4 processes, this machine`` or ``16 processes, 2 nodes of 8, this is node 0, …``."""
    topology = launch.topology
    processes = count(topology.world_size, "process")
    if topology.nnodes.value == 1:
        return f"{processes}, this machine"
    most = topology.nnodes.value
    nodes = str(most) if topology.min_nodes == most else f"{topology.min_nodes} to {most}"
    parts = [processes, f"{nodes} nodes of {topology.nproc_per_node.value}"]
    if topology.node_rank is not None:
        parts.append(f"this is node {topology.node_rank.value}")
    if topology.master_addr is not None:
        address, port = topology.master_addr.value, topology.master_port
        parts.append(f"rank 0 at {address if port is None else endpoint(address, port.value)}")
    return ", ".join(parts)


def device_text(launch: Launch, facts: Facts | None = None) -> str:
    """Return ``GPUs 0-3 (4 × NVIDIA H100 80GB HBM3)`` or ``CPU``; models are named where ``facts`` have them."""
    if launch.device.value == "cpu":
        return "CPU"
    models = ""
    if facts is not None and not isinstance(facts.nvml, Unavailable):
        models = tallied(entry.gpu.name for entry in LaunchGpus(facts.nvml, facts.environment, launch).visible)
        models = f" ({models})" if models else ""
    if launch.gpus is None:
        return f"every visible GPU{models}"
    return f"{'GPU' if len(launch.gpus) == 1 else 'GPUs'} {gpus_text(launch.gpus)}{models}"


def gpus_text(gpus: Sequence[str]) -> str:
    """Return ``0-3,6`` for indices; UUIDs are listed one by one."""
    return numbers_text(map(int, gpus)) if all(map(str.isdecimal, gpus)) else ", ".join(gpus)


def batch_text(launch: Launch) -> str:
    """Return ``32 = 8 per GPU × 1 accumulation × 4 GPUs``, or an empty text if no batch size is known.

    Without a total where a number may differ from what trains: ``8? per GPU × 1 accumulation × 4 GPUs?: …``.
    """
    numbers, doubts = launch.numbers, _doubts(launch, "batch_size", "accum", "world_size")
    if numbers.global_batch_size is None:
        return _doubted(f"{numbers.batch_size.value}{{batch_size}} per process", doubts) if numbers.batch_size else ""
    total = number_text(numbers.global_batch_size.value)
    if numbers.batch_size is None:
        return _doubted(f"{total}{{batch_size}}", doubts)
    unit = "GPU" if launch.device.value == "cuda" else "process"
    accum = numbers.accum.value if numbers.accum is not None else 1
    ranks = count(numbers.world_size.value, unit)
    parts = (
        f"{numbers.batch_size.value}{{batch_size}} per {unit} × {accum}{{accum}} accumulation × {ranks}{{world_size}}"
    )
    return _doubted(parts if doubts else f"{total} = {parts}", doubts)


def _doubts(launch: Launch, *families: str) -> dict[str, str]:
    """Return the numbers of ``families`` that may differ from what trains, each with a clause about what decides it.

    What was said of the ranks is not said again of what is scaled by their number.
    """
    doubts = dict(launch.doubts)
    ranks = "" if "world_size" in families else doubts.get("world_size", "")
    return {
        family: clause.replace(ranks, "") if ranks else clause
        for family, clause in doubts.items()
        if family in families
    }


def _doubted(text: str, doubts: Mapping[str, str]) -> str:
    """Return ``text`` with a question mark at each doubted number, and the reasons after it."""
    marks = {family: "?" if family in doubts else "" for family in ("batch_size", "accum", "world_size")}
    return ": ".join(filter(None, (text.format(**marks), "; ".join(dict.fromkeys(doubts.values())))))


def lr_text(launch: Launch) -> str:
    """Return ``0.0004 = 0.0001 × 4 (linear: batch 32 / 8)``, ``0.0004 (as given)``, or an empty text.

    The script's own rate, which is never scaled unasked, is shown for several ranks, with what would scale it. Adds the
    value from which the script computes its rate.
    """
    numbers, doubts = launch.numbers, _doubts(launch, "lr")
    base, lr, factor = numbers.base_lr, numbers.lr, numbers.lr_factor
    if lr is not None and base is None and lr.source.kind == "script" and not doubts:
        return _not_scaled(launch)
    if "lr" in launch.not_received:
        return ""  # a finding says it
    if lr is None or ((base or lr).source.kind == "script" and (base is None or factor is None or factor.value == 1)):
        return ""
    value = number_text(lr.value) + "?" * bool(doubts)
    origin = " (as given)"
    if base is not None and factor is not None:
        origin = f" = {number_text(base.value)} × {number_text(factor.value)} ({_rule_text(numbers)})"
    scaled = (one for one in launch.passed if one.number == "lr" and one.note and one.value != format_lr(lr.value))
    own = (f"; the script gets {one.value}, {one.note}" for one in scaled)
    return _doubted(value + origin + next(own, ""), doubts)


def _not_scaled(launch: Launch) -> str:
    """Return ``0.05 (train.py:10), not scaled: `--base-lr 0.05` makes it 0.1``; empty for one rank."""
    lr, ranks = launch.numbers.lr, launch.numbers.world_size.value
    if lr is None or ranks == 1:
        return ""
    text, place = number_text(lr.value), lr.source.detail.removeprefix("default at ")
    if " × " in place:  # by the script itself
        return f"{text} ({place})"
    typed = place.startswith("`")  # after `--`, where it would contradict the scaled rate
    more = f": `--base-lr {text}` makes it {number_text(round_significant(lr.value * ranks))}"
    return f"{text} ({place}), not scaled" + more * ("lr" in launch.receives and not typed)


def _rule_text(numbers: Numbers) -> str:
    """Return ``linear: batch 32 / 8``."""
    rule = "" if numbers.lr_scaling is None else numbers.lr_scaling.value
    if numbers.global_batch_size is None or numbers.base_batch_size is None:
        return rule
    base = numbers.base_batch_size
    own = f", {base.source.detail}" if base.source.kind == "script" else ""
    return f"{rule}: batch {numbers.global_batch_size.value} / {base.value}{own}"


def _schedule_text(launch: Launch) -> str:
    """Return ``1875 steps per epoch, 2000 warmup steps``, without unknown numbers."""
    numbers, doubts = launch.numbers, _doubts(launch, "warmup_steps")
    parts = []
    if numbers.steps_per_epoch is not None:
        parts.append(f"{count(numbers.steps_per_epoch.value, 'step')} per epoch")
    if numbers.warmup_steps is not None and "warmup_steps" not in launch.not_received:
        steps = count(numbers.warmup_steps.value, "warmup step")
        parts.append(_doubted(steps.replace(" ", "? ", 1) if doubts else steps, doubts))
    return ", ".join(parts)


def _configured_text(launch: Launch) -> str:
    """Return ``ddplaunch.toml: env, preload``: options from project files, which the user did not type."""
    keys: dict[str, dict[str, None]] = {}
    for name, value in vars(launch.options).items():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Resolved) and one.source.kind == "profile":
                keys.setdefault(one.source.detail, {})[name.removesuffix("_s").replace("_", "-")] = None
    return "; ".join(f"{file}: {', '.join(names)}" for file, names in sorted(keys.items()))


def launch_panel(
    launch: Launch,
    findings: Sequence[Finding],
    terminal: Terminal,
    *,
    facts: Facts | None = None,
    record: str | None = None,
) -> str:
    """Return the panel: what runs where, the numbers, what is passed to the script, findings.

    ``record`` is the directory of the run's record, or a sentence that explains why there is none.
    """
    head = terminal.paint("ddplaunch", "bold") + " " + terminal.paint(visible(launch.run_id), "dim")
    rows = [*launch_rows(launch, facts).items(), ("record", record or "")]
    text = terminal.page([head, *panel(rows, terminal)])
    return text + (f"\n{findings_text(findings, terminal)}" if findings else "")


_ATTACH = '{"type": "debugpy", "request": "attach", "connect": {"port": 5678}}'


def launch_rows(launch: Launch, facts: Facts | None) -> dict[str, str]:
    """Return the known facts about a launch by label, empty texts for unknown ones."""
    return {
        "run": f"{target_text(launch.target)} on {nodes_text(launch)}, {device_text(launch, facts)}",
        "cpus": launch.placement.text if launch.placement.shown else "",
        "batch": batch_text(launch),
        "lr": lr_text(launch),
        "steps": _schedule_text(launch),
        "pass": "; ".join(map(passed_text, launch.passed)),
        "config": _configured_text(launch),
        "debug": ""
        if launch.options.debug is None
        else f"rank {launch.options.debug.value} waits for a debugger; in VS Code's launch.json `{_ATTACH}`",
        "env": _environment_text(launch),
        "note": hide_text("; ".join(launch.notes)),
    }


def passed_text(passed: Passed) -> str:
    """Return ``--lr 0.0004 (train.py:31)``, or ``{lr} = 0.0004`` for a placeholder."""
    if passed.variable:
        return f"{passed.number.replace('_', ' ')} {passed.value} by {passed.variable}"
    if not passed.arguments:
        return f"{{{passed.number}}} = {passed.value}"
    note = "" if passed.number == "lr" else passed.note  # the rate's row shows its note
    note = note if passed.at is None else note.replace(f"{passed.at.file}:", "line ")
    remarks = ", ".join(str(part) for part in (passed.at, note) if part)
    return shlex.join(hide_words(passed.arguments)) + (f" ({remarks})" if remarks else "")


_SHOWN_ABOVE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "DDPLAUNCH_DEBUG")
_MOST_VARIABLES, _LONGEST_VALUE = 6, 40


def _environment_text(launch: Launch) -> str:
    """Return ``OMP_NUM_THREADS=4, MINE=***, PET_NNODES removed``: requested or measured variables, no usual ones."""
    shown = []
    for variable in launch.environment:
        if variable.value is None:
            shown.append(f"{variable.name} removed")
        elif variable.source.kind not in ("default", "computed") and variable.name not in _SHOWN_ABOVE:
            shown.append(f"{variable.name}={cut(hide_value(variable.name, variable.value), _LONGEST_VALUE)}")
    return listed(shown, _MOST_VARIABLES)


_FIRST_S = 0.5  # nodes that start together need no message
_BETWEEN_S = 10.0


def joined_text(status: Status) -> str:
    """Return ``3 of 4 nodes joined, waiting for node 2 (gpu-07)``."""
    if not status.missing:
        return f"{status.expected} of {status.expected} nodes joined"
    joined = "" if status.joined is None else f"{status.joined} of {status.expected} nodes joined, "
    return f"{joined}waiting for {listed(status.missing)}" + (f"; {status.note}" if status.note else "")


class RollCallLine:
    """Shows the progress of a roll call on ``stream``; ``clock`` counts seconds."""

    def __init__(self, stream: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without writing."""
        self._stream, self._clock = stream, clock
        self._shown, self._due_s = "", 0.0

    def show(self, status: Status) -> None:
        """Write ``status``, unless it is too early, unchanged, or too soon after the last line."""
        now_s, text = self._clock(), joined_text(status)
        begun = self._shown or (status.missing and status.waited_s >= _FIRST_S)
        if begun and text != self._shown and (now_s >= self._due_s or not status.missing):
            speak(Terminal.of(self._stream).note(text), self._stream)
            self._shown, self._due_s = text, now_s + _BETWEEN_S
