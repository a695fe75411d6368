"""The parts of ``top``: step rates from output, samples as JSON, tables and bars."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.ui.terminal import Terminal, cells
from ddplaunch.values.finding import UsageError
from ddplaunch.watch.gpu_usage import GpuOfRank, GpuReading
from ddplaunch.watch.sampler import HostUsage, RankUsage
from ddplaunch.watch.samples import RankIdentity, sample_json, sample_of
from ddplaunch.watch.step_rate import Steps, metric_pattern
from ddplaunch.watch.stragglers import slowest_rank, stragglers
from ddplaunch.watch.top_view import About, Look, frame, sorts_of, sparkline
from tests.conftest import Golden
from tests.watch.metrics_samples import BEGAN_S, run_samples, with_gpu, with_rank

ABOUT = About("20261121-143012-x7k2q9", ("running 12 min", "train.py", "4 ranks", "batch 256"), keys="q quit")


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


def test_a_bar_names_its_own_rate_until_there_are_two(tmp_path: Path) -> None:
    _print(tmp_path / "rank-0.err", "\r  3/9 [00:06<00:12, 2.00s/it]\n", BEGAN_S)
    (progress,) = Steps(tmp_path, [0]).progress(BEGAN_S).values()
    assert (progress.step, progress.rate) == (3, 0.5)


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
    path.unlink()
    assert steps.progress(BEGAN_S + 2)[0].step == 123  # the record is gone, what was seen is not


def test_a_pattern_of_the_users(tmp_path: Path) -> None:
    _print(tmp_path / "rank-3.out", "step 5, seen 640 samples at 412.5 samples/s\n", BEGAN_S)
    counted = Steps(tmp_path, [3], metric_pattern(r"seen (\d+) samples")).progress(BEGAN_S)
    assert counted[3].step == 640
    told = Steps(tmp_path, [3], metric_pattern(r"(?P<rate>[\d.]+) samples/s")).progress(BEGAN_S)
    assert told[3].rate == 412.5
    for wrong, says in (("(", "not a regular expression"), ("seen", "has no group")):
        with pytest.raises(UsageError, match=says):
            metric_pattern(wrong)


def _print(path: Path, text: str, at_s: float) -> None:
    with path.open("a") as file:
        file.write(text)
    os.utime(path, (at_s, at_s))


# Reading /proc


def test_processes_that_vanish_or_were_given_their_pid_again(tmp_path: Path) -> None:
    own = os.getpid()
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    ranks = [RankIdentity(0, 0, own, start), RankIdentity(1, 1, own, start + 1), RankIdentity(2, 2, 1 << 22, 1)]
    usage = RankUsage(ranks)
    assert [each.rank for each in usage.sample()] in ([0], [])  # the second has its pid and another start
    (again,) = RankUsage(ranks[:1]).sample()
    assert again.pid == own and again.cpu_percent is None and (again.rss_bytes or 0) > 1 << 20
    assert RankUsage(ranks, str(tmp_path)).sample() == ()  # no /proc at all


def test_a_process_of_which_little_may_be_read(tmp_path: Path) -> None:
    """As another user's: its stat is everybody's to read, its environment, memory map and I/O are not."""
    (tmp_path / "7").mkdir()
    fields = ["S", "1", "7", "7", *["0"] * 7, "150", "50", *["0"] * 4, "3", "0", "99", "0", "1000", *["0"] * 29]
    (tmp_path / "7" / "stat").write_text(f"7 (a) b (c) {' '.join(fields)}\n")
    (sample,) = RankUsage([RankIdentity(0, 0, 7, 99)], str(tmp_path)).sample()
    assert (sample.threads, sample.rss_bytes, sample.read_bytes_s, sample.omp_threads) == (3, 4096000, None, None)


def test_rates_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = tmp_path / "proc"
    (proc / "net").mkdir(parents=True)
    (tmp_path / "sys/block/sda").mkdir(parents=True)
    monkeypatch.setattr("psutil.PROCFS_PATH", str(proc))

    def counted(user: int, idle: int, received: int, read_sectors: int) -> None:
        (proc / "stat").write_text(f"cpu  {user} 0 100 {idle} 0 0 0 0 0 0\n")
        loopback, outside = f"lo: {received} 0 0 0 0 0 0 0 9{' 0' * 7}", f"eth0: {received} 0 0 0 0 0 0 0 500{' 0' * 7}"
        (proc / "net/dev").write_text(f"a\nb\n  {loopback}\n{outside}\n")
        disk = f"1 0 {read_sectors} 0 1 0 10 0 0 0 0\n"
        (proc / "diskstats").write_text(f"8 0 sda {disk}8 1 sda1 {disk}")

    usage = HostUsage(str(tmp_path))
    assert usage.sample().cpu_percent is None  # nothing there to read
    counted(100, 800, 1000, 100)
    assert usage.sample().received_bytes_s is None
    counted(175, 825, 3000, 300)
    sample = usage.sample()
    assert sample.cpu_percent == 75.0 and sample.sent_bytes_s == 0 and sample.disk_write_bytes_s == 0
    assert (sample.received_bytes_s or 0) > 0 and (sample.disk_read_bytes_s or 0) > 0
    ratio = (sample.disk_read_bytes_s or 0) / (sample.received_bytes_s or 1)
    assert ratio == pytest.approx(200 * 512 / 2000, rel=0.01)  # the loopback and the partition do not count


def test_the_gpu_of_a_rank_that_nvml_does_not_name(tmp_path: Path) -> None:
    """In a container NVML's process ids are the host's: the devices that a rank was given tell where it works."""
    samples = run_samples(1)[0]
    ranks = [replace(rank, gpu=None, gpu_memory_bytes=None) for rank in samples.ranks[:3]]
    for rank, visible in zip(ranks, ("2,GPU-1,3", "GPU-2,GPU-1", "0"), strict=True):
        (tmp_path / str(rank.pid) / "fd").mkdir(parents=True)
        (tmp_path / str(rank.pid) / "environ").write_text(f"A=1\0CUDA_VISIBLE_DEVICES={visible}\0")
        (tmp_path / str(rank.pid) / "fd" / "9").symlink_to("/dev/nvidiactl" if rank.rank != 2 else "/dev/null")
    places = GpuOfRank([RankIdentity(rank.rank, rank.local_rank, rank.pid, 1) for rank in ranks], str(tmp_path))
    reading = GpuReading(samples.gpus, {77: {0: 5}})
    placed, gpus = places.place(ranks, reading, {rank.pid: rank.rank for rank in ranks})
    assert [rank.gpu for rank in placed] == [2, 1, None]  # the third does not use CUDA
    assert [gpu.ranks for gpu in gpus] == [(), (1,), (0,), ()] and gpus[0].others == 0


# What is shown


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_screen(golden: Golden, width: int, height: int) -> None:
    hot = with_gpu(run_samples(), 2, slowdowns=("hardware thermal slowdown",), temperature_c=91, clock_mhz=1200)
    samples = with_rank(hot, 2, step_rate=9.4)
    lines = frame(samples, ABOUT, stragglers(samples), slowest_rank(samples), Look(Terminal(width), height))
    assert len(lines) == height and max(map(cells, lines)) <= width
    golden(f"top-{width}", "\n".join(line.rstrip() for line in lines) + "\n")


def test_the_table_of_a_run_without_gpus(golden: Golden) -> None:
    samples = run_samples(12, 2, gpu=False)
    golden("top-plain", "\n".join(frame(samples, ABOUT, (), None, Look(Terminal(80), bars=False))) + "\n")


def test_the_phases_of_ranks_that_tell_them(golden: Golden) -> None:
    phases = {"data_percent": 41.2, "forward_percent": 12.0, "backward_percent": 30.5, "optimizer_percent": 2.0}
    samples = with_rank(run_samples(12, 2, gpu=False), 1, comm_percent=8.0, **phases)
    for width in (80, 120):
        lines = frame(samples, ABOUT, (), None, Look(Terminal(width), bars=False))
        assert max(map(cells, lines)) <= width
        golden(f"top-phases-{width}", "\n".join(line.rstrip() for line in lines) + "\n")
    assert sample_of(sample_json(samples[-1])) == samples[-1]


@pytest.mark.parametrize("width", [20, 40, 80])
@pytest.mark.parametrize("height", [5, 10, 24])
@pytest.mark.parametrize("ranks", [0, 1, 64])
def test_it_fits_every_terminal(width: int, height: int, ranks: int) -> None:
    samples = run_samples(12, ranks)
    hot = with_gpu(samples, 0, slowdowns=("hardware slowdown",)) if ranks else samples
    for first in (0, 60, 1000):
        look = Look(Terminal(width, unicode=False), height, first_row=first)
        lines = frame(hot, ABOUT, stragglers(hot), None, look)
        assert len(lines) == height and all(cells(line) <= width and line.isascii() for line in lines)
        assert lines[-1].startswith("q quit"[:width])
    assert frame((), ABOUT, (), None, Look(Terminal(width), height))


def test_ranks_are_sorted_and_what_is_wrong_with_those_without_room_is_said() -> None:
    samples = with_rank(run_samples(12, 64, gpu=False), 40, step_rate=3.0, loss="nan")
    samples = with_rank(with_rank(samples, 7, loss=0.25), 9, loss=9.5)
    look = Look(Terminal(80, True), 24)
    assert sorts_of(samples[-1]) == ["rank", "step/s", "loss", "CPU", "memory"]
    by = {sort: frame(samples, ABOUT, (), 40, replace(look, sort=sort)) for sort in sorts_of(samples[-1])}
    (more,) = [line for line in by["rank"] if "more ranks" in line]
    assert "more ranks, rank 40: late, nan" in more and more.startswith("\x1b[1;33m")
    rows = {
        sort: [line for line in lines if re.match(r"(?:\x1b\[[\d;]*m)? +\d+  ", line)] for sort, lines in by.items()
    }
    first = {sort: re.sub(r"\x1b\[[\d;]*m", "", each[0]).split()[0] for sort, each in rows.items()}
    assert first == {"rank": "0", "step/s": "40", "loss": "40", "CPU": "0", "memory": "0"}
    assert rows["loss"][0].startswith("\x1b[1;31m") and " 9.5 " in rows["loss"][1] and " 0.25 " in rows["loss"][2]
    assert sample_of(sample_json(samples[-1])) == samples[-1]
    other = with_rank(with_rank(run_samples(12, 4), 1, step_rate=6.0), 2, step_rate=2.0)
    table = frame(other, ABOUT, (), 2, Look(Terminal(120), bars=False))
    assert [line.rsplit(None, 1)[-1] for line in table if re.match(r" +[12]  ", line)] == ["slow", "late"]


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
        ("Test Loss 2.3 | Loss 1.5\n", 1.5),
        ("val_loss: 1.5 eval loss 2 validation loss: 3 closs 4\n", None),
        ("loss is nice; loss: 12abc\n", None),
    ],
)
def test_losses_in_common_words(tmp_path: Path, line: str, loss: float | str | None) -> None:
    (tmp_path / "rank-0.out").write_text(line)
    found = Steps(tmp_path, [0]).progress(time.time())
    assert (found[0].loss if found else None) == loss


def test_a_loss_in_the_users_words(tmp_path: Path) -> None:
    (tmp_path / "rank-0.out").write_text("step 7 ppl 31.5 loss 3\n")
    found = Steps(tmp_path, [0], metric_pattern(r"ppl (?P<loss>[\d.]+)")).progress(time.time())[0]
    assert (found.step, found.loss) == (7, 31.5)


def test_colour_is_never_alone() -> None:
    samples = with_rank(run_samples(), 1, step_rate=3.0)
    plain, painted = (
        frame(samples, ABOUT, stragglers(samples), slowest_rank(samples), Look(Terminal(100, styled), 24))
        for styled in (False, True)
    )
    (row,) = [line for line in plain if line.endswith("late")]
    assert any("\x1b[1;33m" in line and row in line for line in painted)


def test_bars() -> None:
    assert sparkline([0, 50, 100], 5, 100) == "  ▁▅█"
    assert sparkline([1, None, 2], 3, unicode=False) == "+ @"
    assert sparkline([0, 0], 2) == "▁▁" and sparkline([], 3) == "   " and sparkline([5], 0) == ""


def test_json_of_a_sample_can_be_read_by_anybody() -> None:
    value = json.loads(json.dumps(sample_json(run_samples(1)[0])))
    assert value["ranks"][0]["step_rate"] == 12.0 and "no_gpus" not in value
    assert sample_of({**value, "of_a_later_version": 1}) == run_samples(1)[0]
    assert sample_of({"at_s": 1}) is None
