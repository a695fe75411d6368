"""No secret of a launch is in anything that is shown or written of it, and what is shown can still be pasted."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ddplaunch.planning.launch import Launch, Target, Variable
from ddplaunch.ui import launch_view, plan_view, shell
from ddplaunch.ui.shell import shell_words
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import warning
from ddplaunch.values.resolved import Source
from tests.cli.cli_calls import Call
from tests.planning.sample_launch import facts, launch

SECRET = "s3cretive"
TYPED = (
    f"postgres://ada:{SECRET}@db/runs",
    "--lr=1e-3",
    "--hf-token",
    f"-{SECRET}",
    f"--notify=https://hooks.slack.com/services/T000/B000/{SECRET}",
    f"host=db password={SECRET} dbname=runs",
    json.dumps({"password": SECRET, "lr": 1}),
    f"it's 'quoted' --token {SECRET}",
    *("", "--epochs", "3"),
)


def sample() -> Launch:
    variables = (
        Variable("DB_PW", SECRET, Source("flag", "--env"), "from the user"),
        Variable("TRACKER", f"mongodb://ada:{SECRET}@h/x", Source("flag", "--env"), "from the user"),
    )
    one = launch()
    noted = (*one.notes, f"the same as `train.py --password {SECRET}`")
    target = Target("script", "train.py", TYPED)
    return replace(one, target=target, argv=(*one.argv, *TYPED), environment=variables, notes=noted)


FINDING = warning("gpu-busy", f"GPU 0 is held by `x.py --api-key {SECRET}`", why=f"password={SECRET}", fix="f")
GIVEN: dict[str, Any] = {"terminal": Terminal(80), "findings": (FINDING,), "facts": facts()}
GIVEN |= {"record": "x", "verbose": True}
SHOWS_A_LAUNCH = [
    (module, name)
    for module in (launch_view, plan_view, shell)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and next(iter(inspect.signature(function).parameters), "") == "launch"
]


@pytest.mark.parametrize(("module", "name"), SHOWS_A_LAUNCH, ids=lambda each: getattr(each, "__name__", each))
def test_nothing_that_shows_a_launch_shows_its_secrets(module: Any, name: str) -> None:
    function = getattr(module, name)
    if name in ("launch_panel", "plan_text"):  # who typed has to paste what findings say; records hide it
        function = partial(function, findings=())
    given = {key: GIVEN[key] for key in inspect.signature(getattr(module, name)).parameters if key in GIVEN}
    given.update(getattr(function, "keywords", {}))
    shown = function(sample(), **given)
    assert SECRET not in str(shown)
    assert {"plan_json", "plan_text", "dry_run_text"} <= {name for _, name in SHOWS_A_LAUNCH}


def test_what_is_shown_can_be_pasted() -> None:
    """bash gets the same words back as soon as the variables are set, and stops where they are not."""
    words, variables = shell_words(TYPED, {"HF_TOKEN": "another"})
    assert list(variables) == ["SECRET", "HF_TOKEN_2", "SECRET_2", "PASSWORD"]
    assert (variables["SECRET"], variables["HF_TOKEN_2"]) == (SECRET, f"-{SECRET}")
    show = [shlex.quote(sys.executable), "-c", shlex.quote("import json, sys; print(json.dumps(sys.argv[1:]))")]
    line = " ".join([*show, *words])
    assert SECRET not in line
    done = subprocess.run(["bash", "-c", line], env={**os.environ, **variables}, capture_output=True, check=True)
    assert json.loads(done.stdout) == list(TYPED)
    unset = subprocess.run(["bash", "-c", line], env={"PATH": "/bin"}, capture_output=True, text=True, check=False)
    assert unset.returncode != 0 and unset.stdout == ""


LAUNCH = ("2", "--device", "cpu")
KUBERNETES = ("--to", "kubernetes", "--image", "i:1", "--dry-run")


@pytest.mark.parametrize(
    ("words", "script", "is_shown"),
    [
        (("run", *LAUNCH, "--dry-run"), TYPED, True),
        (("plan", *LAUNCH, "--json"), TYPED, True),
        (("submit", *LAUNCH, "--dry-run"), TYPED, True),
        (("submit", *LAUNCH, *KUBERNETES), ("--hf-token", SECRET), False),
        (("submit", *LAUNCH, "--dry-run", "--setup", f"export HF_TOKEN={SECRET}"), (), False),
        (("submit", *LAUNCH, "--dry-run", "--sbatch-arg", f"--export=DB_PW={SECRET}"), (), False),
    ],
)
def test_no_command_shows_it_and_where_no_variable_can_stand_the_job_is_refused(
    words: tuple[str, ...], script: tuple[str, ...], is_shown: bool, call: Call
) -> None:
    said = call(*words, "--", "train.py", *script)
    assert SECRET not in said.out + said.err
    assert "--epochs" in said.out if is_shown else "error[secret-in-job]" in said.err
