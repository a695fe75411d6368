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
    summary,
    told,
)

WATCHDOG = (
    "[rank{rank}]:[E1102 04:26:10.044118200 ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran "
    "for 600031 milliseconds before timing out.\n"
)


def watchdog(rank: int, seq: int = 1644, op: str = "ALLREDUCE", numel: int = 4096) -> str:
    return WATCHDOG.format(rank=rank, seq=seq, op=op, numel=numel)


def test_a_ranks_own_exception_outranks_the_time_outs_of_the_others_whatever_the_order() -> None:
    own = raised(3, "KeyError: 'title'")
    for text in (own + watchdog(0) + watchdog(1) + watchdog(2), watchdog(0) + watchdog(1) + watchdog(2) + own):
        found = diagnosed(text + summary((1, -6, 11), (0, -6, 10)))
        assert (found.code, found.rank) == ("script-exception", 3)
        assert found.what == "KeyError: 'title' at train.py:31 in main"
        assert found.exception is not None and found.exception.frame == "train.py:31 in main"


def test_the_only_rank_here_that_lost_another_is_not_said_to_be_silent() -> None:
    found = diagnosed(lost(0) + failed(1, 0, 10))
    assert found.code == "unknown"
    assert found.what == "rank 0 ended with exit code 1 because it lost another rank, and that one says nothing here"
    assert "Connection closed by peer" in found.evidence[0].text
    assert "on each of the other nodes" in found.fixes[0]
    assert diagnosed(lost(2) + failed(1, 0, 10)).what == "rank 0 ended with exit code 1, and no line says why"


STEPS = "".join(f"step {step} loss 0.5\n" for step in range(5))
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


def test_an_uncaught_exception_that_is_not_in_the_log_is_no_good_end() -> None:
    cut_off = raised(None, "").rstrip("\n") + "\n"
    found = diagnosed(ALL_STEPS + cut_off)
    assert found.code == "unknown" and found.what.startswith("an exception ended a rank")
    assert "Traceback" in found.evidence[0].text
    assert explained(cut_off + ALL_STEPS).diagnosis is None, "the work went on"
    went_on = raised(None, "KeyError: 'x'") + "epoch 3 step 40\nepoch 3 step 50\n"
    assert explained(went_on).diagnosis is None and diagnosed(went_on.replace("50", "40")).code == "script-exception"
    tested = failed(1, 1, 11) + summary((1, 1, 11)) + "=== 12 passed, 1 warning in 3.10s ===\n"
    assert explained(tested).diagnosis is None, "a test suite makes programs fail"
    assert diagnosed(f"step 1 loss 0.5\n{failed(1, 1, 11)}step 2 loss 0.4\n").code == "unknown", "of another rank"
    ignored = "Exception ignored in: <function Pool.__del__ at 0x7f2>\n" + cut_off
    assert explained(ALL_STEPS + "training finished\n" + ignored).diagnosis is None


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


def test_an_exception_without_its_traceback_is_not_said_to_be_raised_there() -> None:
    bare = diagnosed("ValueError: 3 classes expected, 4 found\n" + failed(1, 0, 10))
    assert bare.code == "script-exception" and "not in this log" in bare.fixes[0]
    assert not any("in what it calls" in fix for fix in bare.fixes)
    assert diagnosed(raised(0, "KeyError: 'a'")).fixes == ("look at `train.py:31`: the exception is raised there",)
    below = '    step()\n[rank0]:   File "/opt/lib/python3.11/json/__init__.py", line 3, in load\n'
    deeper = diagnosed(raised(0, "KeyError: 'a'").replace("    step()\n", below))
    assert "raised in what it calls" in deeper.fixes[0]


def test_the_stack_of_python_is_not_asked_for_where_it_is_in_the_log() -> None:
    crashed = "Fatal Python error: Segmentation fault\n\n"
    stack = 'Current thread 0x00007f (most recent call first):\n  File "/home/kim/train.py", line 9 in main\n'
    found = diagnosed(crashed + stack + failed(-11, 1, 11))
    assert not any("PYTHONFAULTHANDLER" in fix for fix in found.fixes)
    assert any("coredumpctl" in fix for fix in found.fixes)
    assert any("PYTHONFAULTHANDLER" in fix for fix in diagnosed(failed(-11, 1, 11)).fixes)


def test_the_source_below_a_warning_is_no_last_word() -> None:
    warned = ["/opt/env/torch/tensor.py:368: UserWarning: no numpy (Triggered at x.cpp:84.)", "  cpu = convert(dense)"]
    assert telling([*warned, "loading shards"]) == ["loading shards"]
    assert telling(warned[1:]) == [], "the warning itself is not among the last lines"
    assert telling(["usage:", "  train.py --lr LR"]) == ["usage:", "  train.py --lr LR"]


def test_a_rank_that_waited_does_not_lend_its_calls_to_the_one_that_did_not_come() -> None:
    waited = raised(
        0, "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation"
    )
    found = diagnosed(waited + failed(1, 0, 10) + summary((1, -15, 11), (0, 1, 10)))
    assert (found.code, found.rank) == ("collective-timeout", 1)
    assert found.calls == () and found.exception is None, "they are of rank 0"
    assert found.evidence[0].text.startswith("RuntimeError: [../gloo")
    assert diagnosed(raised(1, "KeyError: 'a'")).calls


def test_words_that_no_rank_signs_are_quoted_as_such() -> None:
    report = failed(1, 1, 11) + summary((1, 1, 11))
    found = diagnosed("config: unknown optimizer 'adamm'\n" + lost(0) + report)
    assert found.code == "unknown" and found.what.endswith("one that no rank signs: config: unknown optimizer 'adamm'")
    assert any("adamm" in each.text for each in found.evidence)
    assert diagnosed("step 3 loss 0.5\n" + lost(0) + report).what.endswith("and no line says why")


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


def test_a_layer_of_another_size_is_named_with_both_sizes() -> None:
    head = "RuntimeError: Error(s) in loading state_dict for Net:\n"
    sizes = "copying a param with shape torch.Size([10, 8]) from checkpoint, the shape in current model is torch.Size("
    found = diagnosed(raised(0, head + f"\tsize mismatch for fc.weight: {sizes}[12, 8])."))
    assert found.what.endswith("Net: `fc.weight` is [10, 8] in the file and [12, 8] in the model")
    assert "strict=False" in found.fixes[-1] and "module." not in " ".join(found.fixes)
    other = diagnosed(raised(0, head + '\tMissing key(s) in state_dict: "module.fc.weight".'))
    assert other.what.endswith("the names of the model begin with `module.`, and those in the file do not")
    assert "module." in other.fixes[0]
    for which, said in (("Missing", "in the model and not in the file"), ("Unexpected", "in the file and not in the")):
        grown = diagnosed(raised(0, head + f'\t{which} key(s) in state_dict: "criterion.weight", "criterion.bias".'))
        assert f"`criterion.weight` is {said}" in grown.what and "strict=False" in grown.fixes[0]


def test_an_extension_that_does_not_build_is_told_by_the_compilers_first_error() -> None:
    for said, named in (
        ("warp.cpp:1:10: fatal error: opencv2/core.hpp: No such file or directory", "finds no `opencv2/core.hpp`"),
        ('fused.cu(41): error: identifier "c10" is undefined', 'fused.cu(41): error: identifier "c10" is undefined'),
    ):
        found = diagnosed(
            f"{said}\nninja: build stopped: subcommand failed.\n"
            + raised(1, "RuntimeError: Error building extension 'warp_ops': [1/2] c++ -MMD")
        )
        assert found.code == "extension-build-failed" and named in found.what


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


def test_the_exception_of_a_task_of_ray_is_the_one_that_its_script_raised() -> None:
    frames = '  File "/opt/env/lib/python3.11/site-packages/ray/_private/worker.py", line 9, in get\n    x = f()\n'
    ray = "ray.exceptions.RayTaskError(KeyError): ray::_Worker.next() (pid=41023, ip=10.0.1.8)\n"
    own = '  File "/srv/sft.py", line 52, in train_func\n    texts = [row["messages"] for row in batch]\n'
    head = "Traceback (most recent call last):\n"
    found = diagnosed(head + frames + ray + frames + ray + own + "KeyError: 'messages'\n")
    assert found.what == "KeyError: 'messages' at sft.py:52 in train_func"
    assert diagnosed(head + frames + ray).what.startswith("RayTaskError(KeyError)")


def test_the_line_at_which_a_log_stops_fits_the_screen() -> None:
    long = "".join(f"Train Epoch: 3 [ {step}/12800000] Loss: 1.9 {'Logit Scale: 42.110 ' * 9}\n" for step in (1, 2, 3))
    text = explanation_text(explained(long), "train.log", Terminal(80))
    assert max(map(cells, text.splitlines())) <= 80 and "`Train Epoch: 3 [ 3/12800000]" in text


@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "ray.train.base_trainer.TrainingFailedError: The Ray Train run failed. Please inspect the previous error "
        "messages for a cause.",
        "sagemaker.exceptions.UnexpectedStatusException: Error for Training job mnist-1: Failed. Reason: x",
    ],
)
def test_what_only_repeats_that_something_failed_is_no_cause(said: str) -> None:
    told = diagnosed(STEPS + raised(None, said))
    assert told.code == "unknown" and told.what.startswith("what started the work says that it failed"), told
    assert told.evidence[0].text.startswith(said[:40])
    own = diagnosed(STEPS + raised(None, "KeyError: 'labels'", "/srv/worker.py") + raised(None, said))
    assert own.what.startswith("KeyError: 'labels'")


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


def test_the_report_of_desynchronised_ranks_names_the_one_that_did_not_come() -> None:
    waits = "".join(
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum=8, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600047 milliseconds before timing out.\n"
        for rank in (0, 2)
    )
    report = "\t   - [1] finished collective #7, but didn't join collective #8 (count from 1)\n"
    found = diagnosed(waits + report)
    assert (found.code, found.rank) == ("collective-timeout", 1) and "rank 1 did not come" in found.what


def test_what_ends_a_rank_at_its_start_is_survived_by_a_run_that_makes_a_step() -> None:
    port = "[W1106 17:20:02.6 socket.cpp:462] [c10d] The server socket has failed to bind to [::]:29510 (errno: 98 - "
    port += "Address already in use).\n"
    bar = "Epoch 0:   0%|          | 0/3302 [00:00<?, ?it/s]\n"
    step = "Epoch 0:   2%|2         | 66/3302 [01:11<58:25,  1.08s/it, loss=1.92]\n"
    own = raised(None, "ValueError: 811 labels for 810 tokens") + failed(1, 1, 11)
    assert diagnosed(port + bar + step + own).what.startswith("ValueError: 811 labels")
    assert "29510" not in str(explained(port + bar + step + own))
    assert diagnosed(port + bar + failed(1, 1, 11)).code == "port-taken"  # a bar is drawn before the first step
    other = "gpu-b2: Host key verification failed.\n"
    waits = (
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 24/32 clients joined.\n"
    )
    assert diagnosed(other + waits).code == "rendezvous-failed" and "Host key" in diagnosed(other + waits).what
    cancelled = "slurmstepd: error: *** STEP 20811.1 ON gn12 CANCELLED AT 2026-08-04T15:15:05 ***\n"
    assert diagnosed(port + failed(1, 1, 11) + cancelled).code == "port-taken"  # a step of Slurm's is none of training


def test_a_cause_that_names_nobody_is_told_by_what_was_raised_from_it() -> None:
    refused = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/opt/lib/python3.11/site-packages/urllib3/'
    refused += (
        'connection.py", line 198, in _new_conn\n[rank0]: ConnectionRefusedError: [Errno 111] Connection refused\n'
    )
    linked = "[rank0]: \n[rank0]: The above exception was the direct cause of the following exception:\n[rank0]: \n"
    pool = (
        "[rank0]: requests.exceptions.ConnectionError: HTTPConnectionPool(host='{}', port=8000): Max retries exceeded\n"
    )
    told = raised(0, "ConnectionError: no reward server at http://gn14:8000 after 240 s")
    found = diagnosed(refused + linked + pool.format("gn14") + linked + told)
    assert (found.code, found.rank) == ("script-exception", 0) and "no reward server at http://gn14" in found.what
    hub = diagnosed(refused + linked + pool.format("huggingface.co") + linked + told)
    assert hub.code == "download-failed" and "huggingface.co" in hub.what
