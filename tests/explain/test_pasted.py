"""What people paste into reports: a title above the log, sentences around it, several ranks at once, several runs."""

from __future__ import annotations

import pytest

from tests.explain.logs import TORCH, diagnosed, failed, raised

STEPS = "".join(f"epoch 1 step {step}/900 loss 2.{step}\n" for step in range(100, 106))


def test_a_rank_that_leaves_with_1_lost_another_one_as_the_lines_above_say() -> None:
    lost = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.0.42]:51212\n"
    found = diagnosed("    loss.backward()\n" + lost + failed(1, 1, 41))
    assert (found.code, found.rank) == ("unknown", 1) and "lost another rank" in found.what
    assert "lost another rank" not in diagnosed(lost + failed(9, 1, 41)).what, "no exception leaves 9"


MISSING = raised(None, "ModuleNotFoundError: No module named 'seaborn'").replace("in main", "in <module>")
CUDNN = "Could not load library libcudnn_cnn_infer.so.8. Error: libnvrtc.so: cannot open shared object file: No such\n"


def test_an_import_that_the_program_does_without() -> None:
    without = "[plots] seaborn is not installed, plain matplotlib is used instead\n"
    found = diagnosed(MISSING + without + CUDNN + failed(-6, 0, 31))
    assert found.code == "cudnn-error" and "libnvrtc.so" in found.what
    assert diagnosed(MISSING + "please pip install seaborn, it is used instead\n").code == "module-not-found"
    assert diagnosed(MISSING + CUDNN + failed(-6, 0, 31)).code == "module-not-found"


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
