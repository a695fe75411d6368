"""Fixes as whole commands: the run's own command line with a smaller batch, another port or one more setting."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.explain.diagnosis import RunFacts
from ddplaunch.scaling.batch import resolve_batch
from ddplaunch.scaling.numbers import NumbersRequest
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source

_COMPUTED = Source("computed", "")


def command_fixes(code: str, facts: RunFacts | None) -> tuple[str, ...]:
    """Return what can be typed after a failure with ``code``; empty unless the command was a known ``run``."""
    if facts is None or not facts.argv or facts.argv[1:2] != ("run",):
        return ()
    words = ("ddplaunch", *facts.argv[1:])
    own = words[: words.index("--")] if "--" in words else words  # the words behind it are the script's
    behind = words[len(own) :]
    if code == "cuda-out-of-memory":
        return _smaller_batch(own, behind, facts.plan or {})
    if code == "too-many-open-files":
        return (f"`ulimit -n 65535 && {shlex.join(words)}`",)
    if code == "port-taken" and any(word.partition("=")[0] == "--master-port" for word in own):
        free = (*_with(own, "--master-port", None), *behind)
        return (f"without the port, a free one is taken: `{shlex.join(free)}`",)
    if code == "segmentation-fault":
        return (f"where in Python it was: `{shlex.join((*own, '--env', 'PYTHONFAULTHANDLER=1', *behind))}`",)
    return ()


def _smaller_batch(own: Sequence[str], behind: Sequence[str], plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command with the largest smaller batch per process that keeps the effective batch."""
    batch, accum, world, whole = (
        _number(plan, name) for name in ("batch_size", "accum", "world_size", "global_batch_size")
    )
    if batch is None or world is None or batch < 2:
        return ()
    whole = whole or batch * (accum or 1) * world
    ranks, effective = Resolved(world, _COMPUTED), Resolved(whole, _COMPUTED)
    for smaller in range(batch // 2, 0, -1):
        request = NumbersRequest(ranks, batch_size=Resolved(smaller, _COMPUTED), global_batch_size=effective)
        try:
            found = resolve_batch(request)
        except UsageError:  # does not divide
            continue
        if found.accum is None:
            return ()
        changed = _with(_with(own, "--batch-size", str(smaller)), "--accum", str(found.accum.value))
        return (f"same effective batch of {whole} in less memory: `{shlex.join((*changed, *behind))}`",)
    return ()


def _number(plan: Mapping[str, Any], name: str) -> int | None:
    numbers = plan.get("numbers")
    found = numbers.get(name) if isinstance(numbers, dict) else None
    value = found.get("value") if isinstance(found, dict) else None
    return value if isinstance(value, int) and value > 0 else None


def _with(own: Sequence[str], flag: str, value: str | None) -> list[str]:
    """Return the words with ``flag`` set to ``value`` where it stands, else at the end; without it for None."""
    new = [] if value is None else [flag, value]
    result: list[str] = []
    words = iter(own)
    for word in words:
        name, equals, _ = word.partition("=")
        if name != flag:
            result.append(word)
            continue
        if not equals:
            next(words, None)  # its value
        result += new
        new = []
    return result + new
