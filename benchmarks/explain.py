"""How often ``explain`` is right, and how fast on 1 GB: ``python -m benchmarks.explain --corpus PATH/cases.jsonl``.

Rules are tuned on one half of the labelled logs (crc32 of the id even). Nobody reads the other half: its score is the
one that counts. Both scores are printed and written to benchmarks/results/explain.json and explain.md. ``--failures``
lists the wrong answers of the half that rules are tuned on. On 30 November 2026 the codes and fates of the other half's
wrong answers were looked at, and which lines of one healthy log repeat its first; never a text.

``--cases FILE`` writes the labelled logs of benchmarks/fault_sets as JSON lines, for any tool to read. ``--score FILE``
counts how many answers of a tool are right: JSON lines of ``id``, ``code`` and, if it names one, ``rank``. A tool with
coarser names gives a list of all codes that its name covers. ``--score explain`` asks ddplaunch.

``--ablate`` switches each rule of ddplaunch/explain/decide/fate.py and each signature off, and prints of how many logs
of benchmarks/fault_sets, by how many authors, the answer gets worse: another code, or no longer the rank, the words
that somebody needs to mend it, or the line of the user's code. A rule stays with three logs of two authors, or where it
reads the record of a run, which no log has: ``--check`` fails if another one is there.
"""

from __future__ import annotations

import io
import json
import resource
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.fault_sets import ANY, Fault, logs
from benchmarks.publishing import parser, publish
from ddplaunch.explain.decide import fate
from ddplaunch.explain.decide.choose import RootCause, choose
from ddplaunch.explain.diagnosis import Diagnosis, LogSource
from ddplaunch.explain.explain_logs import explain_texts, read_logs
from ddplaunch.explain.signatures import Signature, all_signatures
from ddplaunch.explain.wording import worded

CORPUS = Path(__file__).parents[2] / "shared" / "corpus" / "cases.jsonl"
RIGHT_LEAST, WRONG_MOST = 0.95, 0.03
RANKS, ALL_BYTES, SECONDS_MOST, MEMORY_MOST_MB = 64, 10**9, 5.0, 300.0
STEP = "2026-01-05 04:11:20,001 INFO step {step:06d} loss 1.8120 lr 3.0e-05 1.91 s/it tokens/s 18234.5 grad_norm 0.81\n"


@dataclass(frozen=True)
class Score:
    """Counts of one half. ``wrong`` are wrong answers, and any diagnosis of a healthy log.

    Answers that call themselves likely: ``likely`` of the right ones, ``wrong_likely`` of the wrong ones.
    """

    logs: int
    right: int
    wrong: int
    unknown: int
    healthy: int
    healthy_silent: int
    ranks: int
    ranks_right: int
    likely: int
    wrong_likely: int

    @property
    def kept(self) -> bool:
        """Whether the goals hold: 95 % right, at most 3 % confidently wrong, healthy logs silent."""
        confident = self.wrong - self.wrong_likely
        enough = self.right >= RIGHT_LEAST * self.logs and confident <= WRONG_MOST * self.logs
        return enough and self.healthy == self.healthy_silent


@dataclass(frozen=True)
class Speed:
    """One answer for ``ranks`` logs of ``gigabytes`` in all."""

    ranks: int
    gigabytes: float
    seconds: float
    cpu_seconds: float
    peak_mb: float
    code: str | None


def main() -> int:
    """Measure, print, write; return the exit status."""
    options = parser(__doc__)
    options.add_argument("--corpus", type=Path, default=CORPUS, help="cases.jsonl with id, log, codes and rank")
    options.add_argument(
        "--failures", action="store_true", help="list what is wrong in the half that rules are tuned on"
    )
    options.add_argument("--no-speed", action="store_true", help="leave the gigabyte out")
    options.add_argument("--ablate", action="store_true", help="switch each rule and signature off instead")
    options.add_argument("--cases", type=Path, metavar="FILE", help="write the labelled logs instead")
    options.add_argument("--score", metavar="FILE|explain", help="count the right answers of a tool instead")
    arguments = options.parse_args()
    if arguments.ablate:
        needs = ablation(arguments.corpus)
        sys.stdout.write(ablation_text(needs))
        return int(arguments.check and bool(needless(needs)))
    if arguments.cases:
        arguments.cases.write_text("".join(f"{json.dumps(case)}\n" for case in fault_cases()))
        return 0
    if arguments.score:
        answers = own_answers() if arguments.score == "explain" else read_answers(Path(arguments.score))
        sys.stdout.write(scored(answers))
        return 0
    cases = [json.loads(line) for line in arguments.corpus.read_text().splitlines()]
    halves = {"tune": [case for case in cases if tuned(case)], "report": [case for case in cases if not tuned(case)]}
    scores = {name: score(half) for name, half in halves.items()}
    speed = None if arguments.no_speed else gigabyte()
    values = {"scores": {name: asdict(each) for name, each in scores.items()}, "speed": speed and asdict(speed)}
    publish("explain", report(scores, speed), values, write=not arguments.no_write)
    if arguments.failures:
        sys.stdout.write("".join(failures(halves["tune"])))
    return int(arguments.check and not (scores["report"].kept and _fast(speed)))


def _fast(speed: Speed | None) -> bool:
    return speed is None or (speed.seconds <= SECONDS_MOST and speed.peak_mb <= MEMORY_MOST_MB)


def tuned(case: dict[str, Any]) -> bool:
    """Return whether rules may be tuned on this log."""
    return zlib.crc32(case["id"].encode()) % 2 == 0


def answer(case: dict[str, Any]) -> Diagnosis | None:
    """Return what ``explain`` says of a log, as from a pipe."""
    return explain_texts([LogSource("train.log", io.BytesIO(case["log"].encode()))]).diagnosis


def score(cases: Sequence[dict[str, Any]]) -> Score:
    """Return how many first answers are right."""
    right = unknown = healthy = silent = ranks = ranks_right = likely = wrong_likely = 0
    for case in cases:
        found = answer(case)
        code = None if found is None else found.code
        hit = code in case["codes"]
        right += hit
        unknown += not hit and code == "unknown" and case["codes"] != [None]
        healthy += case["codes"] == [None]
        silent += case["codes"] == [None] and hit
        doubts = found is not None and found.certainty == "likely"
        likely += hit and doubts
        wrong_likely += doubts and not hit
        if hit and found is not None and case["rank"] is not None:
            ranks += 1
            ranks_right += found.rank == case["rank"]
    wrong = len(cases) - right - unknown
    return Score(len(cases), right, wrong, unknown, healthy, silent, ranks, ranks_right, likely, wrong_likely)


def fault_cases() -> Iterator[dict[str, Any]]:
    """Yield each labelled log of benchmarks/fault_sets with its right codes (null: healthy) and rank (null: any)."""
    for fault in logs():
        codes = [None if code == "none" else code for code in fault.codes]
        yield {"id": fault.name, "log": fault.log, "codes": codes, "rank": None if fault.rank == ANY else fault.rank}


def own_answers() -> dict[str, tuple[list[str | None], int | None]]:
    """Return what ``explain`` says of each labelled log."""
    found = {case["id"]: answer(case) for case in fault_cases()}
    return {name: ([None], None) if said is None else ([said.code], said.rank) for name, said in found.items()}


def read_answers(path: Path) -> dict[str, tuple[list[str | None], int | None]]:
    """Return the codes and rank of each answer. Raises ValueError and KeyError for other lines than the form's."""
    answers = {}
    for said in map(json.loads, path.read_text().splitlines()):
        codes = said["code"] if isinstance(said["code"], list) else [said["code"]]
        answers[said["id"]] = (codes, said.get("rank"))
    return answers


def scored(answers: dict[str, tuple[list[str | None], int | None]]) -> str:
    """Return the figures of a tool's answers as a table in Markdown; a log without an answer counts as unknown."""
    cases = list(fault_cases())
    failed = [case for case in cases if None not in case["codes"]]
    healthy = [case for case in cases if None in case["codes"]]
    codes = {case["id"]: answers.get(case["id"], ([], None))[0] for case in cases}
    right = [case for case in failed if {*codes[case["id"]]} & {*case["codes"]}]
    silent = [case for case in healthy if {*codes[case["id"]]} <= {None, "unknown"}]
    unknown = [case for case in failed if case not in right and {*codes[case["id"]]} <= {None, "unknown"}]
    ranked = [case for case in failed if case["rank"] is not None]
    ranks = sum(answers.get(case["id"], ([], None))[1] == case["rank"] for case in ranked)
    wrong = len(failed) - len(right) - len(unknown)
    return (
        "| failures | right cause | wrong cause | unknown | right rank | healthy silent |\n|---|---|---|---|---|---|\n"
        f"| {len(failed)} | {len(right)} | {wrong} | {len(unknown)} | {ranks} of {len(ranked)} "
        f"| {len(silent)} of {len(healthy)} |\n"
    )


def failures(cases: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each wrong answer."""
    lines = []
    for case in cases:
        found = answer(case)
        code = None if found is None else found.code
        if code not in case["codes"]:
            said = "" if found is None else found.what[:100]
            lines.append(f"{case['id']}: {case['codes'][0]} expected, {code} found: {said}\n")
    return lines


@dataclass(frozen=True)
class Need:
    """The logs, as author/name, that get a wrong code or none without a ``rule`` or signature."""

    rule: str
    logs: tuple[str, ...]

    @property
    def authors(self) -> int:
        """How many authors these logs are of."""
        return len({log.partition("/")[0] for log in self.logs})


#: Rules that read what only the record of a run has: tests/explain/test_recorded.py needs them.
FROM_RECORDS = ("quoted", "stopped_by_the_launcher", "older_than_the_exception_that_ended_its_rank")
LOGS_LEAST, AUTHORS_LEAST = 3, 2


def needless(needs: Sequence[Need]) -> list[str]:
    """Return the names of rules that fewer logs or authors need than a rule is worth."""
    names = {rule.__name__ for _, rule in fate.RULES} - set(FROM_RECORDS)
    few = (need for need in needs if len(need.logs) < LOGS_LEAST or need.authors < AUTHORS_LEAST)
    return [need.rule for need in few if need.rule in names]


def labelled(corpus: Path) -> Iterator[Fault]:
    """Yield each log of the fault sets and of the corpus."""
    yield from logs()
    if corpus.exists():
        for case in map(json.loads, corpus.read_text().splitlines()):
            codes = tuple("none" if code is None else code for code in case["codes"])
            yield Fault(f"corpus/{case['id']}", codes, ANY, ANY, (), case["log"])


def ablation(corpus: Path) -> list[Need]:
    """Return what each rule and signature is needed for, those that nothing needs first."""
    rules = fate.RULES
    lost: dict[str, list[str]] = {rule.__name__: [] for _, rule in rules}
    lost |= {_name_of(signature): [] for signature in all_signatures()}
    for fault in labelled(corpus):
        scanned = read_logs([LogSource("train.log", io.BytesIO(fault.log.encode()))])
        cause, case = choose(scanned)
        whole = _rightly(cause, fault)
        if whole == 0:
            continue
        reasons = {failure.reason for failure in case.failures} - {""}
        for off in [rule for rule in rules if rule[1].__name__ in reasons]:
            fate.RULES = tuple(rule for rule in rules if rule is not off)
            if _rightly(choose(scanned)[0], fault) < whole:
                lost[off[1].__name__].append(fault.name)
        fate.RULES = rules
        for signature in {id(hit.signature): hit.signature for hit in scanned.hits}.values():
            hits = tuple(hit for hit in scanned.hits if hit.signature is not signature)
            if _rightly(choose(replace(scanned, hits=hits))[0], fault) < whole:
                lost[_name_of(signature)].append(fault.name)
    return sorted((Need(rule, tuple(logs)) for rule, logs in lost.items()), key=lambda need: len(need.logs))


def _rightly(cause: RootCause | None, fault: Fault) -> int:
    """Return how much of an answer is right: 0 if its code is not, else 1 and 1 each for rank, words and own line."""
    said = None if cause is None else worded(cause)
    if ("none" if said is None else said.code) not in fault.codes:
        return 0
    shown = "" if said is None else " ".join((said.what, said.why, *said.fixes, *(each.text for each in said.evidence)))
    has_words = all(any(word in shown for word in words.split("|")) for words in fault.helps)
    if said is None:
        return 1
    return 1 + (fault.rank in (ANY, said.rank)) + has_words + bool(said.calls)


def _name_of(signature: Signature) -> str:
    return f"{signature.code}: {signature.patterns[0][:60]}"


def ablation_text(needs: Sequence[Need]) -> str:
    """Return a line for each rule and signature: the logs and authors that need it, and some of the logs."""
    lines = (
        f"{len(need.logs):4} logs {need.authors:3} authors  {need.rule}  {' '.join(need.logs[:3])}" for need in needs
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def gigabyte() -> Speed:
    """Return the time and memory for 64 logs of 1 GB in all; one of them names a cause in its middle."""
    steps = "".join(STEP.format(step=step) for step in range(40_000)).encode()
    noise = b"[W105 04:11:20.001 socket.cpp:1] the client retries a connection that nobody answers\n" * 60_000
    cause = b"Traceback (most recent call last):\n  File \"train.py\", line 7, in <module>\nKeyError: 'title'\n"
    with tempfile.TemporaryDirectory() as folder:
        sources = []
        for rank in range(RANKS):
            path = Path(folder) / f"rank-{rank}.out"
            failed = rank == RANKS // 2
            with open(path, "wb") as file:
                while file.tell() < ALL_BYTES // RANKS // (1 + failed):
                    file.write(steps)
                file.write(cause * failed)
                while file.tell() < ALL_BYTES // RANKS:
                    file.write(noise)
            sources.append(LogSource(path.name, path, rank, "node-0"))
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        begun, worked = time.perf_counter(), time.process_time()
        found = explain_texts(sources).diagnosis
        seconds, cpu = time.perf_counter() - begun, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    code = None if found is None else found.code
    return Speed(RANKS, round(size / 1e9, 2), round(seconds, 2), round(cpu, 2), round(peak, 1), code)


def report(scores: dict[str, Score], speed: Speed | None) -> str:
    """Return the figures as a table in Markdown."""
    lines = [
        "| logs | number | right first answer | of them likely | confidently wrong | wrong, likely | unknown "
        "| healthy silent | right rank |",
        "|---" * 9 + "|",
    ]
    names = {"tune": "tuned on", "report": "not looked at"}
    for name, each in scores.items():
        confident = each.wrong - each.wrong_likely
        parts = (each.right, each.likely, confident, each.wrong_likely, each.unknown)
        share = [f"{100 * part / max(1, each.logs):.1f} %" for part in parts]
        rest = f"{each.healthy_silent} of {each.healthy} | {each.ranks_right} of {each.ranks}"
        lines.append(f"| {names[name]} | {each.logs} | {' | '.join(share)} | {rest} |")
    text = "\n".join(lines) + "\n"
    if speed is not None:
        text += (
            f"\n{speed.ranks} ranks, {speed.gigabytes} GB of logs: {speed.seconds} s ({speed.cpu_seconds} s of CPU), "
            f"{speed.peak_mb} MB of memory at most (answer: {speed.code})\n"
        )
    return text


if __name__ == "__main__":
    sys.exit(main())
