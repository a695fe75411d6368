import json
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.explain import fault_cases, read_answers, scored
from benchmarks.fault_sets import LAUNCHES, faults_of, logs
from benchmarks.fault_sets.__main__ import answer, sums_of
from benchmarks.launchers import COLD, DEEPSPEED, TORCHRUN, WARM, install_peers, launchers
from benchmarks.launches import FIGURES
from benchmarks.rounds import Launches, judge_launches, launches_text
from ddplaunch import __version__
from ddplaunch.explain.signatures import Tier, all_signatures
from ddplaunch.machine.software import probe_plugin
from tests.hosts.launching import clean_environment, run_and_read

ROOT = Path(__file__).parents[1]


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
    done = run_and_read(command, ROOT, clean_environment())
    figures = json.loads(done.stdout)
    assert set(figures) == set(FIGURES) and all(figure > 0 for figure in figures.values())
    assert figures["first line"] <= figures["torch"] <= figures["ready"] < figures["wall"]
    assert figures["ready"] + figures["end"] < figures["wall"]
    assert done.returncode == 1 and "0 of 1 ranks met" in done.stderr and "--no-such" in done.stderr


def test_torchrun_finds_the_plug_in_of_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    found = probe_plugin([gpu.install(tmp_path / "site")])
    assert isinstance(found, str)
    (declared,) = (each for each in distributions(path=[str(tmp_path / "site")]) if each.version == __version__)
    (entry,) = declared.entry_points
    assert (entry.name, entry.group) == ("ddplaunch", "torchrun.logs_specs")
    assert entry.value == "ddplaunch.agent.logs_specs:CapturedLogs"


def test_the_sets_cover_every_cause_by_few_logs() -> None:
    names = [fault.name for fault in (*logs(), *faults_of(LAUNCHES))]
    assert len(names) == len(set(names)) and sum(1 for _ in logs()) <= 1000
    causes = {signature.code for signature in all_signatures() if signature.tier not in (Tier.HINT, Tier.ECHO)}
    unseen = causes - {code for fault in logs() for code in fault.codes}
    assert not unseen, f"no log of {unseen}: benchmarks/fault_sets/README.md says how to add some"
    assert {fault.timeout_s for fault in faults_of(LAUNCHES)} > {60} and any(
        "config.json" in fault.files for fault in faults_of(LAUNCHES)
    )


def test_a_log_is_scored_by_what_explain_says_of_it() -> None:
    right = next(fault for fault in logs() if fault.codes == ("cuda-out-of-memory",))
    assert sums_of([answer(right)]) == [1, 1, 0, 0, 0, 0, 1, 1, 1, 1]
    wrong = answer(replace(right, codes=("port-taken",), helps=("no such word",)))
    assert sums_of([wrong])[:4] == [1, 0, 0, 1] and not wrong.helps


def test_the_figures_that_are_printed_follow_from_what_was_taken(tmp_path: Path) -> None:
    """Two rounds; the second on a machine that is twice as slow for all."""

    def of(ready_s: float) -> dict[str, list[float]]:
        return {figure: [4.0, 8.0] for figure in FIGURES} | {"ready": [ready_s, 2 * ready_s]}

    taken = {ranks: {TORCHRUN: of(4.0), COLD: of(4.0), WARM: of(1.0)} for ranks in (2, 8)}
    found = Launches(taken, {DEEPSPEED: "not installed"}, [1.0, 2.0])
    assert found.ratio(2, "ready", WARM) == 0.25
    kept = {target.name: target.kept for target in judge_launches(found)}
    assert kept["warm, 2 ranks, ready / torchrun"] and not kept[f"`{WARM}`, end of the job / torchrun"]
    assert f"| `{DEEPSPEED}` | not installed |" in "\n".join(launches_text(found))
    cases = list(fault_cases())
    failed = sum(None not in case["codes"] for case in cases)
    answers = tmp_path / "answers.jsonl"
    for code, figures in (("", f"| {failed} | {failed} | 0 | 0 |"), ("no-such", f"| {failed} | 0 | {failed} | 0 |")):
        lines = ({"id": case["id"], "code": code or case["codes"][0], "rank": case["rank"]} for case in cases)
        answers.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        assert figures in scored(read_answers(answers)).splitlines()[-1]


@pytest.mark.parametrize("missing", [["accelerate", "deepspeed"], ["accelerate"]])
def test_each_peer_gets_its_program(missing: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a pip for which all packages are satisfied by the environment beside, as accelerate is by that of tests."""
    programs, calls = {name: tmp_path / "bin" / name for name in ("accelerate", "deepspeed")}, []
    (tmp_path / "bin").mkdir()
    for name in programs.keys() - missing:
        programs[name].touch()

    def run(argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append([word for word in argv if word in programs])
        for name in calls[-1] if "--ignore-installed" in argv else ():
            programs[name].touch(exist_ok=False)
        return subprocess.CompletedProcess(argv, 0, str(tmp_path))

    monkeypatch.setattr(subprocess, "run", run)
    assert not any(launcher.missing for launcher in launchers(install_peers(tmp_path)))
    assert calls[-2:] == [missing] * 2
