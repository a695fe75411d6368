"""The chosen root cause in words: what, why, fixes and evidence of the diagnosis that people read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ddplaunch.explain.command_fixes import (
    CORE_DUMP,
    aborted_at_exit,
    another_port,
    command_fixes,
    left_early,
    never_launched,
    signal_to_launcher,
    still_to_do,
    who_asked,
)
from ddplaunch.explain.decide.candidates import Candidate
from ddplaunch.explain.decide.collectives import nccl_versions, uneven
from ddplaunch.explain.decide.decide import RootCause
from ddplaunch.explain.decide.endings import BareExit, other_end, words_above
from ddplaunch.explain.decide.recorded import (
    OF_CUDA,
    aborted_when_through,
    bus_error,
    exception_text,
    memory_limit,
    parts_ended_before,
    xid,
)
from ddplaunch.explain.diagnosis import Diagnosis, Raised, Rival, RunFacts, line_of
from ddplaunch.explain.read.lines import Line, reason_text
from ddplaunch.explain.read.scan import Scanned, matcher, notes_below
from ddplaunch.explain.read.trailer import closes_badly, status_text
from ddplaunch.explain.signatures import all_signatures
from ddplaunch.explain.signatures.memory_sizes import told_by_sizes
from ddplaunch.explain.signatures.signature import (
    ENDED_BY,
    ENDED_BY_ANOTHER,
    FIELD,
    NOISE,
    OF_EXCEPTIONS,
    OF_MESSAGES,
    Signature,
    Tier,
    filled,
    readable,
)
from ddplaunch.explain.stacks.hang import EQUAL_BATCHES, TOGETHER, waiting_words
from ddplaunch.values.words import SIGNALS, signal_name

_RECORD = "run it again by `ddplaunch run … -- SCRIPT …`: it keeps what every rank prints, and how each one ended"
_TEE = "with torchrun: `--tee 3 --log-dir logs` keeps what every rank prints; `@record` on `main()` keeps its traceback"
_DMESG = "`dmesg -T | grep -i -E 'killed process|oom'` on the node tells whether it was the kernel, for lack of memory"
_NATIVE = "run again with `--env PYTHONFAULTHANDLER=1`: the rank then prints where in Python it was"
_FIRST = "look at that exception first: the rank's own may only follow from it"
_RAY = "Ray keeps what each process prints: `grep -l Error /tmp/ray/session_latest/logs/worker-*.err` on its node"

_SINGLE = "run once with `num_workers=0`: what ends the worker then shows in the rank"
_LOST_WORKER = (
    "a worker that raises or crashes says so; one that is gone without a word was killed, mostly by the kernel for "
    "lack of memory, or left by `os._exit`",
    (_DMESG, _SINGLE),
)
_WORKER_LEFT = re.compile(r"DataLoader worker \(pid.* exited unexpectedly")
_ENDED_WORKER = ("lost a process of its DataLoader that left by itself, by `os._exit` or in native code", _SINGLE)

_LONG = re.compile(r"(\S{30})\S{40,}(\S{30})")  # a word wider than a terminal
#: Fixes of signatures that a whole command replaces.
_GENERAL = re.compile(
    r"start the script with a launcher|in a notebook or test"
    r"|`--batch-size` N/2|`ulimit -n 65535`|PYTHONFAULTHANDLER=1|`df -h \.|`--master-port|py-spy dump"
)
_NO_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_CRASHES = (SIGNALS["SIGABRT"], SIGNALS["SIGBUS"], SIGNALS["SIGKILL"], SIGNALS["SIGSEGV"])
_TOLD = (
    "it repeats that something failed that it had started, which prints its reason into its own output",
    ("`ddplaunch explain` with the output of the workers; a service keeps it as the job's log", _RECORD),
)
_REPORTED = re.compile(r"Error in sys\.excepthook|.*Traceback|  ")  # of an exception that is not there
_QUOTED = 160  # characters of a rank's last words in one line


class _Words(NamedTuple):
    what: str
    why: str
    fixes: tuple[str, ...]
    nobody: bool = False  # the rank that it speaks of is none of the launch


def worded(cause: RootCause, facts: RunFacts | None, scanned: Scanned) -> Diagnosis:
    """Return the diagnosis of a root cause; the fixes for this very run come first."""
    through = aborted_when_through(facts, cause.rank) if cause.code in ("aborted", "unknown") else None
    cause = cause if through is None else replace(cause, code="aborted-at-exit")
    words = _words(cause, facts) if through is None else _Words(*aborted_at_exit(cause.rank, through, facts))
    cause = replace(cause, rank=None) if words.nobody else cause
    line = cause.candidate.line.text if cause.candidate is not None else ""
    dumped = bool(cause.dumped) or "Fatal Python error" in line
    concrete = command_fixes(cause.code, facts, dumped)
    left = [fix for fix in words.fixes if not (concrete and _GENERAL.search(fix))]
    general = tuple(another_port(fix, line) for fix in still_to_do(left, facts, dumped))
    raised = cause.candidate.raised if cause.candidate is not None and cause.speaks else None
    said: tuple[Line, ...] = ()
    if raised is not None and cause.candidate is not None:
        raised = replace(raised, notes=notes_below(cause.candidate.line, scanned))
        if raised.type.endswith("CalledProcessError") and (said := words_above(cause.candidate.line, scanned)):
            who = f"rank {cause.rank}" if cause.rank is not None else "the script"
            above = f"above the traceback stands: {reason_text(said)[:_QUOTED]}"
            words = words._replace(why=f"{who} started a program that failed; {above}")
        said = other_end(cause.candidate.line, scanned) if cause.code == "download-failed" else said
    elif ("Signal: Aborted" in line or line.startswith("Fatal Python error: Aborted")) and cause.candidate is not None:
        said = words_above(cause.candidate.line, scanned)
        words = words._replace(what=_aborted_after(cause, reason_text(said))) if said else words
    if cause.candidate and (part := parts_ended_before(cause.candidate.line.at, cause.rank, raised, scanned)):
        words, general = words._replace(why=f"{part}; {words.why}"), (_FIRST, *general)
    if cause.code == "nccl-version-mismatch" and (versions := nccl_versions(scanned)):
        words = words._replace(why=f"{versions}; {words.why}")
    if cause.code == "gpu-fault" and (reported := xid(facts)):
        words = words._replace(why=f"{reported}; {words.why}")
    if raised is not None and raised.type in _NO_SYNTAX and (place := _unparsed(line, scanned)):
        words = words._replace(what=f"{words.what}: {place}")
    code, rank = ("rank-left-early", None) if cause.lost_one_that_left else (cause.code, cause.rank)
    return Diagnosis(
        code,
        cause.certainty,
        words.what,
        words.why,
        concrete + general,
        rank,
        cause.host,
        tuple(dict.fromkeys(line.evidence for line in (*cause.lines, *said))),
        raised,
        cause.calls,
        _rival(cause),
    )


def _unparsed(text: str, scanned: Scanned) -> str:
    """Return the line that Python could not parse, where it is none of the script's own files."""
    parts = (part for each in scanned.tracebacks for part in each.parts if part.line.text == text and part.frames)
    part = next(parts, None)
    if part is None or not part.frames[-1][0].startswith("<"):
        return ""
    return f"line {part.frames[-1][1]} of it is `{part.sources[-1]}`" if part.sources[-1] else ""


def _rival(cause: RootCause) -> Rival | None:
    """Return what else may have ended the run, None where nothing speaks for it."""
    if isinstance(cause.rival, Line):
        return Rival("none", "it ended nothing, and the work went on", cause.rival.evidence)
    other = cause.rival
    return None if other is None else Rival(other.code, other.words, other.line.evidence)


def _words(cause: RootCause, facts: RunFacts | None) -> _Words:
    candidate = cause.candidate
    if cause.told:
        return _Words(*signal_to_launcher(cause.code, facts, _DMESG))
    if cause.left is not None:
        return _Words(*left_early(cause.left, cause.stuck))
    if cause.outside is not None:
        return _outside(cause, cause.outside, facts)
    if cause.ended is not None:
        return _bare_exit(cause, cause.ended, facts)
    if candidate is None:
        return _unknown(cause)
    waits = cause.stuck if cause.stuck is not None and cause.stuck.waited else None
    if waits and (told := waiting_words(cause.code, cause.rank, cause.mismatched, waits, uneven(waits))):
        return _Words(*told)
    if (signature := candidate.signature) is None:
        assert candidate.raised is not None
        return _exception(cause, candidate.raised)
    if candidate.code == "rendezvous-failed" and (never := never_launched(candidate.groups, facts)) is not None:
        return _Words(*never, nobody=True)
    if signature.code != cause.code:  # the timeouts of all ranks say more than the one that was found first
        signature = next((each for each in all_signatures() if each.code == cause.code), signature)
    sizes = told_by_sizes(candidate.groups) if signature.code == "cuda-out-of-memory" else None
    words = _of_signature(*(sizes or (signature, readable(candidate.groups))))
    at = cause.frame or (cause.calls[-1].place if cause.calls and cause.code == "syntax-error" else "")
    return words._replace(what=f"{words.what}, at {at}") if at else words


def _of_signature(signature: Signature, groups: Mapping[str, str]) -> _Words:
    fixes = tuple(filled(fix, groups) for fix in signature.fixes if set(FIELD.findall(fix)) <= groups.keys())
    return _Words(filled(signature.what, groups), filled(signature.why, groups), fixes)


def _exception(cause: RootCause, raised: Raised) -> _Words:
    name = raised.type.rpartition(".")[2]
    special, worker = OF_EXCEPTIONS.get(name), _WORKER_LEFT.match(raised.message)
    said = _LONG.sub(r"\1…\2", f"{name}: {raised.message}" if raised.message else name)
    said = said if len(said) <= _QUOTED else f"{said[: _QUOTED - 1]}…"
    ends = said.endswith(".") and not said.endswith("..")  # as a sentence, which goes on here
    what = f"{said[:-1] if ends else said} at {raised.frame}" if raised.frame else said
    who = f"rank {cause.rank}" if cause.rank is not None else "the script"
    if cause.code == "killed":
        return _Words(f"a DataLoader worker of {who} was gone as it handed over a batch: {what}", *_LOST_WORKER)
    if worker:  # it is raised wherever the rank is when the worker ends
        return _Words(what, f"{who} {_ENDED_WORKER[0]}", (_ENDED_WORKER[1],))
    where = "look at the traceback above this line: the script's own frames are not in it"
    if raised.frame:
        below = "in what it calls" if cause.calls and cause.calls[-1].folded else "there"
        where = f"look at `{line_of(raised.frame)}`: the exception is raised {below}"
    elif cause.candidate is not None and cause.candidate.bare:
        where = "look in the whole output of that rank for the traceback, which is not in this log"
    others = any(hit.signature.code not in NOISE for hit in cause.echoes)
    told = {each.speaker.rank for each in cause.losers if each.raised and each.raised.type == raised.type}
    alike = cause.rank is None and len(told - {None}) > 0
    why = f"{'the ranks ended alike,' if alike else f'{who} ended'} by an uncaught exception"
    why += "; errors on other ranks are consequences" if others and not alike else ""
    last = cause.calls[-1] if cause.calls else None
    own = last is not None and not last.folded and last.source.startswith("raise ")  # it was meant to stop here
    why += _handled_before(cause.losers) if alike or own else ""
    if cause.candidate is not None and cause.candidate.side and cause.candidate.tier == Tier.UNCERTAIN:
        why = f"an uncaught exception ended a thread of {who}, not the rank: what it was to do, nobody did any more"
    fixes = (where,)
    for pattern, meaning, fix in OF_MESSAGES:
        if match := pattern.search(raised.message):
            return _Words(what, meaning, (fix.format(*match.groups()), where))
    return _Words(what, f"{who} {special[0]}" if special else why, (special[1], *fixes) if special else fixes)


def _bare_exit(cause: RootCause, ended: BareExit, facts: RunFacts | None) -> _Words:
    """Return the words for a rank whose exit no line explains."""
    nobody = "the ranks" if ended.exit.seen else "a rank"
    who = nobody if cause.rank is None else f"rank {cause.rank}"
    how = status_text(ended.exit.code, ended.exit.seen)
    said = f": {reason_text(ended.said)[:_QUOTED]}" if ended.gives_reason else ""
    at = f", at {cause.frame}" if cause.frame else ""
    again = () if ended.exit.seen else (_NATIVE,)  # ddplaunch has set it
    if ended.code == "killed":
        return _Words(
            f"{who} ended by {how}, and nothing says who sent it",
            "SIGKILL leaves no message; usually the kernel sent it, because the node or the cgroup has no memory left",
            (_DMESG, "fewer DataLoader workers, less loaded into host memory by each rank; else ask who ended it"),
        )
    if ended.code == "segmentation-fault":
        return _Words(
            f"{who} ended by {how} in native code{said}{at}",
            "a C, C++ or CUDA library read or wrote memory that is not its own; Python cannot say which",
            (*again, "look at extensions built for another torch, and at libraries that were updated last"),
        )
    if ended.code == "aborted" and (echo := cause.own_echo) is not None:
        return _Words(
            f"{who} ended by {how} after: {filled(echo.signature.what, echo.groups)}",
            "NCCL and gloo abort a rank whose communication failed: the other side ended, or the network failed",
            ("`ddplaunch explain` with the logs of all ranks and nodes; `--nccl-debug INFO` says what failed", _DMESG),
        )
    if ended.code == "aborted":
        reason = "native code called abort(); the last lines of the rank should say why"
        silent = "native code called abort(); usually C++ prints the reason in a line above, but here is none"
        record = (_NATIVE, _RECORD) if not ended.exit.seen else (_read_words(ended), CORE_DUMP)
        return _Words(f"{who} ended by {how}{said or ' without a message'}{at}", reason if said else silent, record)
    if ended.exit.code == -SIGNALS["SIGBUS"]:
        return _Words(f"{who} ended by {how}{at or ', and no line says why'}", *bus_error(facts, cause.frame))
    if ended.exit.code < 0 and (meaning := ENDED_BY.get(signal_name(-ended.exit.code))) is not None:
        said = "" if said.startswith(": Fatal Python error") else said
        return _Words(f"{who} ended by {how}{said}{at}", meaning[0], (meaning[1],))
    if ended.code == "terminated":
        return _Words(
            f"{who} was ended from outside by {how}",
            "the launcher did not send it: a person, a scheduler or a supervisor asked this process to end",
            (who_asked(facts),),
        )
    if cause.lost_one_that_left:
        return _Words(
            f"{who} ended with {how} because it lost another rank of its node, which had left with status 0",
            "the launcher lists ranks that fail, and lists no other one: that one had fewer batches, or returned early",
            (EQUAL_BATCHES, TOGETHER, _RECORD),
        )
    if cause.own_echo is not None:
        return _lost_another(cause.own_echo.line, f"{who} ended with {how}")
    return _plain_exit(cause, ended, who, how)


def _aborted_after(cause: RootCause, said: str) -> str:
    """Return what native code said before it aborted a rank, and where in the script that was."""
    who = f"rank {cause.rank}" if cause.rank is not None else "a process"
    at = f", at {cause.frame}" if cause.frame else ""
    return f"{who} aborted in native code, which said: {said[:_QUOTED]}{at}"


def _plain_exit(cause: RootCause, ended: BareExit, who: str, how: str) -> _Words:
    """Return the words for a rank that left with a status, after what it said last."""
    text = reason_text(ended.said)[:_QUOTED]
    if ended.exit.code < 0:
        why, fix = ENDED_BY_ANOTHER
        said = f": {text}" if ended.gives_reason else ""
        return _Words(
            f"{who} ended by {how}{said}", why, (fix.format(signal_name(-ended.exit.code), -ended.exit.code),)
        )
    why = "no traceback and no signal: it left by `sys.exit()` or `os._exit()`, or it is a program or shell script"
    if ended.exit.seen and ended.exit.code - 128 in _CRASHES:
        signalled = signal_name(ended.exit.code - 128)
        why = f"the rank itself got no signal; a shell gives this status where {signalled} ended a command of it"
    elif ended.exit.seen and not ended.said:
        why += ", or its `sys.excepthook` prints nothing"
    if ended.exit.code == 255:
        why = "no traceback and no signal: `sys.exit(-1)` and `exit -1` give 255, so does ssh where a session failed"
    if cause.code == "script-not-found":
        why = "status 127 is what a shell and `env` give where a command is not there"
        return _Words(
            f"{who} found no such command: {text}",
            why,
            ("`command -v NAME` on that node, as the ranks' user; the line names the program that called it",),
        )
    if cause.code == "permission-denied":
        why = "status 126 is what a shell and `env` give where a command is there but may not be executed"
        return _Words(
            f"{who} may not execute a command: {text}",
            why,
            ("`ls -l` shows it; `chmod +x FILE`, or a file system mounted with noexec",),
        )
    if ended.gives_reason:
        return _Words(f"{who} ended with {how}: {text}", why, (_read_words(ended),))
    if not ended.exit.seen:
        why = "its output may have gone elsewhere, or the script left by `sys.exit()` or `os._exit()`"
        none = f"no line of its own says why; one that no rank signs: {text}" if text else "no line says why"
        return _Words(f"{who} ended with {how}, and {none}", why, (_RECORD, _TEE))
    last = f"; its last one: {text}" if text else "; it printed nothing"
    where = _read_words(ended) if ended.said else "look for `sys.exit` and `os._exit` in the script, with this status"
    return _Words(f"{who} ended with {how}, and no line says why{last}", why, (where,))


def _read_words(ended: BareExit) -> str:
    """Return what to look for where a rank's last words are all that is known."""
    if not ended.said:
        return "look for `sys.exit`, `os._exit` and `abort` in the script and in what it calls"
    return "its output ends there: look for these words in the script and in what it calls"


def _outside(cause: RootCause, line: Line, facts: RunFacts | None) -> _Words:
    """Return the words for an end that only the kernel or the cgroup explains."""
    who = "a process of the run" if cause.rank is None else f"rank {cause.rank}"
    how = f" by {status_text(cause.ended.exit.code, cause.ended.exit.seen)}" if cause.ended is not None else ""
    limit = memory_limit(facts) if cause.code == "host-out-of-memory" else None
    what = f"{who} was ended{how}: {limit or f'{line.file} says: {line.text.strip()[:120]}'}"
    why = "the kernel ends a process when memory runs out, and the process itself prints nothing"
    shown = [hit.signature for hit in matcher().hits(line)] or list(all_signatures())  # what the kernel says, else any
    fixes = next((each.fixes for each in shown if each.code == cause.code and each.fixes), (_DMESG,))
    return _Words(what, why, tuple(fix for fix in fixes if not FIELD.search(fix))[:3])


def _lost_another(line: Line, how: str) -> _Words:
    """Return the words for a rank that ended because its communication failed, as ``line`` says."""
    if OF_CUDA.search(line.text):
        return _in_nccl(f"{how}: ")
    return _Words(
        f"{how} because it lost another rank, and that one says nothing here",
        "the line is printed by survivors; the cause is in the log of the rank or host that they lost",
        ("`ddplaunch explain` on each of the other nodes, or with the logs of all nodes here", _DMESG),
    )


def _in_nccl(who: str = "") -> _Words:
    return _Words(
        f"{who}a call to CUDA failed in NCCL, and no line says which",
        "NCCL's summary is all that stands here; a line `NCCL WARN Cuda failure …` has the call and its error",
        ("`--nccl-debug INFO`, or the output of the other ranks: that line is in it", _RECORD),
    )


def _unknown(cause: RootCause) -> _Words:
    """Return the words where only survivors report, or where the log just ends."""
    spoken = [hit for hit in cause.echoes if hit.signature.code not in NOISE]
    told = [hit.line for hit in spoken] if cause.witness is None else [cause.witness.line]
    if told and all(OF_CUDA.search(line.text) for line in told):
        return _in_nccl()
    if cause.witness is not None and cause.witness.raised is not None:
        raised = cause.witness.raised
        own = (_RAY, _RECORD) if raised.type.startswith("ray.") else (_RECORD,)
        return _Words(
            f"{raised.type.rpartition('.')[2]} only reports that another process failed: {raised.message[:120]}",
            "the process that raised it lost another one, or repeats what a library printed elsewhere",
            (f"`ddplaunch explain` with the logs of all ranks and nodes; `--nccl-debug INFO`; {_DMESG}", *own),
        )
    if spoken:
        return _Words(
            "ranks lost their connection to another one, and that one says nothing here",
            "these lines are printed by survivors; the cause is in the log of the rank or host that they lost",
            ("`ddplaunch explain` with the logs of all nodes; else look for its exit status, and " + _DMESG, _RECORD),
        )
    if summed_up := [hit.line.text.strip() for hit in cause.echoes if hit.signature.code == "told-elsewhere"]:
        return _Words(f"what started the work says that it failed, and not why: {summed_up[-1][:80]}", *_TOLD)
    if cause.cut is not None and not _REPORTED.match(cause.cut.text) and closes_badly(cause.cut.text):
        return _Words(f"the last words say that the work failed, and not why: {cause.cut.text.strip()[:80]}", *_TOLD)
    if cause.cut is not None:
        return _Words(
            "an exception ended a rank, and its type and message are not in this log",
            "its traceback is cut off, or the hook that was to report it failed over that",
            ("look at the whole output of that rank, or at what the script's logger or tracker kept of it", _RECORD),
        )
    return _Words(
        "the log ends without saying how the run ended",
        "no error, no exit status and no sign of completion: it still runs, hangs, or was cut off",
        ("`py-spy dump --pid PID` for every rank while it hangs; else the exit status and " + _DMESG, _RECORD),
    )


def _handled_before(losers: Sequence[Candidate]) -> str:
    """Return which exception a single rank had printed before the ranks were stopped on purpose, maybe for it."""
    told = [each for each in losers if each.old and each.raised is not None and not each.speaker.quoted]
    raised = told[-1].raised if len({each.speaker.rank for each in told}) == 1 else None
    if raised is None:
        return ""
    return f"; rank {told[-1].speaker.rank} had printed another one before: {exception_text(raised)}"
