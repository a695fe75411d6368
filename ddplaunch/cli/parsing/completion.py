"""The values that Tab offers for an option or argument, and the setup of Typer's completion in a shell."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from ddplaunch.planning.flag import Flag
from ddplaunch.values.finding import usage

ASKED = "_DDPLAUNCH_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
_MOST_RUNS = 50
#: Words that no shell splits or expands; others are not offered.
_SAFE = re.compile(r"[\w./:=,@%+-]+\Z")
#: zsh sorts offers, and loads the file at the first Tab, which Typer's script then leaves unanswered: both are fixed.
_FOR_ZSH = """
zstyle ':completion:*:*:ddplaunch:*' sort false
zstyle ':completion:*:*:ddplaunch:*' list-grouped false
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _ddplaunch_completion "$@"
fi
"""
#: Replacements that make a shell keep the order of offers: the newest run comes first.
_IN_ORDER = {
    "bash": ("complete -o default", "complete -o nosort -o default"),
    "fish": ("complete --command", "complete --keep-order --command"),
}


class Offered(NamedTuple):
    """A word to complete, and its line of help."""

    word: str
    text: str = ""


def offered(option: Flag) -> Callable[[str], list[tuple[str, str]]] | None:
    """Return a function that offers values for an option, as Typer calls it; None where the shell completes files."""
    completed = option.completed
    if not completed:
        return None

    def complete(incomplete: str) -> list[tuple[str, str]]:
        with suppress(Exception):  # such as a broken record or profile: a traceback would garble the prompt
            words = [Offered(word) for word in completed] if isinstance(completed, tuple) else _SOURCES[completed]()
            return list({word: (word, text) for word, text in reversed(words) if _SAFE.match(word)}.values())[::-1]
        return []

    return complete


def _profiles() -> list[Offered]:
    from ddplaunch.cli.configuration import profile_names

    return [Offered(name) for name in profile_names()]


def _runs() -> list[Offered]:
    from ddplaunch.machine.processes.process_table import process_table
    from ddplaunch.records.directory import runs_directory
    from ddplaunch.records.run_states import summaries
    from ddplaunch.values.words import host_name

    runs, _ = summaries(runs_directory(None), process_table(), host_name(), _MOST_RUNS)
    return [
        Offered(run.run_id, f"{run.state}, {run.script or 'script not recorded'}") for run in runs if run.trial is None
    ]


def _checks() -> list[Offered]:
    from ddplaunch.checks.all_checks import ALL, across

    return [Offered(check.code, check.title) for check in (*ALL, *across())]


_SOURCES: Mapping[str, Callable[[], list[Offered]]] = {
    "profiles": _profiles,
    "runs": _runs,
    "live runs": lambda: [run for run in _runs() if run.text.startswith(("running", "orphaned", "elsewhere"))],
    "checks": _checks,
}


def install_completion(shell: str) -> str:
    """Have Typer install completion for ``shell``, in our order; return the text to print.

    Raises UsageError for an unknown shell, and OSError where its files cannot be written.
    """
    from typer.completion import install  # type: ignore[attr-defined]  # as its own command does

    if shell not in SHELLS:
        raise usage(
            f"`--install-completion {shell}` names no shell that ddplaunch completes in",
            why=f"completion is there for {', '.join(SHELLS)}",
            fix="`ddplaunch --install-completion bash`",
            where="flag: --install-completion",
        )
    _, path = install(shell=shell, prog_name="ddplaunch", complete_var=ASKED)
    script = path.read_text(encoding="utf-8").replace(*_IN_ORDER.get(shell, ("", "")))
    path.write_text(script + (_FOR_ZSH if shell == "zsh" else ""), encoding="utf-8")
    return f"Installed in {path}; open a new {shell} to use it\n"
