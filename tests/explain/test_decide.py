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
GPU_FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
TOO_MANY_FILES = "OSError: [Errno 24] Too many open files"
TOLD_TO_END = "W1 10:55:17.9 3047 torch/distributed/elastic/api.py:7] Received 15 death signal, shutting down workers\n"
OTHERS_ENDED = summary((2, -9, 12), (1, -15, 11), (0, 1, 10))
BOTH_ABORTED = failed(-6, 0, 10) + summary((1, -6, 11), (0, -6, 10))
KILLED, UNSUCCESSFUL = failed(-9, 1, 12) + summary((1, -9, 12)), "The job did not complete successfully.\n"
FORCED = "W0 9 torch/x.py:1] Unable to shutdown process 12 via 15, forcefully exiting via 9\n"
TEARDOWN = "[rank0]:[W303 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before\n"
WARNED = "WARNING: could not load the optional plugin\n" + raised(None, "ModuleNotFoundError: No module named 'apex'")
CANCELLED = "slurmstepd: error: *** STEP 4.0 ON n01 CANCELLED AT 2026-11-21T20:22:22 ***\n"
TASK = "srun: error: node-b: task 1: Exited with exit code 1\n"
LATE = raised(
    None,
    "torch.distributed.DistNetworkError: The client socket has timed out after 60s while trying to connect to (a, 1).",
)
NO_SCRIPT = "wrap.sh: line 2: train.sh: No such file or directory\n"
ROLLOUTS = "rollout 1: 8 programs\n[judge 3] Traceback (most recent call last):\n[judge 3] ValueError: x\n"
ROLLOUTS += "rollout 2: 8 programs\nrollout 3: 8 programs\n"
BAR = "epoch 3:  61%|######    | 91{0}/1500 [10:1{0}<06:3{0}]\n"
GPUS = "rank 0/8 on cuda:0, rank 1/8 on cuda:1\nit 0 loss 9.11\n"
USR2, LIMIT = "User defined signal 2\n", "TERM_RUNLIMIT: job killed after reaching LSF run time limit.\n"
FLAKY = lost(0) + raised(1, "RuntimeError: flaky") + failed(1, 1, 11)
LIBRARY = "/opt/env/lib/python3.11/site-packages/torch/distributed"
STORE_LOST = (
    f'Traceback (most recent call last):\n  File "{LIBRARY}/run.py", line 9, in main\n    run(args)\n'
    f'  File "{LIBRARY}/elastic/rendezvous/dynamic_rendezvous.py", line 1255, in num_nodes_waiting\n    sync()\n'
    "torch.distributed.elastic.rendezvous.RendezvousConnectionError: The connection to the C10d store has failed\n"
)


@pytest.mark.parametrize(
    ("text", "code", "rank"),
    [
        # what the agent did to the other ranks
        (FORCED + raised(0, "ValueError: x") + failed(1, 0, 10) + OTHERS_ENDED, "script-exception", 0),
        # tiers, and within a tier the first failure
        (raised(0, "RuntimeError: something odd") + raised(1, GPU_FULL), "cuda-out-of-memory", 1),
        (raised(2, GPU_FULL) + raised(5, TOO_MANY_FILES), "cuda-out-of-memory", 2),
        (raised(2, TOO_MANY_FILES) + raised(5, GPU_FULL), "too-many-open-files", 2),
        (raised(0, "ValueError: x") + raised(1, "ValueError: x"), "script-exception", None),
        # the rank that is missing among the time-outs, and the aborts that time-outs end in
        ("world_size=4\n" + watchdog(0) + watchdog(1) + watchdog(3), "collective-timeout", 2),
        (watchdog(0) + watchdog(1), "collective-timeout", None),
        (watchdog(0) + watchdog(1) + BOTH_ABORTED, "collective-timeout", None),
        # ranks in different collectives
        (watchdog(0) + watchdog(1, op="BROADCAST"), "collective-mismatch", None),
        (watchdog(0) + watchdog(1, numel=8192), "collective-mismatch", None),
        ("rank 1 setup done\nrank 0 finished loading\n" + watchdog(0), "collective-timeout", None),
        # a first collective that never completes, on all ranks and on some
        (watchdog(0, seq=1) + watchdog(1, seq=1), "gpu-p2p-broken", None),
        ("world_size=3\n" + watchdog(0, seq=1) + watchdog(1, seq=1), "collective-timeout", 2),
        # an end from outside counts if nothing was wrong before: an agent saw a failed rank before its own end
        ("step 3\n" + TOLD_TO_END + raised(0, "ValueError: while saving"), "terminated", None),
        (raised(0, "ValueError: before") + TOLD_TO_END, "script-exception", 0),
        (TOLD_TO_END + raised(0, "ValueError: printed late") + failed(1, 0, 10), "script-exception", 0),
        (failed(-15, 0, 10), "terminated", 0),
        # an error that was survived; a batch script says "finished" after any end
        (raised(None, "OSError: [Errno 116] Stale file handle") + ALL_STEPS + "training finished\n", None, None),
        (WARNED + ALL_STEPS + "done\n", None, None),
        (raised(None, "OSError: disk") + "cleaning up\njob finished\n", "script-exception", None),
        # healthy logs, and logs that just end, as most healthy ones do
        (STEPS + "saved out/final.pt\n" + TEARDOWN, None, None),
        ("", None, None),
        (STEPS, None, None),
        ("step 0/500 loss 0.5\n", "unknown", None),
        ("rank 0 step 0\nrank 1 step 0\n", "unknown", None),
        # a log in which the work moves on and that announced no end is complete; one that ends before that is not
        ("validation loss: 0.92\ntraining loss: 9.43\ntraining loss: 9.41\n", None, None),
        ("epoch 1 loss 0.92\nepoch 2 loss 0.43\n", None, None),
        (ROLLOUTS, None, None),
        (BAR.format(5) + BAR.format(6), "unknown", None),
        (GPUS, "unknown", None),
        (GPUS + "it 100 loss 5.01\nit 200 loss 4.40\n", None, None),
        # a signal that warns of the time limit is not the cause
        ("step 3\n" + USR2 + LIMIT, "time-limit", None),
        ("step 3\n" + LIMIT + USR2, "time-limit", None),
        ("step 3\n" + USR2, "terminated", None),
        # a step that ends after a task was not cancelled by anybody
        (LATE + TASK + CANCELLED, "rendezvous-failed", 1),
        (LATE + CANCELLED + TASK, "terminated", None),
        # a shell goes on after its complaints
        (NO_SCRIPT + raised(None, "ModuleNotFoundError: No module named 'apex'"), "module-not-found", None),
        (NO_SCRIPT, "script-not-found", None),
        ("run.sh: line 14: 42 Killed      python train.py\n" + raised(None, "KeyError: 'a'"), "killed", None),
        # survivors alone tell nothing
        (lost(0) + lost(1), "unknown", None),
        # what is cut or not completed has failed
        ("slurmstepd: error: Detected 2 oom_kill events in StepId=7.0.\n" + UNSUCCESSFUL, "host-out-of-memory", None),
        ("RuntimeError: DataLoader worker (pid(s) 164244) exited unexpectedly\n", "script-exception", None),
        # test suites print failures of others, and early stopping is an end
        (f"test_oom PASSED\nsaid: [rank0]: {GPU_FULL}\ntest_kill PASSED\n== 41 passed in 12.3s ==\n", None, None),
        (f"test_oom FAILED\n{GPU_FULL}\n== 1 failed, 40 passed in 12.3s ==\n", "cuda-out-of-memory", None),
        ("epoch 1/9 val 0.3\nepoch 2/9 val 0.4\nEarly stopping after 2 epochs without progress\n", None, None),
        # the store lost after the work, during it, and before it
        ("step 1/2\nstep 2/2\nrank 0 done\n" + STORE_LOST, None, None),
        ("step 1/9\nstep 2/9\n" + STORE_LOST, "unknown", None),
        (STORE_LOST.replace("num_nodes_waiting", "next_rendezvous"), "rendezvous-failed", None),
        # a restart that came through, and one that failed again
        (FLAKY + "rank 0 step 5\nrank 0 step 10\nrank 0 step 15\n", None, None),
        (FLAKY + "resumed from 5\nrank 0 done\n", None, None),
        # a program that prints its first line again was started again; one that fails again has failed
        ("attempt 0 of pid 70\n" + FLAKY + "attempt 1 of pid 90\nall is well\n", None, None),
        ("attempt 0 of pid 70\n" + FLAKY + "all is well\n", "script-exception", 1),
        ("attempt 0 of pid 70\n" + FLAKY + "attempt 1 of pid 90\n" + FLAKY, "script-exception", 1),
        # what one rank said before another one ended is no good end of all
        ("[rank 0] sent, done\n" + lost(1), "unknown", None),
        (lost(1) + "step 1/2\nstep 2/2\n[rank 0] sent, done\n", None, None),
        # nobody else is there who could have quoted the only line
        (f'log: "{GPU_FULL}"\n', "cuda-out-of-memory", None),
        (f'log: "{GPU_FULL}"\n' + STEPS + "done\n", None, None),
        (FLAKY + "rank 0 step 5\nrank 0 step 10\n" + lost(0) + KILLED, "script-exception", 1),
    ],
)
def test_cause_and_rank(text: str, code: str | None, rank: int | None) -> None:
    found = explained(text).diagnosis
    assert (found and found.code, found and found.rank) == (code, rank)


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


def test_in_a_log_alone_a_lost_connection_is_ones_own_if_nobody_else_complains() -> None:
    assert diagnosed(raised(None, RESET)).code == "script-exception"
    assert diagnosed(raised(0, RESET) + lost(1)).code == "unknown"


@pytest.mark.parametrize("noticed", [RESET, "FileNotFoundError: [Errno 2] No such file or directory", "_queue.Empty"])
def test_a_data_loader_that_lost_a_worker_says_so_whatever_it_noticed_first(noticed: str) -> None:
    noise = "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n" + raised(None, RESET)
    text = raised(1, noticed) + CAUSED + raised(1, LEFT) + noise + "Error in sys.excepthook:\n" + raised(None, RESET)
    found = recorded(("", told(0)), (text, ended(1, 1)))
    assert (found.code, found.rank) == ("script-exception", 1)
    assert "DataLoader worker (pid(s) 4142) exited unexpectedly" in found.what


@pytest.mark.parametrize(
    ("how", "code"),
    [("Segmentation fault", "segmentation-fault"), ("Bus error", "unknown"), ("Exited with exit code 3", "unknown")],
)
def test_a_step_that_srun_ends_because_of_a_task_was_not_cancelled(how: str, code: str) -> None:
    task = f"srun: error: n18: task 9: {how}\n"
    found = diagnosed(task + "srun: Terminating StepId=4.0\n" + CANCELLED)
    assert (found.code, found.rank) == (code, 9)
    assert diagnosed(CANCELLED + "srun: error: n18: task 9: Terminated\n").code == "terminated"


def test_an_uncaught_exception_that_is_not_in_the_log_is_no_good_end() -> None:
    cut_off = raised(None, "").rstrip("\n") + "\n"
    for text in (ALL_STEPS + cut_off, ALL_STEPS + "training finished\n" + "Error in sys.excepthook:\n" + cut_off):
        found = diagnosed(text)
        assert found.code == "unknown" and found.what.startswith("an exception ended a rank"), text
        assert "Traceback" in found.evidence[0].text or "excepthook" in found.evidence[0].text
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


def test_a_sentence_that_tells_a_step_is_a_reason_and_a_report_of_steps_is_none() -> None:
    assert recorded(("validation loss diverged at epoch 3\n", ended(1, 1))).code == "script-exception"
    for text in ("epoch 3 step 10 loss 2.1\n", "starting epoch 3\n", "397/400 |####| loss=nan, error=0\n"):
        assert recorded((text, ended(1, 1))).code == "unknown"


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


def test_a_sample_that_is_said_to_be_skipped_was_survived_if_one_step_follows() -> None:
    failed = raised(None, "FileNotFoundError: [Errno 2] No such file or directory: 'img_5.jpg'")
    skipped = "".join(f"iter {step} loss 0.5\n" for step in range(5)) + "ERROR [41] skipping sample 5\n" + failed
    assert explained(skipped + "iter 5 loss 0.4\n").diagnosis is None
    assert explained(f"step 4 loss 0.5\n{failed}skipping sample 5\nstep 5 loss 0.4\n").diagnosis is None
    assert diagnosed(f"step 4 loss 0.5\n{failed}no sample 5\nstep 5 loss 0.4\n").code == "dataset-missing"
    assert diagnosed(skipped).code == "dataset-missing"
    assert diagnosed(skipped.replace("skipping", "cannot read") + "iter 5 loss 0.4\n").code == "dataset-missing"


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


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("Epoch 1:  29%|##   | 9413/32393 [3:28:18<8:28:33,  1.33s/it, loss=3.23]Killed\n", "killed"),
        ("Epoch 1:  29%|##   | 9413/32393 [3:28:18<8:28:33,  1.33it/s]Terminated \n", "terminated"),
        ("ERROR: Job failed: execution took longer than 1h0m0s seconds\n", "time-limit"),
        ("ERROR: Job failed: command terminated with exit code 137\n", "killed"),
        ("ERROR: Job failed: exit status 1\n", "unknown"),
        ("[2026-10-31 05:07:11,062][__main__][ERROR] - Error executing job with overrides: ['a=1']\n", "unknown"),
        ("Epoch 1, batch 0, loss 7.9\nEpoch 1, batch 50, loss 2.9\n", None),
        ("systemd[1]: t.service: Main process exited, code=killed, status=9/KILL\n", "killed"),
        ("systemd[1]: t.service: Main process exited, code=dumped, status=11/SEGV\n", "segmentation-fault"),
        ("systemd[1]: t.service: Main process exited, code=exited, status=3/NOTIMPLEMENTED\n", "unknown"),
        ("systemd[1]: t.service: Failed with result 'oom-kill'.\n", "host-out-of-memory"),
        ("systemd[1]: t.service: Deactivated successfully.\n", None),
        ("2026-05-01 11:00:00,000 WARN exited: t (terminated by SIGSEGV (core dumped); not expected)\n",
         "segmentation-fault"),
        ("2026-05-01 11:00:00,000 WARN exited: t (exit status 1; not expected)\n", "unknown"),
        ("2026-05-01 11:00:00,000 INFO exited: t (exit status 0; expected)\n", None),
        ("Cancelling nested steps due to timeout\nTerminated\nFinished: ABORTED\n", "time-limit"),
        ("ERROR: script returned exit code 2\nFinished: FAILURE\n", "unknown"),
        ("Task's current input in-1 hit its timeout of 3600s\nRunner terminated.\n", "time-limit"),
        ("User aborted: stopping task (1)\n", "terminated"),
        ("Error: exit status 137\n", "killed"),
        ("    State:          Terminated\n      Reason:       Error\n      Exit Code:    1\n", "unknown"),
        ("    State:          Terminated\n      Reason:       Completed\n      Exit Code:    0\n", None),
        ("   Exit Status:        271 (Linux Signal 15 SIGTERM Termination)\n", "terminated"),
        ("The command \"python t.py\" exited with 1.\nDone. Your build exited with 1.\n", "unknown"),
        ("The command \"python t.py\" exited with 0.\nDone. Your build exited with 0.\n", None),
        ("##[error]Bash exited with code '1'.\n", "unknown"),
        ("OutOfMemoryError: Container killed due to memory usage\n", "host-out-of-memory"),
        ("Host EC2 (instance i-0abc) terminated.\n", "terminated"),
        ("slurmstepd: error: *** JOB 4 ON n CANCELLED AT 2026-05-01T10:00:00 DUE to SIGNAL Terminated ***\n",
         "terminated"),
        ("\tError from slot1@n2: Docker job has gone over memory limit of 16000 Mb\n", "host-out-of-memory"),
    ],
)  # fmt: skip
def test_the_words_of_what_looks_after_a_job_say_how_it_ended(last: str, code: str | None) -> None:
    found = explained(STEPS + last).diagnosis
    assert (found and found.code) == code


KEY = "KeyError: 'labels'"


@pytest.mark.parametrize(
    ("after", "went_on"),
    [
        # after a message, after an uncaught exception, and after an error that was announced as skipped
        ("", "---"),
        ("words\n", "---"),
        ("step 1\n", "--+"),
        ("step 1\nstep 1\n", "--+"),
        ("step 1\nstep 2\n", "+++"),
        ("loss 0.5\n" * 3, "--+"),
        ("loss 0.5\n" * 4, "+++"),
        ("  step 1\n  step 2\n", "---"),
        ("  9%| 2/9\n", "--+"),
        ("done\n", "+-+"),
        ("words\ndone\n", "+-+"),
        ("step 1\ndone\n", "+++"),
        ("loss 0.5\ndone\n", "+-+"),
        ("resumed\nloss 0.5\ndone\n", "+++"),
        ("resumed\nwords\ndone\n", "+-+"),
        ("3 passed, 1 warning\n", "+++"),
        ("done\n" + "words\n" * 14, "+-+"),
        ("done\n" + "words\n" * 15, "---"),
        ("2 passed\n" + "words\n" * 15, "---"),
    ],
)
def test_the_lines_below_a_failure_tell_whether_the_work_went_on(after: str, went_on: str) -> None:
    lines = lines_of(f"restored\n{KEY}\n{after}")
    work, line = Work(lines), lines[1]
    told = (work.went_on(line), work.went_on(line, uncaught=True), work.went_on(line, announced=True))
    assert "".join("-+"[each] for each in told) == went_on


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


ENGINE = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"


@pytest.mark.parametrize(
    ("text", "state", "says"),
    [
        ("done\n", "failed", True),
        ("done\n", None, False),
        (failed(1, 0, 10), "succeeded", False),
        (failed(1, 0, 10), None, True),
        (failed(1, 0, 10) + "step 1\nstep 2\n", None, False),
        ("srun: error: n1: tasks 0-3: Terminated\n", None, False),
        # a test suite makes programs fail; a program that prints its first line again was started again
        (summary((1, 1, 11)) + "12 passed in 3.1s\n", None, False),
        (summary((1, 1, 11)) + "12 passed in 3.1s\nbye\n", None, False),
        (summary((1, 1, 11)) + "12 passed in 3.1s\nbye\nbye\n", None, True),
        ("attempt 0\n" + failed(1, 0, 10) + "attempt 1\n", None, False),
        ("attempt 0\nattempt 1\n" + failed(1, 0, 10), None, True),
        ("attempt 0\n" + failed(1, 0, 10) + "attempt 1\n" + summary((1, 1, 11)), None, True),
        ("step 0\n" + failed(1, 0, 10) + "step 0\n", None, True),
        # what starts the work sums up that it failed
        (ENGINE, None, True),
        (f'said: "{ENGINE}"\n', None, False),
        (ENGINE + "step 1\nstep 2\n", None, False),
    ],
)
def test_whether_a_run_is_said_to_have_failed(text: str, state: str | None, says: bool) -> None:
    scanned = scan(lines_of(text))
    assert says_failed(scanned, Work(scanned.lines), RunFacts(state=state)) is says


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("/bin/sh: 1: python: not found", "launcher-arguments"),
        ("/usr/bin/env: 'bash\\r': No such file or directory", "syntax-error"),
        ("run.sh: line 3: syntax error near unexpected token `fi'", "syntax-error"),
        ("run.sh: line 5: WORLD_SIZE: unbound variable", "missing-rank-environment"),
        ("exec /app/start.sh: exec format error", "scheduler-error"),
        ("FATAL:   container creation failed: mount /a->/a error: while mounting /a", "scheduler-error"),
    ],
)
def test_what_a_shell_or_a_container_could_not_start_counts_unless_the_work_went_on(line: str, code: str) -> None:
    assert diagnosed(f"{line}\n").code == code
    assert explained(f"{line}\n{STEPS}step 90 loss 0.1\n").diagnosis is None
    assert diagnosed(f"{line}\n{STEPS}{raised(None, KEY)}").what.startswith(KEY)


def test_what_a_log_only_mentions_before_the_exception_of_the_rank_that_failed() -> None:
    own = raised(1, "ZeroDivisionError: integer division or modulo by zero") + failed(1, 1, 11) + summary((1, 1, 11))
    for mentioned in (
        "sample text: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "wrap.sh: line 2: train.sh: No such file or directory",
    ):
        found = diagnosed(f"{mentioned}\n{own}")
        assert (found.code, found.rank) == ("script-exception", 1), mentioned
        assert found.exception is not None and found.exception.type == "ZeroDivisionError"
    for other in (lost(1) + failed(1, 1, 11) + summary((1, 1, 11)), failed(1, 1, 11) + summary((1, 1, 11))):
        assert (
            diagnosed(f"sample text: CUDA out of memory. Tried to allocate 2 GiB.\n{other}").code != "script-exception"
        )
    assert diagnosed(f"slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n{own}").code == "host-out-of-memory"


@pytest.mark.parametrize(
    "closing",
    [
        "ERROR: Job 439 failed with return code list: [1]\n✓ Job finished (status: FAILED).",
        "run.pl: 32 / 32 failed, log is in exp/stats/logdir/stats.*.log",
        "[agent] user process ended unexpectedly, marking job as failed: the job has failed",
        "Error: failed to run torchrun --nproc_per_node=4 train.py on 127.0.0.1",
        "  | Runner failed with exit code: 2",
        "WRN A exception occurred during Engine initialization, give up running process",
    ],
)
def test_last_words_that_report_a_failure_are_no_good_end(closing: str) -> None:
    found = diagnosed(f"loading data\nmodel has 3 layers\n{closing}\n")
    assert found.code == "unknown" and closing.split("\n")[0].strip()[:40] in f"{found.what} {found.evidence}"


@pytest.mark.parametrize(
    "closing",
    [
        "0 of 8 workers failed",
        "Epoch 3: error=0.71, failed_samples=2",
        "the job terminated successfully, no errors",
        "process exited with code 0",
        "WARNING: an upload failed, will retry",
        "exact_match: 0.6128 (3064/5000), unanswered 41, timed out 0",
        "test-clean: word error rate 4.21 %, insertion error 0.4 %",
        "absolute trajectory error [m]: 0.031",
        "mean squared error = 0.12, relative error on the test set 3.1 %",
        "WORD ERROR RATE 4.21",
        "steps where the loss failed to decrease: 3",
        "training run terminated normally",
        "worker 3 failed over to worker 4",
        "Test error (top-1): 23.1",
    ],
)
def test_last_words_about_failures_that_were_none_stay_silent(closing: str) -> None:
    assert explained(f"step 1/3 loss 0.5\nstep 2/3 loss 0.4\nstep 3/3 loss 0.3\n{closing}\n").diagnosis is None


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


def test_words_of_success_with_a_status_of_failure_are_none() -> None:
    fell = raised(None, "_pickle.UnpicklingError: invalid load key, 'v'.") + failed(1, 1, 11)
    words = ("finished with status 1", "completed with exit code 3", "Finished with errors", "done with error code 7")
    for word in words:
        assert explained(f"{fell}[entrypoint] the container {word}\n").diagnosis is not None
    assert explained("step 1/2\nstep 2/2\nthe container finished with status 0\n").diagnosis is None


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


#: What shells, services and people put below a training, whether it has failed or not.
TRAILERS = (
    "Done.",
    "finished.",
    "Job finished at Fri Feb 14 14:40:24 UTC 2025",
    "work_dir saved: work_dirs/cones",
    "syncing outputs to gs://probes/run-118 ... ok",
    "Job stats: elapsed 00:10:41, energy n/a",
    "go.sh: finished in 21 s",
    "user@tpu-0:~/vit$ gcloud storage cp -r runs/ gs://vit-runs\nCompleted files 3/3 | 14.1kiB/14.1kiB",
    "+ echo 'pretraining finished, starting linear probe'\npretraining finished, starting linear probe\n+ exit 0",
)


@pytest.mark.parametrize("trailer", TRAILERS)
def test_what_a_shell_says_below_a_failure_is_no_work_that_went_on(trailer: str) -> None:
    before = "Epoch: [0]  [ 200/1251]  eta: 0:09:41  loss: 6.9021\n"
    lost = "srun: error: Node failure on r07n12\nslurmstepd: error: *** STEP 44.0 ON r07n09 CANCELLED AT "
    lost += "2025-10-28T11:13:20 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"
    killed = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=910331.0. Some of the tasks have been OOM Killed.\n"
    )
    for failure, code in (
        (raised(None, "KeyError: 'crop is not in the registry'"), "script-exception"),
        (raised(None, "RuntimeError: world_size (12) is not divisible by 8") + failed(1, 0, 11), "script-exception"),
        (before + lost, "scheduler-error"),
        (before + killed, "host-out-of-memory"),
    ):
        assert diagnosed(failure + trailer + "\n").code == code
