"""Writes the diagnosis that people read for the chosen root cause: what, why, fixes and evidence."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ddplaunch.explain.decide.choose import BareExit, RootCause
from ddplaunch.explain.decide.collectives import Left, Stuck, Waited
from ddplaunch.explain.decide.recorded import (
    OF_CUDA,
    aborted_when_through,
    xid,
)
from ddplaunch.explain.diagnosis import Diagnosis, Raised, RankEnd, RunFacts, line_of, source_around
from ddplaunch.explain.read.lines import Line, reason_text
from ddplaunch.explain.read.scan import matcher, notes_below
from ddplaunch.explain.read.trailer import closes_badly, status_text
from ddplaunch.explain.signatures import (
    FIELD,
    Signature,
    Tier,
    Words,
    all_signatures,
    has_words,
    named,
    patterns,
    readable,
    say,
    words_for,
    words_of,
)
from ddplaunch.machine.files import read_plain
from ddplaunch.values.variable_names import TRIAL
from ddplaunch.values.words import SIGNALS, nearest, ranks_text, signal_name, size_text

_LONG, _GENERAL, _REPORTED, _PY_SPY, _VARIABLE, _TYPED, _SIZE, _MISSING, _NAME, _RAN_BY = patterns("shown-words")
_CRASHES = (SIGNALS["SIGABRT"], SIGNALS["SIGBUS"], SIGNALS["SIGKILL"], SIGNALS["SIGSEGV"])
_IN_OUTPUT = "its output ends there: look for these words in the script and in what it calls"
_CALLS = "look for `sys.exit`, `os._exit` and `abort` in the script and in what it calls"
CORE_DUMP = "a core dump has the native stack: `coredumpctl gdb`, or `ulimit -c unlimited` and run it again"
_EXAMPLE = "ddplaunch run 4"  # in general fixes; a run's own command takes its place
_OF_DRIVER = 0.05  # fraction of a GPU's memory that the driver takes, not another process
_SOURCE = 60  # characters of a source line
_QUOTED = 160  # characters of a rank's last words in one line


def worded(cause: RootCause) -> Diagnosis:
    """Return the diagnosis of a root cause; fixes for this particular run come first."""
    facts, scanned = cause.case.facts, cause.case.scanned
    through = aborted_when_through(facts, cause.rank) if cause.code in ("aborted", "unknown") else None
    cause = cause if through is None else replace(cause, code="aborted-at-exit")
    words = _words(cause) if through is None else say("aborted-at-exit", **_at_exit(cause, through))
    line = cause.candidate.line.text if cause.candidate else ""
    dumped = bool(cause.dumped) or "Fatal Python error" in line
    concrete = tuple(_command_fixes(cause.code, facts, dumped))
    for match in _RAN_BY.finditer(f"{words.what} {facts.run}"):
        concrete = say("ran-by", **match.groupdict()).fixes
    general = _still_to_do([fix for fix in words.fixes if not (concrete and _GENERAL.search(fix))], facts, dumped)
    raised, calls = cause.candidate.raised if cause.candidate and cause.speaks else None, cause.calls
    if cause.candidate and raised:
        raised = replace(raised, notes=(*raised.notes, *notes_below(cause.candidate.line, scanned)))
        if facts.just_ended:
            concrete = (*_close_names(raised, facts), *concrete)
        if calls and not cause.candidate.is_known:
            calls = (*calls[:-1], replace(calls[-1], around=source_around(calls[-1], 1)))
    if cause.code == "gpu-fault" and (reported := xid(facts)):
        words = words._replace(why=f"{reported}; {words.why}")
    diagnosis = Diagnosis(
        cause.code,
        cause.certainty,
        words.what,
        words.why,
        tuple(dict.fromkeys((*concrete, *general))),
        cause.rank,
        cause.host,
        tuple(dict.fromkeys(line.evidence for line in cause.lines)),
        raised,
        calls,
        cause.told and bool(facts.stopped_by or facts.signal == SIGNALS["SIGINT"]),
    )
    return as_warned(diagnosis, facts.findings)


def as_warned(diagnosis: Diagnosis, findings: Sequence[object]) -> Diagnosis:
    """Return the diagnosis as what came of one of the ``findings`` at the launch's start, if one led to it."""
    for finding in findings:
        for template, _ in words_for("", f"{diagnosis.code}: {diagnosis.why} after {_at(finding, 'code')}"):
            known = {name: str(_at(finding, name)) for name in ("what", "why", "fix")}
            what, why, fixes = words_of(template, {"failed": diagnosis.what, **known})
            diagnosis = replace(diagnosis, what=what, why=why, fixes=fixes)
    return diagnosis


def _close_names(raised: Raised, facts: RunFacts) -> Iterator[str]:
    """Yield which name is close to a missing one: beside a file or folder; in the user's code, or files of settings."""
    if raised.type == "FileNotFoundError":
        with suppress(OSError):
            path = Path(raised.path)
            while not path.parent.exists():
                path = path.parent
            # of a million files, comparing all names would take ten seconds
            others = islice(path.parent.iterdir(), 10_000)
            # `ckpt.pt` is no misspelt `ckpt.py`; `conf.yml` may be meant by `conf.yaml`
            names = [one.name for one in others if one.suffix == path.suffix or one.stem == path.stem]
            yield from _close(path.name, path.parent, names)
    elif missing := _MISSING.match(f"{raised.type}: {raised.message}"):
        for word in (*facts.code, *(facts.argv or ())):
            with suppress(OSError):
                file = Path(word.rpartition("=")[2])  # --config=FILE
                names = _NAME.findall(read_plain(file).decode(errors="replace"))
                yield from _close(missing[1], file, names)


def _close(missing: str, place: Path, names: Iterable[str]) -> tuple[str, ...]:
    near = nearest(missing, {*names} - {missing}, cutoff=0.75)  # a source has many names
    return say("close-to-it", place=f"{place}", near=near).fixes if near else ()


def _at_exit(cause: RootCause, end: RankEnd) -> dict[str, str]:
    """Return the facts about a rank whose libraries aborted after its program had finished."""
    known = {"who": _who(cause, "the ranks"), "still": ""}
    if end.through == "group":
        known |= {"still": "; its process group still existed", "in_group": ""}
    return known


def _words(cause: RootCause) -> Words:
    candidate = cause.candidate
    if cause.told:
        return _signal_to_launcher(cause.code, cause.case.facts)
    if cause.left is not None:
        return _left_early(cause.left, cause.case.waits)
    if cause.outside is not None:
        return _outside(cause, cause.outside)
    if cause.ended is not None:
        return _bare_exit(cause, cause.ended)
    if candidate is None:
        return _unknown(cause)
    if cause.case.waits.waited and (waiting := _waiting(cause, cause.case.waits)) is not None:
        return waiting
    signature, awaited = candidate.signature, candidate.groups.get("culprit", "")
    if candidate.raised is not None and not candidate.is_known:
        return _exception(cause, candidate.raised)
    ranks = _number(cause.case.facts, "world_size")
    if signature.code == "rendezvous-failed" and awaited.isdecimal() and 0 < (ranks or 0) <= int(awaited):
        return say("awaits-nobody", awaited=awaited, ranks=str(ranks))
    if signature.code != cause.code:  # the timeouts of all ranks together say more than the first one found
        signature = next((each for each in all_signatures() if each.code == cause.code), signature)
    sizes = _by_sizes(candidate.groups) if signature.code == "cuda-out-of-memory" else None
    words = words_of(*(sizes or (signature, readable(candidate.groups))))
    at = cause.frame or (cause.calls[-1].place if cause.calls and cause.code == "syntax-error" else "")
    return words._replace(what=f"{words.what}, at {at}") if at else words


def _waiting(cause: RootCause, waits: Stuck) -> Words | None:
    """Return the texts for ranks that timed out; None if the line of the time-out says as much."""
    first, rank = waits.waited[0], cause.rank
    waiting = ranks_text([wait.rank for wait in waits.waited])
    if cause.mismatched is not None:
        return _mismatch(*cause.mismatched)
    if cause.code == "gpu-p2p-broken":
        return say("first-collective-hangs", ranks=str(len(waits.waited)), call=first.described)
    if cause.code == "collective-timeout" and rank is not None and rank in waits.absent:
        at = f", at {first.frame}" if first.frame else ""
        return say("did-not-come", rank=str(rank), call=first.described, waiting=waiting, at=at)
    return None


def _mismatch(first: Waited, second: Waited) -> Words:
    ranks = {"first": str(first.rank), "second": str(second.rank)}
    in_first, in_second = (
        f"in {wait.described} (from {wait.frame})" if wait.frame else f"in {wait.described}" for wait in (first, second)
    )
    sources = [f"`{wait.frame}` is `{wait.source[:_SOURCE]}`; " for wait in (first, second) if wait.source]
    in_backward = "backward" in (first.call, second.call)
    name = "in-backward-and-elsewhere" if in_backward else "in-different-calls"
    return say(name, in_first=in_first, in_second=in_second, lines="".join(sources), **ranks)


def _who(cause: RootCause, nobody: str) -> str:
    return nobody if cause.rank is None else f"rank {cause.rank}"


def _exception(cause: RootCause, raised: Raised) -> Words:
    name = raised.type.rpartition(".")[2]
    said = _LONG.sub(r"\1…\2", f"{name}: {raised.message}" if raised.message else name)
    said = said if len(said) <= _QUOTED else f"{said[: _QUOTED - 1]}…"
    what = f"{said.rstrip('.')} at {raised.frame}" if raised.frame else said  # a period would end the sentence
    who = _who(cause, "the script")
    where = "look at the traceback above this line: the script's own frames are not in it"
    if cause.candidate and cause.candidate.bare:
        where = "look in the whole output of that rank for the traceback, which is not in this log"
    unplaced = () if raised.frame else (where,)  # else the first line names the place, and the story shows it
    for known, groups in words_for(name, raised.message):
        words = words_of(known, {"who": who, "place": line_of(raised.frame or "this line"), **groups})
        return words._replace(what=what, fixes=(*words.fixes, *unplaced))
    return Words(what, _uncaught(cause, raised, who), unplaced)


def _uncaught(cause: RootCause, raised: Raised, who: str) -> str:
    """Return why a rank ended by an exception about which nothing more is known."""
    if cause.candidate and cause.candidate.side and cause.candidate.tier == Tier.UNCERTAIN:
        return f"an uncaught exception ended a thread of {who}, not the rank: what it was to do, nobody did any more"
    others = any(hit.signature.kind != "noise" for hit in cause.case.echoes)
    told = {each.speaker.rank for each in cause.losers if each.raised and each.raised.type == raised.type}
    alike = cause.rank is None and len(told - {None}) > 0
    follow = "; errors on other ranks are consequences" * (others and not alike)
    return f"{'the ranks ended alike,' if alike else f'{who} ended'} by an uncaught exception{follow}"


def _bare_exit(cause: RootCause, ended: BareExit) -> Words:
    """Return the texts for a rank whose exit no line explains."""
    status, seen, text = ended.exit.code, ended.exit.seen, reason_text(ended.said)[:_QUOTED]
    signal = -status if status < 0 else status - 128
    read = _IN_OUTPUT if ended.said else _CALLS
    repeats = has_words(f"signal-{signal_name(signal)}") and text.startswith("Fatal Python error")
    groups = {
        "who": _who(cause, "the ranks" if seen else "a rank"),
        "how": status_text(status, seen),
        "text": text,
        "said": f": {text}" if ended.gives_reason and not repeats else "",
        "at": f", at {cause.frame}" if cause.frame else "",
        "signal": signal_name(signal),
        "number": str(signal),
        "asked": _who_asked(cause.case.facts),
        "none": f"no line of its own says why; one that no rank signs: {text}" if text else "no line says why",
        "last": f"; its last one: {text}" if text else "; it printed nothing",
        "read": read,
    }
    groups["who_ended"] = f"{groups['who']} ended with {groups['how']}: "
    if seen:
        groups["look"] = read
    shown, named_groups = _words_of_exit(cause, ended, text)
    words = words_of(shown, groups | named_groups)
    if shown.name not in ("left-with-reason", "left-in-silence"):
        return words
    if status == 255:
        return words._replace(why=say("status-255").why)
    of_shell = seen and status > 0 and signal in _CRASHES
    return words._replace(why=say("status-of-a-shell", **groups).why) if of_shell else words


def _words_of_exit(cause: RootCause, ended: BareExit, text: str) -> tuple[Signature, dict[str, str]]:
    """Return the texts for an exit that no line explains: the first whose pattern matches what is known of it.

    The last words (``text``) are in a line of their own.
    """
    echo, status = cause.own_echo, ended.exit.code
    known = (
        f"exit: {ended.code} by {signal_name(-status) if status < 0 else 'a status'}"
        f"{', a reason' * ended.gives_reason}{', shm known' * (cause.case.facts.shm_free_bytes is not None)}"
        f"{', lost another' * (echo is not None)}{' in NCCL' * bool(echo and OF_CUDA.search(echo.line.text))}"
        f"{', worker-lost' * bool(echo and echo.signature.code == 'worker-lost')}"
        f", {cause.code}, {'seen' if ended.exit.seen else 'unseen'}\n{text}"
    )
    return next(words_for("", known))


def _outside(cause: RootCause, line: Line) -> Words:
    """Return the texts for an end that only the kernel or the cgroup explains."""
    by = f" by {status_text(cause.ended.exit.code, cause.ended.exit.seen)}" if cause.ended is not None else ""
    who = _who(cause, "a process of the run")
    words = say("ended-outside", who=who, by=by, reason=f"{line.file} says: {line.text.strip()[:120]}")
    shown = [hit.signature for hit in matcher().hits(line)] or list(all_signatures())  # the kernel's line, else any
    fixes = next((each.fixes for each in shown if each.code == cause.code and each.fixes), words.fixes)
    return words._replace(fixes=tuple(fix for fix in fixes if not FIELD.search(fix))[:3])


def _left_early(left: Left, waits: Stuck) -> Words:
    """Return the texts for ranks that ended with status 0 while another one still waited for them.

    If the script itself called the collective, the texts name the place that these ranks did not reach. In `backward`,
    and if the call is unknown, ranks meet once per batch.
    """
    waited = next((each for each in waits.waited if each.rank == left.waiting), None)
    call = waited.described if waited is not None and waited.op else left.call
    called = bool(left.frame) and left.call not in ("", "backward")
    return say(
        "left-early-before-a-call" if called else "left-early",
        who=ranks_text(left.ranks),
        they="they" if len(left.ranks) > 1 else "it",
        waiting=str(left.waiting),
        call=call or "a collective",
        at=f", at {left.frame}" if left.frame else "",
        place=line_of(left.frame),
    )


def _unknown(cause: RootCause) -> Words:
    """Return the texts if only survivors report, or the log just ends."""
    spoken = [hit for hit in cause.case.echoes if hit.signature.kind != "noise"]
    told = [hit.line for hit in spoken] if cause.witness is None else [cause.witness.line]
    if told and all(OF_CUDA.search(line.text) for line in told):
        return say("failed-in-nccl", who_ended="")
    if cause.witness is not None and cause.witness.raised is not None:
        raised = cause.witness.raised
        ray = {"ray": ""} if raised.type.startswith("ray.") else {}
        return say("witness", type=raised.type.rpartition(".")[2], message=raised.message[:120], **ray)
    if spoken:
        return say("only-survivors")
    if summed_up := [hit.line.text.strip() for hit in cause.case.echoes if hit.signature.code == "told-elsewhere"]:
        return say("told-elsewhere", line=summed_up[-1][:80])
    if cause.cut is None:
        return say("just-ends")
    closes = not _REPORTED.match(cause.cut.text) and closes_badly(cause.cut.text)
    return say("closes-badly" if closes else "cut-off", line=cause.cut.text.strip()[:80])


# Full GPUs


def _by_sizes(groups: Mapping[str, str]) -> tuple[Signature, Mapping[str, str]] | None:
    """Return the texts for a failed allocation if the log line has all sizes, and their groups; otherwise None.

    They distinguish a tensor larger than the GPU, memory held by other processes, and memory held by this one.
    """
    wanted_bytes, free, total, used = (_bytes(groups.get(name, "")) for name in ("wanted", "free", "total", "used"))
    if total and wanted_bytes and wanted_bytes > total:
        return named("larger-than-a-gpu"), groups
    if not (total and used and free is not None):
        return None
    other_bytes = total - free - used
    if other_bytes < _OF_DRIVER * total:
        return named("gpu-all-own"), groups
    return named("gpu-shared"), {**groups, "others": size_text(round(other_bytes))}


def _bytes(text: str) -> float | None:
    match = _SIZE.fullmatch(text)
    return float(match[1]) * (1 << 10 * " KMGTPE".index(match[2] or " ")) if match else None


# A launcher that was ended by a signal


def _signal_to_launcher(code: str, facts: RunFacts) -> Words:
    """Return what, why and fixes for a run whose launcher was ended by a signal."""
    if code == "killed" or facts.launcher_lost:
        return say("launcher-killed" if code == "killed" else "launcher-lost")
    if facts.stopped_by is not None:
        return say("stopped", user=facts.stopped_by)
    signal = signal_name(facts.signal) if facts.signal else "a signal"
    name = f"launcher-{signal}"
    return say(name if has_words(name) else "launcher-ended", signal=signal, asked=_who_asked(facts))


def _who_asked(facts: RunFacts) -> str:
    """Return how to find out who ended a run by SIGTERM; it mentions Slurm only if the run was in a job."""
    job = _at(facts.run, "environment", "SLURM_JOB_ID")
    known = {"job": job} if job else {"run": ""} if facts.argv else {}
    return say("who-asked", **known).fixes[0]


# Complete commands: the run's own command line with a smaller batch, another port or one more setting


def _command_fixes(code: str, facts: RunFacts, dumped: bool) -> Iterator[str]:
    """Yield what to type after a failure with ``code``; nothing unless a user typed a `run` command.

    ``dumped``: the Python stack is in the log.
    """
    own_words, script_words = _typed_words(facts)
    if not own_words:
        return
    words, topology = (*own_words, *script_words), _at(facts.plan, "topology")
    if code == "disk-full":
        for path, full in facts.full_disks:
            yield f"make room on `{path}`: {full}; `du -xh {shlex.quote(path)} | sort -h | tail`"
    # threads' stacks count too; pthread_create(3) reports their refusal like the limit on the number of threads
    limit = _value(own_words, "--memory") if code in ("host-out-of-memory", "process-limit") else None
    if limit:
        yield f"more for each rank than `--memory {limit}`, if the machine has it"
    if limit or code == "cuda-out-of-memory":
        yield from _smaller_batch(own_words, script_words, facts)
    if code == "too-many-open-files":
        yield f"`ulimit -n 65535 && {shlex.join(words)}`"
    if code == "port-taken" and _value(own_words, "--master-port"):
        free = (*_with(own_words, "--master-port", None), *script_words)
        yield f"without the port, a free one is taken: `{shlex.join(free)}`"
    elif code == "port-taken" and _at(topology, "nnodes", "value") == 1 and _at(topology, "master_port") is None:
        yield from say("port-of-the-script").fixes
    if code == "segmentation-fault" and not (dumped or _sets(facts, "PYTHONFAULTHANDLER")):
        yield f"where in Python it was: `{shlex.join((*own_words, '--env', 'PYTHONFAULTHANDLER=1', *script_words))}`"


def _typed_words(facts: RunFacts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of the `run` command that a user typed, and those of the script from `--` on; () for none."""
    argv = facts.argv or ()
    if argv[1:2] != ("run",) or any(word.startswith(f"{TRIAL}=") for word in argv):
        return (), ()  # `scale` and `fit` say what to type after their trials
    words = ("ddplaunch", *argv[1:])
    behind = words.index("--") if "--" in words else len(words)
    return words[:behind], words[behind:]


def _still_to_do(fixes: Sequence[str], facts: RunFacts, dumped: bool) -> Iterator[str]:
    """Yield ``fixes`` without those that the run followed or does not need; ``dumped``: its Python stack is in the log.

    If that stack is known already, the native one is the next thing to get.
    """
    is_run = facts.plan is not None or bool(facts.ranks)
    own_words, _ = _typed_words(facts)
    for fix in fixes:
        variables = _VARIABLE.findall(fix)
        followed = is_run and ("ddplaunch run … -- SCRIPT" in fix or "--tee 3" in fix)
        followed |= "--lr-scaling" in fix and (_at(facts.plan, "numbers", "lr_factor", "value") or 1) == 1
        followed |= bool(variables) and all(_sets(facts, name, value) for name, value in variables)
        if "PYTHONFAULTHANDLER" in fix and (dumped or followed):
            yield CORE_DUMP
        elif not followed and ("--no-forward" not in fix or _at(facts.plan, "passed")):
            if "lr" not in str(_at(facts.plan, "receives")):
                fix = fix.replace(" (`--lr` or `--base-lr`)", "")
            fix = fix.replace(_EXAMPLE, shlex.join(own_words) or _EXAMPLE)
            yield _PY_SPY.sub("`ddplaunch stacks`", fix) if facts.argv else fix


def _smaller_batch(own_words: Sequence[str], script_words: Sequence[str], facts: RunFacts) -> Iterator[str]:
    """Yield the command with a smaller batch per process, and the same effective batch if the script can accumulate.

    The batch is changed where the script gets it: from ddplaunch, or from its own option, which may be a total over
    several processes and changes in proportion.
    """
    batch, world = _number(facts, "batch_size"), _number(facts, "world_size")
    accum, takes = _number(facts, "accum") or 1, _at(facts.plan, "receives")
    takes = takes if isinstance(takes, list) else ["batch_size", "accum"]  # older versions did not record it
    typed = _TYPED.fullmatch(str(_at(facts.plan, "numbers", "batch_size", "source", "detail")))
    if not (typed or "batch_size" in takes):
        yield "a smaller batch, in the script itself: no option was found by which it takes one"
        return
    if batch is None or world is None or batch < 2:
        return
    accumulates, whole = "accum" in takes, batch * accum * world
    smaller = next(size for size in range(batch // 2, 0, -1) if not accumulates or batch * accum % size == 0)
    script = shlex.join(script_words)
    if typed is None:
        own_words = _with(own_words, "--batch-size", str(smaller))
    else:
        number = re.compile(rf"(?<=\s{re.escape(typed[1])}[ =])\d+(?!\S)")
        script = number.sub(lambda match: str(int(match[0]) * smaller // batch), script)
    if accumulates:
        own_words = _with(own_words, "--accum", str(batch * accum // smaller))
        kept = f"same effective batch of {whole} in less memory"
    else:
        own_words = _with(own_words, "--global-batch-size", None)
        halved = f"an effective batch of {smaller * accum * world} in the place of {whole}"
        kept = f"{halved}, since the script does not accumulate"
    yield f"{kept}: `{shlex.join(own_words)} {script}`"


def _at(value: object, *names: str) -> Any:
    """Return the value at this path in a record, or None."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _number(facts: RunFacts, name: str) -> int | None:
    value = _at(facts.plan, "numbers", name, "value")
    return value if isinstance(value, int) and value > 0 else None


def _sets(facts: RunFacts, name: str, value: str = "") -> bool:
    """Return whether the launch set this variable for the ranks, to ``value`` if given."""
    entries = _at(facts.plan, "environment")
    named_so = [entry for entry in (entries if isinstance(entries, list) else []) if _at(entry, "name") == name]
    return any(_at(entry, "value") == value if value else _at(entry, "value") for entry in named_so)


def _value(own_words: Sequence[str], flag: str) -> str | None:
    """Return the value typed after ``flag`` or attached to it; None if the flag was not given."""
    for word, next_word in zip(own_words, [*own_words[1:], ""], strict=True):
        name, equals, attached = word.partition("=")
        if name == flag:
            return attached if equals else next_word
    return None


def _with(own_words: Sequence[str], flag: str, value: str | None) -> list[str]:
    """Return the words with ``flag`` set to ``value``, in place or at the end; for None, without the flag."""
    words = list(own_words)
    at = next((at for at, word in enumerate(words) if word.partition("=")[0] == flag), len(words))
    until = at + (1 if "=" in "".join(words[at : at + 1]) else 2)
    return [*words[:at], *([] if value is None else [flag, value]), *words[until:]]
