"""The Typer application: it parses command lines, shows help, completes words and explains mistakes.

It is built from ``cli.parsing.command``. Lines that are plainly right are parsed by ``typed_words`` instead.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperCommand

from ddplaunch.cli.parsing.command import COMMANDS, LAUNCHING, REPEATED, Command, command_named, options_of
from ddplaunch.cli.parsing.completion import offered
from ddplaunch.cli.parsing.typed_words import with_lists_taken_apart
from ddplaunch.cli.target import corrected_line
from ddplaunch.planning.flag import Flag
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.words import nearest

_CONTEXT = {"help_option_names": ["-h", "--help"], "token_normalize_func": lambda word: word.replace("_", "-")}
#: Numbers and durations are text for Typer: ``Flag`` parses them.
_TEXTS: Any = Optional[list[str]]  # noqa: UP045 - Typer reads it at run time
_TYPES: dict[str, Any] = {
    **dict.fromkeys(REPEATED, _TEXTS),
    **dict.fromkeys(("switch", "pair"), Optional[bool]),  # noqa: UP045
}


class _WithScript(TyperCommand):
    """A command whose usage ends with the script."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- SCRIPT [ARGS]..."]


def parse_words(words: Sequence[str], script: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Return the values of all options as Typer parses the words before ``--``; None where it showed help.

    Raises UsageError for words that it does not understand; ``script`` are those after ``--``, for the corrected line.
    """
    parsed: list[dict[str, Any]] = []
    command = words[0] if words[0] in COMMANDS else None
    # building one command takes half the time of building all
    app = _application([command] if command else list(COMMANDS), parsed.append)
    try:
        args = list(words[1:] if command else words)
        app(args, prog_name=f"ddplaunch {command or ''}".strip(), standalone_mode=False)
    except Exception as exception:
        if not hasattr(exception, "format_message"):
            raise
        raise _misunderstood(words, script, command, exception) from exception
    return with_lists_taken_apart(parsed[0]) if parsed else None


def answer_shell() -> None:
    """Answer the shell's request for completion, which is in the environment, as Typer does; does not return."""
    os.environ["TERMINAL_WIDTH"] = "1000"  # else Typer wraps a line of help, and fish offers the rest as another word
    _application(list(COMMANDS), lambda _: None, completing=True)(args=[], prog_name="ddplaunch")


def _application(names: list[str], keep: Callable[[dict[str, Any]], None], *, completing: bool = False) -> typer.Typer:
    app = typer.Typer(
        help="Distributed PyTorch, launched by torchrun, checked and explained.",
        epilog=_examples(
            (
                ("ddplaunch doctor", "is this machine ready to train?"),
                ("ddplaunch plan auto -- train.py", "what would run, and with which numbers"),
                ("ddplaunch run 2 -- train.py", "check the launch, then start it"),
                ("ddplaunch explain", "after a failure: its cause, and what to do"),
            )
        ),
        add_completion=completing,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings=_CONTEXT,
    )
    if not completing and len(names) > 1:
        app.callback()(_of_itself)
    for name in names:
        one_command = completing or len(names) == 1
        row = command_named(name) if one_command else Command(((), ()), ())  # type: ignore[arg-type]
        app.command(
            name,
            cls=_WithScript if name in LAUNCHING else TyperCommand,
            help="\n\n".join(filter(None, (COMMANDS[name].line, row.more))),
            short_help=COMMANDS[name].line,
            epilog=_examples(row.examples) if one_command else None,
            rich_help_panel=COMMANDS[name].stage,
            context_settings=_CONTEXT,
        )(_body(name, options_of(name) if one_command else (), keep, completing=completing))
    return app


def _of_itself(
    version: Annotated[bool, typer.Option("--version", "-V", help="Show the version.")] = False,
    install_completion: Annotated[
        str, typer.Option(metavar="SHELL", help="Install completion by Tab: bash, zsh or fish.")
    ] = "",
) -> None:
    """Declare, for help, the options that ``main`` answers itself."""


def _examples(examples: Sequence[tuple[str, str]]) -> str:
    return "\n\n".join(f"[cyan]{_escaped(line)}[/cyan]  {_escaped(meaning)}" for line, meaning in examples)


def _escaped(text: str) -> str:
    """Return a text that rich shows unchanged."""
    return text.replace("[", r"\[")


def _body(
    name: str, options: tuple[Flag, ...], keep: Callable[[dict[str, Any]], None], *, completing: bool
) -> Callable[..., None]:
    """Return a function with one parameter for each option, which is how Typer reads options."""

    def body(**values: Any) -> None:
        keep(
            {
                option.name: list(values[option.name] or ()) if option.kind in REPEATED else values[option.name]
                for option in options
            }
        )

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


def _misunderstood(
    words: Sequence[str], script: Sequence[str] | None, command: str | None, exception: Any
) -> UsageError:
    """Return Typer's complaint as an error with the corrected line, or with where to look."""
    message = exception.format_message().partition(". Did")[0].rstrip(".")
    wrong, names, cutoff = words[0].partition("=")[0], list(COMMANDS), 0.6
    if type(exception).__name__ == "NoSuchOption":  # each version of Typer words it differently
        wrong, names, cutoff = exception.option_name, exception.possibilities or [], 0.75
        message = f"no such option: `{wrong}`"
    near = nearest(wrong.lower(), names, cutoff) or wrong
    fix = "`ddplaunch --help` lists the commands; a launch is `ddplaunch run -- train.py`"
    if command:
        fix = f"`ddplaunch {command} --help` lists the options"
    if near != wrong:
        line = [
            near + word[len(wrong) :] if word.partition("=")[0].replace("_", "-") == wrong else word for word in words
        ]
        fix = corrected_line(line, script) or f"did you mean `{near}`?"
    elif command in LAUNCHING and type(exception).__name__ != "BadOptionUsage":  # a value is missing
        fix += "; what belongs to the script goes after `--`, to torchrun into `--torchrun-arg=…`"
    return usage(message[:1].lower() + message[1:], why="", fix=fix)
