"""Which lines show a signature: with other lines of the log, in quotes, in comments, in messages of several lines."""

from __future__ import annotations

import pytest

from ddplaunch.explain.read import scan as scanning
from ddplaunch.explain.read.scan import Matcher, matcher, scan
from ddplaunch.explain.signatures import Signature, Tier
from tests.explain.logs import lines_of, raised


def rule(code: str, tier: Tier = Tier.CAUSE, unless: str = "", beside: str = "", twice: str = "") -> Signature:
    log_unless, log_with, log_twice = ((text,) if text else () for text in (unless, beside, twice))
    patterns = (rf"\b{code} (?P<what>\w+)",)
    return Signature(
        code, tier, "", patterns, log_unless=log_unless, log_with=log_with, log_twice=log_twice, needed=(code,)
    )


RULES = (
    *(rule("fails", unless="excused"), rule("late", beside=r"began(?: at (?P<hour>\d+))?", twice="^seen")),
    *(rule("told", Tier.ECHO), rule("store-lost", Tier.ECHO), rule("ValueError:")),
)


@pytest.mark.parametrize(
    ("log", "groups"),
    [
        # by a line of the same rank; an echo does not contradict, except those that say more than that something failed
        ("fails now", ["now"]),
        ("fails now\nexcused", []),
        ("fails now\n[rank1]: excused", ["now"]),
        ("fails now\nwas told of it: excused", ["now"]),
        ("fails now\nstore-lost here: excused", []),
        ("late x\nseen\nseen\nbegan at 7", ["7 x"]),
        ("late x\nseen\nseen\n[rank3]: began", ["3 x"]),
        ("late x\nseen\nbegan at 7", []),
        ("late x\nseen\nseen", []),
        # a message that stands on a later line
        (raised(None, "ValueError: ") + "\nbad", ["bad"]),
        (raised(None, "ValueError: bad"), ["bad"]),
    ],
)
def test_other_lines_support_a_signature_or_contradict_it(
    log: str, groups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "matcher", lambda: Matcher(RULES))
    hits = [hit.groups for hit in scan(lines_of(f"step\n{log}")).hits if hit.signature.is_root]
    assert [" ".join(value for name, value in each.items() if name != "line") for each in hits] == groups


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ('log: "{}', True),
        ('"a" and then: "{}', True),
        ('"{}', False),
        ('"a": {}', False),
        ('{{"message": "{}', False),
        ('shutil.Error: [("{}', False),
    ],
)
def test_what_stands_in_quotes_is_known_as_quoted(text: str, quoted: bool) -> None:
    (line,) = lines_of(text.format("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert matcher().hits(line)[0].quoted is quoted
