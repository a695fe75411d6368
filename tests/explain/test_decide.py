"""Root before cascade: which of several failures in one log is the cause."""

from __future__ import annotations

import pytest

from ddplaunch.explain.decide.work import Work, said_done, says_failed, telling
from ddplaunch.explain.diagnosis import RunFacts
from ddplaunch.explain.read.scan import scan
from ddplaunch.ui.explain_view import explanation_text
from ddplaunch.ui.terminal import Terminal, cells
from ddplaunch.values.words import number_of_signal
from tests.explain.logs import (
    TORCH,
    diagnosed,
    ended,
    explained,
    failed,
    lines_of,
    lost,
    raised,
    recorded,
    told,
)

WATCHDOG = (
    "[rank{rank}]:[E1102 04:26:10.044118200 ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran "
    "for 600031 milliseconds before timing out.\n"
)


def watchdog(rank: int, seq: int = 1644, op: str = "ALLREDUCE", numel: int = 4096) -> str:
    return WATCHDOG.format(rank=rank, seq=seq, op=op, numel=numel)


ALL_STEPS = "".join(f"step {step}/50 loss 0.5\n" for step in range(1, 51))


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
    assert any(fix in each for each in found.fixes)


@pytest.mark.parametrize("noticed", [RESET, "FileNotFoundError: [Errno 2] No such file or directory", "_queue.Empty"])
def test_a_data_loader_that_lost_a_worker_says_so_whatever_it_noticed_first(noticed: str) -> None:
    noise = "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n" + raised(None, RESET)
    text = raised(1, noticed) + CAUSED + raised(1, LEFT) + noise + "Error in sys.excepthook:\n" + raised(None, RESET)
    found = recorded(("", told(0)), (text, ended(1, 1)))
    assert (found.code, found.rank) == ("script-exception", 1)
    assert "DataLoader worker (pid(s) 4142) exited unexpectedly" in found.what


def test_a_training_whose_log_just_stops_has_not_failed_there() -> None:
    going = "".join(f"step {step}/5000 loss 0.5\n" for step in range(100, 120))
    bars = "".join(f" {step // 50}%|#  | {step}/5000 [00:09<41:00, 1.9it/s]\n" for step in range(100, 120))
    dicts = "".join(f"{{'loss': 1.4, 'epoch': 0.{step}}}\n" for step in range(10, 40))
    for text in (going, bars, dicts):
        assert explained(text).diagnosis is None, text
    assert explained(going).stops_at == "step 119/5000 loss 0.5"
    assert explained(ALL_STEPS).stops_at == ""
    assert diagnosed(going + lost(0)).code == "unknown", "a rank that complains is no running training"
    assert explained("".join(going.splitlines(True)[:2])).diagnosis is None
    assert diagnosed("".join(bars.splitlines(True)[:2])).code == "unknown", "a bar is drawn many times a second"
    assert diagnosed(going.splitlines()[0]).code == "unknown"


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


def test_epochs_that_count_from_zero_are_complete_with_the_last_one() -> None:
    text = "".join(f"Epoch [{epoch}/6] loss 0.{9 - epoch}\n" for epoch in range(6))
    assert explained(text).diagnosis is None
    assert explained(text).stops_at == ""
    assert explained(text.rpartition("Epoch")[0]).stops_at == "Epoch [4/6] loss 0.5"
    bars = "0%| | 0/3 [00:00<?]\n 33%|# | 1/3 [00:01<?]\n 66%|## | 2/3 [00:02<?]\n"
    assert (
        explained(bars).stops_at.startswith("66%") and diagnosed("".join(bars.splitlines(True)[:2])).code == "unknown"
    )


def test_a_fault_of_a_gpu_names_what_the_driver_reported() -> None:
    error = raised(1, "RuntimeError: CUDA error: unspecified launch failure")
    xid = "NVRM: Xid (PCI:0000:41:00): 109, pid=3378, name=python, Ch 00000028, errorString CTX SWITCH TIMEOUT, Info"
    assert "Xid 109 (CTX SWITCH TIMEOUT)" in diagnosed(error + f"{xid}\n").what
    assert "Xid" not in diagnosed(error).what
    after = f"{xid.replace('109', '45')}\n"
    assert "Xid" not in diagnosed(error + after).what, "45 follows"
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


def test_what_follows_a_line_is_counted_as_far_as_a_rule_asks() -> None:
    lines = lines_of("step 0\n" + "step 1\nwords\n\n  source\nloss 2\n" * 3 + "step 2\nstep 3\nstep 4\nstep 5\n")
    work = Work(lines)
    assert [work.reported_after(lines[at]) for at in (-2, -3, -6, 0)] == [(0, 0), (1, 1), (4, 4), (4, 4)]
    assert [work.said_between(lines[1], until) for until in (2, 3, 4, 6, 7, 9)] == [0, 1, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("texts", "last", "done", "once"),
    [
        (["saved 1", "saved 2"], 1, True, True),
        (["saved 1", "saved 2", "saved 3"], 3, True, False),
        (["saved 1", "words"], 1, False, False),
        (["saved 1", "words"], 2, True, True),
        ([f"100%|#| {number} saved" for number in range(3)], 3, True, True),
    ],
)
def test_what_says_that_the_work_is_done(texts: list[str], last: int, done: bool, once: bool) -> None:
    lines = lines_of("\n".join(texts))
    assert (said_done(lines, last), said_done(lines, last, once=True)) == (done, once)
