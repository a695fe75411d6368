"""The documents say what is true: their output is printed anew, their names exist, their code runs."""

from __future__ import annotations

import functools
import html
import inspect
import json
import re
import socket
import subprocess
import sys
import threading
from dataclasses import fields, replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ddplaunch.checks.all_checks import ALL, across
from ddplaunch.checks.check import available, run_check
from ddplaunch.cli.parsing.command import COMMANDS, options_of
from ddplaunch.comm.checks import CHECKS as MEASURED
from ddplaunch.explain.diagnosis import Diagnosis, Echo, Evidence
from ddplaunch.explain.signatures import Tier, all_signatures, signature_of
from ddplaunch.planning.current import Current
from ddplaunch.planning.script_numbers.handed_out import NAMES
from ddplaunch.records.outcome import RunOutcome
from ddplaunch.records.run_states import RunSummary
from ddplaunch.ui.launch_view import launch_panel
from ddplaunch.ui.outcome_view import outcome_text
from ddplaunch.ui.ps_view import ps_text
from ddplaunch.ui.speech import refusal_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, Severity, warning
from scripts import docs_site
from scripts.signatures import rules_of
from tests.agent.guarded import until
from tests.checks.healthy import healthy_facts, healthy_launch, healthy_script
from tests.explain.signature_rules import idle, matched, unfilled
from tests.golden import accepting
from tests.readme_blocks import (
    BLOCK,
    HOME,
    PICTURES,
    Block,
    blocks,
    comparable,
    run,
    samples,
    sessions,
    shown,
    words_of_picture,
)
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
        assert document.count("```console\n") == len(blocks(document)), (
            "a console block without a marker is not checked"
        )
        assert len([block for block in blocks(document) if block.before]) == document.count("<!-- before:")


def test_a_block_that_goes_on_shares_the_directory_of_the_one_before() -> None:
    block = "<!-- output: stdout{} -->\n```console\n$ ls\n```\n"
    document = block.format("") + block.format(", goes on") + block.format("")
    assert sessions(document) == ((0, 1), (2,))


def test_another_machine_prints_the_same_but_another_word_differs() -> None:
    block = Block("stdout", "$ x\n  OMP_NUM_THREADS=4 # 8 usable CPUs\n  lr 0.02\n")
    there = block.text.replace("=4", "=16").replace("8 usable", "32 usable")
    assert comparable(block, there) == comparable(block, block.text)
    assert comparable(block, block.text.replace("0.02", "0.04")) != comparable(block, block.text)
    noise = "warning[cpus-short]: 2 processes on 1 CPU\n  why: a\n  fix: b\n\n"
    assert shown(noise + block.text) == block.text
    kept = noise.replace("cpus-short", "ineffective-variable")
    assert shown(kept + block.text) == kept + block.text


def test_doctor_has_to_end_with_a_verdict() -> None:
    block = Block("doctor", "$ d\nhost a, Python 3.11\n\nhealthy: 7 checks passed, 14 skipped\n")
    there = block.text.replace("host a", "host b").replace("healthy: 7", "1 error: 6")
    assert comparable(block, there) == comparable(block, block.text)
    assert comparable(block, there.replace("checks passed", "")) != comparable(block, block.text)


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


def test_readme_has_two_commands() -> None:
    (commands,) = re.findall(r"^```sh\n(.*?)^```", DOCUMENTS["README.md"], re.M | re.S)
    assert [line.partition("#")[0].strip() for line in commands.splitlines()] == ["scripts/try.sh", "scripts/test.sh"]


def test_every_page_is_in_the_sites_navigation() -> None:
    listed = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    written = [place for place in docs_site.pages() if not place.startswith("commands/")]  # the hook lists these
    assert sorted(listed) == sorted([*pages, *written, "CHANGELOG.md", "CONTRIBUTING.md"])


@pytest.mark.slow
def test_the_site_has_no_broken_link_and_is_searched(tmp_path: Path, browser: Any) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stdout
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


def painted_by_the_program() -> str:
    """Return what the program prints to a terminal: a launch, two ends, a refusal, a table."""
    terminal = Terminal(80, styled=True)
    finding = warning("a-code", "what", why="why", fix="`fix`", where=("here",))
    cause = Diagnosis("script-exception", "observed", "KeyError: 'bird'", "why", ("`fix`",), 1, "node-1")
    echo = Echo("gloo lost its connection", 0, "node-1", Evidence("rank-0.err", 5, "closed"))
    ended = RunOutcome("r", "node-1", 0, "failed", 1, 0.0, 9.0, 1, cause, (echo,), ())
    done = replace(ended, state="succeeded", diagnosis=None, cascade=())
    runs = [RunSummary("jog", "ended", None, "jog.py", 1, 2, started_s=0.0)]
    return "".join(
        (
            launch_panel(healthy_launch(), [finding], terminal, record="here"),
            *(outcome_text(one, "here", terminal) for one in (ended, done)),
            refusal_text([replace(finding, severity=Severity.ERROR)], terminal),
            ps_text(runs, 0, 9.0, "ada", terminal),
        )
    )


def test_console_blocks_have_the_colours_of_the_program() -> None:
    names = {"1": "bold", "2": "dim", "1;31": "error", "1;33": "warning", "1;32": "good"}
    printed = painted_by_the_program()
    spans = re.sub("\x1b\\[0m", "</span>", html.escape(printed, quote=True))
    spans = re.sub("\x1b\\[([\\d;]+)m", lambda code: f'<span class="{names[code[1]]}">', spans)
    assert {*re.findall(r'class="(\w+)"', spans)} == {*names.values()}
    text = re.sub("\x1b\\[[\\d;]+m", "", printed)
    shown_lines = re.search("<pre>(.*)</pre>", docs_site.terminal(text))
    assert shown_lines and shown_lines[1].split("&#10;") == spans.splitlines()


def test_a_console_block_gives_its_commands_to_the_clipboard() -> None:
    block = docs_site.terminal("$ a --x '<b>'\nout\n$ b\n")
    assert 'data-clipboard-text="a --x &#x27;&lt;b&gt;&#x27;&#10;b"' in block
    assert "\n" not in block and "<b>a --x &#x27;&lt;b&gt;&#x27;</b>" in block


def test_inline_code_is_broken_between_words_only() -> None:
    page = "<p><code>run 4 --batch-size 8</code></p><pre><code>a b</code></pre>"
    assert docs_site.on_page_content(page) == (
        "<p><code><span>run</span> <span>4</span> <span>--batch-size</span> <span>8</span></code></p>"
        "<pre><code>a b</code></pre>"
    )


def test_flags_in_the_documents_exist() -> None:
    for name, document in DOCUMENTS.items():
        lines = re.findall(r"`(ddplaunch [^`]+)`", document) + re.findall(r"^\$? ?(ddplaunch [^\n]+)", document, re.M)
        for line in lines:
            for word in line.split(" -- ")[0].split():
                flag = word.partition("=")[0]
                assert not flag.startswith("--") or flag in {*OUR_FLAGS, "--", "--help", "--install-completion"}, (
                    f"{name}: {line}"
                )


def test_what_differs_between_two_failures_alike_does_not_count() -> None:
    block = Block(
        "both",
        f"""$ ddplaunch run 2 -- a.py
[rank0]: Traceback (most recent call last):
...
ddplaunch: failed (exit status 1) after 4.8 s
error[script-exception]: KeyError: 'bird'
  --> rank 1 on node-1, {HOME}/a/rank-1.err:5
""",
    )
    there = (
        block.text.replace("4.8", "1 min 14")
        .replace("err:5", "err:4")
        .replace("[rank0]: Traceback (most recent call last):\n...\n", "")
    )
    assert comparable(block, there) == comparable(block, block.text)
    assert comparable(block, there.replace("status 1", "status 134")) != comparable(block, block.text)
    assert comparable(block, there.replace("rank 1 on", "rank 0 on")) != comparable(block, block.text)
    lost = (
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File\nFatal Python error: Aborted\nddplaunch: failed\n"
    )
    assert shown(lost) == "[rank0]: Traceback (most recent call last):\n...\nddplaunch: failed\n"
    assert shown("at /tmp/x/hangs.py:9 on " + socket.gethostname(), "/tmp/x") == f"at {HOME}/hangs.py:9 on node-1"


def test_of_a_table_words_ranks_and_lines_of_code_count() -> None:
    block = Block(
        "table", "$ t\nRUN  STATE    AGE  SCRIPT\njog  running  47 s  jog.py\n  rank 1  hangs.py:9  0 % CPU\n"
    )
    there = block.text.replace("AGE  ", "AGE    BATCH  HOSTS   ").replace(
        "47 s  ", f"2 min 5 s     {socket.gethostname()}  "
    )
    there = there.replace("0 %", "1 %")
    assert comparable(block, there) == comparable(block, block.text)
    for word, other in (("running", "failed"), ("rank 1", "rank 0"), ("py:9", "py:10")):
        assert comparable(block, there.replace(word, other)) != comparable(block, block.text)


def test_codes_in_the_documents_exist() -> None:
    for name, document in DOCUMENTS.items():
        for code in re.findall(r"\bcheck `([a-z0-9-]+)`", document):
            assert code in {check.code for check in (*ALL, *across(), *MEASURED)}, f"{name}: {code}"


def test_placeholders_are_those_of_the_program() -> None:
    (line,) = re.findall(r"^Placeholders: (.*)$", DOCUMENTS["docs/your-script.md"], re.M)
    assert re.findall(r"`\{(\w+)\}`", line) == list(NAMES)


def test_fields_of_current_are_those_of_the_program() -> None:
    (line,) = re.findall(r"^Fields of `ddplaunch.current\(\)`: (.*)$", DOCUMENTS["docs/your-script.md"], re.M)
    assert re.findall(r"`(\w+)`", line) == [field.name for field in fields(Current)]


def test_exit_statuses_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| (\d+) \|", DOCUMENTS["docs/exit-statuses.md"], re.M)
    assert [int(row) for row in rows] == sorted(ExitStatus)


def test_links_and_files_exist() -> None:
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


def test_families_are_named_with_their_files() -> None:
    named: set[tuple[str, str]] = set()
    for files, about in re.findall(r"^\| (`checks/\w+\.py`.*?) \| (.*?) \|$", DOCUMENTS["CONTRIBUTING.md"], re.M):
        known = re.findall(r"`(\w+)`", about.partition(":")[0])
        named |= {(file, family) for file in re.findall(r"checks/(\w+)\.py", files) for family in known}
    checks = (*ALL, *across())
    assert named == {(check.function.__module__.rpartition(".")[2], check.family) for check in checks}
    assert all((ROOT / "tests" / "checks" / f"test_{file}.py").exists() for file, _ in named)


def python_blocks(heading: str = "## Add a check in ten lines") -> list[str]:
    section = DOCUMENTS["CONTRIBUTING.md"].partition(heading)[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def example() -> dict[str, Any]:
    """Execute the code of "Add a check in ten lines" as one module, and return its names."""
    namespace: dict[str, Any] = {"__name__": "example"}
    for code in python_blocks():
        exec(compile(code, "CONTRIBUTING.md", "exec"), namespace)
    return namespace


def test_the_example_of_a_check_has_ten_lines() -> None:
    (start,) = re.findall(r"^def output_in_memory.*?\n\n\n", python_blocks()[0], re.M | re.S)
    assert len(start.strip().splitlines()) <= 10


@pytest.mark.parametrize(("filesystem", "fires"), [("tmpfs", True), ("ext4", False), ("nfs4", False), (None, False)])
def test_the_example_of_a_check_works(filesystem: str | None, fires: bool) -> None:
    (check,) = example()["CHECKS"]
    (healthy,) = healthy_facts().output_paths
    facts = healthy_facts(output_paths=(replace(healthy, filesystem=filesystem),))
    outcome = run_check(check, available(facts, healthy_launch(), healthy_script()))
    assert outcome.status == ("found" if fires else "passed"), outcome.reason
    assert check.family in {each.family for each in ALL} and check.title and check.explanation
    assert [finding.code for finding in outcome.findings] == ([check.code] if fires else [])


def test_the_example_of_its_test_passes() -> None:
    tests = {name: test for name, test in example().items() if name.startswith("test_") and inspect.isfunction(test)}
    assert tests
    for test in tests.values():
        test()


def test_the_example_of_a_signature_keeps_the_rules(tmp_path: Path) -> None:
    (rule,) = re.findall(r"^```toml\n(\[\[too.*?)^```", DOCUMENTS["CONTRIBUTING.md"], re.M | re.S)
    file = tmp_path / "system.toml"
    file.write_text('[too-many-open-files]\ntier = "cause"\n' + rule)
    (signature,) = map(signature_of, rules_of(file))
    assert signature.code in {each.code for each in all_signatures()}
    assert matched(signature, signature.example)
    assert idle(signature, [signature.example]) == unfilled(signature, [signature.example]) == []


def test_the_tiers_of_signatures_are_those_of_the_program() -> None:
    section = DOCUMENTS["CONTRIBUTING.md"].partition("## Add a signature without Python")[2].partition("\n## ")[0]
    names = re.findall(r"^- `([a-z]+)` ", section, re.M)
    assert names == [tier.name.lower() for tier in Tier if tier != Tier.SURVIVED]
