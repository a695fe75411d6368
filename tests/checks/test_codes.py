"""Every code in the source has words for `explain CODE`, and no words are left for what nothing says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ddplaunch.checks import codes
from ddplaunch.checks.all_checks import ALL, across
from ddplaunch.comm.checks import CHECKS as MEASURED
from ddplaunch.explain.signatures import all_signatures
from ddplaunch.values.codec import from_toml
from ddplaunch.watch import stragglers
from tests.conftest import Golden
from tests.source import PACKAGE, nodes

_CODE = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)+")
_CALLS = ("error", "warning", "Finding", "Diagnosis")


SSH_ENDS = PACKAGE / "hosts" / "ssh_ends.toml"


def said(path: Path) -> Iterator[str]:
    """Yield the codes that a file gives to findings and diagnoses."""
    for node in nodes()[path]:
        places: list[ast.expr] = []
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            places = [*(node.args[:1] if name in _CALLS else ()), *(k.value for k in node.keywords if k.arg == "code")]
        for place in places:
            for inner in ast.walk(place):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and _CODE.fullmatch(inner.value):
                    yield inner.value


KNOWN = {each.code for each in (*ALL, *across(), *MEASURED, *stragglers.CHECKS, *codes.REFUSALS)}
EXPLAINED = (*ALL, *across(), *codes.REFUSALS)
DIAGNOSES = {each.code for each in all_signatures()}


def test_every_code_in_the_source_has_words() -> None:
    in_data = {end["code"]: SSH_ENDS for end in from_toml(SSH_ENDS.read_text())["ends"]}
    file_by_code = {code: path for path in nodes() for code in said(path)} | in_data
    assert {"host-unreachable", "host-key-changed", "nodes-missing", "host-lost"} <= file_by_code.keys()
    assert {code: path for code, path in file_by_code.items() if code not in KNOWN | DIAGNOSES} == {}


def test_no_words_are_left_over() -> None:
    text = "".join(path.read_text() for path in (*nodes(), SSH_ENDS))
    assert [each.code for each in codes.REFUSALS if f'"{each.code}"' not in text] == []


def test_words_are_whole() -> None:
    for each in (*EXPLAINED, *MEASURED, *stragglers.CHECKS):
        assert each.title and not each.title.endswith("."), each.code
        *_, last_word = each.explanation.split()
        assert last_word.endswith(".") or last_word.startswith("https://"), each.code
        assert "  " not in each.explanation, each.code


def test_what_explain_says_of_a_code_of_each_family(golden: Golden) -> None:
    """The words of the others stand in their checks, and `test_words_are_whole` holds their form."""
    first_of_family = {each.family: each for each in reversed(EXPLAINED)}
    entries = (f"{each.code} ({each.family}): {each.title}\n{each.explanation}\n" for each in first_of_family.values())
    golden("codes", "\n".join(entries))
