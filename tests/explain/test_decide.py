"""Root before cascade: which of several failures in one log is the cause."""

from __future__ import annotations

import pytest

from ddplaunch.explain.decide.work import Work, says_failed, telling
from ddplaunch.explain.diagnosis import RunFacts
from ddplaunch.explain.read.scan import scan
from ddplaunch.ui.explain_view import explanation_text
from ddplaunch.ui.terminal import Terminal, cells
from ddplaunch.values.words import number_of_signal
from tests.explain.logs import TORCH, diagnosed, ended, explained, failed, lines_of, lost, raised, recorded, told

GIT = "CalledProcessError: Command '['git', 'rev-parse', 'HEAD']' returned non-zero exit status 128."
LEFT = "RuntimeError: DataLoader worker (pid(s) 4142) exited unexpectedly"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
CAUSED = "[rank1]: The above exception was the direct cause of the following exception:\n"


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (f"subprocess.{GIT}", "run the program by itself"),
        ("subprocess.CalledProcessError: Command '['python', 'a.py']' returned non-zero exit status 2.", "by itself"),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with exit code 4", "train.py:31"),
        ("EOFError: EOF when reading a line", "train.py:31"),
        ("EOFError", "train.py:31"),
        (RESET, "who serves it"),
        ("BrokenPipeError: [Errno 32] Broken pipe", "who serves it"),
        (LEFT, "num_workers=0"),
    ],
)
def test_any_uncaught_exception_of_the_rank_that_failed_first_is_the_diagnosis(error: str, fix: str) -> None:
    found = recorded((raised(0, error), ended(0, 1)), (lost(1), ended(1, 1, 5.2)), ("", told(2)))
    assert (found.code, found.rank) == ("script-exception", 0)
    assert error.partition(": ")[2][:40] in found.what and "train.py:31" in found.what
    assert any(fix in text for text in (found.what, *found.fixes))


@pytest.mark.parametrize("noticed", [RESET, "FileNotFoundError: [Errno 2] No such file or directory", "_queue.Empty"])
def test_a_data_loader_that_lost_a_worker_says_so_whatever_it_noticed_first(noticed: str) -> None:
    noise = "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n" + raised(None, RESET)
    text = raised(1, noticed) + CAUSED + raised(1, LEFT) + noise + "Error in sys.excepthook:\n" + raised(None, RESET)
    found = recorded(("", told(0)), (text, ended(1, 1)))
    assert (found.code, found.rank) == ("script-exception", 1)
    assert "DataLoader worker (pid(s) 4142) exited unexpectedly" in found.what


def test_the_source_below_a_warning_is_no_last_word() -> None:
    warned = ["/opt/env/torch/tensor.py:368: UserWarning: no numpy (Triggered at x.cpp:84.)", "  cpu = convert(dense)"]
    assert telling([*warned, "loading shards"]) == ["loading shards"]
    assert telling(warned[1:]) == [], "the warning itself is not among the last lines"
    assert telling(["usage:", "  train.py --lr LR"]) == ["usage:", "  train.py --lr LR"]


def test_a_lost_connection_that_was_logged_before_is_not_what_ended_the_rank() -> None:
    refused = "ERROR:root:shard {}: trying again\n" + raised(
        None, "ConnectionRefusedError: [Errno 111] Connection refused"
    )
    text = refused.format(0) + refused.format(1) + raised(None, "ValueError: no shard could be read")
    found = recorded((text, ended(1, 1)), (lost(0), told(0)))
    assert found.what == "ValueError: no shard could be read at train.py:31 in main"
    own = recorded((refused.format(0), ended(1, 1)), (lost(0), told(0)))
    assert own.what.startswith("ConnectionRefusedError") and "lost the other end" in own.why


def test_a_signal_without_a_reason_of_its_own_is_no_exit() -> None:
    meanings = {"SIGPROF": "sampling profilers", "SIGSTKFLT": "no handler of the rank takes", "signal 40": ""}
    for signal, words in meanings.items():
        found = recorded(("", ended(1, signal)), ("", told(0)))
        assert (found.code, found.rank) == ("unknown", 1) and signal in found.what
        assert words in found.why and "sys.exit" not in found.why + " ".join(found.fixes)
        if not words or signal == "SIGSTKFLT":
            assert signal in found.fixes[0] and f"signal.signal({number_of_signal(signal)}, " in found.fixes[0]


def test_the_collective_that_the_line_calls_is_named_and_not_one_that_it_goes_through() -> None:
    frames = "".join(
        f'  File "{TORCH}/distributed/distributed_c10d.py", line 9, in {name}\n    x\n'
        for name in ("broadcast_object_list", "wrapper", "broadcast")
    )
    text = raised(None, "RuntimeError: x").replace(
        "RuntimeError: x", f"{frames}RuntimeError: Timed out waiting 5000ms for recv operation to complete"
    )
    found = recorded((text, ended(0, 1)), ("", told(1)))
    assert found.what.startswith("rank 1 did not come to broadcast_object_list; ")


def test_a_fault_of_a_gpu_names_what_the_driver_reported() -> None:
    error = raised(1, "RuntimeError: CUDA error: unspecified launch failure")
    xid = "NVRM: Xid (PCI:0000:41:00): 109, pid=3378, name=python, Ch 00000028, errorString CTX SWITCH TIMEOUT, Info"
    after = f"{xid.replace('109', '45')}\n"
    assert diagnosed(error, RunFacts(dmesg=(after, f"[9.1] {xid}"))).why.startswith(
        "the driver reported Xid 109 for the GPU at PCI:0000:41:00; "
    )


def test_the_line_at_which_a_log_stops_fits_the_screen() -> None:
    long = "".join(f"Train Epoch: 3 [ {step}/12800000] Loss: 1.9 {'Logit Scale: 42.110 ' * 9}\n" for step in (1, 2, 3))
    text = explanation_text(explained(long), "train.log", Terminal(80))
    assert max(map(cells, text.splitlines())) <= 80 and "`Train Epoch: 3 [ 3/12800000]" in text


def test_the_record_says_whether_a_run_failed() -> None:
    for state, text in (("failed", "done\n"), ("succeeded", failed(1, 0, 10))):
        scanned = scan(lines_of(text))
        assert says_failed(scanned, Work(scanned.lines), RunFacts(state=state)) is (state == "failed")
