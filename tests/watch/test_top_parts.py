"""The parts of ``top``: step rates from output, samples as JSON, tables and bars."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.machine.processes.process_table import Process, read_process
from ddplaunch.machine.sample import Sample, sample_of
from ddplaunch.ui.live.top_view import TopView, top_lines, top_text
from ddplaunch.ui.terminal import Terminal, cells
from ddplaunch.values.codec import plain
from ddplaunch.watch.gpu_usage import GpuUsage
from ddplaunch.watch.live_samples import Watched
from ddplaunch.watch.sampler import RankUsage, host_sample
from ddplaunch.watch.step_rate import Steps
from ddplaunch.watch.stragglers import late_rank, stragglers
from tests.conftest import Golden
from tests.watch.metrics_samples import BEGAN_S, run_samples, with_gpu, with_rank

WORDS = ("20261121-143012-x7k2q9", "running 12 min", "train.py", "4 ranks", "batch 256")


@pytest.fixture(autouse=True)
def _utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


# Step rates


@pytest.mark.parametrize(
    ("lines", "step", "rate"),
    [
        ("step {n} loss 0.12\n", 30, 10),
        ("[2026-11-21 14:30:12] INFO iter: {n}/5000, lr 0.1\n", 30, 10),
        ("{{'loss': 0.3, 'global_step': {n}}}\n", 30, 10),
        ("\x1b[1;32mstep\x1b[0m \x1b[36m{n}\x1b[0m\n", 30, 10),
        ("Epoch: [0][ {n}/5005]\tTime 0.2\n", 30, 10),
        ("Train Epoch: 1 [{n}/60000 (1%)]\tLoss: 2.3\n", 30, 10),
        ("\r 10%|█         | {n}/1000 [00:05<01:30,  9.84it/s, loss=0.1]", 30, 10),
    ],
)
def test_rates_of_what_counts_up(tmp_path: Path, lines: str, step: float, rate: float) -> None:
    steps = Steps(tmp_path, [0])
    for second in range(4):
        _print(tmp_path / "rank-0.out", lines.format(n=second * 10), BEGAN_S + second)
        found = steps.progress(BEGAN_S + second)
    found = steps.progress(BEGAN_S + 3)  # a bar ends its line with the next one
    assert (found[0].step, found[0].rate) == (step, rate)


@pytest.mark.parametrize(
    "line", ["batch size 8, 100 steps\n", "12 s/it\n", "step time: 0.3\n", "loss 1.0\n", "it 5/s\n"]
)
def test_what_is_no_step_is_none(tmp_path: Path, line: str) -> None:
    _print(tmp_path / "rank-0.out", line, BEGAN_S)
    assert all(each.step is None for each in Steps(tmp_path, [0]).progress(BEGAN_S).values())


def test_rates_start_anew_with_an_epoch_and_fall_when_nothing_comes(tmp_path: Path) -> None:
    steps, path = Steps(tmp_path, [0]), tmp_path / "rank-0.out"
    for second, number in enumerate((90, 100, 0, 5)):
        _print(path, f"step {number}\n", BEGAN_S + second)
        found = steps.progress(BEGAN_S + second)[0]
    assert found.rate == 5
    assert (steps.progress(BEGAN_S + 4)[0].rate or 0) == 5
    assert 0 < (steps.progress(BEGAN_S + 100)[0].rate or 0) < 0.1


def test_only_the_end_of_long_output_is_read_and_a_cut_number_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.out"
    _print(path, "x" * 3_000_000 + "\nstep 7\nstep 1", BEGAN_S)
    steps = Steps(tmp_path, [0])
    assert steps.progress(BEGAN_S)[0].step == 7
    _print(path, "23\n", BEGAN_S + 1)
    assert steps.progress(BEGAN_S + 1)[0].step == 123
    _print(path, "step 200", BEGAN_S + 1)
    assert [steps.progress(BEGAN_S + second)[0].step for second in (1, 2)] == [123, 200], "whole, as it grows no more"
    path.unlink()
    assert steps.progress(BEGAN_S + 3)[0].step == 200  # the record is gone, what was seen is not


def _print(path: Path, text: str, at_s: float) -> None:
    with path.open("a") as file:
        file.write(text)
    os.utime(path, (at_s, at_s))


# Reading /proc


def test_processes_that_vanish_or_were_given_their_pid_again(tmp_path: Path) -> None:
    own = read_process(os.getpid())
    assert own is not None
    again, gone = own._replace(start_ticks=own.start_ticks + 1), own._replace(pid=1 << 22)
    usage = RankUsage({0: own, 1: again, 2: gone})
    assert [rank.rank for rank in usage.sample()] == [0]
    (rank,) = RankUsage({0: own}).sample()
    assert (rank.pid, rank.cpu_percent) == (own.pid, None) and (rank.rss_bytes or 0) > 1 << 20
    assert RankUsage({0: own}, str(tmp_path)).sample() == ()  # no /proc at all
    (tmp_path / "7").mkdir()  # as another user's: its stat is everybody's to read, its environment is not
    fields = ["S", "1", "7", "7", *["0"] * 7, "150", "50", *["0"] * 4, "3", "0", "99", "0", "1000", *["0"] * 29]
    (tmp_path / "7" / "stat").write_text(f"7 (a) b (c) {' '.join(fields)}\n")
    (sample,) = RankUsage({3: Process(7, 1, 7, "S", 99, 0, "python")}, str(tmp_path)).sample()
    assert (sample.rank, sample.local_rank, sample.rss_bytes) == (3, 3, 4096000)
    host = host_sample()
    assert 0 <= (host.cpu_percent or 0.0) <= 100 and host.cpus > 0
    assert 0 < (host.memory_available_bytes or 0) < (host.memory_total_bytes or 0)


def test_the_gpu_of_a_rank_that_nvml_does_not_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container NVML's process ids are the host's: the devices that a rank was given tell where it works."""
    sample = run_samples(1)[0]
    ranks = [replace(rank, gpu=None, gpu_memory_bytes=None) for rank in sample.ranks[:3]]
    for rank, visible in zip(ranks, ("2,GPU-1,3", "GPU-2,GPU-1", "0"), strict=True):
        (tmp_path / str(rank.pid) / "fd").mkdir(parents=True)
        (tmp_path / str(rank.pid) / "environ").write_text(f"A=1\0CUDA_VISIBLE_DEVICES={visible}\0")
        (tmp_path / str(rank.pid) / "fd" / "9").symlink_to("/dev/nvidiactl" if rank.rank != 2 else "/dev/null")
    usage = GpuUsage(proc=str(tmp_path))
    gpus = tuple(replace(gpu, ranks=()) for gpu in sample.gpus)
    monkeypatch.setattr(usage, "_read_nvml", lambda: gpus)
    monkeypatch.setattr(usage, "_holders", lambda gpus: {77: {0: 5}})
    placed, placed_gpus = usage.sample(ranks, {rank.pid: rank.rank for rank in ranks})
    assert [rank.gpu for rank in placed] == [2, 1, None]  # the third does not use CUDA
    assert [gpu.ranks for gpu in placed_gpus] == [(), (1,), (0,), ()] and placed_gpus[0].others == 0


# What is shown


def view_of(samples: list[Sample], terminal: Terminal, keys: str = "") -> TopView:
    findings = stragglers(samples)
    return TopView(samples[-1], (*WORDS, keys), (), findings, late_rank(findings), terminal)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_screen(golden: Golden, width: int) -> None:
    hot = with_gpu(run_samples(), 2, slowdowns=("hardware thermal slowdown",), temperature_c=91, clock_mhz=1200)
    text = top_text(view_of(with_rank(hot, 2, step_rate=9.4), Terminal(width), "q quits"))
    assert max(cells(line) for line in text.splitlines() if "`" not in line) <= width  # commands stay whole
    golden(f"top-{width}", text)


def test_the_table_of_a_run_without_gpus_and_of_ranks_that_tell_phases(golden: Golden) -> None:
    golden("top-plain", top_text(view_of(run_samples(12, 2, gpu=False), Terminal(80))))
    phases = {"data": 41.2, "forward": 12.0, "backward": 30.5, "comm": 8.0, "optimizer": 2.0}
    samples = with_rank(run_samples(12, 2, gpu=False), 1, phases=phases)
    for width in (80, 120):
        text = top_text(view_of(samples, Terminal(width)))
        assert max(map(cells, text.splitlines())) <= width
        golden(f"top-phases-{width}", text)
    assert sample_of(plain(samples[-1])) == samples[-1]
    value = json.loads(json.dumps(plain(run_samples(1)[0])))
    assert value["ranks"][0]["step_rate"] == 12.0 and value["no_gpus"] is None
    assert sample_of({**value, "of_a_later_version": 1}) == run_samples(1)[0]
    assert sample_of({"at_s": 1}) is None


@pytest.mark.parametrize("width", [20, 40, 80])
@pytest.mark.parametrize(("height", "ranks"), [(10, 64), (24, 0), (24, 1), (24, 64)])
def test_it_fits_every_terminal(width: int, height: int, ranks: int) -> None:
    samples = run_samples(12, ranks)
    hot = with_gpu(samples, 0, slowdowns=("hardware slowdown",)) if ranks else samples
    terminal = Terminal(width)
    lines = top_lines(view_of(hot, terminal, "q quits"), terminal, height)
    assert width < 40 or all(cells(line) <= width for line in lines if "`" not in line)  # commands stay whole
    assert ("STEP" in "\n".join(lines)) == bool(ranks)
    if height == 24 and width >= 40:
        assert len(lines) <= height and "q quits" in " ".join(lines[:3])


def test_ranks_that_need_a_look_are_shown_where_not_all_have_room() -> None:
    samples = with_rank(run_samples(12, 64, gpu=False), 40, state="D", loss="nan")
    lines = top_lines(view_of(samples, Terminal(80)), Terminal(80), 24)
    assert len(lines) <= 24 and "more ranks: `--json` has all" in " ".join(lines)
    shown = [int(match[1]) for line in lines if (match := re.match(r" *(\d+)  ", line))]
    assert shown == [*range(len(shown) - 1), 40] and len(shown) > 10
    assert next(line for line in lines if line.startswith("    40")).rstrip().endswith("nan, waits for disk")


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("step 3 loss 0.125\n", 0.125),
        ("{'loss': 2.5e-1, 'learning_rate': 1e-05}\n", 0.25),
        ("Epoch 3 train_loss=4\n", 4.0),
        ("train/loss: .5\n", 0.5),
        ("Loss: nan\n", "nan"),
        ("loss=inf\n", "inf"),
        ("\r 10%|#  | 1/10 [00:01<00:09, 1.00it/s, loss=0.75]", 0.75),
        ("step 1 \x1b[33mloss\x1b[0m: \x1b[1m0.75\x1b[0m\n", 0.75),
        ("Test Loss 2.3 | Loss 1.5\n", 1.5),
        ("val_loss: 1.5 eval loss 2 validation loss: 3 closs 4\n", None),
        ("loss is nice; loss: 12abc\n", None),
    ],
)
def test_losses_in_common_words(tmp_path: Path, line: str, loss: float | str | None) -> None:
    (tmp_path / "rank-0.out").write_text(line)
    found = Steps(tmp_path, [0]).progress(time.time())
    assert (found[0].loss if found else None) == loss


@pytest.mark.parametrize("environ", [{}, {"NO_COLOR": "1"}])
def test_colour_is_never_alone(environ: Mapping[str, str]) -> None:
    samples = with_rank(run_samples(), 1, state="T")
    styled = Terminal.of(None, {"FORCE_COLOR": "1", **environ}).styled
    (row,) = [line for line in top_text(view_of(samples, Terminal(100, styled))).splitlines() if "stopped" in line]
    assert ("\x1b[1;33m" in row) == styled == (not environ)


@pytest.mark.parametrize("late", [(2, 3), (3,)])
def test_a_host_is_named_if_all_of_its_ranks_are_late(late: tuple[int, ...]) -> None:
    """Ranks of all hosts step together: what differs is how long they wait for communication."""
    waits, works = {"forward": 50.0, "comm": 45.0}, {"forward": 90.0, "comm": 1.0}
    samples = run_samples(14, 4, gpu=False)
    for rank in range(4):
        samples = with_rank(samples, rank, step_rate=10.0, phases=works if rank in late else waits)
    watched = Watched(
        iter(
            {node: replace(each, name="ab"[node], ranks=each.ranks[2 * node :][:2]) for node in (0, 1)}
            for each in samples
        )
    )
    for _ in samples:
        watched.look()
    found = [(finding.code, finding.where, finding.what) for finding in watched.findings]
    what = "the others waited for host b: it works 99 ms in a step, they 55 ms"
    assert found == ([("host-late", ("host b",), what)] if late == (2, 3) else [])


def test_a_small_curve_of_the_loss() -> None:
    """Of what the first rank printed, which most samples see unchanged; words are no losses, and one is no curve."""
    series = [with_rank(run_samples(1, 2), 0, loss=loss)[0] for loss in (None, 2.0, 2.0, 1.0, "nan", 0.25, 0.25, 0.5)]
    watched = Watched(iter([{0: sample} for sample in series]))
    curves = []
    for _ in series:
        watched.look()
        curves.append(watched.curve())
    assert curves[:3] == [()] * 3 and curves[3] == curves[4] == ("loss 2 █▁ 1",)
    assert watched.curve() == ("loss 2 █▄▁▂ 0.5",)
