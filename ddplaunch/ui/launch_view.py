"""What `run` shows until torchrun takes over: a launch in phrases and as a panel, and whom a roll call waits for."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from ddplaunch.checks.gpu_choice import seen_by_ranks
from ddplaunch.machine.facts import Facts, Gpu
from ddplaunch.planning.launch import Launch, Passed, Target
from ddplaunch.planning.ranks.topology import endpoint
from ddplaunch.scaling.numbers import Numbers, format_factor, format_lr
from ddplaunch.ui.speech import findings_text, labelled
from ddplaunch.ui.terminal import Terminal, cells, speak, visible
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Resolved, Unavailable
from ddplaunch.values.secrets import hide_text, hide_value
from ddplaunch.values.variable_names import RANK_CALL
from ddplaunch.values.words import count, listed, numbers_text, tallied

if TYPE_CHECKING:  # most launches call no roll
    from ddplaunch.hosts.roll_call.messages import Status


def number_text(value: float | str) -> str:
    """Return a number without the noise of binary fractions, ``0.0004``, ``1e-05``, ``60000``; a word as it is."""
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
    return f"-m {target.name}" if target.kind == "module" else target.name


def nodes_text(launch: Launch) -> str:
    """Return ``4 processes, this machine`` or ``16 processes, 2 nodes of 8, this is node 0, …``."""
    topology = launch.topology
    processes = count(topology.world_size, "process")
    if topology.nnodes.value == 1:
        return f"{processes}, this machine"
    most = topology.nnodes.value
    nodes = str(most) if topology.min_nodes == most else f"{topology.min_nodes} to {most}"
    parts = [processes, f"{nodes} nodes of {topology.each}"]
    if topology.node_rank is not None:
        parts.append(f"this is node {topology.node_rank.value}")
    if topology.master_addr is not None:
        address, port = topology.master_addr.value, topology.master_port
        parts.append(f"rank 0 at {address if port is None else endpoint(address, port.value)}")
    return ", ".join(parts)


def device_text(launch: Launch, facts: Facts | None = None) -> str:
    """Return ``GPUs 0-3 (4 × NVIDIA H100 80GB HBM3)``, ``CPU``; models are named as far as ``facts`` know them."""
    if launch.device.value == "cpu":
        return "CPU"
    models = _models(launch, facts)
    if launch.gpus is None:
        return f"every visible GPU{models}"
    if not all(entry.isdecimal() for entry in launch.gpus):
        return f"{count(len(launch.gpus), 'GPU')}: {', '.join(launch.gpus)}{models}"
    return f"{'GPU' if len(launch.gpus) == 1 else 'GPUs'} {numbers_text(int(entry) for entry in launch.gpus)}{models}"


def _models(launch: Launch, facts: Facts | None) -> str:
    if facts is None or isinstance(facts.nvml, Unavailable):
        return ""
    if launch.gpus is None:
        names = [entry.gpu.name for entry in seen_by_ranks(facts.nvml, facts.environment, launch).entries]
    else:
        known = _names(facts.nvml.gpus)
        names = [known[entry] for entry in launch.gpus if entry in known]
    return f" ({tallied(names)})" if names else ""


def _names(gpus: Iterable[Gpu]) -> Mapping[str, str]:
    names = {}
    for gpu in gpus:
        names[str(gpu.index)] = names[gpu.uuid] = gpu.name
        names.update({device.uuid: device.name for device in gpu.mig_devices})
    return names


def batch_text(launch: Launch) -> str:
    """Return ``32 = 8 per GPU × 1 accumulation × 4 GPUs``, or an empty text if no batch size is known."""
    numbers = launch.numbers
    if numbers.global_batch_size is None:
        return f"{numbers.batch_size.value} per process" if numbers.batch_size is not None else ""
    total = number_text(numbers.global_batch_size.value)
    if numbers.batch_size is None:
        return total
    one, many = ("GPU", "GPUs") if launch.device.value == "cuda" else ("process", "processes")
    accum = numbers.accum.value if numbers.accum is not None else 1
    size = numbers.world_size.value
    return (
        f"{total} = {numbers.batch_size.value} per {one} × {accum} accumulation × {size} {one if size == 1 else many}"
    )


def lr_text(numbers: Numbers) -> str:
    """Return ``0.0004 = 0.0001 × 4 (linear: batch 32 / 8)``, ``0.0004 (as given)``, or an empty text.

    What the script's own defaults gave is said to be theirs.
    """
    if numbers.rates:
        return _rates_text(numbers)
    if numbers.lr is None:
        return ""
    value = number_text(numbers.lr.value)
    if numbers.base_lr is None or numbers.lr_factor is None:
        source = numbers.lr.source
        return f"{value} ({source.detail if source.kind == 'script' and source.detail else 'as given'})"
    base, factor = number_text(numbers.base_lr.value), number_text(numbers.lr_factor.value)
    return f"{value} = {base} × {factor} ({_rule_text(numbers)})"


def _rates_text(numbers: Numbers) -> str:
    """Return ``phase1 6e-05 = 3e-05 × 2 (linear: batch 16 / 8), phase2 1e-05 (as given)``."""
    one = [] if numbers.lr is None else [("", numbers.base_lr, numbers.lr)]
    parts, rule = [], f" ({_rule_text(numbers)})"
    for name, base, lr in (*one, *((rate.name, rate.base, rate.lr) for rate in numbers.rates)):
        value = f"{name} {number_text(lr.value)}".lstrip()
        if base is None or numbers.lr_factor is None:
            parts.append(f"{value} (as given)")
        else:
            parts.append(f"{value} = {number_text(base.value)} × {number_text(numbers.lr_factor.value)}{rule}")
            rule = ""  # it is the same for all
    return ", ".join(parts)


def _rule_text(numbers: Numbers) -> str:
    """Return ``linear: batch 32 / 8``."""
    why: str = numbers.lr_scaling.value if numbers.lr_scaling is not None else ""
    if numbers.global_batch_size is not None and numbers.base_batch_size is not None:
        why += f": batch {numbers.global_batch_size.value} / {numbers.base_batch_size.value}"
    base = numbers.base_lr
    if base is not None and base.source.kind == "script":
        why += f"; {number_text(base.value)}: {base.source.detail}"
    return why.strip(": ")


def _schedule_text(numbers: Numbers) -> str:
    """Return ``2000 warmup steps, 1875 steps per epoch``, as far as they are known."""
    parts = []
    if numbers.warmup_steps is not None:
        parts.append(count(numbers.warmup_steps.value, "warmup step"))
    if numbers.steps_per_epoch is not None:
        parts.append(f"{count(numbers.steps_per_epoch.value, 'step')} per epoch")
    return ", ".join(parts)


def _configured_text(launch: Launch) -> str:
    """Return ``ddplaunch.toml: env, preload``: what files of the project decide, which nobody typed."""
    keys: dict[str, list[str]] = {}
    for name, value in vars(launch.options).items():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Resolved) and each.source.kind == "profile":
                named = keys.setdefault(each.source.detail or "", [])
                if (key := name.removesuffix("_s").replace("_", "-")) not in named:
                    named.append(key)
    return "; ".join(f"{where}: {', '.join(named)}" for where, named in sorted(keys.items()))


_LABEL = 8


def launch_panel(
    launch: Launch,
    findings: Sequence[Finding],
    terminal: Terminal,
    *,
    facts: Facts | None = None,
    record: str | None = None,
) -> str:
    """Return the panel: what runs where, the numbers, what is passed, findings.

    ``record`` is where the run's record lies, or the sentence that says why there is none.
    """
    lines = [terminal.paint("ddplaunch", "bold") + " " + terminal.paint(visible(launch.run_id), "dim")]
    for label, text in _rows(launch, facts, record):
        lines += labelled(f"  {label:<{_LABEL}}", visible(text), terminal)
    text = terminal.spell("\n".join(lines) + "\n")
    return text + ("\n" + findings_text(findings, terminal) if findings else "")


_IN_A_LINE = ("run", "batch", "lr", "note", "record")


def launch_line(launch: Launch, terminal: Terminal, *, facts: Facts | None = None, record: str | None = None) -> str:
    """Return the launch in one line, for a log: what runs where, batch, learning rate, notes, where the record is."""
    rows = [(label, text) for label, text in _rows(launch, facts, record) if label in _IN_A_LINE]
    parts = [text if label in ("run", "note") else f"{label} {text}" for label, text in rows]
    return terminal.spell(f"ddplaunch {visible(launch.run_id)}: {visible('; '.join(parts))}\n")


def _rows(launch: Launch, facts: Facts | None, record: str | None) -> list[tuple[str, str]]:
    """Return what is known of a launch, each fact under its label."""
    rows = [
        ("run", f"{target_text(launch.target)} on {nodes_text(launch)}, {device_text(launch, facts)}"),
        ("cpus", launch.placement.text if launch.placement.shown else ""),
        ("batch", _with_missing(batch_text(launch), launch, "batch_size", "accum")),
        ("lr", _with_missing("" if _is_scripts(launch.numbers) else lr_text(launch.numbers), launch, "lr")),
        ("steps", _with_missing(_schedule_text(launch.numbers), launch, "warmup_steps")),
        ("pass", "; ".join(_passed_text(passed) for passed in launch.passed)),
        ("config", _configured_text(launch)),
        ("env", _environment_text(launch)),
        ("note", hide_text("; ".join(launch.notes))),
        ("record", record or ""),
    ]
    return [(label, text) for label, text in rows if text]


def _is_scripts(numbers: Numbers) -> bool:
    """Whether the learning rate is the script's own and nothing scaled it: then there is nothing to say of it."""
    if numbers.rates or numbers.lr is None:
        return False
    base, factor = numbers.base_lr, numbers.lr_factor
    if base is None or factor is None:
        return numbers.lr.source.kind == "script"
    return base.source.kind == "script" and factor.value == 1


def _passed_text(passed: Passed) -> str:
    """Return ``--lr 0.0004 (train.py:31)``, ``{lr} = 0.0004`` for a placeholder, or who has it already."""
    if passed.variable:
        return f"{passed.number.replace('_', ' ')} {passed.value} by {passed.variable}"
    if not passed.arguments and passed.at is not None:
        return f"{passed.at} says {passed.note} {passed.value} already"
    if not passed.arguments:
        return f"{{{passed.number}}} = {passed.value}"
    about = ", ".join(str(part) for part in (passed.at, passed.note) if part)
    return shlex.join(passed.arguments) + (f" ({about})" if about else "")


_SHORT = {"batch_size": "batch size", "accum": "accumulation", "lr": "learning rate", "warmup_steps": "warmup"}


def _with_missing(text: str, launch: Launch, *numbers: str) -> str:
    """Return the row of a number with a clause on what of it does not reach the script; one reason is said once."""
    own: dict[str, list[str]] = {}
    for item in launch.missing:
        if item.number.partition(":")[0] in numbers:
            own.setdefault(item.reason, []).append(_SHORT.get(item.number, item.number[3:]))
    alike = len({item.reason for item in launch.missing}) == 1
    said = alike and launch.missing[0].number.partition(":")[0] not in numbers  # in a row above this one
    clauses = [
        f"{listed(names, last=' and ')} not passed{' either' if said else f': {reason}'}"
        for reason, names in own.items()
    ]
    return "; ".join([text, *clauses]) if text else text


_SHOWN_ABOVE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_MOST_VARIABLES, _LONGEST_VALUE = 6, 40


def _environment_text(launch: Launch) -> str:
    """Return ``OMP_NUM_THREADS=4, MINE=***, PET_NNODES removed``: what was asked for or measured, not what is usual."""
    shown = []
    for variable in launch.environment:
        if variable.value is None:
            shown.append(f"{variable.name} removed")
        elif variable.source.kind not in ("default", "computed") and variable.name not in _SHOWN_ABOVE:
            value = hide_value(variable.name, variable.value)
            shown.append(f"{variable.name}={value if len(value) <= _LONGEST_VALUE else value[:_LONGEST_VALUE] + '…'}")
    more = len(shown) - _MOST_VARIABLES
    return ", ".join(shown[:_MOST_VARIABLES]) + (f" and {more} more (`ddplaunch plan` shows all)" if more > 0 else "")


_FIRST_S = 0.5  # nodes that are started together need no words
_PLAIN_S = 10.0


def status_text(status: Status, columns: int | None = None) -> str:
    """Return ``3 of 4 nodes joined, waiting for node 2 (gpu-07)``, cut where ``columns`` cells do not suffice."""
    shown = listed(status.missing)
    if not status.missing:
        text = f"{status.expected} of {status.expected} nodes joined"
    elif status.joined is None:
        text = f"waiting for {shown}"
    else:
        text = f"{status.joined} of {status.expected} nodes joined, waiting for {shown}"
    text = visible(f"{text}; {status.note}" if status.note and status.missing else text)
    if columns is not None and cells(text) >= columns:
        return text[: max(0, columns - 4)] + "..."
    return text


class RollCallLine:
    """Shows where a roll call stands on ``stream``; ``clock`` counts seconds."""

    def __init__(self, stream: TextIO | None, terminal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Write nothing yet."""
        self._stream, self._terminal, self._clock = stream, terminal, clock
        self._last_text = ""
        self._last_s: float | None = None

    def show(self, status: Status) -> None:
        """Show ``status``, unless it is too early or, off a terminal, nothing new or too soon after the last line."""
        if self._last_s is None and (status.waited_s < _FIRST_S or not status.missing):
            return
        if self._terminal:
            waited = f" ({status.waited_s:.0f} s)"
            text = f"{status_text(status, Terminal.of(self._stream).width - len(waited))}{waited}"
        else:
            text = status_text(status) + "\n"
            if self._last_s is not None and self._clock() - self._last_s < _PLAIN_S and status.missing:
                return
        if text != self._last_text:
            speak(text, self._stream, "\r\x1b[K" if self._terminal else "")
            self._last_text, self._last_s = text, self._clock()

    def end(self) -> None:
        """Leave the line behind, so that what follows starts on one of its own."""
        if self._terminal and self._last_s is not None:
            speak("\n", self._stream)
            self._last_s = None
