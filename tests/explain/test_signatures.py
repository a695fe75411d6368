"""Every signature of every family, by its example, by lines that look like it, and by short logs.

In ``lines/FAMILY.txt`` each line stands for itself, and the code that wins it stands in front: ``=> CODE: line``; no
signature knows a line without one. In ``every_code.txt`` the code of the diagnosis stands before the line that decided.
``pytest --accept-golden tests/explain/test_signatures.py`` compiles the families, and writes all these marks.
"""

from __future__ import annotations

import re
import zlib
from functools import cache
from pathlib import Path

import pytest

from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.prefixes import NOBODY
from ddplaunch.explain.read.scan import matcher
from ddplaunch.explain.signatures import Signature, Tier, all_signatures, all_words, words_for
from scripts.signatures import COMPILED, EXPLAIN, FAMILIES, compiled, needed_texts
from tests.explain.conftest import Same
from tests.explain.logs import EVERY_CODE, MARK, diagnosed, every_code
from tests.explain.signature_rules import fields, idle, matched, slow, too_wide, unfilled

HERE = Path(__file__).parent
LINES = [each for each in FAMILIES if each not in ("unsaid", "stacks", "reading")]


@cache
def lines() -> dict[str, list[str]]:
    """The lines of each family without their marks."""
    return {each: MARK.sub("", (HERE / "lines" / f"{each}.txt").read_text()).splitlines() for each in LINES}


@cache
def all_lines() -> tuple[str, ...]:
    return tuple(line for of_family in lines().values() for line in of_family)


@cache
def lines_of() -> dict[Signature, list[str]]:
    """The lines that each signature sees, its own example first."""
    seen = {each: [each.example] for each in all_signatures()}
    for line in all_lines():
        for signature in shown(line):
            seen[signature].append(line)
    return seen


def alone(signature: Signature) -> bool:
    """Say whether one line shows it, without others of the log."""
    return not (signature.log_with or signature.log_twice)


def shown(text: str) -> list[Signature]:
    """Return what a line shows by itself, best first."""
    return [hit.signature for hit in matcher().hits(Line(0, "train.log", 1, text, NOBODY))]


def winner(text: str) -> str | None:
    return next((each.code for each in shown(text) if alone(each)), None)


def marked(line: str, code: str | None) -> str:
    return f"=> {code}: {line}" if code else line


def with_mark(log: str) -> str:
    """Return a log with the code of its diagnosis before the line that decided."""
    text = log.splitlines(keepends=True)
    found = diagnosed(log)
    assert (
        found.what and found.why and (found.fixes or found.calls) and "\n" not in found.what and "{" not in found.what
    )
    at = found.evidence[0].line - 1
    return "".join([*text[:at], marked(text[at], found.code), *text[at + 1 :]])


def test_the_compiled_file_is_what_the_families_say() -> None:
    assert zlib.decompress(COMPILED.read_bytes()).decode() == compiled(), "`python -m scripts.signatures` writes it"
    assert sorted(FAMILIES) == sorted(path.stem for path in EXPLAIN.glob("families/*.toml"))


def test_every_part_and_sentence_of_a_family_is_used() -> None:
    for family in FAMILIES:
        text = (EXPLAIN / "families" / f"{family}.toml").read_text(encoding="utf-8")
        for table, used in (("parts", "<{}>"), ("words", '"@{}"')):
            _, _, rest = text.partition(f"\n[{table}]\n")
            names = re.findall(r"(?m)^(\w+) = ", rest.partition("\n[")[0])
            assert [name for name in names if used.format(name) not in text] == [], family


def test_no_fix_begins_with_the_or_that_is_put_between_fixes() -> None:
    assert [fix for each in (*all_signatures(), *all_words()) for fix in each.fixes if fix.startswith("or ")] == []


def test_every_name_that_the_engine_asks_for_has_words() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in EXPLAIN.rglob("*.py"))
    names = set(re.findall(r'\b(?:named|say)\(\s*"([\w-]+)"', code))
    assert len(names) > 10 and names <= {each.name for each in all_words()}


@pytest.mark.parametrize("family", LINES)
def test_lines_are_won_by_these_codes(family: str, same: Same) -> None:
    text = "".join(f"{marked(line, winner(line))}\n" for line in lines()[family])
    same(HERE / "lines" / f"{family}.txt", text)


def test_logs_get_these_codes_for_these_lines(same: Same) -> None:
    same(EVERY_CODE, "===\n".join(with_mark(log) for log in every_code()))


def test_every_code_that_a_line_can_have_has_a_log() -> None:
    missing = {each.code for each in all_signatures() if each.is_root} - set(MARK.findall(EVERY_CODE.read_text()))
    assert not missing, f"{EVERY_CODE.name} has no log of {missing}: add a short one below `===`, and accept it"


def test_each_keeps_its_word() -> None:
    for signature in all_signatures():
        keeps_its_word(signature)


def keeps_its_word(signature: Signature) -> None:
    assert matched(signature, signature.example) is not None
    assert idle(signature, lines_of()[signature]) == []
    assert unfilled(signature, lines_of()[signature]) == []
    assert too_wide(signature) == []
    assert slow(signature, seconds=1.0) == []
    assert bool(signature.fixes) == bool(signature.why) == (signature.tier != Tier.ECHO)
    assert signature.tier != Tier.SURVIVED, "what became of the rank decides that, not its words"
    if signature.is_root and not signature.log_twice:
        others = [each for each in shown(signature.example) if alone(each) or each is signature]
        assert others[0].code == signature.code


def test_words_for_a_message_are_found_by_it() -> None:
    by_stacks = {"line", "pid", "reads", "place", "at", "look", "asked", "signal", "number", "read"}
    for words in (each for each in all_words() if each.example):
        assert idle(words, [words.example]) == []
        (same, groups), *others = words_for("RuntimeError", words.example)
        of_rank = " of a rank, state " in words.example or words.example.startswith("exit: ")
        assert not others or of_rank, "only of what keeps or ends a rank the first counts"
        known = {*groups, *(by_stacks if of_rank else ())}
        assert same is words and known >= set().union(*map(fields, words.fixes)), words.name


@pytest.mark.slow
def test_no_line_is_skipped_that_a_signature_matches() -> None:
    for text in dict.fromkeys(all_lines()):
        found = [each for each in all_signatures() if matched(each, text) is not None]
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
