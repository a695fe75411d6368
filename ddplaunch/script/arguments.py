"""Finds what the user already passed for a declared option; refuses to judge whether the value is right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddplaunch.script.report import DeclaredOption

# Parsers that take `--batch-size` for `--batch_size`: absl's FlagValues, fire's and tyro's argument matching.
_DASH_BLIND = frozenset({"absl", "fire", "tyro"})
_ABBREVIATING = frozenset({"argparse", "transformers", "simple_parsing"})
_NUMBER = re.compile(r"-\.?\d")


def given(args: Sequence[str], option: DeclaredOption, declared: Sequence[DeclaredOption] = ()) -> tuple[str, ...]:
    """Return the values that ``args`` pass for ``option``, in order, in any spelling its parser accepts.

    A switch gives ``"True"`` or, spelled ``--no-…``, ``"False"``. ``declared`` are all options of the script; with
    them argparse's unambiguous abbreviations count too
    (https://docs.python.org/3/library/argparse.html#argument-abbreviations-prefix-matching).
    Nothing behind ``--`` counts, and an option whose value is missing gives none.
    """
    return tuple(_values(list(args), option, declared))


def _values(args: list[str], option: DeclaredOption, declared: Sequence[DeclaredOption]) -> Iterator[str]:
    if "--" in args:
        del args[args.index("--") :]
    for position, token in enumerate(args):
        if not token.startswith("-") or _NUMBER.match(token):
            continue
        name, equals, attached = token.partition("=")
        if _names(name, option, declared):
            if not option.takes_value:
                yield "False" if _is_negation(name, option) else "True"
            elif equals:
                yield attached
            elif position + 1 < len(args) and _is_value(args[position + 1]):
                yield args[position + 1]
        else:
            yield from _attached_to_short(token, option, declared)


def _names(name: str, option: DeclaredOption, declared: Sequence[DeclaredOption]) -> bool:
    """Say whether ``name``, the token up to ``=``, is this option, spelled out or abbreviated."""
    if name in option.flags:
        return True
    if option.parser in _DASH_BLIND:
        wanted = {_bare(flag) for flag in option.flags}
        return _bare(name) in wanted and (name.startswith("--") or len(name) > 2)
    if option.parser not in _ABBREVIATING or not name.startswith("--") or len(name) < 3:
        return False
    if not declared or any(name in other.flags for other in declared):
        return False
    matching = [other for other in declared if any(flag.startswith(name) for flag in other.flags)]
    return len(matching) == 1 and matching[0] == option


def _bare(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-")


def _is_negation(name: str, option: DeclaredOption) -> bool:
    return name.startswith("--no") and len(option.flags) > 1 and name != option.flags[0]


def _is_value(token: str) -> bool:
    return not token.startswith("-") or token == "-" or _NUMBER.match(token) is not None


def _attached_to_short(token: str, option: DeclaredOption, declared: Sequence[DeclaredOption]) -> Iterator[str]:
    """Yield ``8`` of ``-b8`` unless the token is itself another declared option."""
    if token.startswith("--") or not option.takes_value:
        return
    if any(token.partition("=")[0] in other.flags for other in declared):
        return
    for flag in option.flags:
        if len(flag) == 2 and token.startswith(flag) and len(token) > 2:
            yield token[2:]
