"""Options that calls of argparse declare."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddplaunch.script.known import text_of
from ddplaunch.script.names import (
    at,
    destination,
    dotted,
    is_computed,
    is_true,
    keyword,
    last,
    literal,
    string,
    strings,
)
from ddplaunch.script.program import is_main_guard
from ddplaunch.script.reachable import ReachablePart, calls_in
from ddplaunch.script.script_report import DeclaredOption

#: The kind of a switch that turns something off.
STORE_FALSE = "store_false"
_NO_VALUE = frozenset(
    {"store_true", STORE_FALSE, "store_const", "append_const", "count", "help", "version", "BooleanOptionalAction"}
)


def argparse_options(part: ReachablePart, *, idle: bool = False) -> Iterator[DeclaredOption | None]:
    """Yield the options of ``add_argument`` calls on any object; None if flags are computed, or any word is taken.

    Those of a subcommand cannot be filled in, because they are only valid behind its name. With ``idle`` only those of
    functions count.
    """
    calls = [call for call in part.calls_of("add_argument") if not (idle and part.around(call, ast.Module))]
    subparsers = _subparser_names(part) if calls else set()
    for call in calls:
        flags = strings(call.args)
        nargs = keyword(call, "nargs")
        takes_rest = last(nargs) == "REMAINDER" or string(nargs) == "..."
        if takes_rest or flags is None or (not flags and any(item.arg is None for item in call.keywords)):
            yield None
        elif flags and flags[0].startswith("-"):
            yield _argparse_option(part, call, flags, dotted(getattr(call.func, "value", None), {}) in subparsers)


def has_positional(parts: Sequence[ReachablePart]) -> bool:
    """Return whether a parser takes a word that no option precedes."""
    calls = (call for call, _ in calls_in(parts, "add_argument"))
    return any(call.args and not (string(call.args[0]) or "-").startswith("-") for call in calls)


def _argparse_option(part: ReachablePart, call: ast.Call, flags: list[str], subcommand: bool) -> DeclaredOption:
    action = string(keyword(call, "action")) or last(keyword(call, "action"))
    if action == "BooleanOptionalAction":
        flags = flags + [f"--no-{flag[2:]}" for flag in flags if flag.startswith("--")]
    nargs = keyword(call, "nargs")
    no_value = action in _NO_VALUE or (isinstance(nargs, ast.Constant) and nargs.value == 0)
    default, kind = keyword(call, "default"), keyword(call, "type")
    around = part.parent(part.parent(call) or call)
    sure = not isinstance(around, ast.If) or is_main_guard(around)  # under a condition nothing is required
    several = nargs is not None and string(nargs) != "?"
    return DeclaredOption(
        tuple(flags),
        at(call, part.source),
        takes_value=not no_value,
        required=is_true(keyword(call, "required")) and sure,
        default="True" if action == STORE_FALSE and default is None else literal(default, part.source),
        computed=is_computed(default),
        kind=STORE_FALSE if action == STORE_FALSE else last(kind) or (ast.unparse(kind) if kind else None),
        choices=tuple(literal(each, part.source) for each in getattr(keyword(call, "choices"), "elts", ())),
        help=text_of(keyword(call, "help")),
        dest=string(keyword(call, "dest")) or destination(flags),
        fillable=not several and not subcommand,
    )


def _subparser_names(part: ReachablePart) -> set[str]:
    """Return the variables that hold a result of ``add_parser``."""
    return {
        dotted(target, {})
        for node in part.of(ast.Assign)
        if isinstance(node.value, ast.Call) and last(node.value.func) == "add_parser"
        for target in node.targets
    }
