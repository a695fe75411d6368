"""Options as a parser library declares them by calls: argparse and absl; refuses to evaluate anything but literals."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddplaunch.script.expressions import at, dotted, is_true, keyword, last, literal, string, strings
from ddplaunch.script.live import Part
from ddplaunch.script.meanings import meaning_of
from ddplaunch.script.report import DeclaredOption

_NO_VALUE = frozenset({"store_true", "store_false", "store_const", "append_const", "count", "help", "version"})


def argparse_options(part: Part) -> Iterator[DeclaredOption | None]:
    """Yield what ``add_argument`` calls declare, on any object; None where the flags are computed.

    Options of a subcommand mean nothing to us, since they may only stand behind its name.
    """
    subparsers = _subparser_names(part)
    for call in part.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
            continue
        flags = strings(call.args)
        if flags is None or (not flags and any(item.arg is None for item in call.keywords)):
            yield None
        elif flags and flags[0].startswith("-"):
            yield _argparse_option(part, call, flags, dotted(call.func.value, {}) in subparsers)


def _argparse_option(part: Part, call: ast.Call, flags: list[str], subcommand: bool) -> DeclaredOption:
    action = string(keyword(call, "action")) or last(keyword(call, "action"))
    if action == "BooleanOptionalAction":
        flags = flags + [f"--no-{flag[2:]}" for flag in flags if flag.startswith("--")]
    nargs = keyword(call, "nargs")
    takes_value = action not in _NO_VALUE and action != "BooleanOptionalAction" and not _is_zero(nargs)
    default = literal(keyword(call, "default"), part.source)
    kind = last(keyword(call, "type")) or None
    several = nargs is not None and string(nargs) != "?"
    known = takes_value and not several and not subcommand
    return DeclaredOption(
        tuple(flags),
        at(call, part.source),
        takes_value,
        is_true(keyword(call, "required")),
        default,
        meaning_of(flags, kind, default) if known else None,
    )


def _is_zero(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _subparser_names(part: Part) -> set[str]:
    """Return the variables that hold the result of ``add_parser``."""
    return {
        dotted(target, {})
        for node in part.nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and last(node.value.func) == "add_parser"
        for target in node.targets
    }


def absl_options(part: Part) -> Iterator[DeclaredOption | None]:
    """Yield the flags of ``absl.flags.DEFINE_…`` calls."""
    required = {
        name
        for call in part.calls
        if last(call.func) in ("mark_flag_as_required", "mark_flags_as_required")
        for name in _texts(call)
    }
    for call in part.calls:
        function = dotted(call.func, part.aliases)
        if not function.startswith("absl.flags.DEFINE_"):
            continue
        name = string(call.args[0] if call.args else keyword(call, "name"))
        if name is None:
            yield None
            continue
        kind = {"integer": "int", "float": "float", "string": "str"}.get(function.rpartition("_")[2])
        switch = function.endswith(("_bool", "_boolean"))
        short = string(keyword(call, "short_name"))
        flags = (f"--{name}", *((f"-{short}",) if short else ()), *((f"--no{name}",) if switch else ()))
        default = literal(call.args[1] if len(call.args) > 1 else keyword(call, "default"), part.source)
        meaning = None if switch else meaning_of(flags, kind, default)
        needed = name in required or is_true(keyword(call, "required"))
        yield DeclaredOption(flags, at(call, part.source), not switch, needed, default, meaning, "absl")


def _texts(call: ast.Call) -> Iterator[str]:
    for argument in call.args:
        for node in argument.elts if isinstance(argument, (ast.List, ast.Tuple)) else [argument]:
            text = string(node)
            if text is not None:
                yield text
