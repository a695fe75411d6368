"""What Tab offers, asked as the scripts of the shells ask, and typed into real shells."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from ddplaunch.cli.parsing import completion
from ddplaunch.cli.parsing.command import command_named, options_of
from ddplaunch.cli.parsing.completion import _SOURCES as SOURCES
from ddplaunch.cli.parsing.completion import ASKED
from ddplaunch.planning.flag import TYPES
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source
from tests.cli.cli_calls import Call
from tests.conftest import skip
from tests.records.fake_runs import record

PACKAGE = Path(__file__).parents[2]
Offers = Callable[[str], list[str]]


@pytest.fixture
def offered(call: Call, monkeypatch: pytest.MonkeyPatch) -> Offers:
    """``offered(line)`` returns the words that fish is offered at the end of ``line``, in ``folder``."""
    import typer.rich_utils  # noqa: F401 - it keeps the width that it finds at its import, which the answer sets

    def words(line: str) -> list[str]:
        with monkeypatch.context() as asking:
            asking.setenv("TERMINAL_WIDTH", "80")
            for name, value in asked(line).items():
                asking.setenv(name, value)
            said = call()
        assert said.status == 0 and not said.err
        return first_words(said.out)

    return words


def asked(line: str) -> dict[str, str]:
    return {ASKED: "complete_fish", "_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}


def first_words(shown: str) -> list[str]:
    return [row.partition("\t")[0] for row in shown.splitlines() if row]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ddplaunch st", ["stacks", "stop"]),
        ("ddplaunch run --device c", ["cuda", "cpu"]),
        ("ddplaunch run --profile ", ["big", "small"]),
        ("ddplaunch run a", ["auto"]),
        ("ddplaunch run --ignore shm-too", ["shm-too-small"]),
    ],
)
def test_words(offered: Offers, folder: Path, line: str, words: list[str]) -> None:
    (folder / "ddplaunch.toml").write_text("[profiles.big]\nbatch-size = 8\n[profiles.small]\n")
    assert offered(line) == words


def test_runs_are_those_of_the_directory(offered: Offers, folder: Path) -> None:
    own = f"{os.getpid()}-{time.monotonic_ns()}"  # live runs of the whole machine are offered, those of other tests too
    trial = {"schema": 1, "environment": {"DDPLAUNCH_TRIAL": f"fit-{own}/2"}}
    for name, run in ((f"{own}-run", {}), (f"blank {own} run", {}), (f"{own}-trial", trial)):
        (folder / ".ddplaunch" / "runs" / name).mkdir(parents=True)
        (folder / ".ddplaunch" / "runs" / name / "run.json").write_text(json.dumps(run))
    record(folder / ".ddplaunch", f"{own}-whole")
    assert offered(f"ddplaunch logs {own}") == [f"{own}-whole", f"{own}-run"]
    texts = {run.word: run.text for run in SOURCES["runs"]()}
    assert texts[f"{own}-run"].endswith(", script not recorded") and texts[f"{own}-whole"].endswith(", train.py")
    assert offered(f"ddplaunch stop {own}") == []  # it does not run


def test_what_is_broken_offers_nothing(offered: Offers, folder: Path, call: Call) -> None:
    said = call("--install-completion", "tcsh")
    assert said.status == 2 and "completion is there for bash, zsh, fish" in said.err
    (folder / "ddplaunch.toml").write_text("][")
    assert offered("ddplaunch run --profile ") == []


@pytest.mark.parametrize("name", ["run", "submit", "doctor"])
def test_what_is_offered_is_accepted(name: str) -> None:
    own = {option.name for option in command_named(name).options}
    for option in options_of(name):
        where = option.completed
        assert (completion.offered(option) is None) is not bool(where), "the shell completes files"
        if isinstance(where, str):
            assert where in SOURCES
            continue
        for word in where if option.name not in own else ():
            try:
                option.parsed(Resolved(TYPES.get(option.kind, (str,))[0](word), Source("flag")))
            except UsageError as refused:
                raise AssertionError(f"{option.flag} {word} is offered and refused") from refused


def _complete_in_tmux(
    words: list[str], environ: Mapping[str, str], cwd: Path, lines: Mapping[str, str | re.Pattern[str]]
) -> None:
    """Type each of ``lines`` and Tab into an interactive shell: the prompt is then followed by what it maps to, or what
    it maps to is on the screen.
    """
    tmux = ["tmux", "-S", str(cwd / "tmux"), "-f", os.devnull]

    def call_tmux(*words: str) -> str:
        return subprocess.run([*tmux, *words], env=environ, capture_output=True, text=True, check=True).stdout

    def shown(wanted: str | re.Pattern[str]) -> None:
        deadline = time.monotonic() + 60
        while not re.search(wanted, screen := call_tmux("capture-pane", "-p", "-J")):
            assert time.monotonic() < deadline, f"{wanted} is not in\n{screen}"
            time.sleep(0.1)

    call_tmux("new-session", "-d", "-x", "100", "-y", "30", "-c", str(cwd), *words)
    try:
        call_tmux("send-keys", "PS1='READ''Y '; clear", "Enter")
        shown(r"^READY *\n")
        for typed, wanted in lines.items():
            call_tmux("send-keys", "-l", typed)
            shown(f"READY {re.escape(typed)}")
            call_tmux("send-keys", "Tab")
            shown(f"READY {re.escape(wanted)}(?: |\n|$)" if isinstance(wanted, str) else wanted)
            call_tmux("send-keys", "C-u")  # not C-c: while zsh completes, that ends only the completion
            call_tmux("send-keys", "-l", "clear")
            call_tmux("send-keys", "Enter")
            shown(r"^READY *\n")
    finally:
        call_tmux("kill-server")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "order"),
    [("bash", "complete -o nosort -o default"), ("zsh", "sort false"), ("fish", "complete --keep-order --command")],
)
def test_a_real_shell_completes_and_keeps_the_order(folder: Path, shell: str, order: str) -> None:
    home = folder / "home"
    home.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {"HOME": str(home), "PATH": path, "PYTHONPATH": str(PACKAGE), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    said = partial(subprocess.run, env=environ, cwd=folder, capture_output=True, text=True)
    installed = said(["ddplaunch", "--install-completion", shell])
    assert installed.returncode == 0 and str(home) in installed.stdout, installed.stderr
    assert order in Path(installed.stdout.removeprefix("Installed in ").partition(";")[0]).read_text()
    if shutil.which(shell) is None:
        skip(f"{shell} is not installed")
    if shell != "fish" and shutil.which("tmux") is None:
        skip("tmux is not installed: nobody holds the terminal")
    for begun_s, name in enumerate(("c", "a", "b")):
        record(folder / ".ddplaunch", f"own-{name}", begun_s=1e9 + begun_s)
    lines: dict[str, str | re.Pattern[str]] = {
        "ddplaunch expl": "ddplaunch explain",
        "ddplaunch run --gl": "ddplaunch run --global-batch-size",
        "ddplaunch run --device cu": "ddplaunch run --device cuda",
        "ddplaunch run 2 -- tr": "ddplaunch run 2 -- train.py",
    }
    if shell == "zsh":  # bash shows what it has at a second Tab
        lines["ddplaunch report own-"] = re.compile(r"\nown-b .*\nown-a .*\nown-c ")
    if shell != "fish":
        _complete_in_tmux([shell, "-i"], environ, folder, lines)
        return
    lines["ddplaunch run --batch-"] = "--batch-size\n--batch-option"  # a long help is one line
    for typed, wanted in lines.items():  # fish has a command that completes a line
        answer = said(["fish", "-c", f"complete -C '{typed}'"], check=True)
        assert first_words(answer.stdout) == str(wanted).rpartition(" ")[2].splitlines(), typed
