"""What a diagnosis says beside its code: the place of a crash, fixes of one mechanism; nothing for healthy logs."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from ddplaunch.explain.decide.fate import RULES
from ddplaunch.explain.diagnosis import Evidence, Explanation, LogSource
from ddplaunch.explain.explain_logs import explain_texts
from ddplaunch.explain.signatures import Signature, Tier
from ddplaunch.ui.explain_view import code_text, explanation_text
from ddplaunch.ui.terminal import Terminal
from tests.cli.cli_calls import Call
from tests.explain.logs import diagnosed, ended, explained, failed, raised, recorded, told

DUMP = """pure virtual method called
terminate called without an active exception
Fatal Python error: Aborted

Thread 0x00007f1b (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f3a (most recent call first):
  File "/opt/env/lib/python3.11/site-packages/lmdb/tool.py", line 9 in get
  File "/srv/reader.py", line 44 in fetch
  File "/srv/train.py", line 21 in <module>
"""


def test_a_crash_names_the_first_of_the_users_calls_wherever_the_stack_stands() -> None:
    found = recorded((DUMP, ended(1, "SIGABRT")), ("", told(0)))
    assert found.code == "aborted" and found.what.endswith(", at reader.py:44 in fetch")
    assert [each.place for each in found.calls] == ["train.py:21", "reader.py:44 in fetch"]
    assert (found.calls[-1].folded, found.calls[-1].library) == (1, "lmdb")
    none = recorded((DUMP.partition("Fatal")[0], ended(1, "SIGABRT")), ("", told(0)))
    assert none.calls == () and "reader.py" not in none.what


def test_a_code_is_described_mechanism_by_mechanism(call: Call) -> None:
    def one(why: str, fix: str, tier: Tier = Tier.CAUSE) -> Signature:
        return Signature("c", tier, "what", example=f"as {why}", why=why, fixes=(fix,))

    shown = (*(one(why, "do `ls {path}`") for why in "ab"), one("c of {name}", "else"), one("never", "", Tier.ECHO))
    assert code_text("c", shown, Terminal(80)).splitlines()[1:] == [
        *("  shows as: as a", "  why: a", "  fix: do `ls PATH`", ""),
        *("  shows as: as b", "  why: b", "  fix: do `ls PATH`", ""),
        *("  shows as: as c of {name}", "  why: c of NAME", "  fix: else"),
    ]
    for internal in ("peer-lost", "launcher-summary", "teardown-noise"):
        unknown = call("explain", internal)
        assert unknown.status == 2 and "is not a code" in unknown.err


def test_a_log_that_is_still_written_has_no_end_to_explain(folder: Path, call: Call) -> None:
    with open("train.log", "w") as file:
        file.write("epoch 1/90 step 100/5004 loss 6.9\n")
        file.flush()
        said = call("explain", "train.log")
        assert (said.status, said.out) == (0, "nothing failed in train.log so far: it is still running\n")
        file.write(raised(0, "KeyError: 'label'"))
        file.flush()
        assert "script-exception" in call("explain", "train.log").out, "a failure is one, whoever still holds the log"
    Path("train.log").write_text("epoch 1/90 step 100/5004 loss 6.9\n")
    with open("train.log"):  # whoever reads it does not count
        assert "error[unknown]" in call("explain", "train.log").out


def test_boxes_are_left_out() -> None:
    boxed = "╭─ Error ───────╮\n│ No such option: --lrr (Possible options: --lr)     │\n╰───────╯\n"
    found = recorded((f"Usage: train.py [OPTIONS]\n{boxed}", ended(0, 2)))
    assert found.what.endswith("No such option: --lrr (Possible options: --lr)")


def test_only_the_files_of_a_record_are_shown_below_its_directory() -> None:
    evidence = (Evidence("/home/kim/train.py", 3, "step()"), Evidence("node-0/rank-0.err", 4, "KeyError: 1"))
    found = Explanation(replace(diagnosed(raised(0, "KeyError: 1")), evidence=evidence))
    shown = explanation_text(found, "a run", Terminal(80), "runs/7")
    assert "evidence: /home/kim/train.py:3: step()" in shown and "runs/7/node-0/rank-0.err:4: KeyError" in shown


def test_why_shows_what_each_stage_decided_and_the_answer_stays() -> None:
    log = "step 1 loss 2\nUserWarning: low memory, retrying\n" + raised(1, "KeyError: 'labels'") + failed(1, 1, 10)
    stages: list[str] = []
    explanation = explain_texts([LogSource("train.log", io.BytesIO(log.encode()))], None, stages)
    assert explanation == explained(log)
    nothing: list[str] = []
    explain_texts([LogSource("train.log", io.BytesIO(b""))], None, nothing)
    assert nothing[0].startswith("read: 0 lines") and nothing[1].endswith("begins at line 0")
    assert [line.split(":")[0] for line in stages if line[0] != " "] == ["read", "episodes", "fate", "choose"]
    assert "  train.log:6 script-exception of rank 1: fatal, tier general" in stages
    assert stages[-1] == "choose: script-exception, by train.log:6 script-exception of rank 1"


def test_each_rule_has_a_reason_in_a_sentence() -> None:
    assert all(rule.__doc__ and rule.__doc__.split("\n")[0].endswith(".") for _, rule in RULES)
    assert len({rule.__name__ for _, rule in RULES}) == len(RULES)
