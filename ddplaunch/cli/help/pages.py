"""The pages of `--help`: the first screen, a command, a group of its options, and the options that mention a word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddplaunch import __version__
from ddplaunch.cli.flags import LAUNCHING, flags_of
from ddplaunch.cli.help.command_help import HELP, Help, is_request
from ddplaunch.planning.flag import Flag
from ddplaunch.ui.table import section, table
from ddplaunch.ui.terminal import Terminal, wrap
from ddplaunch.values.finding import UsageError, usage

_WIDEST = 100  # longer lines are hard to read
_EVERYTHING = "all"
_SMALL = 23  # lines: what a terminal of 24 has beside the prompt
_FIRST = ("ddplaunch --help", "ddplaunch help run", "ddplaunch --version")
_TRY = (
    ("ddplaunch doctor", "is this machine ready to train?"),
    ("ddplaunch plan auto -- train.py", "what would run, and with which numbers"),
    ("ddplaunch run 2 -- train.py", "check, plan, and become torchrun"),
)
_OF_ITSELF = (
    ("ddplaunch --help", "what each command does"),
    ("ddplaunch help run", "options and examples of a command"),
    ("ddplaunch run --help lr", "the options that mention a word"),
    ("ddplaunch explain", "after a failure: its cause, and what to do"),
    ("ddplaunch --install-completion", "options, runs, GPUs and hosts by Tab"),
    ("ddplaunch --version", "which one this is"),
)


def page(words: Sequence[str], terminal: Terminal) -> str:
    """Return the page that ``words`` ask for. Raises UsageError for a word that no option mentions."""
    terminal = replace(terminal, width=min(terminal.width, _WIDEST))
    named = [word for word in words if word != "help"][:1]
    if not named or named[0] not in HELP:
        return terminal.spell("\n".join(_first_screen(terminal, bool(words))) + "\n")
    command, topic = named[0], _topic(words)
    if topic in (None, _EVERYTHING):
        lines = _command_page(command, HELP[command], terminal, everything=topic is not None)
    else:
        lines = _topic_page(command, topic or "", terminal)
    return terminal.spell("\n".join(lines).rstrip("\n") + "\n")


def _topic(words: Sequence[str]) -> str | None:
    """Return what behind `--help`, or behind the command of `help`, says which options are meant."""
    if words[0] == "help":
        return next(iter(words[2:]), None)
    at, asked = next((at, word) for at, word in enumerate(words) if is_request(word))
    if asked == "--help-all":
        return _EVERYTHING
    if asked.startswith("--help="):
        return asked.partition("=")[2] or None
    following = words[at + 1] if at + 1 < len(words) else ""
    return following if following and following[0].isalpha() and not following.endswith(".py") else None


def _first_screen(terminal: Terminal, described: bool) -> list[str]:
    """Return what it is, what to try, the commands and where to go on; without what each does it fits the terminal.

    In less than about 60 columns, where words stand below each other, that is what can be typed alone: 13 lines, for
    a terminal of 15 and its prompts.
    """
    title = f"ddplaunch {__version__}"
    first, *more = wrap(f"{title}: distributed PyTorch, launched by torchrun, checked and explained", terminal.width)
    lines = [first.replace(title, terminal.paint(title, "bold")), *more, ""]
    lines += section("Try", _pairs(_TRY, terminal), terminal)
    stages = {row.stage: [name for name in HELP if HELP[name].stage == row.stage] for row in HELP.values()}
    for stage, names in stages.items() if described else ():
        lines += section(stage, _pairs([(name, HELP[name].line) for name in names], terminal), terminal)
    if not described:
        lines += section(
            "Commands", _pairs([(stage, ", ".join(stages[stage])) for stage in stages], terminal), terminal
        )
    go_on = _OF_ITSELF[described:]  # it is the page that the first names
    lines += section("Go on", _pairs(go_on, terminal), terminal)
    if not described and len(lines) > _SMALL:
        lines = [first.replace(title, terminal.paint(title, "bold")), *more, ""]
        lines += section("Try", [f"  {typed}" for typed, _ in _TRY], terminal)
        lines += section("Go on", [f"  {typed}" for typed, _ in _OF_ITSELF if typed in _FIRST], terminal)
    return lines[:-1]


def _pairs(rows: Iterable[tuple[str, str]], terminal: Terminal) -> list[str]:
    return table(("", ""), list(rows), terminal)


def _command_page(command: str, row: Help, terminal: Terminal, *, everything: bool) -> list[str]:
    flags = flags_of(command)
    arguments = "".join(f" [{flag.metavar}]" for flag in flags if flag.kind in ("argument", "arguments"))
    usage_line = f"ddplaunch {command}{arguments} [OPTIONS]{' -- SCRIPT [ARGS]' if command in LAUNCHING else ''}"
    first, *below = wrap(usage_line, terminal.width, "Usage: ", "    ")
    lines = [first.replace("Usage:", terminal.paint("Usage:", "bold")), *below, ""]
    lines += [*wrap(" ".join((row.line, row.more)).strip(), terminal.width), ""]
    if everything or not row.first:
        for title, members in _groups(flags).items():
            lines += section(title, _described(members, terminal), terminal)
    else:
        shown = [flag for flag in flags if flag.kind in ("argument", "arguments")]
        shown += [next(flag for flag in flags if flag.name == name) for name in row.first]
        lines += section("Options", _described(shown, terminal), terminal)
        lines += _further(command, flags, shown, terminal)
    lines.append(terminal.paint("Examples", "bold"))
    for example, meaning in row.examples:
        lines += [*wrap(f"{meaning}:", terminal.width, "  ", "  "), f"    {terminal.paint(example, 'good')}"]
    return lines


def _further(command: str, flags: Sequence[Flag], shown: Sequence[Flag], terminal: Terminal) -> list[str]:
    """Return the names of the options that are not ``shown``, by group, and how to read about them."""
    rows = []
    for title, members in _groups(flags).items():
        rest = [_spelled(flag).partition(" ")[0] for flag in members if flag not in shown]
        if rest:
            rows.append((_key(title), " ".join(rest)))
    *above, title = wrap(f"More options: `ddplaunch {command} --help GROUP`, or `--help-all`", terminal.width)
    return [*(terminal.paint(line, "bold") for line in above), *section(title, _pairs(rows, terminal), terminal)]


def _groups(flags: Iterable[Flag]) -> dict[str, list[Flag]]:
    """Return the options by the title of their group, in the order of the table."""
    found: dict[str, list[Flag]] = {}
    for flag in flags:
        found.setdefault(flag.panel or "Options", []).append(flag)
    return found


def _key(title: str) -> str:
    """Return the word that `--help` takes for a group: ``size`` for "Size and devices"."""
    return title.partition(" ")[0].rstrip(",").lower()


def _described(flags: Iterable[Flag], terminal: Terminal) -> list[str]:
    return _pairs([(_spelled(flag), flag.text) for flag in flags], terminal)


def _spelled(flag: Flag) -> str:
    if flag.kind in ("argument", "arguments"):
        return flag.metavar
    if flag.kind == "pair":
        return f"--[no-]{flag.flag[2:]}"
    return f"{flag.flag} {flag.metavar}".rstrip()


def _topic_page(command: str, topic: str, terminal: Terminal) -> list[str]:
    """Return the options of the group that ``topic`` names, or those that mention it. Raises UsageError for none."""
    groups = _groups(flags_of(command))
    keys = {_key(title): title for title in groups}
    wanted = topic.lower()
    if wanted in keys:
        title, found = keys[wanted], groups[keys[wanted]]
    else:
        title = f"Options of {command} that mention `{topic}`"
        found = [flag for flag in flags_of(command) if wanted in f"{flag.flag} {flag.text}".lower()]
    if not found:
        raise _nothing_mentions(command, topic, keys)
    return section(title, _described(found, terminal), terminal)


def _nothing_mentions(command: str, topic: str, keys: Iterable[str]) -> UsageError:
    return usage(
        f"no option of `{command}` mentions `{topic}`",
        why=f"its groups of options are {', '.join(f'`{key}`' for key in keys)}",
        fix=f"`ddplaunch {command} --help-all` shows all",
    )
