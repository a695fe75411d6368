"""Fixes for this very run: the whole command with other numbers; refuses to change what nobody asked about."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.errors import UsageError
from ddplaunch.explain.facts import RunFacts
from ddplaunch.scaling.batch import resolve_batch
from ddplaunch.scaling.numbers import NumbersRequest
from ddplaunch.values import Resolved, Source

_SAID = Source("computed", "")


def concrete_fixes(code: str, groups: Mapping[str, str], facts: RunFacts | None) -> tuple[str, ...]:
    """Return what can be typed at once after a failure with ``code``, best first; empty where nothing is known."""
    if facts is None or not facts.argv or facts.argv[1:2] != ("run",):
        return ()
    words = ("ddplaunch", *facts.argv[1:])
    if code == "cuda-out-of-memory":
        return _smaller_batch(words, facts.plan or {})
    if code == "too-many-open-files":
        return (f"`ulimit -n 65535 && {shlex.join(words)}`",)
    if code == "port-taken" and "--master-port" in _names(words):
        free = _with(words, "--master-port", None)
        return (f"without the port, a free one is taken: `{shlex.join(free)}`",)
    if code == "segmentation-fault":
        return (f"where in Python it was: `{shlex.join(_with_env(words, 'PYTHONFAULTHANDLER=1'))}`",)
    return ()


def _smaller_batch(words: Sequence[str], plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command with the largest smaller batch per process that keeps the effective batch."""
    batch, accum, world, whole = (
        _number(plan, name) for name in ("batch_size", "accum", "world_size", "global_batch_size")
    )
    if batch is None or world is None or batch < 2:
        return ()
    whole = whole or batch * (accum or 1) * world
    for smaller in range(batch // 2, 0, -1):
        wanted = Resolved(smaller, _SAID)
        try:
            found = resolve_batch(
                NumbersRequest(Resolved(world, _SAID), batch_size=wanted, global_batch_size=Resolved(whole, _SAID))
            )
        except UsageError:  # does not divide
            continue
        if found.accum is None:
            return ()
        changed = _with(_with(words, "--batch-size", str(smaller)), "--accum", str(found.accum.value))
        return (f"same effective batch of {whole} in less memory: `{shlex.join(changed)}`",)
    return ()


def _number(plan: Mapping[str, Any], name: str) -> int | None:
    numbers = plan.get("numbers")
    found = numbers.get(name) if isinstance(numbers, dict) else None
    value = found.get("value") if isinstance(found, dict) else None
    return value if isinstance(value, int) and value > 0 else None


def _names(words: Sequence[str]) -> list[str]:
    return [word.partition("=")[0] for word in _own(words)]


def _own(words: Sequence[str]) -> list[str]:
    """Return the words in front of the first ``--``: what comes behind it is the script's."""
    return list(words[: words.index("--")] if "--" in words else words)


def _with(words: Sequence[str], flag: str, value: str | None) -> tuple[str, ...]:
    """Return the command with ``flag`` set to ``value``, or without it."""
    own = _own(words)
    behind = list(words[len(own) :])
    result: list[str] = []
    done = value is None
    skip = False
    for word in own:
        if skip:
            skip = False
            continue
        name, equals, _ = word.partition("=")
        if name != flag:
            result.append(word)
            continue
        skip = not equals
        if not done and value is not None:
            result += [flag, value]
            done = True
    if not done and value is not None:
        result += [flag, value]
    return (*result, *behind)


def _with_env(words: Sequence[str], setting: str) -> tuple[str, ...]:
    own = _own(words)
    return (*own, "--env", setting, *words[len(own) :])
