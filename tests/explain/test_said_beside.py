"""What stands beside an exception and belongs to it: notes, the rest of its message, the words of a program."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.explain.diagnosis import LogSource, RunFacts
from ddplaunch.explain.explain_logs import explain_texts
from tests.explain.logs import diagnosed, ended, lost, raised, recorded, told
from tests.golden import sections

SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
NOTED = raised(None, "ValueError: invalid literal for int() with base 10: 'x12'")
NOTE = "while reading shard 7 of train.tsv: column lr\n"
TAR = "tar: /data/train.tar: Cannot open: No such file or directory\ntar: Error is not recoverable: exiting now\n"
STARTED = "subprocess.CalledProcessError: Command '['tar', '-xf', '/data/train.tar']' returned non-zero exit status 2."


def test_the_source_is_shown_around_an_exception_about_which_nothing_better_is_known(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = NOTED.replace("/home/kim/train.py", str(script)).replace("line 31", "line 2")
    lines = [">    2      step()", "     3  end()"]
    for source, around in (
        (f"wandb.login(key='{SECRET}')\n    step()\nend()\n", ["     1  wandb.login(key='***')", *lines]),
        ("first()\n    stop()\n", []),
        ("first()\n", []),
    ):
        script.write_text(source)
        assert list(diagnosed(text).calls[-1].around) == around
    assert diagnosed(raised(None, "KeyError: 'x'")).calls[-1].around == ()
    script.write_text("\n    step()\n")
    full = text.replace(
        text.splitlines()[-1], "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    )
    assert (found := diagnosed(full)).code == "cuda-out-of-memory" and found.calls[-1].around == ()


def test_notes_are_part_of_the_exception_and_what_else_follows_is_not() -> None:
    for below in (NOTE, "INFO trainer: closing the files\n", "Exception ignored in: <function x>\n", "a line\n" * 7):
        found = recorded((NOTED + below, ended(1, 1)), ("", told(0)))
        assert found.exception is not None and found.exception.notes == (NOTE.strip(),) * (below == NOTE)


def test_a_folder_above_a_missing_one_is_what_failed() -> None:
    tried = raised(None, "FileNotFoundError: [Errno 2] No such file or directory: '/out/runs/3'")
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    denied = tried + during + raised(None, "PermissionError: [Errno 13] Permission denied: '/out/runs'")
    found = recorded((denied, ended(1, 1)))
    assert (found.code, found.exception and found.exception.type) == ("permission-denied", "PermissionError")
    assert recorded((denied.replace("denied: '/out/runs'", "denied: '/logs'"), ended(1, 1))).code == "dataset-missing"


def test_words_of_another_rank_are_not_the_programs() -> None:
    text = "loading the data\n" + raised(None, STARTED)
    found = recorded((text, ended(1, 1)), (TAR, told(0)))
    assert "stands" not in found.why and "if any" in found.why


def test_an_exception_of_a_thread_ended_the_thread() -> None:
    thread = "Exception in thread Thread-1 (watch):\n" + raised(None, "KeyError: 'queue'")
    found = recorded((lost(0), ended(0, 1)), (thread, told(1)))
    assert (found.code, found.rank) == ("script-exception", 1)
    assert "ended a thread of rank 1, not the rank: what it was to do, nobody did any more" in found.why


@pytest.mark.parametrize(("message", "words"), sections(Path(__file__).with_name("messages.txt")))
def test_messages_have_their_meaning_and_a_fix(message: str, words: str) -> None:
    """In ``messages.txt`` a part of the why and one of the fix stand below each, as `families/unsaid.toml` has them."""
    found = recorded((raised(None, message), ended(1, 1)), (lost(0), told(0)))
    why, *fixes = words.splitlines()
    assert why in found.why and all(fix in found.fixes[0] for fix in fixes)
    assert not fixes or (found.code, found.rank) == ("script-exception", 1)


def test_what_a_rank_only_quoted_follows_from_nothing() -> None:
    quoted = "resuming; before, it ended with:\n" + raised(0, "torch.cuda.OutOfMemoryError: CUDA out of memory.")
    texts = (quoted + lost(0), raised(None, "KeyError: 'dog'"))
    for device in ("cpu", "cuda"):
        facts = RunFacts(ranks=(told(0), ended(1, 1)), state="failed", plan={"device": {"value": device}})
        sources = [LogSource(f"rank-{at}.err", io.BytesIO(text.encode()), at, "a") for at, text in enumerate(texts)]
        answer = explain_texts(sources, facts)
        assert answer.diagnosis is not None and answer.diagnosis.what.startswith("KeyError: 'dog'")
        assert [echo.what for echo in answer.cascade] == ["gloo lost its connection to 10.0.0.7"]


def test_a_call_to_cuda_that_failed_in_nccl_is_neither_a_lost_rank_nor_a_quiet_exit() -> None:
    summary = "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
    for text in (raised(None, summary), raised(None, "RuntimeError: NCCL Error 1: unhandled cuda error")):
        found = recorded((text, ended(1, 1)), (lost(0), told(0)))
        assert found.code == "unknown" and "a call to CUDA failed in NCCL" in found.what
        assert "--nccl-debug INFO" in found.fixes[0] and "sys.exit" not in found.why
    remote = (
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:9, remote process exited or there was a network error"
    )
    assert "because it lost another rank" in recorded((raised(None, remote), ended(1, 1)), ("", told(0))).what
    worker = recorded(("object type name: EOFError\nlost sys.stderr\n", ended(1, 1)), ("", told(0)))
    assert "after a process that it had started was gone" in worker.what and "num_workers=0" in worker.fixes[0]
    own = raised(None, summary).replace("step()", 'raise RuntimeError(f"NCCL error: {error}")')
    assert "--nccl-debug INFO" in recorded((own, ended(1, 1)), (lost(0), told(0))).fixes[0]


ABORTED = "terminate called without an active exception\nFatal Python error: Aborted\n"


def test_an_abort_after_the_end_of_the_program_is_called_so() -> None:
    end = ended(1, "SIGABRT")
    found = recorded((ABORTED, replace(end, through="group")), ("", told(0)))
    assert found.code == "aborted-at-exit" and "its process group still existed" in found.why
    assert "destroy_process_group" in found.fixes[0]
    found = recorded((ABORTED, replace(end, through="through")), ("", told(0)))
    assert found.code == "aborted-at-exit" and not any("destroy_process_group" in fix for fix in found.fixes)
    assert recorded((ABORTED, end), ("", told(0))).code == "aborted"
    noted = recorded((raised(None, "KeyError: 'bird'") + ABORTED, end), ("", told(0)))
    assert noted.code == "script-exception"
