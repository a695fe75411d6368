import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import gpu, startup
from benchmarks.explain import fault_cases, read_answers, scored
from benchmarks.fault_sets import LAUNCHES, faults_of, logs
from benchmarks.fault_sets.__main__ import answer, sums_of
from benchmarks.launchers import ACCELERATE, COLD, DEEPSPEED, TORCHRUN, WARM, launchers
from benchmarks.launches import FIGURES
from benchmarks.plot import draw
from benchmarks.projects import PROJECTS, WAYS, table
from benchmarks.rounds import FLOOR, Launches, judge_launches, launches_text
from benchmarks.timing import Times, how_installed
from ddplaunch import __version__
from ddplaunch.explain.signatures import Tier, all_signatures
from ddplaunch.machine.software import probe_plugin
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

    return Launches({2: by_name(2), 8: by_name(8)}, {DEEPSPEED: "not installed"}, [1.0, 2.0])


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


def test_report_says_what_is_missing_and_how_near_the_floor_is() -> None:
    text = "\n".join(launches_text(launches(1.0, 0.1)))
    assert f"| `{DEEPSPEED}` | not installed |" in text and FLOOR in text
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
    assert ways[WARM].argv(4, ("--grace", "9"))[1:] == ["run", "4", "--start", "warm", "--grace", "9", "--"]
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


def hangs(at: gpu.Place) -> str:
    at.started.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True))
    try:
        time.sleep(100)
    finally:
        time.sleep(100)  # as it waits for a program that does not listen
    return "woken"


def breaks(_: gpu.Place) -> str:
    raise KeyError("gpus")


def test_no_item_of_the_gpus_keeps_the_others_from_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[int] = []

    def looks(_: gpu.Place) -> str:
        written.append(len(json.loads((tmp_path / "gpu.json").read_text())["items"]))
        return "| seen\n"

    monkeypatch.setattr(gpu, "ITEMS", {"hangs": hangs, "breaks": breaks, "looks": looks, "late": looks})
    monkeypatch.setattr(gpu, "machine", lambda: {"GPUs": ["H100"]})
    monkeypatch.setattr(gpu, "RESULTS", tmp_path / "gpu.md")
    monkeypatch.setattr(gpu, "ITEM_S", 0.5)
    monkeypatch.setattr(gpu, "END_S", 2.0)
    monkeypatch.setattr(sys, "argv", ["gpu", "--json", str(tmp_path / "gpu.json")])
    began_s = time.monotonic()
    assert gpu.main() == 1 and time.monotonic() - began_s < 60
    assert written == [2, 3]  # what was found before is there
    ends = [(each["result"], each["seen"]) for each in json.loads((tmp_path / "gpu.json").read_text())["items"]]
    assert ends[:2] == [("wrong", "not done within 0 s"), ("wrong", "KeyError: 'gpus'")]
    assert "| late | ok | / seen |\n" in (tmp_path / "gpu.md").read_text()
    monkeypatch.setattr(sys, "argv", ["gpu", "--minutes", "0.2", "--only", "late"])
    assert gpu.main() == 0 and "no time left of 0.2 minutes" in capsys.readouterr().out


def test_a_place_ends_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "END_S", 2.0)
    place = gpu.Place(tmp_path / "item", 0)
    assert gpu.attempt(hangs, place, 0.5)[0] == "wrong"
    assert [each.returncode for each in place.started] == [-signal.SIGTERM]


def test_torchrun_finds_the_plug_in_of_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    found = probe_plugin([gpu.install(tmp_path / "site")])
    assert isinstance(found, str)
    (declared,) = (each for each in distributions(path=[str(tmp_path / "site")]) if each.version == __version__)
    (entry,) = declared.entry_points
    assert (entry.name, entry.group) == ("ddplaunch", "torchrun.logs_specs")
    assert entry.value == "ddplaunch.agent.logs_specs:CapturedLogs"


def test_what_is_missing_beside_torch_can_be_brought() -> None:
    text = gpu.how_to_bring(["pynvml", "yaml"])
    assert "pip download --only-binary=:all: --python-version 3." in text
    assert text.count("nvidia-ml-py pyyaml") == 3


def test_two_environments_are_measured_in_the_same_rounds() -> None:
    own, other = startup.launch_commands(), startup.launch_commands(Path("/opt/env/bin"), "installed normally")
    assert [each.argv[0] for each in other] == ["/opt/env/bin/torchrun", "/opt/env/bin/ddplaunch"]
    commands = (*own, *other, *startup.answer_commands())
    times = {each.name: Times((1.0, 1.0)) for each in commands}
    times[startup.named(startup.RUN, "installed normally")] = Times((1.1, 1.2))
    judged = {each.name: each.measured for each in startup.judge(times, "installed normally")}
    assert judged["`run` until the first line / torchrun"] == 1
    assert judged["`run` until the first line / torchrun (installed normally)"] == pytest.approx(1.15)
    assert startup.how_installed_in(Path(sys.executable)) == how_installed()


def test_how_ddplaunch_was_installed_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), str(tmp_path)])
    assert how_installed() == "not installed"
    gpu.install(tmp_path)
    assert how_installed() == "installed normally"


def test_the_sets_cover_every_cause_by_few_logs() -> None:
    names = [fault.name for fault in (*logs(), *faults_of(LAUNCHES))]
    assert len(names) == len(set(names)) and sum(1 for _ in logs()) <= 1000
    causes = {signature.code for signature in all_signatures() if signature.tier not in (Tier.HINT, Tier.ECHO)}
    unseen = causes - {code for fault in logs() for code in fault.codes}
    assert not unseen, f"no log of {unseen}: benchmarks/fault_sets/README.md says how to add some"
    assert {fault.timeout_s for fault in faults_of(LAUNCHES)} > {60} and any(
        "config.json" in fault.files for fault in faults_of(LAUNCHES)
    )


def test_answers_of_any_tool_are_scored(tmp_path: Path) -> None:
    cases = list(fault_cases())
    assert {"id", "log", "codes", "rank"} == cases[0].keys()
    failed = [case for case in cases if None not in case["codes"]]
    right = [{"id": case["id"], "code": case["codes"][0], "rank": case["rank"]} for case in cases]
    coarse = [{"id": case["id"], "code": ["none-of-these", *case["codes"]]} for case in failed[:9]]
    wrong = [{"id": case["id"], "code": "no-such-code"} for case in cases]
    healthy, ranked = len(cases) - len(failed), sum(case["rank"] is not None for case in failed)
    for answers, figures in (
        (right, f"| {len(failed)} | {len(failed)} | 0 | 0 | {ranked} of {ranked} | {healthy} of {healthy} |"),
        (coarse, f"| {len(failed)} | 9 | 0 | {len(failed) - 9} | 0 of {ranked} | {healthy} of {healthy} |"),
        (wrong, f"| {len(failed)} | 0 | {len(failed)} | 0 | 0 of {ranked} | 0 of {healthy} |"),
    ):
        path = tmp_path / "answers.jsonl"
        path.write_text("".join(f"{json.dumps(answer)}\n" for answer in answers))
        assert scored(read_answers(path)).splitlines()[-1] == figures


def test_a_log_is_scored_by_what_explain_says_of_it() -> None:
    right = next(fault for fault in logs() if fault.codes == ("cuda-out-of-memory",))
    assert sums_of([answer(right)]) == [1, 1, 0, 0, 0, 0, 1, 1, 1, 1]
    wrong = answer(replace(right, codes=("port-taken",), helps=("no such word",)))
    assert sums_of([wrong])[:4] == [1, 0, 0, 1] and not wrong.helps
