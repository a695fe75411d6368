"""The Typer application: it shows help and completes words.

It is built from ``cli.parsing.command``; ``typed_words`` parses lines.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperCommand

from ddplaunch.cli.parsing.command import COMMANDS, LAUNCHING, REPEATED, Command, command_named, options_of
from ddplaunch.cli.parsing.completion import offered
from ddplaunch.planning.flag import Flag

_CONTEXT = {"help_option_names": ["-h", "--help"], "token_normalize_func": lambda word: word.replace("_", "-")}
#: Numbers and durations are text for Typer: ``Flag`` parses them.
_TEXTS: Any = Optional[list[str]]  # noqa: UP045 - Typer reads it at run time
_TYPES: dict[str, Any] = {
    **dict.fromkeys(REPEATED, _TEXTS),
    **dict.fromkeys(("switch", "pair"), Optional[bool]),  # noqa: UP045
}

_FIRST = """\
ddplaunch doctor  # is this machine ready to train?
ddplaunch plan auto -- train.py  # what would run, and with which numbers
ddplaunch run 2 -- train.py  # check the launch, then start it
ddplaunch explain  # after a failure: its cause, and what to do
"""


class _WithScript(TyperCommand):
    """A command whose usage ends with the script."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- SCRIPT [ARGS]..."]


def show_help(command: str) -> None:
    """Show the page of a command; the first page for any other word."""
    names = [command] if command in COMMANDS else list(COMMANDS)
    shown = f"ddplaunch {command}" if command in COMMANDS else "ddplaunch"
    _application(names)(["--help"], prog_name=shown, standalone_mode=False)


def answer_shell() -> None:
    """Answer the shell's request for completion, which is in the environment, as Typer does; does not return."""
    os.environ["TERMINAL_WIDTH"] = "1000"  # else Typer wraps a line of help, and fish offers the rest as another word
    _application(list(COMMANDS), completing=True)(args=[], prog_name="ddplaunch")


def _application(names: list[str], *, completing: bool = False) -> typer.Typer:
    app = typer.Typer(
        help="Distributed PyTorch, launched by torchrun, checked and explained.",
        epilog=_examples(Command(_FIRST, ())),
        add_completion=completing,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings=_CONTEXT,
    )
    if not completing and len(names) > 1:
        app.callback()(_of_itself)
    for name in names:
        row = command_named(name)
        app.command(
            name,
            cls=_WithScript if name in LAUNCHING else TyperCommand,
            help="\n\n".join(filter(None, (COMMANDS[name].line, row.more))),
            short_help=COMMANDS[name].line,
            epilog=_examples(row),
            rich_help_panel=COMMANDS[name].stage,
            context_settings=_CONTEXT,
        )(_body(name, options_of(name), completing=completing))
    return app


def _of_itself(
    version: Annotated[bool, typer.Option("--version", "-V", help="Show the version.")] = False,
    install_completion: Annotated[
        str, typer.Option(metavar="SHELL", help="Install completion by Tab: bash, zsh or fish.")
    ] = "",
) -> None:
    """Declare, for help, the options that ``main`` answers itself."""


def _examples(command: Command) -> str:
    return "\n\n".join(f"[cyan]{_escaped(line)}[/cyan]  {_escaped(does)}" for line, does in command.examples)


def _escaped(text: str) -> str:
    """Return a text that rich shows unchanged."""
    return text.replace("[", r"\[")


def _body(name: str, options: tuple[Flag, ...], *, completing: bool) -> Callable[..., None]:
    """Return a function with one parameter for each option, which is how Typer reads options."""

    def body(**_: Any) -> None:
        """Do nothing: Typer shows help, and completes."""

    parameters = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=[] if option.kind in REPEATED else None,
            annotation=Annotated[_TYPES.get(option.kind, Optional[str]), _described(option)],  # noqa: UP045
        )
        for option in options
    ]
    if completing and name in LAUNCHING:  # without completion the words after `--` were split off before
        script = Annotated[_TEXTS, typer.Argument(metavar="SCRIPT")]
        parameters.append(inspect.Parameter("script", inspect.Parameter.KEYWORD_ONLY, annotation=script))
    body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    body.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return body


def _described(option: Flag) -> Any:
    text, default = option.help_and_default
    settings: dict[str, Any] = {
        "help": _escaped(text),
        "show_default": _escaped(default) if default else False,
        "metavar": option.metavar or None,
        "autocompletion": offered(option),
    }
    if option.kind in ("argument", "arguments"):
        return typer.Argument(**settings)
    spelling = f"{option.flag}/--no-{option.flag[2:]}" if option.kind == "pair" else option.flag
    return typer.Option(*filter(None, (spelling, option.short)), rich_help_panel=option.panel or None, **settings)
