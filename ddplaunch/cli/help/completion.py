"""What a shell completes on Tab, without Typer: its scripts ask by the environment, and get an answer in 0.1 s.

Typer writes and installs the scripts (``--install-completion``), and names the variables that they ask by. Where
nothing is answered, the shell completes files.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ddplaunch.cli.flags import REPEATED, flags_of, spellings
from ddplaunch.cli.help.command_help import HELP
from ddplaunch.planning.flag import Flag
from ddplaunch.values.finding import usage

ASKED = "_DDPLAUNCH_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
_LINE = "_TYPER_COMPLETE_ARGS"
_MOST_RUNS = 50
_OF_ITSELF = {
    "help": "The help of a command.",
    "--help": "All commands.",
    "--version": "The version.",
    "--install-completion": "Complete with Tab in this shell.",
    "--show-completion": "Print the shell's part of the completion.",
}
#: Words that no shell takes apart or expands; others are not offered.
_SAFE = re.compile(r"[\w./:=,@%+-]+\Z")
_FILLED_IN = re.compile(r"\{[^}]*\}")  # what a diagnosis takes from the log
_UNSAFE = re.compile(r"[^\w ./:;=,@%+()<>*\u2019\u2026-]")  # in a description; zsh evaluates what it is given
#: zsh loads the file at the first Tab, which Typer's script then leaves without an answer; these are the words of
#: click's: https://github.com/pallets/click/blob/8.1.7/src/click/shell_completion.py#L65
_AT_FIRST_TAB = """
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _ddplaunch_completion "$@"
fi
"""


class Offered(NamedTuple):
    """A word to complete, and its line of help."""

    word: str
    text: str = ""


def answer_shell(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return what to print to the shell that asks, and the exit status; nothing that is wrong reaches its user."""
    shell = environ[ASKED].partition("_")[2]
    offered: list[Offered] = []
    cut = 0
    with suppress(Exception):  # a broken record, an unreadable profile: there is a prompt under it
        words, typed = _of_bash(environ) if shell == "bash" else _of_line(environ.get(_LINE, ""))
        found = [each for each in candidates(words, typed) if each.word.startswith(typed)]
        offered = list({each.word: each for each in reversed(found) if _SAFE.match(each.word)}.values())[::-1]
        cut = max(typed.rfind(sign) for sign in ":=") + 1 if shell == "bash" else 0  # bash ends words there
    if shell == "zsh":
        shown = "\n".join(_for_zsh(each) for each in offered)
        return f"_arguments '*: :(({shown}))'" if offered else "_files", 0
    if shell == "fish":
        if environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
            return "", 0 if offered else 1
        return "\n".join(f"{word}\t{_harmless(text)}".rstrip() for word, text in offered), 0
    return "\n".join(each.word[cut:] for each in offered), 0


def _for_zsh(offered: Offered) -> str:
    word = offered.word.replace(":", r"\:")
    return f'"{word}":"{_harmless(offered.text)}"' if offered.text else f'"{word}"'


def _harmless(text: str) -> str:
    """Return a description without what a shell would evaluate, and without the default in brackets."""
    return " ".join(_UNSAFE.sub(" ", text.partition(" [")[0].replace("'", "\u2019")).split())


def _of_bash(environ: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the words before the cursor and the one at it; bash makes words of ``:`` and ``=`` too."""
    at = int(environ["COMP_CWORD"])
    words: list[str] = []
    joined = False
    for word in environ["COMP_WORDS"].split("\n")[1 : at + 1]:
        sign = word[:1] in (":", "=")
        if words and (sign or joined):
            words[-1] += word
        else:
            words.append(word)
        joined = sign and len(word) == 1
    return words[:-1], words[-1] if words else ""


def _of_line(line: str) -> tuple[list[str], str]:
    """Return the words before the cursor and the one at it, of a line that may end within quotes."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # no closing quotation
        words.append(lexer.token)
    words = words[1:]
    return (words[:-1], words[-1]) if words and not line.endswith(" ") else (words, "")


def candidates(words: Sequence[str], typed: str) -> list[Offered]:
    """Return what may stand at the place of ``typed`` behind ``words``; what does not begin with it is left to drop."""
    if "--" in words:
        at = words.index("--")
        return _of_script(words[at + 1 :], typed)
    if not words or words == ["help"]:
        rows = [Offered(name, row.line) for name, row in HELP.items()]
        return rows if words else [*rows, *(Offered(*each) for each in _OF_ITSELF.items())]
    if words[0] in ("--show-completion", "--install-completion"):
        return [Offered(shell) for shell in SHELLS]
    if words[0] not in HELP:
        return []
    spelled = spellings(flags_of(words[0]))
    flag, meaning = spelled.get(words[-1], (None, None))
    if flag is not None and meaning is None:
        return _values(flag, typed)
    name, equals, value = typed.partition("=")
    if equals and name in spelled:
        return [Offered(f"{name}={each.word}", each.text) for each in _values(spelled[name][0], value)]
    if typed.startswith("-"):
        return _flags(words, spelled)
    return _arguments(words, spelled, typed)


def _flags(words: Sequence[str], spelled: Mapping[str, tuple[Flag, bool | None]]) -> list[Offered]:
    typed = {spelled[name][0].name for name in (word.partition("=")[0] for word in words) if name in spelled}
    free = [(name, flag) for name, (flag, _) in spelled.items() if flag.kind in REPEATED or flag.name not in typed]
    return [
        *(Offered(name, flag.text) for name, flag in free),
        Offered("--help", "This command, or a group of options."),
    ]


def _arguments(words: Sequence[str], spelled: Mapping[str, tuple[Flag, bool | None]], typed: str) -> list[Offered]:
    """Return the values of the argument that has none yet; behind those of a launch, the ``--`` before the script."""
    given, rest = 0, list(words[1:])
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            given += 1
        elif word in spelled and spelled[word][1] is None and rest:
            rest.pop(0)
    arguments = [flag for flag in flags_of(words[0]) if flag.kind in ("argument", "arguments")]
    separator = [Offered("--", "The script and its arguments follow.")] if "--gpus" in spelled else []
    if given < len(arguments):
        return [*_values(arguments[given], typed), *separator]
    return _values(arguments[-1], typed) if arguments and arguments[-1].kind == "arguments" else separator


def _values(flag: Flag, typed: str) -> list[Offered]:
    """Return the values of a flag; those of a list with commas behind the ones that are typed already."""
    where = flag.completed
    if isinstance(where, tuple):
        return [Offered(word) for word in where]
    found = _SOURCES[where]()
    before, comma, _ = typed.rpartition(",")
    if comma and where in ("gpus", "hosts", "checks"):
        said = before.split(",")
        return [Offered(f"{before},{word}", text) for word, text in found if word not in said]
    return found


def _profiles() -> list[Offered]:
    from ddplaunch.cli.configuration import profile_names

    return [Offered(name) for name in profile_names(Path.cwd())]


def _gpus() -> list[Offered]:
    from ddplaunch.machine.facts import NvmlFacts
    from ddplaunch.machine.nvml import probe_nvml

    facts, _ = probe_nvml(details=False)
    gpus = facts.gpus if isinstance(facts, NvmlFacts) else ()
    idle = [Offered(f"free:{number}", "Reserve idle ones.") for number in range(1, len(gpus) + 1)]
    return [*(Offered(str(gpu.index), gpu.name) for gpu in gpus), *idle]


def _hosts() -> list[Offered]:
    from ddplaunch.hosts.ssh import configured_hosts

    return [Offered(name) for name in configured_hosts(Path.home() / ".ssh")]


def _runs() -> list[Offered]:
    from ddplaunch.machine.processes.process_table import process_table
    from ddplaunch.records.directory import runs_directory
    from ddplaunch.records.run_states import summaries
    from ddplaunch.values.words import host_name

    base = runs_directory(os.environ, None, Path.cwd())
    found, _ = summaries(base, process_table(), host_name(), _MOST_RUNS)
    return [Offered(run.run_id, f"{run.state}, {run.script or 'script not recorded'}") for run in found]


def _live_runs() -> list[Offered]:
    return [run for run in _runs() if run.text.startswith(("running", "orphaned", "elsewhere"))]


def _checks() -> list[Offered]:
    from ddplaunch.checks.all_checks import ALL, across

    return [Offered(check.code, check.title) for check in (*ALL, *across())]


def _runs_and_codes() -> list[Offered]:
    from ddplaunch.checks.codes import REFUSALS
    from ddplaunch.explain.signatures import all_signatures

    failures = [Offered(each.code, _FILLED_IN.sub("…", each.what)) for each in all_signatures() if each.is_root]
    return [*_runs(), *_checks(), *(Offered(each.code, each.title) for each in REFUSALS), *failures]


def _interfaces() -> list[Offered]:
    import socket

    return [Offered(name) for _, name in socket.if_nameindex() if name != "lo"]


_SOURCES: Mapping[str, Callable[[], list[Offered]]] = {
    "profiles": _profiles,
    "gpus": _gpus,
    "hosts": _hosts,
    "runs": _runs,
    "live runs": _live_runs,
    "checks": _checks,
    "runs and codes": _runs_and_codes,
    "interfaces": _interfaces,
}


def _of_script(words: Sequence[str], typed: str) -> list[Offered]:
    """Return the options that the script's own source declares; nothing, and so files, where no option is begun."""
    if not words or not words[0].endswith(".py") or not typed.startswith("-"):
        return []
    import sys

    from ddplaunch.script.read import read_script
    from ddplaunch.script.script_report import ScriptReport

    report = read_script(Path(words[0]), Path.cwd(), tuple(map(Path, sys.path)), tuple(words[1:]))
    options: Iterable[tuple[str, str]] = (
        [(flag, option.help) for option in report.options for flag in option.flags]
        if isinstance(report, ScriptReport)
        else []
    )
    return [Offered(flag, text) for flag, text in options if flag.startswith("--")]


def set_up_shell(words: Sequence[str]) -> str:
    """Do what ``--install-completion`` or ``--show-completion`` asks for; return what to print.

    Raises UsageError where the shell is not known, and OSError where its files cannot be written.
    """
    from typer.completion import get_completion_script, install  # type: ignore[attr-defined]  # as its own commands do

    option, _, attached = words[0].partition("=")
    shell = attached or next(iter(words[1:]), "") or _shell()
    if shell not in SHELLS:
        raise usage(
            f"`{shell}` is not a shell that ddplaunch completes in" if shell else "this shell is not known",
            why=f"completion is there for {', '.join(SHELLS)}",
            fix=f"`ddplaunch {option} bash`",
            where=f"flag: {option}",
        )
    script = get_completion_script(prog_name="ddplaunch", complete_var=ASKED, shell=shell) + "\n"
    if shell == "zsh":
        script += _AT_FIRST_TAB
    if option == "--show-completion":
        return script
    _, path = install(shell=shell, prog_name="ddplaunch", complete_var=ASKED)
    path.write_text(script, encoding="utf-8")
    return f"{shell} completes ddplaunch from its next start on: {path}\n"


def _shell() -> str:
    """Return the shell that this was typed in, an empty text where that cannot be told."""
    import shellingham

    try:
        name: str = shellingham.detect_shell()[0]
    except shellingham.ShellDetectionFailure:
        return ""
    return name
