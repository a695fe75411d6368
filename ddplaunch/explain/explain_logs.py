"""The way from logs and facts of a run to its explanation: read, scan, decide, word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise, takewhile
from typing import NamedTuple

from ddplaunch.explain.decide.decide import RootCause, decide
from ddplaunch.explain.decide.progress import says_something, stops_short
from ddplaunch.explain.diagnosis import Echo, Evidence, Explanation, LogSource, RunFacts
from ddplaunch.explain.read.lines import Line, Numbered, clean, numbered_lines, read_lines
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.explain.read.scan import scan
from ddplaunch.explain.signatures.signature import NOISE, filled
from ddplaunch.explain.wording import worded

_MOST_KINDS, _MOST_ECHOES = 12, 16_384


_TIME = re.compile(r"\b(?:\d{4}-(\d\d)-(\d\d)[ T_]|[IWEF](\d\d)(\d\d) )(\d\d:\d\d:\d\d)")
_SUMMARY_FIELD = re.compile(r"^\s*(time|host) +: (\S+)")
_SUMMARY_RANK = re.compile(r"^\s*rank +: (\d+) \(local_rank: (\d+)\)")
_ROOT = "Root Cause (first observed failure):"
_BANNER = "Setting OMP_NUM_THREADS environment variable"
_OUTER = re.compile(r"^(?:srun|slurmstepd[\w.-]*): |^E\d{4} |^$")  # what follows torchrun's summary of the same run
_FAILS = re.compile(r"Traceback|^E\d{4} |closing signal|\(exitcode")
_COUNTED = re.compile(r"(?i)\b(?:epoch|step|iter(?:ation)?|rollout|episode)s?\b\W{0,4}\d+")
_DIGITS = re.compile(r"\d+")
_RUNNER = re.compile(r"\[runner\.py:\d+:main\] cmd = ")
_DEEPSPEED = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:,]+\] \[\w+\] \[(?:runner|real_accelerator|config|launch)\.py:")
_RETURNS = re.compile(r"exits? (?:with return code|successfully)")
_LAST_OF_PYTHON = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?:: |$)")  # of a traceback
#: A launch that somebody typed into a shell, with its prompt, where a whole session was recorded.
_TYPED = re.compile(
    r"(?:\([\w.-]+\) )?(?:\[?[\w.-]+@[\w.-]+[: ][^$#]{0,80}[$#]|[~/][\w./~-]* ?\$|\$) (?:[A-Z_][A-Z0-9_]*=\S* )*"
    r"(?:(?:torchrun|ddplaunch run|deepspeed|accelerate launch|horovodrun|python\S*) \S"
    r"|(?:srun|mpirun) .*(?:torchrun|ddplaunch|deepspeed|accelerate|python|\.(?:py|sh)\b))"
)
_OF_SCRIPT = re.compile(r'\s*File "([^"<]+\.py)", line (\d+)(, in <module>)?$')
_CALLS_MAIN = re.compile(r"\s*(?:sys\.exit\()?(?:\w+\.)?main\(")
#: What nohup, `script` and people's own shell scripts write once as they start a program whose output is appended.
_STARTED = re.compile(
    r"nohup: (?:ignoring input|appending output)|Script started on \d"
    r"|[=#*-]{2,} ?(?!.*\b(?:end|ended|done|exit|status)\b)[^=]"
    r".*(?:\d{4}-\d\d-\d\d[ T]\d\d:\d\d|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d\b.* \d{4}\b)"
)
_QUOTED = 100  # characters of how an earlier run failed
_HEAD = 2  # first lines that say something
_SUMMARY_LINES = 14  # from "Root Cause" to the end of a summary
_SOON = 20  # lines, in which a run that began tells the time


def explain_texts(sources: Sequence[LogSource], facts: RunFacts | None = None) -> Explanation:
    """Return the root cause that ``sources`` and ``facts`` support, and what followed from it.

    Of several runs that were appended to one file, the last one counts. Raises OSError if a file cannot be read.
    """
    logs = numbered_lines(sources)
    cut: list[str] = []
    if len(sources) != 1 or facts is not None:
        return _explained(_lines(logs, cut), facts, cut)
    source, numbered = next(iter(logs))
    lines, raw = list(_lines([(source, numbered)], cut)), dict(numbered)
    begun = _last_run(lines, raw)
    if not begun:
        return _explained(lines, None, cut)
    found = _explained(lines[begun:], None, cut)
    earlier = lines[:begun]
    before = _explained(earlier[_last_run(earlier, raw) :], None, cut).diagnosis
    if found.diagnosis is None or before is None:
        return found
    same = (before.code, before.what) == (found.diagnosis.code, found.diagnosis.what)
    how = "in the same way" if same else f"differently: {before.what[:_QUOTED]}"
    how = "too, for a reason that it does not tell" if before.code == "unknown" and not same else how
    clause = f"an earlier run in this file, up to line {earlier[-1].number}, failed {how}"
    return replace(found, diagnosis=replace(found.diagnosis, why=f"{found.diagnosis.why}; {clause}"))


def _explained(lines: Iterable[Line], facts: RunFacts | None, cut: list[str]) -> Explanation:
    scanned = scan(lines)
    cause = decide(scanned, facts)
    if isinstance(cause, RootCause):
        return Explanation(worded(cause, facts, scanned), _echoes(cause))
    last = stops_short(scanned.lines) if facts is None else None
    stops_at = last.text.strip() if last is not None else ""
    return Explanation(None, (), stops_at, "".join(cut[:1]), None if cause is None else cause.line.evidence)


def _lines(logs: Iterable[tuple[LogSource, list[Numbered]]], cut: list[str]) -> Iterator[Line]:
    """Yield all lines; ``cut`` gets the names of the logs that are cut off."""
    first = 0
    for source, numbered in logs:
        cut += [source.name] if source.cut else []
        for line in read_lines(numbered, source.name, Speaker(source.rank, source.host), first):
            yield line
            first = line.at + 1


def _last_without_torchrun(texts: Sequence[str], stamped: Sequence[str]) -> int:
    """Return the place where the last of several runs begins that DeepSpeed or plain Python launched, 0 if uncertain.

    DeepSpeed's runner says once in a run what it starts. A run of one Python process is over with its uncaught
    exception; another one begins like the file did, right below, and no time there is earlier.
    """
    begun = [at for at, text in enumerate(texts) if _RUNNER.search(text)]
    if len(begun) > 1:
        at = begun[-1]
        while _DEEPSPEED.search(stamped[at - 1]) and not _RETURNS.search(stamped[at - 1]):
            at -= 1
        return at
    head = [_DIGITS.sub("0", text) for text in islice(filter(says_something, texts), _HEAD)]
    if begun or len(head) < _HEAD or any(text[:1] in " [" or "Traceback" in text for text in head):
        return 0
    said = [(at, _DIGITS.sub("0", text)) for at, text in enumerate(texts) if says_something(text)]
    heads = [at for (at, text), (_, below) in pairwise(said) if [text, below] == head]
    heads = [at for at in heads if _COUNTED.findall(texts[at]) == _COUNTED.findall(texts[heads[0]])]  # a later step
    for before, at in pairwise(heads):
        above = [text for text in texts[before:at] if says_something(text)]
        times = [stamped[each] for each in range(before, at) if says_something(texts[each])]
        if not (_LAST_OF_PYTHON.match(above[-1]) and any(text.startswith("Traceback (most") for text in above)):
            return 0
        if _told_time(stamped[at:]) < _told_time(reversed(times)):
            return 0
    return heads[-1] if len(heads) > 1 else 0


def _after_an_edit(texts: Sequence[str]) -> int:
    """Return the place where the last run begins of a script that was edited in between, 0 if none was.

    In one run the line of a script that calls its main function has one number, and a script that does not parse has
    called nothing.
    """
    known: dict[str, tuple[str, int]] = {}  # by the script: what the last traceback shows of it, and where
    begun = 0
    for at, text in enumerate(texts[:-1]):
        if '"' not in text or (match := _OF_SCRIPT.match(text)) is None:
            continue
        script, number, called = match.groups()
        if called and not _CALLS_MAIN.match(texts[at + 1]):
            continue
        version = number if called else "does not parse"
        before, place = known.get(script, (version, at))
        known[script] = (version, at)
        if version != before:
            begun = next((each for each in range(place + 1, at) if texts[each][:1] not in ("", " ", "\t")), at - 1) + 1
    return begun


class _Summary(NamedTuple):
    """Torchrun's last words: when what it ran failed, and the place of the line after them.

    ``node``: the host and the first rank there; another agent of the same run has another one.
    """

    script: str
    node: tuple[str, int]
    time: tuple[str, ...]
    end: int


def _last_run(lines: Sequence[Line], raw: Mapping[int, str]) -> int:
    """Return the place where the last run begins that was appended to a log, 0 where that is not certain.

    A run is over with torchrun's summary, which a restart of ranks does not print. After it a run begins like the file
    did, with torchrun's banner, or with the first count of steps; in a recorded session, where it was typed; below the
    line of nohup. The logs of several nodes in one file look alike, but they are of other hosts or ranks, and begin
    before the one above ended.
    """
    stamped = [clean(raw[line.number]).rstrip() for line in lines]
    named = (line.speaker.rank is not None or line.speaker.local is not None for line in lines)
    texts = [whole if name else line.text for line, whole, name in zip(lines, stamped, named, strict=True)]
    typed = [at for at, text in enumerate(texts) if _TYPED.match(text)]
    if len(typed) > 1 and any(map(says_something, texts[typed[-1] + 1 :])):
        return typed[-1]
    started = [at for at, text in enumerate(texts) if _STARTED.match(text)]
    earlier = texts[started[0] : started[-1]] if started else []
    if any(_FAILS.search(text) or _LAST_OF_PYTHON.match(text) for text in earlier):
        return started[-1]
    if edited := _after_an_edit(texts):
        return edited
    if not any(_ROOT in text for text in texts):
        return _last_without_torchrun(texts, stamped)
    ends = [at for at, text in enumerate(texts) if text == _ROOT]
    over = [_summary(texts, at) for at in ends[-2:]]
    if not over or over[-1] is None:
        return 0
    last = over[-1]
    begun = _begins_anew(texts, last.end, len(texts), banner=False)
    if begun and _told_time(_before_it_fails(texts[begun:], stamped[begun:])) > last.time:
        return begun
    before = over[0]
    if len(over) < 2 or before is None or before.script != last.script:
        return 0  # what runs after a training that failed often fails because of that
    begun = _begins_anew(texts, before.end, ends[-1], banner=True)
    at_once = _told_time(_before_it_fails(texts[begun : ends[-1]], stamped[begun : ends[-1]]))
    told = at_once or (_told_time(stamped[begun : ends[-1] + _SUMMARY_LINES]) if before.node == last.node else ())
    return begun if told > before.time else 0


def _summary(texts: Sequence[str], root: int) -> _Summary | None:
    """Return the summary whose root cause stands at ``root``, None if it is not whole."""
    script = next((text[: -len(" FAILED")] for text in reversed(texts[:root]) if text.endswith(" FAILED")), "")
    near = texts[root : root + _SUMMARY_LINES]
    fields: dict[str, str] = {match[1]: match[2] for text in near if (match := _SUMMARY_FIELD.match(text))}
    rank = next((match for text in near if (match := _SUMMARY_RANK.match(text))), None)
    rule = next((at for at, text in enumerate(near) if text and not text.strip("=")), 0)
    time = _told_time([fields.get("time", "")])
    if rank is None or not (rule and time and "host" in fields):
        return None
    return _Summary(script, (fields["host"], int(rank[1]) - int(rank[2])), time, root + rule + 1)


def _before_it_fails(texts: Sequence[str], stamped: Sequence[str]) -> Iterator[str]:
    soon = zip(texts[:_SOON], stamped[:_SOON], strict=True)
    return (whole for _, whole in takewhile(lambda pair: not _FAILS.search(pair[0]), soon))


def _told_time(texts: Iterable[str]) -> tuple[str, ...]:
    """Return month, day and time of the first line that tells them, () if none does."""
    match = next((match for text in texts if (match := _TIME.search(text))), None)
    return () if match is None else tuple(part for part in match.groups() if part)


def _begins_anew(texts: Sequence[str], first: int, until: int, banner: bool) -> int:
    """Return where between ``first`` and ``until`` a run begins, 0 if that does not show."""
    head = [_DIGITS.sub("0", text) for text in islice(filter(says_something, texts), _HEAD)]
    if len(head) == _HEAD and not any(text[:1] in " [" or "Traceback" in text for text in head):
        said = [(at, _DIGITS.sub("0", texts[at])) for at in range(first, until) if says_something(texts[at])]
        for (at, text), (_, below) in pairwise(said):
            if [text, below] == head:
                return at
    if banner and (found := next((at for at in range(first, until) if _BANNER in texts[at]), 0)):
        return found
    counted = next((text for text in texts if _COUNTED.search(text) and not _OUTER.search(text)), None)
    if counted is None or not any(_same_count(text, counted) for text in texts[first:until]):
        return 0
    return next(at for at in range(first, until) if not _OUTER.search(texts[at]))


def _same_count(text: str, counted: str) -> bool:
    return _DIGITS.sub("0", text) == _DIGITS.sub("0", counted) and _COUNTED.findall(text) == _COUNTED.findall(counted)


def _echoes(cause: RootCause) -> tuple[Echo, ...]:
    """Return what followed, one entry for each kind of line and speaker, in the order of their first lines."""
    entries = [
        (hit.line, hit.line.speaker, filled(hit.signature.what, hit.groups))
        for hit in cause.echoes
        if hit.signature.code not in NOISE
    ]
    for loser in cause.losers:
        if loser.code == cause.code or loser.old or loser is cause.rival:
            continue  # what a rank only quoted, or printed before its own exception, follows from nothing
        entries.append((loser.line, loser.speaker, loser.words))
    groups: dict[tuple[str, int | None, str | None], list[Evidence]] = {}
    for line, speaker, what in sorted(entries, key=lambda entry: entry[0].at):
        groups.setdefault((what, speaker.rank, speaker.host), []).append(line.evidence)
    kinds = list(dict.fromkeys(what for what, _, _ in groups))[:_MOST_KINDS]
    kept = [each for each in groups.items() if each[0][0] in kinds][:_MOST_ECHOES]
    return tuple(Echo(what, rank, host, found[0], len(found)) for (what, rank, host), found in kept)
