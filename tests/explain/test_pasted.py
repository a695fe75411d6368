"""What people paste into reports: a title above the log, sentences around it, several ranks at once, several runs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.explain.logs import TORCH, diagnosed, explained, failed, raised

STEPS = "".join(f"epoch 1 step {step}/900 loss 2.{step}\n" for step in range(100, 106))


def test_a_rank_that_leaves_with_1_lost_another_one_as_the_lines_above_say() -> None:
    lost = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.0.42]:51212\n"
    found = diagnosed("    loss.backward()\n" + lost + failed(1, 1, 41))
    assert (found.code, found.rank) == ("unknown", 1) and "lost another rank" in found.what
    assert "lost another rank" not in diagnosed(lost + failed(9, 1, 41)).what, "no exception leaves 9"


@pytest.mark.parametrize("frame", ["<module>", "load"])
def test_a_warning_above_a_traceback_announces_it_where_it_was_caught(frame: str) -> None:
    text = raised(None, "RuntimeError: no table").replace("in main", f"in {frame}")
    found = explained("[WARNING] no hostfile, going on\n" + text + "Cleanup complete\n").diagnosis
    assert (found is not None) == (frame == "<module>")


LATE = (
    "[rank{}]:[E512 16:44:09.018 ProcessGroupNCCL.cpp:563] [Rank {}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9363, OpType=ALLREDUCE, NumelIn=6, NumelOut=6, Timeout(ms)=1800000) ran for 1800088 "
    "milliseconds before timing out.\n"
)
MISSING = raised(None, "ModuleNotFoundError: No module named 'seaborn'").replace("in main", "in <module>")
CUDNN = "Could not load library libcudnn_cnn_infer.so.8. Error: libnvrtc.so: cannot open shared object file: No such\n"


def test_an_import_that_the_program_does_without() -> None:
    without = "[plots] seaborn is not installed, plain matplotlib is used instead\n"
    found = diagnosed(MISSING + without + CUDNN + failed(-6, 0, 31))
    assert found.code == "cudnn-error" and "libnvrtc.so" in found.what
    assert diagnosed(MISSING + "please pip install seaborn, it is used instead\n").code == "module-not-found"
    assert diagnosed(MISSING + CUDNN + failed(-6, 0, 31)).code == "module-not-found"


@pytest.mark.parametrize(
    ("step", "end"),
    [
        ("[2023-12-03 22:10:55] 第 {} 轮 损失 9.21", "训练完成"),
        ("Epoche {}: Verlust 2.31", "fertig"),
        ("[learner] update {} return 12.4", "docker: Exited (0) 3 hours ago"),
        ("epoch {} loss 2.31", "resources used: walltime=06:20:47, exit_status=0"),
    ],
)
def test_steps_and_ends_in_other_words(step: str, end: str) -> None:
    steps = [step.format(number) + "\n" for number in range(4)]
    text = "".join(steps[:2]) + raised(None, "EOFError: pipe").replace("in main", "in read") + "".join(steps[2:])
    assert explained(f"{text}{end}\n").diagnosis is None


@pytest.mark.parametrize(
    "logged",
    [
        "ERROR | rank 6 | prefetch thread stopped: ValueError('empty labels for sample 118204')",
        "ERROR rank 6 worker 2: soundfile.LibsndfileError: Error opening 'a.wav': Format not recognised.",
        "[rank6]: loader thread stopped: AttributeError: no attribute 'PixelSpacing'",
    ],
)
def test_an_exception_that_a_thread_logged_is_why_the_others_wait(logged: str) -> None:
    waits = "".join(LATE.format(rank, rank) for rank in range(3))
    found = diagnosed(f"{STEPS}{logged}\nepoch 1 step 106/900 loss 2.1\n{waits}{failed(-6, 0, 31)}")
    assert (found.code, found.rank) == ("script-exception", 6)
    own = raised(1, "KeyError: 'x'").replace("in main", "in <module>")
    assert diagnosed(f"{STEPS}{logged}\n{own}{failed(1, 1, 31)}").rank == 1


def test_ranks_in_brackets_behind_times_and_columns() -> None:
    banner = "".join(f"node-{host}| W0411 08:00:01.118000 701 run.py:792] OMP_NUM_THREADS is 1\n" for host in "ab")
    own = "".join(f"node-b| [9] {line}\n" for line in raised(None, "KeyError: 'x'").splitlines())
    found = diagnosed(banner + "".join(f"node-a| [0] step {at} loss 0.4\n" for at in range(1, 5)) + own)
    assert (found.code, found.rank, found.host) == ("script-exception", 9, "node-b")


@pytest.mark.parametrize(
    "show",
    [
        lambda at, text: f"{'INFO' if at < 9 else 'ERROR'}\t2026-01-05T04:11:{at:02}.123Z\tworkerpool0-0\t{text}",
        lambda at, text: f"2026-01-05 04:11:{at:02} {'INFO' if at < 9 else 'ERROR'} trainer: {text}",
        lambda at, text: f'time="2026-01-05T04:11:{at:02}Z" level={"info" if at < 9 else "error"} msg={text}',
        lambda at, text: f"[{'STDOUT' if at < 9 else 'STDERR'}] {text}",
        lambda at, text: f'2026-01-05T04:11:{at:02}Z\t{{"app":"train","pod":"trainer-1"}}\t{text}',
        lambda at, text: f"trainer-1 {json.dumps({'level': 'info', 'message': text})}",
        lambda at, text: f"2026-01-05 04:11:{at:02}.000 +0000 kube.train: {json.dumps({'log': text + chr(10)})}",
        lambda at, text: f'{{ "ts": 1.{at}, "msg": {json.dumps(text)} }}',
        lambda at, text: json.dumps({"kubernetes": {"pod": "a"}, "log": {"message": text}, "level": "info"}),
    ],
)
def test_what_a_collector_puts_before_each_line_may_differ_in_its_words(show: Callable[[int, str], str]) -> None:
    lines = (STEPS + raised(None, "KeyError: 'title'")).splitlines()
    found = diagnosed("".join(f"{show(at, line)}\n" for at, line in enumerate(lines)))
    assert found.what == "KeyError: 'title' at train.py:31 in main"


@pytest.mark.parametrize("file", ["agent/server/api.py:836", "multiprocessing/errors/error_handler.py:141"])
def test_a_traceback_that_torch_elastic_logs(file: str) -> None:
    front = f"E1128 10:00:00.123000 18472 torch/distributed/elastic/{file}] "
    told = "".join(front + line + "\n" for line in raised(None, "KeyError: 'title'").splitlines())
    assert diagnosed(STEPS * 9 + told).what == "KeyError: 'title' at train.py:31 in main"


def test_an_abort_of_nccl_does_not_hide_the_time_out_before_it() -> None:
    found = diagnosed(f"{STEPS}Timeout waiting for NCCL all-reduce (600 s)\nNCCL communicator was aborted on rank 2.\n")
    assert (found.code, found.what) == ("collective-timeout", "all-reduce timed out")


@pytest.mark.parametrize("host", ["[fd00::1]", "node0:29500", "tcp://10.0.0.1"])
def test_an_address_that_says_more_than_the_host_is_not_for_etc_hosts(host: str) -> None:
    line = f"[c10d] The IPv4 network addresses of ({host}, 29500) cannot be retrieved (gai error: -2 - Name unknown).\n"
    found = diagnosed(line)
    assert f"`{host}` was looked up as a name" in found.what and "/etc/hosts" not in " ".join(found.fixes)


def test_torchrun_that_did_not_use_the_master_address_is_led_to_the_endpoint() -> None:
    waits = "[c10d] The client socket has timed out after 60000ms while trying to connect to (localhost, 29400).\n"
    warning = (
        "W0105 torch/distributed/run.py:1] master_addr is only used for static rdzv_backend and when rdzv_endpoint "
    )
    found = diagnosed(f"{warning}is not specified.\n{waits}")
    assert found.code == "rendezvous-failed" and "--rdzv-endpoint" in found.fixes[0]
    assert "--rdzv-endpoint" not in " ".join(diagnosed(waits).fixes)


def test_a_rank_in_backward_while_another_is_in_a_barrier_had_more_batches() -> None:
    waits = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation"
    text = "".join(
        raised(rank, waits).replace("train.py", own).replace(f"[rank{rank}]: Runtime", f"{frame}[rank{rank}]: Runtime")
        for rank, own, frame in (
            (0, "end.py", f'[rank0]:   File "{TORCH}/distributed/distributed_c10d.py", line 4551, in barrier\n'),
            (1, "train.py", f'[rank1]:   File "{TORCH}/autograd/graph.py", line 768, in _engine_run_backward\n'),
        )
    )
    found = diagnosed(text)
    assert found.code == "collective-mismatch" and "one rank had more batches" in found.why
    assert "drop_last=True" in found.fixes[0] and "Join" in found.fixes[0]


def test_an_exception_of_a_destructor_without_its_traceback_is_ignored() -> None:
    ignored = "Exception ignored in: <function tqdm.__del__ at 0x7f2b>\nAttributeError: 'tqdm' has no attribute 'pos'\n"
    assert explained(STEPS + "Training time 1:36:58\n" + ignored).diagnosis is None
    assert diagnosed(STEPS + ignored.partition("\n")[2]).code == "script-exception"
