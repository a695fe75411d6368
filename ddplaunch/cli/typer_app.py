"""The Typer application: help, and the last word on every command line; refuses to execute anything itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Optional

import typer

from ddplaunch.cli.flags import HELP, Flag, flags_of
from ddplaunch.errors import UsageError, usage

_TYPES: dict[str, Any] = {
    "argument": Optional[str],  # noqa: UP045 - Typer reads these at run time
    "text": Optional[str],  # noqa: UP045
    "integer": Optional[str],  # noqa: UP045 - converted by us, with our words
    "number": Optional[str],  # noqa: UP045
    "switch": Optional[bool],  # noqa: UP045
    "pair": Optional[bool],  # noqa: UP045
    "many": Optional[list[str]],  # noqa: UP045
}


def parse(words: list[str]) -> tuple[str, dict[str, Any]] | None:
    """Return (command, values) as Typer understands the command line; None if it was ``--help`` that it answered.

    Raises UsageError in our words for what it does not understand.
    """
    parsed: list[tuple[str, dict[str, Any]]] = []
    app = typer.Typer(
        help="Launch distributed PyTorch: what runs is torchrun, checked and explained.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    for name in HELP:
        app.command(name, help=HELP[name])(_command(name, lambda name, values: parsed.append((name, values))))
    try:
        app(args=words, prog_name="ddplaunch", standalone_mode=False)
    except Exception as exception:
        if not hasattr(exception, "format_message"):
            raise
        raise _in_our_words(words, exception) from exception
    return parsed[0] if parsed else None


def _command(name: str, keep: Callable[[str, dict[str, Any]], None]) -> Callable[..., None]:
    """Return a function with one parameter for each flag, as Typer wants to read them."""

    def command(**values: Any) -> None:
        keep(name, {key: list(value) if isinstance(value, (list, tuple)) else value for key, value in values.items()})

    parameters = [
        inspect.Parameter(
            flag.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=[] if flag.kind == "many" else None,
            annotation=Annotated[_TYPES[flag.kind], _described(flag)],
        )
        for flag in flags_of(name)
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _described(flag: Flag) -> Any:
    if flag.kind == "argument":
        return typer.Argument(help=flag.text, metavar=flag.metavar, show_default=False)
    spelling = f"{flag.flag}/--no-{flag.flag[2:]}" if flag.kind == "pair" else flag.flag
    return typer.Option(
        spelling, help=flag.text, metavar=flag.metavar or None, rich_help_panel=flag.panel, show_default=False
    )


def _in_our_words(words: list[str], exception: Any) -> UsageError:
    command = words[0] if words and words[0] in HELP else ""
    near = list(getattr(exception, "possibilities", None) or [])
    unknown = getattr(exception, "option_name", None)
    where = f"`ddplaunch{' ' + command if command else ''} --help` lists what there is"
    if near and unknown:
        listed = " or ".join(f"`{each}`" for each in near[:3])
        return usage(
            f"there is no option `{unknown}`", why="it is not one of ddplaunch's", fix=f"did you mean {listed}?"
        )
    return usage(exception.format_message().rstrip("."), why="the command line could not be understood", fix=where)
