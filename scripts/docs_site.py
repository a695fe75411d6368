"""The site's pages beyond docs/: those that the program writes about itself, and files around docs/.

A hook of mkdocs (mkdocs.yml). Options, checks and diagnoses are read from the tables that the program itself uses, each
time the site is built, so that no page can be older than the program.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ddplaunch.cli.commands.afterwards.explain import every_check
from ddplaunch.cli.parsing.command import COMMANDS, Listed, command_named, options_of
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
        **{f"commands/{command}.md": _command(command, listed) for command, listed in COMMANDS.items()},
        "reference/checks.md": _checks(),
        "reference/codes.md": _codes(),
    }


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the page of each command into the navigation."""
    pages_of_commands = [f"commands/{command}.md" for command in COMMANDS]
    config.nav = [{"Commands": pages_of_commands} if "Commands" in section else section for section in config.nav or ()]
    return config


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

    painted = _TERMINAL.sub(lambda block: terminal(block[1]), markdown)
    return _LINK.sub(led, painted)


#: What the program paints on a terminal, by the shape of a line: a class of docs/site.css for each group.
#: A test compares this with what the program paints.
_PAINTED = (
    (r"(error\[[\w-]+\]: )", "error"),
    (r"(warning\[[\w-]+\]: )", "warning"),
    (r"(ddplaunch: done(?: in \d+ attempts)? |healthy: .*)", "good"),
    (r"(ddplaunch: (?:failed|stopped) |nothing was launched: )", "error"),
    (r"(  (?:-->|why:|fix:|followed by:|evidence:) )", "dim"),
    (r"(  (?:run|cpus|batch|lr|steps|pass|config|env|note|record) +)", "dim"),
    (r"((?: *[A-Z][A-Z/%]+ *)+| *ranks   where .*)$", "dim"),
    (r"(ddplaunch) ([\w.-]+)$", "bold", "dim"),
)
_TERMINAL = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def terminal(text: str) -> str:
    """Return a console block as HTML in the colours of a terminal; its commands can be copied alone."""
    lines, commands = [], []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
            lines.append(f'<span class="prompt">$ </span><b>{html.escape(line[2:])}</b>')
            continue
        lines.append(_painted(line))
    copied = html.escape("\n".join(commands), quote=True).replace("\n", "&#10;")
    button = f'<button class="md-clipboard md-icon" title="Copy the commands" data-clipboard-text="{copied}"></button>'
    shown = "&#10;".join(lines)  # one line of Markdown: an empty line would end the block of HTML
    return f'<div class="terminal">{button}<pre>{shown}</pre></div>'


def _painted(line: str) -> str:
    """Return a line of output as HTML, with the colours that the program gives its parts."""
    for shape, *classes in _PAINTED:
        if (match := re.match(shape, line)) is not None:
            text, at = "", 0
            for number, name in enumerate(classes, 1):
                before, part = html.escape(line[at : match.start(number)]), html.escape(match[number])
                text += f'{before}<span class="{name}">{part}</span>'
                at = match.end(number)
            return text + html.escape(line[at:])
    return html.escape(line)


def on_page_content(page_html: str, **_: object) -> str:
    """Return a page whose inline code is broken between words only, so that no option is torn at its hyphens."""
    return re.sub(
        r"(?<!<pre>)<code>([^<]{1,400})</code>",
        lambda code: "<code>" + re.sub(r"(?<!\S)\S{1,26}(?!\S)", r"<span>\g<0></span>", code[1]) + "</code>",
        page_html,
    )


def _command(command: str, listed: Listed) -> str:
    flags, row = options_of(command), command_named(command)
    lines = [f"# {command}", "", " ".join((listed.line, row.more)).strip(), ""]
    lines += ["```sh", *(f"# {meaning}\n{example}" for example, meaning in row.examples), "```"]
    for title in dict.fromkeys(flag.panel or "Options" for flag in flags):
        members = [flag for flag in flags if (flag.panel or "Options") == title]
        lines += ["", f"## {title}", "", "| option | |", "|---|---|"]
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
