"""Options of functions that click turns into commands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from ddplaunch.script.known import text_of
from ddplaunch.script.names import (
    Function,
    FunctionNodes,
    at,
    destination,
    dotted,
    is_computed,
    is_true,
    keyword,
    last,
    literal,
    strings,
)
from ddplaunch.script.reachable import ReachablePart
from ddplaunch.script.script_report import DeclaredOption
from ddplaunch.values.frozen import dataclass


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function or a field of a class; its default is None if it is required."""

    name: str
    annotation: ast.expr | None
    default: ast.expr | None
    node: ast.AST
    help: str = ""


def parameters(function: Function) -> Iterator[Parameter]:
    """Yield the named parameters of a function."""
    positional = [*function.args.posonlyargs, *function.args.args]
    padding = len(positional) - len(function.args.defaults)
    defaults: list[ast.expr | None] = [*([None] * padding), *function.args.defaults]
    for argument, default in zip(
        [*positional, *function.args.kwonlyargs], [*defaults, *function.args.kw_defaults], strict=True
    ):
        yield Parameter(argument.arg, argument.annotation, default, argument)


def click_options(part: ReachablePart) -> Iterator[DeclaredOption | None]:
    """Yield the options of ``@click.option`` decorators; those of a group's commands cannot be filled in."""
    for function in part.of(*FunctionNodes):
        calls = [item for item in function.decorator_list if isinstance(item, ast.Call)]  # type: ignore[attr-defined]  # of functions
        below_group = any(
            last(call.func) == "command" and not _is_click(dotted(call.func, part.aliases)) for call in calls
        )
        for call in calls:
            name = dotted(call.func, part.aliases)
            if _is_click(name) and name.endswith(".option"):
                option = _click_option(part, call)
                yield replace(option, fillable=False) if option is not None and below_group else option


def _is_click(name: str) -> bool:
    return name.partition(".")[0] in ("click", "rich_click", "asyncclick", "cloup")


def _click_option(part: ReachablePart, call: ast.Call) -> DeclaredOption | None:
    texts = strings(call.args)
    if texts is None:
        return None
    flags = [flag.strip() for text in texts if text.startswith("-") for flag in text.split("/")]
    if not flags:
        return None
    paired = any("/" in text for text in texts)
    counts = is_true(keyword(call, "is_flag")) or is_true(keyword(call, "count"))
    switch = paired or counts or keyword(call, "flag_value") is not None
    made = keyword(call, "type")
    kind = last(made.func if isinstance(made, ast.Call) else made)  # click.IntRange(min=1)
    default = keyword(call, "default")
    named = [text for text in texts if not text.startswith("-")]
    return DeclaredOption(
        tuple(flags),
        at(call, part.source),
        takes_value=not switch,
        required=is_true(keyword(call, "required")),
        default=literal(default, part.source),
        computed=is_computed(default),
        kind={"INT": "int", "IntRange": "int", "FLOAT": "float", "FloatRange": "float", "STRING": "str"}.get(kind, kind)
        or None,
        help=text_of(keyword(call, "help")),
        dest=named[0] if named else destination(flags),
        fillable=keyword(call, "nargs") is None,
        parser="click",
    )
