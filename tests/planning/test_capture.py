"""Whether a launch gets the plug-in, decided from options and facts, and whether torchrun would find it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch import __version__
from ddplaunch.machine.software import probe_plugin
from ddplaunch.planning.launch import Launch
from ddplaunch.planning.options import Options
from ddplaunch.planning.resolve import plugin_settings
from ddplaunch.planning.settings import Settings
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from ddplaunch.values.variable_names import SETTINGS
from tests.checks.healthy import healthy_facts, healthy_torch
from tests.planning.test_resolve import decide
from tests.planning.test_topology import said

DECIDE = ("--tee", "--redirects", "--log-dir", "--local-ranks-filter", "--run-path")
FILTERS = ("--duplicate-stdout-filters", "--duplicate-stderr-filters")
FLAGS = frozenset({"--logs-specs", "--shutdown-timeout", *DECIDE, *FILTERS})
TORCH = replace(healthy_torch(), torchrun_flags=FLAGS)
FOUND = "/site-packages/ddplaunch-1.dist-info/entry_points.txt"


def captured(torchrun: str = "", **options: Any) -> Launch:
    words = (Resolved(torchrun, Source("flag", "--torchrun-arg")),) if torchrun else ()
    return decide(
        replace(said(nproc="2", placement="none", **options), torchrun_arg=words),
        healthy_facts(torch=TORCH),
        plugin=FOUND,
        cwd="/runs",
    )


def settings(launch: Launch) -> dict[str, object]:
    (text,) = [each.value for each in launch.environment if each.name == SETTINGS and each.value]
    value: dict[str, object] = json.loads(text)
    return value


def test_plugin_gets_its_settings() -> None:
    launch = captured()
    assert "--logs-specs=ddplaunch" in launch.argv[: launch.argv.index("--")]
    known = {"node": 0, "show": "0", "verbose": False, "grace_s": 30.0, "max_restarts": 0}
    assert settings(launch) == known | {"run_id": "run-1", "directory": "run-1"}, "below the working directory"
    assert launch.notes == ()
    of_ranks = settings(captured(ignore=["numbers-differ", "shm-too-small"]))["ignore"]
    assert of_ranks == ["numbers-differ"], "the other one is a check's"
    more = settings(captured(show="1, 0", verbose=True, grace=90.0, max_restarts=2))
    assert (more["show"], more["verbose"], more["grace_s"], more["max_restarts"]) == ("0,1", True, 90.0, 2)
    assert settings(captured(show="all"))["show"] == "all"
    assert settings(captured(nnodes="2", node_rank=1, master_addr="10.0.0.1"))["node"] == 1
    # every option that the plug-in has too reaches it
    of_their_own = {"run_id", "start", "preload", "show", "ignore", "observe"}  # decided, or in another form
    shared = {field.name for field in fields(Options)} & {*Settings._fields} - of_their_own
    options = Options(**{name: Resolved(name, Source("flag")) for name in shared})  # type: ignore[arg-type]
    found = plugin_settings(options, Settings())._asdict()
    assert len(shared) == 13 and {name: found[name] for name in shared} == {name: name for name in shared}
    for proves in (False, True):
        unobserved = Options(observe=Resolved(False, Source("flag")), prove=Resolved(proves, Source("flag")))
        assert plugin_settings(unobserved, Settings()).observe is proves, "the observer begins what proves"


def test_grace_is_torchruns_own_option_where_it_has_one() -> None:
    assert "--shutdown-timeout=90" in captured(grace=90.0).argv
    old = replace(TORCH, torchrun_flags=FLAGS - {"--shutdown-timeout"})
    launch = decide(said(grace=90.0), healthy_facts(torch=old), plugin=FOUND)
    assert not [word for word in launch.argv if word.startswith("--shutdown-timeout")]
    assert "`--grace` has no effect" in launch.notes[0]
    with pytest.raises(UsageError, match="--grace"):
        captured(grace=9.0, torchrun="--shutdown-timeout=5")


@pytest.mark.parametrize(
    "words",
    ["--tee 3", "-r 3", "-r3", "-t3", "--log_dir=x", "--logs-specs=x", *(f"{each}=x" for each in (*DECIDE, *FILTERS))],
)
def test_user_who_decides_where_output_goes_is_left_alone(words: str) -> None:
    launch = captured(torchrun=words)
    assert "--logs-specs=ddplaunch" not in launch.argv
    assert SETTINGS not in {each.name for each in launch.environment}
    assert launch.notes and launch.notes[0].startswith("no capture: `--")


def test_reasons_against_the_plugin() -> None:
    assert "--logs-specs=ddplaunch" not in captured(capture=False).argv
    assert captured(capture=False, show="all").notes[0].startswith("no capture: `--no-capture`; nothing is recorded")
    missing = decide(said(), healthy_facts(torch=TORCH), plugin=Unavailable("not installed here"))
    assert missing.notes[0].startswith("no capture: not installed here; ")
    unknown = decide(said(grace=9.0), healthy_facts(torch=Unavailable("not found")), plugin=FOUND)
    assert {"--logs-specs=ddplaunch", "--shutdown-timeout=9"} <= {*unknown.argv}
    old = replace(TORCH, torchrun_flags=frozenset({"--tee"}))
    assert "torch 2.3" in decide(said(), healthy_facts(torch=old), plugin=FOUND).notes[0]
    launch = decide(said(capture=False), healthy_facts(torch=TORCH), plugin=FOUND, environ={SETTINGS: "{}"})
    assert [each.value for each in launch.environment if each.name == SETTINGS] == [None], "of an outer launch"


def test_ranks_to_show() -> None:
    shown = {text: said(show=text).show for text in ("all", "0", " 3,0,3 ", "07")}
    assert [show and show.value for show in shown.values()] == ["all", (0,), (0, 3), (7,)]
    for text in ("", "-1", "0;3", "none", "0,,3", "²", "1.0", "0-3"):
        with pytest.raises(UsageError, match="is not a rank"):
            said(show=text)


def declare(folder: Path, name: str, text: str) -> str:
    (folder / name).mkdir(parents=True)
    (folder / name / "entry_points.txt").write_text(text)
    return str(folder / name / "entry_points.txt")


GROUP = "[console_scripts]\nddplaunch = a:b\n\n[torchrun.logs_specs]\nddplaunch = a:c\n"


def test_entry_point_is_found_wherever_it_is_installed(tmp_path: Path) -> None:
    own = declare(tmp_path / "a", f"ddplaunch-{__version__}.dist-info", GROUP)
    other = declare(tmp_path / "b", "ddplaunch-0.0.1.dist-info", GROUP)
    assert probe_plugin(["", str(tmp_path / "none"), str(tmp_path / "a")]) == own
    assert probe_plugin([str(tmp_path / "b")]) == other
    declare(
        tmp_path / "c", "ddplaunch-0.0.1.dist-info", "[console_scripts]\nddplaunch = a:b\n[other]\nddplaunch = a:c\n"
    )
    for folder in ("none", "c"):  # where torchrun would not find it either
        missing = probe_plugin([str(tmp_path / folder)])
        assert isinstance(missing, Unavailable) and "not installed" in missing.reason


# Settings as text: what is written, what other versions wrote, and what no launch writes


@pytest.mark.parametrize(
    "written",
    [
        Settings("r", "d", "warm", ("a", "b.c"), 3, "0,2", verbose=True, grace_s=90.0, max_restarts=2),
        Settings("r", timeout_s=7200.0, hang_timeout_s=600.0, on_hang="stop", stacks=False, silent=True, grace_s=0),
        Settings("r", cpus=("0-15,64-79", "16-31"), observe=False, ignore=("numbers-differ", "data-not-divided")),
    ],
)
def test_settings_are_read_as_they_were_written(written: Settings) -> None:
    assert Settings.from_json(written.to_json()) == written


def test_other_versions_may_say_less_or_more() -> None:
    assert Settings.from_json("{}") == Settings()
    assert Settings.from_json('{"run_id":"first","of_a_later_version":[1]}') == Settings("first")


WRONG = [
    *('"node": -1', '"node": true', '"node": 1e3', '"max_restarts": 9999999999', '"grace_s": "30"'),
    *('"timeout_s": Infinity', '"hang_timeout_s": -1', '"directory": null', '"show": 0', '"verbose": 1'),
    *('"start": "hot"', '"on_hang": []', '"preload": "torch"', '"preload": [1]', '"ignore": "numbers-differ"'),
    *('"memory_bytes": true', '"memory_bytes": -1', '"memory_bytes": 9223372036854775808'),
    *('"cpus": "0-3"', '"cpus": [[0, 1]]'),
]


@pytest.mark.parametrize("text", ["no json", "[]", *(f"{{{value}}}" for value in WRONG)])
def test_what_no_launch_writes_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        Settings.from_json(text)


@pytest.mark.parametrize(
    ("show", "rank", "expected"),
    [
        ("3", 3, (True, True)),
        ("all", 0, (True, False)),
        ("0, 3", 3, (True, False)),
        ("0,3", 1, (False, False)),
        ("1", 11, (False, False)),
    ],
)
def test_which_ranks_are_shown(show: str, rank: int, expected: tuple[bool, bool]) -> None:
    shown = Settings(show=show)
    assert (shown.shows(rank), shown.shows_alone(rank)) == expected
