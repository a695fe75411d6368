"""Two recorded runs beside each other: what differs between them, and from which step on they print other numbers.

What has to differ is left out: run ids, the ports and files of a launch, times and rates in what ranks print.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from ddplaunch.machine.files import open_plain
from ddplaunch.records.find import RunRecord, numbered, read_record, read_run, run_directories
from ddplaunch.records.log_files import STEPS, log_files
from ddplaunch.records.outcome import Ended, PreviousRun, RunOutcome
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import numbers_text

#: In the order in which they are shown: what a person chose comes before what was there.
Kind = Literal["argument", "option", "number", "code", "commit", "version", "host", "variable"]
_LOOKED_AT = 50  # records of earlier runs
_MOST_BYTES = 64 << 20  # of one rank's output
_LONGEST = 500  # characters of a line
#: Options of a launch that name it, or say what is looked at.
_OF_THE_LAUNCH = frozenset(("--run-id", "--run-dir", "--show", "--verbose", "--json", "--trace"))
_OURS = re.compile(
    r"DDPLAUNCH_\w*|TORCH_\w*DUMP_TEMP_FILE|TORCH_NCCL_DEBUG_INFO_TEMP_FILE|OLDPWD|PWD|SHLVL|_|COLUMNS|LINES|TERM\w*"
    r"|SSH_\w*|SLURM_\w*|MASTER_PORT|WINDOWID|STY|TMUX\w*|PYTEST_CURRENT_TEST|VSCODE_\w*"
)
_FACTS = (
    ("GPU driver", ("nvml", "driver_version")),
    ("CUDA of torch", ("torch", "cuda")),
    ("NCCL of torch", ("torch", "nccl_version")),
    ("interpreter", ("python", "executable")),
    ("torch's folder", ("torch", "path")),
)
_HOST_FACTS = (
    ("kernel", ("host", "kernel")),
    ("usable CPUs", ("cpu", "usable")),
    ("memory", ("memory", "total_bytes")),
    ("memory limit", ("memory", "limit_bytes")),
    ("/dev/shm", ("shm", "size_bytes")),
    ("open files", ("limits", "open_files_soft")),
)
_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?|0x[0-9a-f]+"
    r"|\[[\d:<?, ]*[\d.]+(?:it/s|s/it)\]"
    r"|(?i:\b(?:time|eta|elapsed|speed|throughput|\w*tok\w*/s\w*|mfu|mem\w*|dt|data|batch_time|data_time)\b"
    r"[\"']?[=: ]+[\d.]+\w*)"
    r"|\b\d+(?:\.\d+)?(?:e[+-]?\d+)? ?(?:[mµun]?s|sec(?:onds)?|min|[\w-]{1,12}/s(?:ec)?|s/\w{1,8}|[KMGT]i?B|%)(?![\w/])"
)
#: What torch prints of an uncaught exception, and any exception's last line: they name a step and report none.
_RAISED = re.compile(rb"\[rank\d+\]: |(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt)\b")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)", re.IGNORECASE)


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same: ``name`` had one value in the first run and another in the second, None: none."""

    kind: Kind
    name: str
    first: str | None
    second: str | None


@dataclass(frozen=True)
class Divergence:
    """Where a rank's numbers part: ``first`` and ``second`` are its lines at ``step``, None where one has no more.

    ``alike`` is the last step that is the same in both, None where none is.
    """

    rank: int
    alike: int | None
    step: int
    first: str | None
    second: str | None


@dataclass(frozen=True)
class Comparison:
    """What differs between two runs; ``divergence`` None where their steps are alike or not printed."""

    differences: tuple[Difference, ...]
    divergence: Divergence | None


def compare(first: RunRecord, second: RunRecord) -> Comparison:
    """Return what differs between two recorded runs, as far as both records tell."""
    secrets = first.value("secrets", "key") == second.value("secrets", "key")
    pairs = (
        ("argument", _arguments(first), _arguments(second)),
        ("option", _options(first, secrets), _options(second, secrets)),
        ("number", _numbers(first), _numbers(second)),
        ("code", _texts(first.value("code")), _texts(second.value("code"))),
        ("commit", _known("git commit", first.value("git_commit")), _known("git commit", second.value("git_commit"))),
        ("version", _versions(first), _versions(second)),
        ("host", _hosts(first), _hosts(second)),
        ("variable", _variables(first, secrets), _variables(second, secrets)),
    )
    found = [
        Difference(kind, name, one.get(name), other.get(name))  # type: ignore[arg-type]
        for kind, one, other in pairs
        for name in dict.fromkeys((*one, *other))
        if one.get(name) != other.get(name)
        and not (kind in ("code", "commit", "version", "host", "variable") and not (one and other))
    ]
    found += _on_other_nodes(first, second, found)
    passed = {each.name.lstrip("-").replace("-", "_") for each in found if each.kind in ("argument", "option")}
    found = [each for each in found if each.kind != "number" or each.name not in passed]
    return Comparison(tuple(found), _divergence(first.directory, second.directory))


def across_nodes(run: RunRecord) -> dict[Difference, list[int]]:
    """Return what differs between node 0, the ``first``, and other nodes of one run, with these nodes."""
    found: dict[Difference, list[int]] = {}
    for node in sorted(_nodes(run)):
        for each in _unlike(run, replace(run, run=read_run(run.directory, node), outcomes={})):
            found.setdefault(each, []).append(node)
    return found


def _on_other_nodes(first: RunRecord, second: RunRecord, known: Sequence[Difference]) -> Iterator[Difference]:
    """Yield what differs on nodes that left a record of their own in both runs, but not in the same way on node 0."""
    nodes: dict[Difference, list[int]] = {}
    for node in sorted(_nodes(first) & _nodes(second)):
        one, other = (replace(each, run=read_run(each.directory, node), outcomes={}) for each in (first, second))
        for found in _unlike(one, other):
            if found not in known:
                nodes.setdefault(found, []).append(node)
    for found, where in nodes.items():
        yield replace(found, name=f"{found.name} on node{'s' if len(where) > 1 else ''} {numbers_text(where)}")


def _unlike(one: RunRecord, other: RunRecord) -> Iterator[Difference]:
    """Yield what differs between two records of one node each, in what a node has of its own."""
    secrets = one.value("secrets", "key") == other.value("secrets", "key")
    parts = (
        ("code", _texts(one.value("code")), _texts(other.value("code"))),
        ("version", _versions(one), _versions(other)),
        ("host", _hosts(one), _hosts(other)),
        ("variable", _variables(one, secrets), _variables(other, secrets)),
    )
    for kind, ours, theirs in parts:
        for name in dict.fromkeys((*ours, *theirs)) if ours and theirs else ():
            if ours.get(name) != theirs.get(name) and name != "hosts":
                yield Difference(kind, name, ours.get(name), theirs.get(name))  # type: ignore[arg-type]


def _nodes(record: RunRecord) -> set[int]:
    """Return the nodes other than 0 that have left a run.json."""
    return {node for node, folder in numbered(record.directory, "node") if node and (folder / "run.json").is_file()}


# What a run was


def _words(words: Sequence[str]) -> dict[str, str]:
    """Return options with their values, and what stands alone by its position."""
    found: dict[str, str] = {}
    last, position = "", 0
    for word in words:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            last, equals, value = word.partition("=")
            found[last] = value
            last = "" if equals else last
        elif last:
            found[last] = f"{found[last]} {word}".strip()
        elif "=" in word:
            name, _, found[name] = word.partition("=")
        else:
            position += 1
            found[f"argument {position}"] = word
    return found


def _arguments(record: RunRecord) -> dict[str, str]:
    args = record.value("plan", "target", "args")
    script = _known("script", record.script)
    return {**script, **_words([str(each) for each in args] if isinstance(args, list) else [])}


def _options(record: RunRecord, secrets: bool) -> dict[str, str]:
    """Return the options of the launch; ``secrets`` as in ``_variables``."""
    argv = record.value("argv")
    words = [str(each) for each in argv[2:]] if isinstance(argv, list) else []
    own = _words(words[: words.index("--")] if "--" in words else words)
    hidden = record.value("secrets", "argv") if secrets else None
    shown = {("processes" if name == "argument 1" else name): own[name] for name in own if name not in _OF_THE_LAUNCH}
    return {**shown, **_known("secrets", " ".join(map(str, hidden)) if isinstance(hidden, list) else None)}


def _numbers(record: RunRecord) -> dict[str, str]:
    numbers = record.value("plan", "numbers")
    values = {name: each.get("value") for name, each in _objects(numbers) if "value" in each}
    return {name: str(value) for name, value in values.items() if isinstance(value, (int, float, str))}


def _versions(record: RunRecord) -> dict[str, str]:
    known = {name: str(record.value("host", *path)) for name, path in _FACTS if _plain(record.value("host", *path))}
    return {**_texts(record.value("versions")), **known}


def _hosts(record: RunRecord) -> dict[str, str]:
    ranks = [each for outcome in record.outcomes.values() for each in outcome.last_ranks]
    names = sorted({each.host for each in ranks if each.host}) or [record.host or ""]
    known = {
        name: str(record.value("host", *path)) for name, path in _HOST_FACTS if _plain(record.value("host", *path))
    }
    gpus = record.value("host", "nvml", "gpus")
    models = [str(each.get("name")) for each in gpus if isinstance(each, dict)] if isinstance(gpus, list) else []
    device = record.value("plan", "device", "value")
    return {"hosts": ", ".join(names), **known, **_known("device", device), **_known("GPUs", ", ".join(models))}


def _variables(record: RunRecord, secrets: bool) -> dict[str, str]:
    """Return the environment; with ``secrets`` also their fingerprints, which one key makes comparable."""
    prints = dict(_objects_or_lists(record.value("secrets", "environment"))) if secrets else {}
    found = _texts(record.value("environment"))
    found = {name: f"{value} ({prints[name]})" if name in prints else value for name, value in found.items()}
    here = str(record.directory)
    return {name: value for name, value in found.items() if not _OURS.fullmatch(name) and here not in value}


def _texts(value: Any) -> dict[str, str]:
    return {str(name): str(each) for name, each in value.items() if each is not None} if isinstance(value, dict) else {}


def _objects(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, each in value.items() if isinstance(value, dict) else ():
        if isinstance(each, dict):
            yield str(name), each


def _objects_or_lists(value: Any) -> Iterator[tuple[str, str]]:
    for name, each in value.items() if isinstance(value, dict) else ():
        yield str(name), " ".join(map(str, each)) if isinstance(each, list) else str(each)


def _known(name: str, value: Any) -> dict[str, str]:
    return {name: str(value)} if value not in (None, "") else {}


def _plain(value: Any) -> bool:
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


# What it printed


def _divergence(first: Path, second: Path) -> Divergence | None:
    """Return the earliest step at which a rank that both runs had printed something else."""
    ours, theirs = (_outputs(directory) for directory in (first, second))
    found = [
        parting
        for rank in sorted(ours.keys() & theirs.keys())
        if (parting := _parting(rank, _steps(ours[rank]), _steps(theirs[rank]))) is not None
    ]
    real = [each for each in found if each.first is not None and each.second is not None]
    return min(real or found, key=lambda each: (each.step, each.rank), default=None)


def _outputs(directory: Path) -> dict[int, list[Path]]:
    """Return the files of each rank's last attempt."""
    files = log_files(directory)
    last: dict[int, int] = {}
    for file in files:
        last[file.rank] = max(file.attempt, last.get(file.rank, 0))
    found: dict[int, list[Path]] = {}
    for file in files:
        if file.attempt == last[file.rank]:
            found.setdefault(file.rank, []).append(file.path)
    return found


def _steps(paths: Iterable[Path]) -> list[tuple[int, str]]:
    """Return the lines that name a step, each with its number, in order."""
    found = []
    for path in paths:
        try:
            with open(open_plain(path), "rb") as file:
                data = file.read(_MOST_BYTES)
        except OSError:
            continue
        for line in re.split(rb"[\r\n]", data):
            match = next((match for pattern in STEPS if (match := pattern.search(line))), None)
            if match is not None and not _RAISED.match(line):
                number = match["step"] if "step" in match.re.groupindex else match[1]
                found.append((int(number), line.decode("utf-8", "replace").strip()[:_LONGEST]))
    return found


def _parting(rank: int, ours: Sequence[tuple[int, str]], theirs: Sequence[tuple[int, str]]) -> Divergence | None:
    alike: int | None = None
    for one, other in zip_longest(ours, theirs):
        if one is None or other is None:
            step = (one or other)[0]
            return Divergence(rank, alike, step, one and one[1], other and other[1])
        if one[0] != other[0] or _TIMES.sub("", one[1]) != _TIMES.sub("", other[1]):
            return Divergence(rank, alike, min(one[0], other[0]), one[1], other[1])
        alike = one[0]
    return None


# The run before


def run_before(directory: Path, outcome: RunOutcome) -> PreviousRun | None:
    """Return how the newest earlier run of the same command ended, None where there is none that ended by itself.

    ``directory`` is that of the run whose ``outcome`` is given.
    """
    this = read_record(directory)
    if not this.run:
        return None
    command = _command(this)
    for path in run_directories(directory.parent.parent)[:_LOOKED_AT]:
        if path.name == directory.name:
            continue
        other = read_record(path)
        if other.created_s > this.created_s or _command(other) != command:
            continue
        ended = other.outcome
        if ended is None or ended.state not in ("succeeded", "failed"):
            continue
        alike = ended.diagnosis is not None and ended.diagnosis.is_like(outcome.diagnosis)
        before, now = _texts(other.value("code")), _texts(this.value("code"))
        changed = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
        how: Ended = "succeeded" if ended.state == "succeeded" else "alike" if alike else "otherwise"
        return PreviousRun(other.run_id, how, tuple(changed))
    return None


def _command(record: RunRecord) -> tuple[Any, ...]:
    target = record.value("plan", "target")
    return (target, record.value("cwd"), _numbers(record), record.value("plan", "device", "value"))
