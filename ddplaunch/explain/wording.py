"""A cause to the diagnosis that people read: what, why, fixes and evidence; refuses to decide.

Fixes for this very run: the whole command with other numbers; refuses to change what nobody asked about.

Words for ranks that waited for each other: who was where, who never came; refuses to decide.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.explain.decide.collectives import Stuck, Waited, uneven
from ddplaunch.explain.decide.decide import RootCause
from ddplaunch.explain.diagnosis import Certainty, Diagnosis, Evidence, RunFacts
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.scan import Scanned
from ddplaunch.explain.signatures import all_signatures
from ddplaunch.explain.signatures.signature import Signature
from ddplaunch.explain.unknown import (
    Words,
    ended_words,
    exception_words,
    kernel_words,
    launcher_words,
    own_echo,
    unknown_words,
)
from ddplaunch.scaling.batch import resolve_batch
from ddplaunch.scaling.numbers import NumbersRequest
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source
from ddplaunch.values.words import ranks_text

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


_STACKS = "`py-spy dump --pid PID` on every rank while it hangs shows where each one is"
_ORDER = "look for collectives under an `if` on the rank, a `break` or an exception that only some ranks take"
_UNEVEN = "give every rank equally many batches: DistributedSampler with `drop_last=True`, or `with Join([model]):`"
_P2P = "run again with `--env NCCL_P2P_DISABLE=1`: if that works, look for ACS or IOMMU, or a broken NVLink"
_NAMED = 6


def stuck_words(cause: RootCause) -> Words | None:
    """Return the words for a time-out whose ranks are known, None where the signature's own words say as much."""
    found = cause.stuck
    if found is None or not found.waited:
        return None
    if cause.code == "collective-mismatch":
        return _mismatch(cause, found)
    if cause.code == "gpu-p2p-broken":
        return Words(
            f"all {len(found.waited)} ranks hang in their first collective ({_call(found.waited[0])})",
            "setting up worked, moving data between the GPUs does not: peer-to-peer transport, ACS or IOMMU, NVLink",
            (_P2P, "`--nccl-debug INFO` prints which transport each pair of GPUs took", _STACKS),
        )
    if cause.code == "collective-timeout" and cause.rank is not None and cause.rank in found.absent:
        waited = [each.rank for each in found.waited]
        return Words(
            f"rank {cause.rank} did not come to {_call(found.waited[0])}; {ranks_text(waited)} waited in vain",
            "a collective needs all ranks: the one that is missing was still computing or loading, hung, or had left",
            (f"look at what rank {cause.rank} did last; {_STACKS}", _UNEVEN),
        )
    return None


def _mismatch(cause: RootCause, found: Stuck) -> Words | None:
    why = "ranks pair up their collectives by order: if one calls another one, or one more, all wait for ever"
    if cause.mismatched is not None:
        first, other = cause.mismatched
        what = f"rank {first.rank} waited in {_call(first)}, rank {other.rank} in {_call(other)}"
        return Words(
            what,
            why,
            (
                _ORDER,
                "`--env TORCH_DISTRIBUTED_DEBUG=DETAIL` names the first difference (some versions crash with it)",
                _UNEVEN,
            ),
        )
    if found.left and cause.rank is not None:
        what = f"rank {cause.rank} was done while {ranks_text([each.rank for each in found.waited])} still waited in "
        return Words(what + _call(found.waited[0]), why, (_UNEVEN, _ORDER))
    apart = uneven(found)
    if apart is None:
        return None
    least, most = apart
    what = (
        f"rank {least} had started {found.enqueued[least]} collectives when rank {most} had started "
        f"{found.enqueued[most]}"
    )
    return Words(what, why, (_UNEVEN, _ORDER))


def _call(waited: Waited) -> str:
    name = waited.call or waited.op or "the collective"
    if waited.seq is not None:
        size = f", {waited.numel} elements" if waited.numel is not None else ""
        return f"{name} (number {waited.seq}{size})"
    return name


_FIELD = re.compile(r"\{(\w+)\}")
_GENERAL = re.compile(r"`--batch-size` N/2|`ulimit -n 65535`|PYTHONFAULTHANDLER=1|`--master-port")
_WIDEST = 300


def filled(template: str, groups: Mapping[str, str]) -> str:
    """Return ``template`` with its ``{name}`` replaced; a name that nothing is known of becomes "?"."""
    return _FIELD.sub(lambda match: groups.get(match.group(1), "?"), template)


def worded(cause: RootCause, scanned: Scanned, facts: RunFacts | None) -> Diagnosis:
    """Return the diagnosis of what was decided."""
    words = _words(cause, facts)
    raised = cause.candidate.raised if cause.candidate is not None else None
    return Diagnosis(
        cause.code,
        _certainty(cause),
        words.what,
        words.why,
        _fixes(cause, words, facts),
        cause.rank,
        cause.host,
        _evidence(cause),
        raised,
    )


def _fixes(cause: RootCause, words: Words, facts: RunFacts | None) -> tuple[str, ...]:
    """Put the fixes for this run before those for every run; the general form of a concrete one is left out."""
    groups = cause.candidate.groups if cause.candidate is not None else {}
    concrete = concrete_fixes(cause.code, groups, facts)
    said = [fix for fix in words.fixes if not (concrete and _GENERAL.search(fix))]
    return (*concrete, *said)


def _words(cause: RootCause, facts: RunFacts | None) -> Words:
    candidate = cause.candidate
    if cause.told:
        return launcher_words(cause, facts)
    if cause.outside is not None:
        return kernel_words(cause, _fixes_of(cause.code))
    if candidate is None:
        return unknown_words(cause) if cause.ended is None else ended_words(cause, facts)
    words = stuck_words(cause)
    if words is not None:
        return words
    if candidate.signature is None:
        return exception_words(cause)
    signature = candidate.signature
    if signature.code != cause.code:
        signature = next((each for each in all_signatures() if each.code == cause.code), signature)
    return _of_signature(signature, candidate.groups)


def _fixes_of(code: str) -> tuple[str, ...]:
    """Return what is to be done about ``code`` that needs no line to say it."""
    every = (fix for each in all_signatures() if each.code == code for fix in each.fixes if "{" not in fix)
    return tuple(dict.fromkeys(every))[:3]


def _of_signature(signature: Signature, groups: Mapping[str, str]) -> Words:
    fixes = tuple(filled(fix, groups) for fix in signature.fixes if set(_FIELD.findall(fix)) <= groups.keys())
    return Words(filled(signature.what, groups), filled(signature.why, groups), fixes)


def _certainty(cause: RootCause) -> Certainty:
    if cause.code == "unknown":
        return "unknown"
    if cause.told:
        return "observed"
    if cause.candidate is None and cause.outside is None:
        return "likely" if cause.code in ("killed", "aborted", "terminated") else "observed"
    return "likely" if cause.candidate is not None and cause.candidate.is_hint else "observed"


def _evidence(cause: RootCause) -> tuple[Evidence, ...]:
    lines: list[Line] = []
    if cause.candidate is not None:
        lines.append(cause.candidate.line)
    told = own_echo(cause)
    if told is not None:
        lines.append(told.line)
    if cause.ended is not None:
        lines.append(cause.ended.exit.line)
    if cause.outside is not None:
        lines.append(cause.outside)
    if cause.mismatched is not None:
        lines += [each.line for each in cause.mismatched]
    if cause.witness is not None:
        lines.append(cause.witness.line)
    if not lines and cause.echoes:
        lines.append(cause.echoes[0].line)
    return tuple(dict.fromkeys(evidence(line) for line in lines))


def evidence(line: Line) -> Evidence:
    """Return ``line`` as evidence, cut at some 300 characters."""
    text = line.text.strip()
    return Evidence(line.file, line.number, text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…")
