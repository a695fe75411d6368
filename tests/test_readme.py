"""The documents say what is true: their output is printed anew, their names exist, their code runs."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import sys
import threading
from dataclasses import fields
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ddplaunch.checks.all_checks import ALL, across
from ddplaunch.cli.parsing.command import COMMANDS, options_of
from ddplaunch.comm.checks import CHECKS as MEASURED
from ddplaunch.explain.signatures import Tier, all_signatures, signature_of
from ddplaunch.planning.current import Current
from ddplaunch.planning.script_numbers.handed_out import NAMES
from ddplaunch.values.finding import ExitStatus
from scripts import docs_site
from scripts.signatures import rules_of
from tests.agent.guarded import until
from tests.explain.signature_rules import idle, matched, unfilled
from tests.golden import accepting
from tests.hosts.launching import run_to_end
from tests.readme_blocks import BLOCK, PICTURES, Block, blocks, comparable, run, samples, sessions, words_of_picture
from tests.ui.test_report_in_browser import browser, scheme

__all__ = ["browser"]

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")))
}
#: The files that documents give, which blocks of all of them run beside.
SAMPLES = {name: text for document in DOCUMENTS.values() for name, text in samples(document).items()}
OUR_FLAGS = {
    spelling
    for command in COMMANDS
    for flag in options_of(command)
    for spelling in (flag.flag, "--no-" + flag.name.replace("_", "-"))
}


@pytest.mark.parametrize(
    ("name", "session"),
    [
        pytest.param(
            name,
            session,
            marks=[pytest.mark.slow] if any(blocks(document)[number].slow for number in session) else [],
            id=f"{name}: {blocks(document)[session[0]]}",
        )
        for name, document in DOCUMENTS.items()
        for session in sessions(document)
    ],
)
def test_output_is_what_the_commands_print(name: str, session: tuple[int, ...], request: pytest.FixtureRequest) -> None:
    accept = bool(request.config.getoption("--accept-golden"))
    for attempts_left in (2, 1, 0):
        printed = printed_by(name, session, accept)
        # An interpreter that ends while gloo's threads run is aborted now and then, under plain torchrun too.
        if not attempts_left or not any(word in text for text in printed for word in ("status 134", "error[aborted]")):
            break
    if not accept:
        wanted = [blocks(DOCUMENTS[name])[number] for number in session]
        for block, text in zip(wanted, printed, strict=True):
            assert comparable(block, text) == comparable(block, block.text), f"if this is meant, {accepting()}"


def printed_by(name: str, session: tuple[int, ...], accept: bool) -> list[str]:
    """Return what the blocks of a session print, and write it into the document if that is wanted."""
    printed = []
    with TemporaryDirectory(prefix="readme-") as folder:
        for number in session:
            document = (ROOT / name).read_text(encoding="utf-8")
            block = blocks(document)[number]
            assert block.commands
            printed.append(run(block, SAMPLES, Path(folder), draw=accept))
            if accept:
                match = list(BLOCK.finditer(document))[number]
                text = document[: match.start("text")] + printed[-1] + document[match.end("text") :]
                (ROOT / name).write_text(text, encoding="utf-8")
    return printed


def test_every_output_block_is_found() -> None:
    assert sum(len(blocks(document)) for document in DOCUMENTS.values()) >= 15
    assert sum(len(samples(document)) for document in DOCUMENTS.values()) == len(SAMPLES), "two files of one name"
    for document in DOCUMENTS.values():
        assert len(blocks(document)) == document.count("<!-- output:")
        assert document.count("```console\n") == len(blocks(document)), "a block without a marker is not checked"
        assert len([block for block in blocks(document) if block.before]) == document.count("<!-- before:")


SAID = "$ x\n  OMP_NUM_THREADS=4 # 8 usable CPUs\n  lr 0.02\n"
FAILED = (
    "$ x\nfailed (exit status 1) after 4.8 s\nerror[script-exception]: K\n  --> rank 1 on node-1, /a/rank-1.err:5\n"
)
TABLE = "$ t\nRUN  STATE    AGE  SCRIPT\njog  running  47 s  jog.py\n  rank 1  hangs.py:9  0 % CPU\n"


@pytest.mark.parametrize(
    ("mode", "text", "same", "other"),
    [
        ("stdout", SAID, {"=4": "=16", "8 usable": "32 usable"}, {"0.02": "0.04"}),
        ("doctor", "$ d\nhost a\n\nhealthy: 7 checks passed\n", {"healthy: 7": "1 error: 6"}, {"passed": ""}),
        ("both", FAILED, {"4.8": "1 min 14", "err:5": "err:4"}, {"status 1": "status 134"}),
        ("both", FAILED, {}, {"rank 1 on": "rank 0 on"}),
        ("table", TABLE, {"47 s": "2 min 5 s", "0 %": "1 %", "AGE  ": "AGE    BATCH  "}, {"running": "failed"}),
        ("table", TABLE, {}, {"py:9": "py:10"}),
    ],
)
def test_what_differs_between_machines_does_not_count(
    mode: str, text: str, same: dict[str, str], other: dict[str, str]
) -> None:
    def printed(changes: dict[str, str]) -> str:
        changed = functools.reduce(lambda done, pair: done.replace(*pair), changes.items(), text)
        return comparable(Block(mode, text), changed)

    assert printed(same) == printed({}) != printed(other)


def test_a_picture_shows_what_its_block_says() -> None:
    drawn = {
        block.picture: block.text for document in DOCUMENTS.values() for block in blocks(document) if block.picture
    }
    assert sorted(drawn) == sorted(path.name for path in PICTURES.iterdir())
    for name, text in drawn.items():
        svg = PICTURES.joinpath(name).read_text(encoding="utf-8")
        assert words_of_picture(svg) == "".join(text.split()), (
            f"{name}: `--accept-golden` with the test of its block draws it anew"
        )
        assert "http" not in svg.replace("http://www.w3.org/", "").replace("https://www.textualize.io", ""), name


@pytest.mark.slow
def test_the_site_has_no_broken_link_and_is_searched(tmp_path: Path, browser: Any) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    status, said = run_to_end(words, ROOT, os.environ, 300)
    assert status == 0, said
    index = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"] for entry in index["docs"] if "shm-too-small" in entry["title"]}
    assert found == {"reference/checks.html#shm-too-small", "reference/codes.html#shm-too-small"}
    for command in COMMANDS:
        page = (tmp_path / "site" / "commands" / f"{command}.html").read_text(encoding="utf-8")
        flags = [flag.flag for flag in options_of(command) if not flag.kind.startswith("argument")]
        assert [flag for flag in flags if flag not in page] == []
    places = sorted({entry["location"].partition("#")[0] for entry in index["docs"]})
    handler = functools.partial(SilentFiles, directory=tmp_path / "site")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            look_at_site(browser, f"http://127.0.0.1:{server.server_address[1]}/", places)
        finally:
            server.shutdown()


class SilentFiles(SimpleHTTPRequestHandler):
    """Gives the files of a folder over HTTP."""

    def log_message(self, *_: object) -> None:
        """Print nothing about requests."""


#: Lays out every page in a frame as wide as a phone, without scripts, and returns those that are wider.
WIDE_PAGES = """
const [places, answer] = arguments;
Promise.all(places.map(place => new Promise(loaded => {
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-same-origin";
  frame.style = "width: 375px; height: 800px; border: 0";
  frame.onload = () => loaded(frame.contentDocument.documentElement.scrollWidth > 375 ? place : "");
  frame.src = place;
  document.body.append(frame);
}))).then(wide => answer(wide.filter(Boolean)));
"""


def look_at_site(browser: Any, address: str, places: list[str]) -> None:
    """The search finds the page that explains a word, and the site is as light or dark as the system.

    No page is wider than a phone.
    """
    browser.get(f"{address}404.html")
    assert browser.execute_async_script(WIDE_PAGES, places) == []
    browser.get_log("browser")  # each script that a frame blocked
    for name in ("light", "dark", "light"):
        scheme(browser, name)
        browser.get(f"{address}hangs.html")
        background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        bright = sum(int(each) for each in re.findall(r"\d+", background)[:3]) > 380
        assert bright == (name == "light"), (name, background)
    browser.set_window_size(1300, 900)  # in a narrow window the box is behind a button
    box = browser.find_element("css selector", "input.md-search__input")
    for words, first in (
        ("hang-timeout", "hangs.html"),
        ("shm too small", "reference/c"),
        ("learning rate", "numbers"),
    ):
        browser.execute_script("arguments[0].focus()", box)
        box.clear()
        box.send_keys(words)
        until(functools.partial(_is_first, browser, first), f"{first} for `{words}`", 60)
    assert [each for each in browser.get_log("browser") if each["level"] == "SEVERE"] == []


def _is_first(browser: Any, place: str) -> bool:
    """Whether the first result of the search leads there."""
    return place in browser.execute_script("return document.querySelector('.md-search-result__link')?.href ?? ''")


def test_the_site_shows_what_a_terminal_does_and_gives_commands_to_the_clipboard() -> None:
    block = docs_site.terminal("$ a --x '<b>'\nerror[shm-too-small]: 64 MiB\n$ b\n")
    assert 'data-clipboard-text="a --x &#x27;&lt;b&gt;&#x27;&#10;b"' in block and "\n" not in block
    assert "<b>a --x &#x27;&lt;b&gt;&#x27;</b>" in block and '<span class="error">error[shm-too-small]' in block
    for text in (text for place, text in docs_site.pages().items() if place.startswith("commands/")):
        above = re.match("```sh\n(# .+\nddplaunch .+\n)+```\n", text[text.index("```sh") :])
        assert above, "what an example does stands above it: beside it, it was past the edge of a phone"
    page = docs_site.on_page_content("<p><code>run 4</code></p><pre><code>a b</code></pre>")
    assert page == "<p><code><span>run</span> <span>4</span></code></p><pre><code>a b</code></pre>"


def test_flags_in_the_documents_exist() -> None:
    for name, document in DOCUMENTS.items():
        lines = re.findall(r"`(ddplaunch [^`]+)`", document) + re.findall(r"^\$? ?(ddplaunch [^\n]+)", document, re.M)
        for line in lines:
            for word in line.split(" -- ")[0].split():
                flag = word.partition("=")[0]
                assert not flag.startswith("--") or flag in {*OUR_FLAGS, "--", "--help", "--install-completion"}, (
                    f"{name}: {line}"
                )


def test_names_in_the_documents_are_those_of_the_program() -> None:
    page = DOCUMENTS["docs/your-script.md"]
    current = [field.name for field in fields(Current)]
    for start, names in (("Fields of `ddplaunch.current\\(\\)`", current), ("Placeholders", NAMES)):
        (line,) = re.findall(rf"^{start}: (.*)$", page, re.M)
        assert re.findall(r"`\{?(\w+)\}?`", line) == [*names]
    section = DOCUMENTS["CONTRIBUTING.md"].partition("## Add a signature without Python")[2].partition("\n## ")[0]
    tiers = re.findall(r"^- `([a-z]+)` ", section, re.M)
    assert tiers == [tier.name.lower() for tier in Tier if tier != Tier.SURVIVED]
    (commands,) = re.findall(r"^```sh\n(.*?)^```", DOCUMENTS["README.md"], re.M | re.S)
    assert [line.split()[0] for line in commands.splitlines()] == ["scripts/try.sh", "scripts/test.sh"]
    checks = (*ALL, *across())
    named = {
        (file, family)
        for files, about in re.findall(r"^\| (`checks/\w+\.py`.*?) \| (.*?) \|$", DOCUMENTS["CONTRIBUTING.md"], re.M)
        for family in re.findall(r"`(\w+)`", about.partition(":")[0])
        for file in re.findall(r"checks/(\w+)\.py", files)
    }
    codes = re.findall(r"\bcheck `([a-z0-9-]+)`", "".join(DOCUMENTS.values()))
    assert {*codes} <= {check.code for check in (*checks, *MEASURED)}
    assert named == {(check.function.__module__.rpartition(".")[2], check.family) for check in checks}
    rows = re.findall(r"^\| (\d+) \|", DOCUMENTS["docs/exit-statuses.md"], re.M)
    assert [int(row) for row in rows] == sorted(ExitStatus)


def test_links_and_files_exist_and_every_page_is_in_the_sites_navigation() -> None:
    listed = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    written = [place for place in docs_site.pages() if not place.startswith("commands/")]  # the hook lists these
    assert sorted(listed) == sorted([*pages, *written, "CHANGELOG.md", "CONTRIBUTING.md"])
    for name, document in DOCUMENTS.items():
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)\)", document) + re.findall(
            r"`((?:scripts|tests)/[\w./]+)`", document
        ):
            assert (ROOT / target).exists() or ((ROOT / name).parent / target).exists(), f"{name}: {target}"
        for module in re.findall(r"python -m (benchmarks\.\w+)", document):
            assert (ROOT / f"{module.replace('.', '/')}.py").exists(), f"{name}: {module}"


def test_import_order_is_the_contract() -> None:
    contract = re.search(r"^layers = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    assert contract
    layers = [layer for layer in re.findall(r'"([^"]+)"', contract[1]) if layer != "__main__"]
    assert " > ".join(layers) in " ".join(DOCUMENTS["CONTRIBUTING.md"].split())
    rooms = re.findall(r"^\| `(\w+)[/.py]*` \|", DOCUMENTS["CONTRIBUTING.md"], re.M)
    assert sorted(rooms) == sorted([*re.split(r" > | \| ", " > ".join(layers)), "examples"])


def example() -> dict[str, Any]:
    """Execute the code of "Add a check in ten lines" as one module, and return its names."""
    namespace: dict[str, Any] = {"__name__": "example"}
    section = DOCUMENTS["CONTRIBUTING.md"].partition("## Add a check in ten lines")[2].partition("\n## ")[0]
    for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(compile(code, "CONTRIBUTING.md", "exec"), namespace)
    return namespace


def test_the_example_of_a_check_works_and_its_test_passes() -> None:
    names = example()
    (check,) = names["CHECKS"]
    assert check.family in {each.family for each in ALL} and check.title and check.explanation
    tests = [test for name, test in names.items() if name.startswith("test_") and inspect.isfunction(test)]
    assert tests
    for test in tests:
        test()


def test_the_example_of_a_signature_keeps_the_rules(tmp_path: Path) -> None:
    (rule,) = re.findall(r"^```toml\n(\[\[too.*?)^```", DOCUMENTS["CONTRIBUTING.md"], re.M | re.S)
    file = tmp_path / "system.toml"
    file.write_text('[too-many-open-files]\ntier = "cause"\n' + rule)
    (signature,) = map(signature_of, rules_of(file))
    assert signature.code in {each.code for each in all_signatures()}
    assert matched(signature, signature.example)
    assert idle(signature, [signature.example]) == unfilled(signature, [signature.example]) == []
