"""Reads the values that arguments pass for declared options, and makes the words that pass others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ddplaunch.script.configuration.config_files import ENDINGS
from ddplaunch.script.options.calls import STORE_FALSE
from ddplaunch.script.script_report import DeclaredOption

# Parsers that take `--batch-size` for `--batch_size`: fire's and tyro's argument matching.
_DASH_BLIND = frozenset({"fire", "tyro"})
_ABBREVIATING = frozenset({"argparse", "transformers"})
_NUMBER = re.compile(r"-\.?\d")


def given(args: Sequence[str], option: DeclaredOption, declared: Sequence[DeclaredOption] = ()) -> tuple[str, ...]:
    """Return the values that ``args`` pass for ``option``, in order, in any spelling its parser accepts.

    A switch gives ``"True"`` or, spelled ``--no-…``, ``"False"``. ``declared`` are all options of the script; with
    them argparse's unambiguous abbreviations count too
    (https://docs.python.org/3/library/argparse.html#argument-abbreviations-prefix-matching).
    Arguments after ``--`` do not count, and an option without its value gives none.
    """
    if option.spelling in ("k=v", "k v"):
        return tuple(_overrides(args, option))
    return tuple(_values(list(args), option, declared))


def is_same_value(one: str, other: str) -> bool:
    """Return whether two values of an option are one number or one text: 0.001 and 1e-3 are the same."""
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


def _overrides(args: Sequence[str], option: DeclaredOption) -> Iterator[str]:
    """Yield the values of a configuration's key among ``lr=0.1``, ``+lr=0.1`` or ``LR 0.1``."""
    key = option.flags[0].lstrip("+")
    for position, word in enumerate(args):
        if option.spelling == "k v":
            if word == key and position + 1 < len(args) and option.after_flag in (*args[:position], ""):
                yield args[position + 1]
            continue
        name, equals, value = word.removeprefix(f"{option.after_flag}=" if option.after_flag else "").partition("=")
        if equals and name.lstrip("+") == key:
            yield value


def spell(option: DeclaredOption, value: str) -> tuple[str, ...]:
    """Return the words that pass a value for ``option``, without the option that they have to follow."""
    name = next((flag for flag in option.flags if flag.startswith("--")), option.flags[0])
    return (name, value) if option.spelling in ("--k v", "k v") else (f"{name}={value}",)


def as_one_word(
    options: Iterable[DeclaredOption], args: Sequence[str], every: bool = False
) -> Iterator[DeclaredOption]:
    """Yield ``options``, spelled ``--k=v`` and behind a file where this is the first of ``args`` and a parser wants it.

    Hugging Face's take a file as their first word only. ``every``: an earlier parser would take a value for its own.
    """
    file = args[:1] and args[0].endswith(ENDINGS)
    for option in options:
        behind = file and (option.parser == "transformers" or not option.at.line)
        respelled = (every or behind) and option.spelling == "--k v"
        yield replace(option, spelling="--k=v", comes_first=not behind) if respelled else option


def arranged(args: Sequence[str], additions: Sequence[tuple[DeclaredOption, tuple[str, ...]]]) -> tuple[str, ...]:
    """Return ``args`` with the words of ``additions`` where the script takes them.

    Options come first: after a ``--`` of the script, or after a positional that takes the rest, they would not be read.
    Overrides follow their own option, the last other override, or come last.
    """
    result = list(args)
    front = [word for option, words in additions if option.comes_first and not option.after_flag for word in words]
    for flag in dict.fromkeys(option.after_flag for option, _ in additions if option.after_flag):
        own = [word for option, words in additions if option.after_flag == flag for word in words]
        result = _behind(flag, own, result)
    free = [word for option, words in additions if not option.comes_first and not option.after_flag for word in words]
    place = max((at for at, word in enumerate(result, 1) if "=" in word and word[0] != "-"), default=len(result))
    return (*front, *result[:place], *free, *result[place:])


def _behind(flag: str, words: list[str], args: list[str]) -> list[str]:
    position = next((index for index, word in enumerate(args) if word.partition("=")[0] == flag), None)
    if position is None:
        return [*args, flag, *words]
    return [*args[: position + 1], *words, *args[position + 1 :]]


def _values(args: list[str], option: DeclaredOption, declared: Sequence[DeclaredOption]) -> Iterator[str]:
    if "--" in args:
        del args[args.index("--") :]
    for position, token in enumerate(args):
        if not token.startswith("-") or _NUMBER.match(token):
            continue
        name, equals, attached = token.partition("=")
        if _names(name, option, declared):
            if not option.takes_value:
                negated = name.startswith("--no") and len(option.flags) > 1 and name != option.flags[0]
                yield "False" if option.kind == STORE_FALSE or negated else "True"
            elif equals:
                yield attached
            elif position + 1 < len(args):
                following = args[position + 1]
                if not following.startswith("-") or following == "-" or _NUMBER.match(following):
                    yield following
        elif option.takes_value and token[:2] in option.flags and not any(name in other.flags for other in declared):
            yield token[2:]  # `8` of `-b8`


def _names(name: str, option: DeclaredOption, declared: Sequence[DeclaredOption]) -> bool:
    """Return whether ``name``, the token up to ``=``, is this option, in full or abbreviated."""
    if name in option.flags:
        return True
    if option.parser in _DASH_BLIND:
        wanted = {bare(flag) for flag in option.flags}
        return bare(name) in wanted and (name.startswith("--") or len(name) > 2)
    if option.parser not in _ABBREVIATING or not name.startswith("--") or len(name) < 3:
        return False
    if not declared or any(name in other.flags for other in declared):
        return False
    matching = [other for other in declared if any(flag.startswith(name) for flag in other.flags)]
    return len(matching) == 1 and matching[0] == option


def bare(flag: str) -> str:
    """Return the name of an option with dashes inside it alone."""
    return flag.lstrip("-").replace("_", "-")
