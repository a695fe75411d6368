"""A Kubernetes object as YAML that people read and change; refuses to know any kind of object."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

# What every YAML reader takes for the same text; all else is quoted, as are the words that YAML 1.1 reads as booleans.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9._/-]*\Z")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def manifest_text(value: Mapping[str, Any]) -> str:
    """Return a mapping of texts, numbers, truth values, lists and mappings as block-style YAML, in its own order."""
    return "\n".join(_mapping(value, "")) + "\n"


def _mapping(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, each in value.items():
        lead = f"{indent}{_scalar(key)}:"
        if isinstance(each, Mapping) and each:
            yield lead
            yield from _mapping(each, f"{indent}  ")
        elif isinstance(each, list) and each:
            yield lead
            yield from _sequence(each, indent)
        else:
            yield f"{lead} {_scalar(each)}"


def _sequence(value: list[Any], indent: str) -> Iterator[str]:
    for each in value:
        if isinstance(each, Mapping) and each:
            first, *rest = _mapping(each, f"{indent}  ")
            yield f"{indent}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{indent}- {_scalar(each)}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (Mapping, list)):
        return "{}" if isinstance(value, Mapping) else "[]"
    text = str(value)
    if _PLAIN.match(text) and text.lower() not in _WORDS:
        return text
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    """Double quotes know these escapes: https://yaml.org/spec/1.2.2/#57-escaped-characters"""
    if char in '"\\':
        return f"\\{char}"
    if char in "\n\t":
        return "\\n" if char == "\n" else "\\t"
    code = ord(char)
    if char.isprintable() and code < 0x10000 and code != 0xFEFF:
        return char
    return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"
