import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.launchers import ACCELERATE, COLD, DEEPSPEED, TORCHRUN, WARM, launchers
from benchmarks.launches import FIGURES
from benchmarks.plot import draw
from benchmarks.projects import PROJECTS, WAYS, table
from benchmarks.rounds import FLOOR, Launches, judge_launches, launches_text
from tests.hosts.launching import clean_environment

ROOT = Path(__file__).parents[1]
PEER_WORDS = {ACCELERATE: "accelerate", DEEPSPEED: "deepspeed"}


def launches(warm_ready_s: float, warm_end_s: float) -> Launches:
    """Two rounds; the second on a machine that is twice as slow for all."""

    def by_name(ranks: int) -> dict[str, dict[str, list[float]]]:
        torchrun = dict.fromkeys(FIGURES, 2.0 + ranks)
        warm = {**dict.fromkeys(FIGURES, 0.5), "ready": warm_ready_s + 0.01 * ranks, "end": warm_end_s}
        return {
            name: {figure: [value, 2 * value] for figure, value in figures.items()}
            for name, figures in ((TORCHRUN, torchrun), (COLD, torchrun), (WARM, warm))
        }

    return Launches(
        {2: by_name(2), 8: by_name(8)}, {DEEPSPEED: "not installed"}, [1.0, 2.0], {2: {"import torch": 0.9}}
    )


def kept(found: Launches) -> dict[str, bool]:
    return {target.name: target.kept for target in judge_launches(found)}


def test_ratios_are_those_of_one_round() -> None:
    found = launches(1.0, 0.1)
    assert found.ratio(2, "ready", WARM) == pytest.approx(1.02 / 4)
    assert found.further_rank_s(WARM) == pytest.approx(0.015)


def test_targets_are_kept_or_missed() -> None:
    assert not kept(launches(1.0, 0.1))[f"`{COLD}`, end of the job / torchrun"]
    good, bad = kept(launches(1.0, 0.1)), kept(launches(3.9, 6.0))
    for name in (
        "warm, 2 ranks, ready / torchrun",
        "warm, 8 ranks, ready / torchrun",
        f"`{WARM}`, end of the job / torchrun",
    ):
        assert good[name] and not bad[name]


def test_report_says_what_is_missing_and_where_the_time_goes() -> None:
    text = "\n".join(launches_text(launches(1.0, 0.1)))
    assert f"| `{DEEPSPEED}` | not installed |" in text and FLOOR in text and "| import torch | 900 ms |" in text
    assert "| `torchrun` | 6.00 s | 6.00 s |" in text and f"| `{WARM}` | 1.53 s (0.26) |" in text


def test_picture_has_a_bar_for_each_launcher_that_was_measured() -> None:
    found = launches(1.0, 0.1)
    machine = {"processor": "a & b, 2 usable CPUs", "torch": "2", "Python": "3"}
    picture = ElementTree.fromstring(draw({"machine": machine, "launches": found.taken}))
    titles = [each.text or "" for each in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 2 * 2 * 3 and f"{WARM}, 8 ranks: 1.6" in titles
    assert not any(DEEPSPEED in title for title in titles)


def test_command_lines(tmp_path: Path) -> None:
    ways = {way.name: way for way in launchers(tmp_path)}
    assert {name: way.missing is None for name, way in ways.items()} == {
        TORCHRUN: True,
        ACCELERATE: False,
        DEEPSPEED: False,
        COLD: True,
        WARM: True,
    }
    assert ways[WARM].argv(4, ("--trace", "t"))[1:] == ["run", "4", "--start", "warm", "--trace", "t", "--"]
    for name, program in PEER_WORDS.items():
        (tmp_path / program).touch()
        here = {way.name: way for way in launchers(tmp_path)}[name]
        assert here.missing is None and "3" in here.argv(3) and not any("{" in word for word in here.argv(3))


IN_A_PROCESS_OF_ITS_OWN = """
import json, os
from benchmarks.launchers import launchers
from benchmarks.launches import measure
warm = launchers(None)[-1]
print(json.dumps(measure(warm, 2, os.environ)))
measure(warm, 1, os.environ, ("--no-such",))
"""


@pytest.mark.slow
def test_a_launch_is_measured_and_one_that_fails_is_not() -> None:
    command = [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN]  # it becomes the parent of all orphans
    done = subprocess.run(
        command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=240, check=False
    )
    figures = json.loads(done.stdout)
    assert set(figures) == set(FIGURES) and all(figure > 0 for figure in figures.values())
    assert figures["first line"] <= figures["torch"] <= figures["ready"] < figures["wall"]
    assert figures["ready"] + figures["end"] < figures["wall"]
    assert done.returncode == 1 and "0 of 1 ranks met" in done.stderr and "--no-such" in done.stderr


def test_projects_that_are_not_there_are_told_and_those_that_end_otherwise_shown() -> None:
    ends = {"minGPT": {"torchrun": [("status 0", 4.6)], "cold": [("status 0", 4.4), ("status 1, left 1 processes", 3)]}}
    text = table({**ends, "timm": {}}, "about").splitlines()
    assert text[-2:] == [
        "| minGPT | status 0, 5 s | status 0; status 1, left 1 processes, 3 s | not there |",
        "| timm | not there | not there | not there |",
    ]
    assert [len(line.split("|")) for line in text[-4:]] == [len(WAYS) + 3] * 4
    for project in PROJECTS.values():
        compile(project.prepare, project.folder, "exec")
