"""The last step of a launch: torchrun's environment, what is too long for the kernel, and what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddplaunch.cli.execute import environment_of, refuse_too_long, show_launch
from ddplaunch.planning.launch import Variable
from ddplaunch.planning.options import Options
from ddplaunch.values.finding import RefusedError
from ddplaunch.values.resolved import DEFAULT, Resolved, Source
from tests.planning.sample_launch import FILES, facts, launch

LONGEST = 32 * 4096  # MAX_ARG_STRLEN with 4 KiB pages, the null byte included


def test_variables_are_set_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GONE", "KEPT", "SET"):
        monkeypatch.setenv(name, "before")
    ours = (Variable("GONE", None, DEFAULT, ""), Variable("SET", "now", DEFAULT, ""))
    environment = environment_of(launch(environment=ours))
    assert "GONE" not in environment and (environment["KEPT"], environment["SET"]) == ("before", "now")


@pytest.mark.parametrize(
    ("argv", "environment", "named"),
    [
        (["x" * (LONGEST - 1)], {"A": "x" * (LONGEST - 3)}, ""),
        (["short", "x" * LONGEST], {}, "the argument `xxxxxxxxxxxxxxxxxxxx…` has 131072 bytes"),
        ([], {"A": "é" * (LONGEST // 2 - 1)}, "the variable `A` has 131072 bytes"),
    ],
)
def test_what_the_kernel_takes(argv: list[str], environment: dict[str, str], named: str) -> None:
    if not named:
        refuse_too_long(argv, environment)
        return
    with pytest.raises(RefusedError) as refused:
        refuse_too_long(argv, environment)
    assert refused.value.findings[0].what.startswith(named)


@pytest.mark.parametrize(
    ("quiet", "silent", "panel", "finding"),
    [(False, False, True, True), (True, False, False, True), (False, True, False, False), (True, True, False, False)],
)
def test_what_is_shown(
    capsys: pytest.CaptureFixture[str], quiet: bool, silent: bool, panel: bool, finding: bool
) -> None:
    options = Options(quiet=Resolved(quiet, Source("flag")))
    lock: Any = type("Lock", (), {"told": staticmethod(str)})
    show_launch(launch(options=options), (FILES,), facts(), lock, Path("/runs/r"), silent=silent)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert ("  run " in shown.err, "warning[open-files-low]" in shown.err) == (panel, finding)
