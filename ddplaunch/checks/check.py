"""A check: a named function of facts that yields findings, and how one is run."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

from ddplaunch.machine.facts import Facts, NvmlFacts
from ddplaunch.planning.gpus import VisibleGpu, VisibleGpus, cuda_visible, exported, shown_gpus
from ddplaunch.planning.launch import Launch
from ddplaunch.script.script_report import ScriptReport
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable, known
from ddplaunch.values.words import listed

if TYPE_CHECKING:
    from ddplaunch.planning.hosts_plan import HostReport

CheckFunction = Callable[..., Iterable[Finding]]
Findings = Iterator[Finding]  # what a check yields
Status = Literal["passed", "found", "skipped", "crashed"]
PARAMETERS = frozenset({"launch", "script", "gpus", *(field.name for field in fields(Facts))})
_DECIDED_BY_US = ("default", "detected", "computed")
_MEASURED = frozenset({"hosts", "comm", "samples"})  # reports of all hosts; group measurements; samples of ranks


@dataclass(frozen=True)
class LaunchGpus:
    """This machine's GPUs as the ranks of ``launch`` see them; without a launch, as programs in ``environment`` do."""

    nvml: NvmlFacts
    environment: Mapping[str, str]
    launch: Launch | None

    @property
    def seen(self) -> VisibleGpus:
        """The GPUs that CUDA or HIP shows to the ranks; without a CUDA launch, to a program in ``environment``."""
        values: dict[str, str | None] = dict(self.environment)
        # A launch on the CPU hides all GPUs, so only the user's own variables count there.
        if self.launch is not None and self.launch.device.value == "cuda":
            values |= {variable.name: variable.value for variable in self.launch.environment}
        if self.nvml.vendor == "amd":
            set_values = {name: value for name, value in values.items() if value is not None}
            return shown_gpus(self.nvml, exported(set_values, (), self.nvml))
        return cuda_visible(self.nvml, values.get("CUDA_VISIBLE_DEVICES"), values.get("CUDA_DEVICE_ORDER"))

    @property
    def visible(self) -> tuple[VisibleGpu, ...]:
        """The GPUs that the ranks see on this node, none on the CPU; without a launch, all GPUs of the machine."""
        if self.launch is None:
            return tuple(VisibleGpu(str(gpu.index), gpu) for gpu in self.nvml.gpus)
        return () if self.launch.device.value == "cpu" else self.seen.entries

    @property
    def used(self) -> tuple[VisibleGpu, ...]:
        """The first GPUs of ``visible``, one for each rank; without a launch, all of them."""
        return self.visible[: self.launch.topology.nproc_per_node.value if self.launch else None]

    @property
    def cpu_chosen(self) -> bool:
        """Whether the user decided against GPUs (see ``cpu_was_chosen``)."""
        return cpu_was_chosen(self.environment, self.launch)


def cpu_was_chosen(environment: Mapping[str, str], launch: Launch | None) -> bool:
    """Whether the user decided against GPUs: with ``--device cpu`` or by hiding them all.

    A launch that fell back to the CPU because no GPU was found does not count.
    """
    if environment.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return launch is None or launch.device.value == "cpu"
    if launch is None or launch.device.value != "cpu":
        return False
    return launch.device.source.kind not in _DECIDED_BY_US


@dataclass(frozen=True)
class Check:
    """A check function under its name: ``code`` is the function's name with dashes.

    ``title`` is the first line of the docstring, ``explanation`` the rest (shown by ``explain CODE``).
    ``needs`` are the parameters without a default: the check is skipped if one of these facts is unavailable.
    ``wants`` are the parameters with a default, which replaces an unavailable fact (``doctor`` has no launch, but must
    report a small /dev/shm). ``accepts`` are the ``needs`` annotated with ``Unavailable``: the function is run without
    these facts too, to report the reason.
    """

    code: str
    family: str
    title: str
    explanation: str
    needs: tuple[str, ...]
    function: CheckFunction
    wants: tuple[str, ...] = ()
    accepts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CheckOutcome:
    """The result of one check. ``reason`` says why it was skipped or how it crashed."""

    check: Check
    status: Status
    findings: tuple[Finding, ...] = ()
    reason: str = ""


def declare(family: str, function: CheckFunction) -> Check:
    """Return ``function`` as a check of ``family``; its parameters name facts, as ``Check`` describes.

    Raises TypeError if a parameter does not name a fact.
    """
    title, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n")
    parameters = inspect.signature(function).parameters.values()
    if strangers := sorted({parameter.name for parameter in parameters} - PARAMETERS - _MEASURED):
        raise TypeError(f"the check {function.__name__} names what it cannot get: {', '.join(strangers)}")
    needed = [parameter for parameter in parameters if parameter.default is inspect.Parameter.empty]
    return Check(
        code=function.__name__.replace("_", "-"),
        family=family,
        title=title.rstrip("."),
        explanation=rest.strip(),
        needs=tuple(parameter.name for parameter in needed),
        function=function,
        wants=tuple(parameter.name for parameter in parameters if parameter not in needed),
        accepts=frozenset(parameter.name for parameter in needed if "Unavailable" in str(parameter.annotation)),
    )


def checks_in(
    module: Mapping[str, Any], family: str, **functions_by_family: tuple[CheckFunction, ...]
) -> tuple[Check, ...]:
    """Return a check for each public generator function of a module, in order; ``module`` is its ``globals()``.

    Their family is ``family``, except for the functions that ``functions_by_family`` lists under another one.
    """
    return tuple(
        declare(next((name for name, members in functions_by_family.items() if member in members), family), member)
        for name, member in module.items()
        if inspect.isgeneratorfunction(member) and member.__module__ == module["__name__"] and not name.startswith("_")
    )


def available(facts: Facts, launch: Launch | Unavailable, script: ScriptReport | Unavailable) -> dict[str, Any]:
    """Return every value that a check may take, by name: the fields of ``Facts``, ``gpus``, ``launch``, ``script``."""
    values = {field.name: getattr(facts, field.name) for field in fields(facts)}
    nvml = facts.nvml
    gpus = nvml if isinstance(nvml, Unavailable) else LaunchGpus(nvml, facts.environment, known(launch, None))
    return {**values, "gpus": gpus, "launch": launch, "script": script}


def run_check(check: Check, values: dict[str, Any], ignore: Collection[str] = ()) -> CheckOutcome:
    """Run one check: ``ignore`` or a missing fact skips it, and an exception is reported as a crash, not raised."""
    if check.code in ignore:
        return CheckOutcome(check, "skipped", reason=f"ignored by `--ignore {check.code}`")
    for need in check.needs:
        value = values[need]
        if isinstance(value, Unavailable) and need not in check.accepts:
            return CheckOutcome(check, "skipped", reason=value.reason)
    names = (*check.needs, *(want for want in check.wants if not isinstance(values[want], Unavailable)))
    try:
        findings = tuple(check.function(**{name: values[name] for name in names}))
    except Exception as exception:  # a bug in a check must not stop the launch
        return CheckOutcome(check, "crashed", reason=f"{type(exception).__name__}: {exception}")
    return CheckOutcome(check, "found" if findings else "passed", findings)


def compare(
    hosts: Sequence[HostReport],
    code: str,
    subject: str,
    of: Callable[[HostReport], str | None],
    why: str,
    kind: Callable[..., Finding] = error,
    fix: str = "bring the hosts to the same version, or name an interpreter that all have: `--python PATH`",
) -> Findings:
    """Yield a finding if ``of`` differs between hosts; it names the hosts that differ from the majority."""
    values = {host.name: value for host in hosts if (value := of(host)) is not None}
    most, odd_hosts = majority(values)
    if odd_hosts:
        rest = listed(f"{value} on {name}" for name, value in odd_hosts.items())
        common = alone(values, odd_hosts) or f"{len(values) - len(odd_hosts)} hosts"
        yield kind(code, f"{subject} differs: {most} on {common}, {rest}", why=why, fix=fix, where=tuple(odd_hosts))


def majority(values: Mapping[str, str | None]) -> tuple[str | None, dict[str, str | None]]:
    """Return the most frequent value and the hosts with another value; in a tie, the first value counts."""
    most = Counter(values.values()).most_common(1)[0][0] if values else None
    return most, {host: value for host, value in values.items() if value != most}


def alone(hosts: Iterable[str], odd_hosts: Mapping[str, str | None]) -> str | None:
    """Return the one of ``hosts`` that is not in ``odd_hosts``; None unless there is exactly one."""
    alike = [host for host in hosts if host not in odd_hosts]
    return alike[0] if len(alike) == 1 else None
