"""Compiles ``ddplaunch/explain/families/*.toml`` to ``families.json.z`` beside them, which is read in milliseconds.

``python -m scripts.signatures`` writes it; so does ``pytest --accept-golden tests/explain/test_signatures.py``.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

EXPLAIN = Path(__file__).parents[1] / "ddplaunch" / "explain"
COMPILED = EXPLAIN / "families.json.z"
#: In this order: of two rules of a tier that match one line, the first wins.
FAMILIES = (
    *("gpu", "nccl", "echoes", "collectives", "ddp", "memory", "system", "network", "checkpoints"),
    *("data", "launching", "imports", "scheduler", "ending", "unsaid", "stacks", "reading"),
)
_EXPRESSIONS = ("patterns", "unless", "log_unless", "log_with", "log_twice")
_SHARED, _WORDS = re.compile(r"<([A-Z_]+)>"), re.compile(r"@(\w+)")


def compiled() -> str:
    """Return the JSON of all families, a rule in each line.

    Raises KeyError for a part a family does not have, ValueError for no TOML.
    """
    rules = [rule for family in FAMILIES for rule in rules_of(EXPLAIN / "families" / f"{family}.toml")]
    lines = (json.dumps(rule, ensure_ascii=False, separators=(",", ":")) for rule in rules)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def write() -> None:
    """Write the compiled families; compressed, as they say again what stands in the TOML."""
    COMPILED.write_bytes(zlib.compress(compiled().encode(), 9))


def rules_of(family: Path) -> Iterator[dict[str, Any]]:
    """Yield the rules of a family's file as ``Signature`` has them: with words of their code where they have none."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        codes = tomllib.loads(family.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{family.name}: {error}") from None
    parts, words = codes.pop("parts", {}), codes.pop("words", {})
    names = [{"name": name, "tier": "hint", **about} for name, about in codes.pop("names", {}).items()]
    for code, about in (*codes.items(), ("", {"rules": names})):
        for rule in about.pop("rules"):
            whole = {"code": code, **about, **rule}
            for name in _EXPRESSIONS:
                if name in whole:
                    whole[name] = [_expanded(pattern, parts) for pattern in whole[name]]
            for name in ("what", "why"):
                if name in whole:
                    whole[name] = _said(whole[name], words)
            whole["fixes"] = [_said(fix, words) for fix in whole.pop("fix", ())]
            whole.pop("source", None)  # for those who read the rule
            needed = (text for pattern in whole.get("patterns", ()) for text in needed_texts(pattern))
            yield whole | {"needed": list(dict.fromkeys(needed))}


def _expanded(pattern: str, parts: Mapping[str, str]) -> str:
    return _SHARED.sub(lambda part: _expanded(parts[part[1]], parts), pattern)


def _said(text: str, words: Mapping[str, str]) -> str:
    match = _WORDS.fullmatch(text)
    return words[match[1]] if match else text


#: The parts of a regular expression; ``aside`` are look-arounds and groups with flags.
_PART = re.compile(
    r"(?P<any>\\\w|\[\^?\]?(?:\\.|[^\]\\])*\]|[.^$])"
    r"|(?P<group>\((?:\?P<\w+>|\?:|(?!\?)))|(?P<aside>\(\?)|(?P<end>\))|(?P<or>\|)"
    r"|(?P<optional>(?:[*?]|\{\d[\d,]*\})\??)|(?P<repeated>\+\??)"
    r"|(?P<text>[^\\()\[|.*+?^${]+|\\\W|\{)"
)
_NOTHING = ("",)  # stands in every line


def needed_texts(pattern: str) -> tuple[str, ...]:
    """Return texts of which every line that ``pattern`` matches contains one; "" where none can be told.

    They make most lines cheap to skip: looking for a text costs far less than searching a regular expression.
    """
    return _needed_in_group(_PART.finditer(pattern))


def _needed_in_group(parts: Iterator[re.Match[str]]) -> tuple[str, ...]:
    """Return the longest texts of each alternative, up to the end of the group that ``parts`` are in."""
    alternatives: list[tuple[str, ...]] = []
    pieces: list[tuple[str, ...]] = [_NOTHING]
    run = ""
    for part in parts:
        kind = part.lastgroup
        if kind == "text":
            run += part[0].removeprefix("\\")
            continue
        if kind == "optional" and run:
            run = run[:-1]
        elif kind == "optional":
            pieces.pop()
        pieces.append((run,))
        run = ""
        if kind in ("group", "aside"):
            inner = _needed_in_group(parts)
            pieces.append(inner if kind == "group" else _NOTHING)
        elif kind == "any":
            pieces.append(_NOTHING)
        elif kind == "or":
            alternatives.append(_longest(pieces))
            pieces = [_NOTHING]
        elif kind == "end":
            break
    alternatives.append(_longest([*pieces, (run,)]))
    return tuple(text for texts in alternatives for text in texts)


def _longest(pieces: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return max(pieces, key=lambda texts: min(map(len, texts)))


if __name__ == "__main__":
    write()
