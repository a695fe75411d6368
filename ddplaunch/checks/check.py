"""A check: a named function of facts that yields findings, and how one is run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from typing import Any, Literal

from ddplaunch.launch.launch import Launch
from ddplaunch.machine.facts import Facts
from ddplaunch.script.report import ScriptReport
from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable

CheckFunction = Callable[..., Iterable[Finding]]
Status = Literal["passed", "found", "skipped", "crashed"]
PARAMETERS = frozenset({"launch", "script", *(field.name for field in fields(Facts))})
_MEASURED = frozenset({"hosts", "comm", "samples"})  # reports of all hosts; what was measured between them, or of ranks


@dataclass(frozen=True)
class Check:
    """A check function under its name: ``code`` is the function's name with dashes.

    ``title`` is the first line of the docstring, ``explanation`` the rest (shown by ``explain CODE``).
    ``needs`` are the parameters without a default: the check is skipped if one of these facts is unavailable.
    ``wants`` are the others: the default replaces an unavailable fact (``doctor`` has no launch, yet must see a small
    /dev/shm). ``accepts`` are the ``needs`` that the function takes as ``Unavailable``, to report the reason.
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
class Outcome:
    """The result of one check. ``reason`` says why it was skipped or how it crashed."""

    check: Check
    status: Status
    findings: tuple[Finding, ...] = ()
    reason: str = ""


def declare(family: str, function: CheckFunction, accepts: Collection[str] = ()) -> Check:
    """Return ``function`` as a check of ``family``; its parameters name facts, as ``Check`` describes.

    Raises TypeError for a parameter that names no fact, and for an ``accepts`` that is not a needed parameter.
    """
    document = inspect.cleandoc(function.__doc__ or "")
    title, _, rest = document.partition("\n")
    parameters = inspect.signature(function).parameters.values()
    needs = tuple(each.name for each in parameters if each.default is inspect.Parameter.empty)
    wants = tuple(each.name for each in parameters if each.default is not inspect.Parameter.empty)
    if strangers := sorted(({*needs, *wants} - PARAMETERS - _MEASURED) | ({*accepts} - {*needs})):
        raise TypeError(f"the check {function.__name__} names what it cannot get: {', '.join(strangers)}")
    return Check(
        code=function.__name__.replace("_", "-"),
        family=family,
        title=title.rstrip("."),
        explanation=rest.strip(),
        needs=needs,
        function=function,
        wants=wants,
        accepts=frozenset(accepts),
    )


def available(facts: Facts, launch: Launch | Unavailable, script: ScriptReport | Unavailable) -> dict[str, Any]:
    """Return every value that a check may name as a parameter: the fields of ``Facts``, ``launch``, ``script``."""
    values = {field.name: getattr(facts, field.name) for field in fields(facts)}
    return {**values, "launch": launch, "script": script}


def run_check(check: Check, values: dict[str, Any]) -> Outcome:
    """Run one check. A missing fact makes it a skip, an exception a crash; neither stops the others."""
    for need in check.needs:
        value = values[need]
        if isinstance(value, Unavailable) and need not in check.accepts:
            return Outcome(check, "skipped", reason=value.reason)
    names = (*check.needs, *(want for want in check.wants if not isinstance(values[want], Unavailable)))
    try:
        findings = tuple(check.function(**{name: values[name] for name in names}))
    except Exception as exception:  # a bug in a check must not stop the launch
        return Outcome(check, "crashed", reason=f"{type(exception).__name__}: {exception}")
    return Outcome(check, "found" if findings else "passed", findings)
