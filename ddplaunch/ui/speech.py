"""Findings as people read them, in one form everywhere: what, where, why, fix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from ddplaunch.ui.terminal import Terminal, cells, visible, wrap
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.words import count

_SHOWN = 2  # places named before the rest is counted
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?"  # compiled when first needed: most launches have no finding


def where_text(where: Sequence[str]) -> str:
    """Return the places in a line: all of up to three, else two and the number of the others."""
    if len(where) <= _SHOWN + 1:
        return ", ".join(where)
    return f"{', '.join(where[:_SHOWN])}, and {len(where) - _SHOWN} more{_noun(where)}"


def _noun(where: Sequence[str]) -> str:
    """Return what the places are, as far as their spelling tells: hosts, or "rank 1", "rank 2" → ranks."""
    if len({place.split(" ")[0] for place in where}) == 1 and " " in where[0]:
        return f" {where[0].split(' ')[0]}s"
    return " hosts" if all(re.fullmatch(_HOST, place) for place in where) else ""


def finding_text(finding: Finding, terminal: Terminal, story: Sequence[str] = ()) -> str:
    """Return a finding in its four parts, wrapped at ``width`` cells; commands in backticks are never broken.

    ``story`` are lines that stand below the place.
    """
    lines = headline(finding.severity.value, finding.code, finding.what, terminal)
    if finding.where:
        lines += labelled("  --> ", _spelled(visible(where_text(finding.where)), terminal), terminal)
    lines += story
    if finding.why:
        lines += labelled("  why: ", finding.why, terminal)
    lines += labelled("  fix: ", typed(finding.fix, terminal), terminal)
    return terminal.spell("\n".join(lines)) + "\n"


def headline(severity: Literal["error", "warning"], code: str, what: str, terminal: Terminal) -> list[str]:
    """Return the lines that say what is wrong, after ``error[code]:`` in its colour.

    They quote, and nobody types them: a quotation of several words that is wider than a line is broken.
    """
    label = f"{severity}[{code}]:"
    most = terminal.width - 2
    what = re.sub(
        "`([^`]* [^`]*)`", lambda quoted: quoted[0] if cells(quoted[0]) <= most else f'"{quoted[1]}"', visible(what)
    )
    lines = wrap(what, terminal.width, f"{label} ", "  ")
    lines[0] = terminal.paint(label, severity) + terminal.paint(lines[0][len(label) :], "bold")
    return lines


def labelled(label: str, text: str, terminal: Terminal) -> list[str]:
    """Return the lines of one part of a finding: its dim label, then the text, which keeps its newlines."""
    lines = wrap(visible(text, keep_newlines=True), terminal.width, label, " " * len(label))
    return [terminal.paint(label, "dim") + lines[0][len(label) :], *lines[1:]]


def findings_text(findings: Iterable[Finding], terminal: Terminal) -> str:
    """Return all findings, errors last, because the eye lands there; an empty line between two."""
    ordered = sorted(findings, key=lambda finding: finding.severity is Severity.ERROR)
    return "\n".join(finding_text(finding, terminal) for finding in ordered)


def counted(findings: Sequence[Finding]) -> str:
    """Return ``2 errors, 1 warning``, or an empty text if there is no finding."""
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    warnings = len(findings) - errors
    parts = [count(errors, "error")] if errors else []
    return ", ".join([*parts, count(warnings, "warning")] if warnings else parts)


def refusal_text(findings: Sequence[Finding], terminal: Terminal) -> str:
    """Return the last lines of a refused launch: that nothing was launched, and the way to override."""
    codes = [finding.code for finding in findings if finding.severity is Severity.ERROR]
    ignore = " ".join(f"--ignore {code}" for code in dict.fromkeys(codes))
    way = f"put {typed(f'`{ignore}`', terminal)} in front of the command" if terminal.called_as else f"add `{ignore}`"
    lines = wrap(f"nothing was launched: {counted(findings)}. To launch all the same, {way}.", terminal.width, "", "  ")
    head = "nothing was launched"
    return terminal.paint(head, "error") + "\n".join(lines)[len(head) :] + "\n"


_TYPED = r"`((?:ddplaunch run|--)[^`]*)`"


def typed(text: str, terminal: Terminal) -> str:
    """Return a fix as whoever started ``terminal.called_as`` can type it, and as it is for users of ddplaunch.

    The first line of ``called_as`` is a launch of {nproc} processes, in backticks; each other one is an option of
    ddplaunch and what stands for it. What nothing stands for goes into DDPLAUNCH_OPTIONS. A complete command, with its
    script, stays: it can be pasted.
    """
    if not terminal.called_as:
        return text
    return re.sub(_TYPED, lambda match: _typed(match[1], terminal), text)


def _typed(command: str, terminal: Terminal) -> str:
    """Return one command or option of ddplaunch, without its backticks, in the words of the script."""
    if command.startswith("--"):
        return _spelled(command, terminal, "`")
    words = command.split()[2:]
    if "--" in words and words[-1] != "…":
        return f"`{command}`"
    nproc = words.pop(0) if words and not words[0].startswith(("-", "…")) else "N"
    launch = terminal.called_as.partition("\n")[0].replace("{nproc}", nproc)
    own = words[: words.index("--")] if "--" in words else words
    options = " ".join(word for word in own if word != "…")
    return f"{launch} with {_spelled(options, terminal, '`')} in front" if options else launch


def _spelled(option: str, terminal: Terminal, quote: str = "") -> str:
    """Return an option in the words of the script that was called; ``quote`` stands around what can be typed."""
    own = dict(line.split(" ", 1) for line in terminal.called_as.split("\n")[1:] if " " in line)
    flag, space, value = option.partition(" ")
    if flag in own:
        quote = "" if " " in own[flag] else quote  # several, of which one is meant
        return f"{quote}{own[flag]}{space}{value}{quote}"
    return f"{quote}DDPLAUNCH_OPTIONS='{option}'{quote}" if quote and _ours(flag) else f"{quote}{option}{quote}"


def _ours(flag: str) -> bool:
    from ddplaunch.planning.options import flags_of_options

    return flag.replace("--no-", "--", 1) in {each.flag for each in flags_of_options().values()}
