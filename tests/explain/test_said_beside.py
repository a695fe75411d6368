"""What stands beside an exception and belongs to it: notes, the rest of its message, the words of a program."""

from __future__ import annotations

from dataclasses import replace

from tests.explain.logs import diagnosed, ended, lost, raised, recorded, told

NOTED = raised(None, "ValueError: invalid literal for int() with base 10: 'x12'")
NOTE = "while reading shard 7 of train.tsv: column lr\n"
TAR = "tar: /data/train.tar: Cannot open: No such file or directory\ntar: Error is not recoverable: exiting now\n"
STARTED = "subprocess.CalledProcessError: Command '['tar', '-xf', '/data/train.tar']' returned non-zero exit status 2."


def test_notes_are_part_of_the_exception() -> None:
    found = recorded((NOTED + NOTE, ended(1, 1)), ("", told(0)))
    assert found.exception is not None and found.exception.notes == (NOTE.strip(),)
    prefixed = "".join(f"[rank1]: {line}\n" for line in (NOTED + NOTE).splitlines())
    found = diagnosed(prefixed + "epoch 1 of another rank\n")
    assert found.exception is not None and found.exception.notes == (NOTE.strip(),)


def test_what_follows_and_is_no_part_of_it_is_none() -> None:
    for below in ("INFO trainer: closing the files\n", "Exception ignored in: <function x>\n", "a line\n" * 20):
        found = recorded((NOTED + below, ended(1, 1)), ("", told(0)))
        assert found.exception is not None and found.exception.notes == ()
    found = diagnosed(NOTED + "the words of nobody knows whom\n")
    assert found.exception is not None and found.exception.notes == ()


def test_a_program_that_failed_is_quoted() -> None:
    text = "loading\n" + TAR + raised(None, STARTED)
    found = recorded((text, ended(1, 1)), ("ready\n", told(0)))
    assert found.rank == 1 and "stands: tar: /data/train.tar: Cannot open" in found.why
    assert any(each.text.startswith("tar: Error") for each in found.evidence)


def test_words_of_another_rank_are_not_the_programs() -> None:
    text = "loading the data\n" + raised(None, STARTED)
    found = recorded((text, ended(1, 1)), (TAR, told(0)))
    assert "stands" not in found.why and "if any" in found.why


def test_an_exception_of_a_thread_ended_the_thread() -> None:
    thread = "Exception in thread Thread-1 (watch):\n" + raised(None, "KeyError: 'queue'")
    found = recorded((lost(0), ended(0, 1)), (thread, told(1)))
    assert (found.code, found.rank) == ("script-exception", 1)
    assert found.why == (
        "an uncaught exception ended a thread of rank 1, not the rank: what it was to do, nobody did any more"
    )


def test_an_attribute_of_a_wrapped_model_is_found_through_module() -> None:
    found = diagnosed(raised(1, "AttributeError: 'DistributedDataParallel' object has no attribute 'encode'"))
    assert found.fixes[0].startswith("`model.module.encode`") and "is wrapped" in found.why
    assert "wrapped" not in diagnosed(raised(1, "AttributeError: 'Net' object has no attribute 'encode'")).why


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
