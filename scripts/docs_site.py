"""The site's pages beyond docs/: those that the program writes about itself, and files around docs/.

A hook of mkdocs (mkdocs.yml). Options, checks and diagnoses are read from the tables that the program itself uses, each
time the site is built, so that no page can be older than the program.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ddplaunch.cli.commands.explain import every_check
from ddplaunch.cli.parsing.command import COMMANDS, command_named, options_of
from ddplaunch.explain.signatures import all_signatures
from ddplaunch.planning.flag import Flag

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
#: Files outside of docs/ that its pages link to, at the same place in the site.
AROUND = ("CHANGELOG.md", "CONTRIBUTING.md", *(f"benchmarks/results/{name}" for name in ("*.md", "*.json")))
_LINK = re.compile(r"(\]\()([^)#\s]+)")


def pages() -> dict[str, str]:
    """Return the text of each page that the program writes, by its place in the site."""
    return {
        "reference/options.md": _options(),
        "reference/checks.md": _checks(),
        "reference/codes.md": _codes(),
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the program and the files around docs/."""
    from mkdocs.structure.files import File, InclusionLevel

    for place, text in pages().items():
        files.append(File.generated(config, place, content=text))
    for pattern in AROUND:
        for path in sorted(ROOT.glob(pattern)):
            place = path.relative_to(ROOT).as_posix()
            level = InclusionLevel.UNDEFINED if "/" not in place else InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, place, abs_src_path=str(path), inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page whose links out of docs/, or into it from around it, lead to the same files in the site."""
    place = page.file.src_uri
    if place in AROUND:  # they name everything; who searches wants the page that explains it
        page.meta["search"] = {"boost": 0.1}
    folder = posixpath.dirname(place)
    source = posixpath.dirname(place if page.file.generated_by else f"docs/{place}")

    def led(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(source, link[2]))
        inside = target.removeprefix("docs/")
        known = files.get_file_from_path(inside) is not None and not re.match(r"\w+:", link[2])
        return link[1] + posixpath.relpath(inside, folder or ".") if known else link[0]

    return _LINK.sub(led, markdown)


def _options() -> str:
    lines = [
        "# Options",
        "",
        "Every command with all of its options; `ddplaunch help COMMAND` says the same.",
    ]
    for command, listed in COMMANDS.items():
        flags, row = options_of(command), command_named(command)
        lines += ["", f"## {command}", "", " ".join((listed.line, row.more)).strip(), ""]
        lines += [line for example, meaning in row.examples for line in (f"- {meaning}: `{example}`",)]
        for title in dict.fromkeys(flag.panel or "Options" for flag in flags):
            members = [flag for flag in flags if (flag.panel or "Options") == title]
            lines += ["", f"**{title}**", "", "| option | |", "|---|---|"]
            lines += [f"| {_cell(f'`{_spelled(flag)}`')} | {_cell(flag.text)} |" for flag in members]
    return "\n".join(lines) + "\n"


def _spelled(flag: Flag) -> str:
    if flag.kind in ("argument", "arguments"):
        return flag.metavar
    return f"{flag.flag} {flag.metavar}".strip() if flag.kind != "pair" else f"{flag.flag}, --no-{flag.flag[2:]}"


def _checks() -> str:
    lines = [
        "# Checks",
        "",
        "What is looked at before a run, while it goes on, and between hosts; `ddplaunch explain CODE` says the same.",
    ]
    every = every_check()
    for family in dict.fromkeys(check.family for check in every):
        lines += ["", f"## {family}"]
        for check in every:
            if check.family == family:
                lines += ["", f"### {check.code}", "", f"{_text(check.title)}.", "", _text(check.explanation)]
    return "\n".join(lines) + "\n"


def _codes() -> str:
    lines = [
        "# Diagnoses",
        "",
        "What `ddplaunch explain` can name as a cause of a failure. WORDS in capitals are what a log says there.",
    ]
    found: dict[str, list[str]] = {}
    for each in all_signatures():
        if each.is_root:
            entry = ["", f"**{_text(_filled(each.what))}**", "", _text(_filled(each.why)), ""]
            entry += [f"- {_text(_filled(fix))}" for fix in each.fixes]
            found.setdefault(each.code, []).extend(entry)
    for code, entry in sorted(found.items()):
        lines += ["", f"## {code}", *entry]
    return "\n".join(lines) + "\n"


def _filled(text: str) -> str:
    """Return ``text`` of a signature with its groups in capitals: ``{size}`` becomes ``SIZE``."""
    return re.sub(r"\{(\w+)\}", lambda group: group[1].upper(), text)


def _text(text: str) -> str:
    """Return ``text`` as Markdown that shows it as it is, code in backticks aside."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<>\[\]#|])", r"\\\1", part) for part in parts)


def _cell(text: str) -> str:
    """Return ``text`` for a cell of a table."""
    return (text if text.startswith("`") else _text(text)).replace("|", "\\|").replace("\\\\|", "\\|")
