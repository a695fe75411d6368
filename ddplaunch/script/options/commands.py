"""Options of functions that click and typer turn into commands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

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
from ddplaunch.script.reachable import ReachablePart
from ddplaunch.script.script_report import DeclaredOption
from ddplaunch.values.frozen import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


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
    for function in part.of(*_FUNCTIONS):
        if not isinstance(function, Function) or not function.decorator_list:
            continue
        calls = [item for item in function.decorator_list if isinstance(item, ast.Call)]
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
    switch = paired or is_true(keyword(call, "is_flag")) or is_true(keyword(call, "count"))
    switch = switch or keyword(call, "flag_value") is not None
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


def typer_options(part: ReachablePart) -> Iterator[DeclaredOption | None]:
    """Yield typer's options: the parameters of commands and of the function that ``typer.run`` gets."""
    if not any(name == "typer" or name.startswith("typer.") for name in part.aliases.values()):
        return
    run = {
        last(call.args[0])
        for call in part.calls_of("run")
        if dotted(call.func, part.aliases) == "typer.run" and len(call.args) == 1
    }
    functions = [function for function in part.of(*_FUNCTIONS) if isinstance(function, Function)]
    commands = [function for function in functions if _registered(function, part)]
    several = len([item for item in commands if "command" in _registered(item, part)]) > 1 or any(
        "callback" in _registered(item, part) for item in commands
    )
    for function in functions:
        if function in commands or function.name in run:
            for parameter in parameters(function):
                option = _typer_option(part, parameter)
                if option is not None:
                    yield replace(option, fillable=not several)


def _registered(function: Function, part: ReachablePart) -> set[str]:
    return {
        last(item.func)
        for item in function.decorator_list
        if isinstance(item, ast.Call)
        and last(item.func) in ("command", "callback")
        and not _is_click(dotted(item.func, part.aliases))
    }


def _typer_option(part: ReachablePart, parameter: Parameter) -> DeclaredOption | None:
    """Return the option of one parameter; None for arguments and the context."""
    call, annotated = _typer_call(parameter)
    name = dotted(call.func, part.aliases) if call is not None else ""
    if name == "typer.Argument" or (call is None and parameter.default is None):
        return None
    kind_node = parameter.annotation
    if annotated and isinstance(kind_node, ast.Subscript) and isinstance(kind_node.slice, ast.Tuple):
        kind_node = kind_node.slice.elts[0]
    kind = last(kind_node) or None
    if kind == "Context":
        return None
    declarations: list[ast.expr] = []
    default = parameter.default
    if call is not None:
        declarations = list(call.args) if annotated else list(call.args[1:])
        if not annotated:
            default = call.args[0] if call.args else keyword(call, "default")
    spelled = [flag for item in declarations for flag in (string(item) or "").split("/") if flag.startswith("-")]
    flags = tuple(flag.strip() for flag in spelled) or (f"--{parameter.name.replace('_', '-')}",)
    switch = kind == "bool"
    if switch and not spelled:
        flags = (*flags, f"--no-{flags[0][2:]}")
    required = default is None or (isinstance(default, ast.Constant) and default.value is ...)
    return DeclaredOption(
        flags,
        at(parameter.node, part.source),
        takes_value=not switch,
        required=required,
        default=literal(default, part.source),
        computed=is_computed(default),
        kind=kind,
        help=text_of(keyword(call, "help")) if call is not None else "",
        dest=parameter.name,
        parser="typer",
    )


def _typer_call(parameter: Parameter) -> tuple[ast.Call | None, bool]:
    """Return the ``Option(…)`` or ``Argument(…)`` call of a parameter and whether it is inside ``Annotated``."""
    if isinstance(parameter.default, ast.Call):
        return parameter.default, False
    annotation = parameter.annotation
    if isinstance(annotation, ast.Subscript) and last(annotation.value) == "Annotated":
        for item in annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else []:
            if isinstance(item, ast.Call) and last(item.func) in ("Option", "Argument"):
                return item, True
    return None, False
