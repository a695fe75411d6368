"""Every signature of every family: its examples, its near-misses, and look-alikes of its neighbours."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.prefixes import NOBODY
from ddplaunch.explain.read.scan import matcher, needed_texts
from ddplaunch.explain.signatures import all_signatures, failed_collectives
from ddplaunch.explain.signatures.gpu import memory
from ddplaunch.explain.signatures.signature import Signature, Tier
from tests.explain.signature_rules import caught, idle, matched, missed, slow, too_wide, unfilled

#: The files of ``explain/signatures`` whose signatures may match the same line.
FAMILIES = {
    "gpu": ("gpu.setup", "gpu.faults", "gpu.memory"),
    "nccl": ("network.nccl", "echoes"),
    "collective": ("failed_collectives", "echoes"),
    "ddp": ("ddp",),
    "system": ("system_memory", "system"),
    "network": ("network.connection", "network.rendezvous"),
    "data": ("checkpoints", "data"),
    "launching": ("launching", "extensions", "imports"),
    "scheduler": ("scheduler",),
    "ending": ("ending", "echoes"),
}
SIGNATURES: dict[str, tuple[Signature, ...]] = {
    family: tuple(each for name in names for each in import_module(f"ddplaunch.explain.signatures.{name}").SIGNATURES)
    for family, names in FAMILIES.items()
}
#: Of each family, lines with the code that it gives them, "-" for none.
LOOK_ALIKES = [
    (family, line, None if code == "-" else code)
    for part in Path(__file__).with_name("look_alikes.txt").read_text().split("=== ")[1:]
    for family, *lines in [part.splitlines()]
    for code, _, line in (each.partition(": ") for each in lines)
]


def test_every_family_is_looked_at() -> None:
    assert {each for family in SIGNATURES.values() for each in family} == set(all_signatures())


@pytest.mark.parametrize(
    "signature",
    [
        pytest.param(each, id=f"{family}-{each.code}-{at}")
        for family, signatures in SIGNATURES.items()
        for at, each in enumerate(signatures)
    ],
)
def test_keeps_its_word(signature: Signature) -> None:
    assert signature.examples
    assert signature.near_misses
    assert missed(signature) == []
    assert caught(signature) == []
    assert idle(signature) == []
    assert unfilled(signature) == []
    assert too_wide(signature) == []
    assert slow(signature, seconds=1.0) == []
    assert bool(signature.fixes) == bool(signature.why) == (signature.tier != Tier.ECHO)
    assert signature.tier != Tier.SURVIVED, "what became of the rank decides that, not its words"


@pytest.mark.parametrize(("family", "line", "code"), LOOK_ALIKES)
def test_neighbours_are_told_apart(family: str, line: str, code: str | None) -> None:
    found = [each for each in SIGNATURES[family] if alone(each) and matched(each, line) is not None]
    best = min(found, key=lambda each: each.tier).code if found else None
    assert best == code


def test_memory_is_measured() -> None:
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.42 GiB. GPU 1 has a total capacity of 39.38 "
        "GiB of which 411.56 MiB is free. Including non-PyTorch memory, this process has 38.51 GiB memory in use."
    )
    signature = next(each for each in memory.SIGNATURES if matched(each, line))
    match = matched(signature, line)
    assert match is not None
    assert signature.what.format(**match.groupdict()) == "GPU 1 is full: 9.42 GiB wanted, 411.56 MiB of 39.38 GiB free"


def alone(signature: Signature) -> bool:
    """Say whether one line shows it, without others of the log."""
    return not (signature.log_with or signature.log_by_several)


def shown(text: str) -> list[Signature]:
    hits = matcher().hits(Line(0, "train.log", 1, text, NOBODY))
    return [hit.signature for hit in hits if not hit.signature.log_by_several]  # one line is not several


def test_every_example_is_told_by_its_own_code_among_all_signatures() -> None:
    roots = [each for each in all_signatures() if each.is_root and not each.log_by_several]
    for signature in roots:
        for text in signature.examples:
            others = [each for each in shown(text) if alone(each) or each is signature]
            assert others[0].code == signature.code, text


@pytest.mark.slow
def test_no_line_is_skipped_that_a_signature_matches() -> None:
    for text in dict.fromkeys(text for each in all_signatures() for text in (*each.examples, *each.near_misses)):
        alone = [each for each in all_signatures() if not each.log_by_several]  # as `shown` takes them
        found = [each for each in alone if matched(each, text) is not None]
        assert shown(text) == sorted(found, key=lambda each: each.tier), text


@pytest.mark.parametrize(
    ("pattern", "needed"),
    [
        (r"^step \d+: (?P<what>loss|error) was nan\b", (" was nan",)),
        (r"(?P<line>Killed|out of memory)\s*$", ("Killed", "out of memory")),
        (r"(?:very )?long+ words?[.!]", (" word",)),
        (r"(?:ab|c)(?: more)*", ("ab", "c")),
        (r"f\(\)\{2}x? (?!not this )(?i:NOR) [)|(]+ \w+", ("f(){2}",)),
        (r"[)(|]{3}\d+|all", ("", "all")),
    ],
)
def test_texts_that_a_pattern_needs(pattern: str, needed: tuple[str, ...]) -> None:
    assert needed_texts(pattern) == needed


def test_the_late_rank_is_named() -> None:
    line = "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 8000 ms"
    found = [match for each in failed_collectives.SIGNATURES if (match := matched(each, line))]
    assert [match["culprit"] for match in found] == ["1"]
