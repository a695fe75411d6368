"""The page of ``ddplaunch report`` is whole in itself, keeps secrets, and escapes what others wrote."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest

from ddplaunch.cli.commands.afterwards.report import shown
from ddplaunch.cli.main import main
from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.records.outcome import AttemptOutcome, RankOutcome, RunOutcome, write_outcome
from ddplaunch.ui.report_curves import also_shown, curves_in
from tests.cli.cli_calls import TRAIN, Call
from tests.records import fake_runs

BEGAN_S = 1790000000.0
SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"


def record(base: Path, run_id: str, lines: int = 3) -> Path:
    """Write the record of a run of two ranks, of which rank 1 failed."""
    numbers = {name: {"value": 2, "source": {"kind": "flag"}} for name in ("world_size", "accum", "global_batch_size")}
    plan = {"target": {"name": "train.py"}, "numbers": numbers, "missing": [{"number": "accum"}]}
    argv = ["/x/ddplaunch", "run", "2", "--", "train.py", "<b>&</b>"]
    directory = fake_runs.record(base, run_id, BEGAN_S, argv=argv, plan=plan)
    attempt = directory / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    ranks = (
        RankOutcome(0, 0, "gpu-a", exit_code=0, started_s=BEGAN_S, ended_s=BEGAN_S + 5),  # it outlasts its attempt
        RankOutcome(1, 1, "gpu-a", exit_code=1, started_s=BEGAN_S + 1, ended_s=BEGAN_S + 3),
    )
    what, fixes = "ValueError: <script>alert(1)</script>", ("look at `<train>.py:7`",)
    why = Diagnosis("script-exception", "observed", what, "the script ended by it", fixes, 1, "gpu-a")
    only = AttemptOutcome(0, BEGAN_S, BEGAN_S + 4, True, None, ranks)
    failed = RunOutcome(run_id, "gpu-a", 0, "failed", 1, BEGAN_S + 1, BEGAN_S + 4, 1, why, (), (only,))
    assert write_outcome(directory, failed) is None
    for rank in (0, 1):
        text = "".join(f"step {each} of rank {rank} <i>\n" for each in range(lines))
        (attempt / f"rank-{rank}.out").write_text(text + f"token {SECRET}\n")
        (attempt / f"rank-{rank}.err").write_text("10%|#\r100%|##########\nno newline")
    return directory


def page(folder: Path, *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["report", *words])
    assert end.value.code == 0
    (path,) = folder.glob("*.html")
    return path.read_text(encoding="utf-8")


def test_a_page_fetches_nothing_and_escapes_all(folder: Path) -> None:
    file = record(folder / ".ddplaunch", "first") / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"git_commit": "\x1b[31m\u202ered\x9b"}))
    text = page(folder)
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text
    assert not [
        word for word in ("http:", "https:", "src=", "@import", "url(") if word in text.replace("http://www.w3.org", "")
    ]
    assert "&lt;script&gt;alert(1)" in text and "<script>alert" not in text
    assert "train.py &#39;&lt;b&gt;&amp;&lt;/b&gt;&#39;" in text
    assert SECRET not in text and text.count("token ***") == 2
    assert "100%|##########" in text and "10%|#<" not in text
    assert "no newline" in text and "red" in text and not re.search("[\x1b\u202e\x9b]", text)
    assert shown(b"\x1b]0;title\x07plain \xff") == "plain \ufffd"
    assert "<li>look at <code>&lt;train&gt;.py:7</code></li>" in text
    assert text.count("only planned: see") == 2 and "ranks, planned effective batch 2" in text
    assert "ended after 4.0 s with exit status 1" in text  # from what was typed, as in `ps`
    timed = re.findall(r"left: ([\d.]+)%; width: ([\d.]+)%", text.partition('id="timeline"')[2])
    assert [tuple(map(float, each)) for each in timed] == [(0.0, 100.0), (20.0, 40.0)]


def test_at_most_10000_lines_are_in_the_page(folder: Path) -> None:
    record(folder / ".ddplaunch", "long", lines=9000)
    text = page(folder, "long", "-o", "long.html")
    assert 4_900 < text.count("<div data-rank=") <= 10_000
    assert "of rank 0 &lt;i&gt;" in text and "step 8999 of rank 1" in text and "step 0 of" not in text
    assert "ddplaunch logs long" in text


@pytest.mark.parametrize(
    ("line", "curve", "shown_at"),
    [
        ("350 samples/s", {"samples/s": (350, "")}, {}),
        ("10%|# | 3/30 [00:01<00:09, 2.50it/s]", {"it/s": (2.5, "3")}, {}),
        ("iter 7 throughput: 1200.5 loss 0.25", {"loss": (0.25, "7"), "throughput": (1200.5, "7")}, {}),
        ("{'train_runtime': 9.1, 'train_samples_per_second': 35.5}", {"samples/s": (35.5, "")}, {}),
        ("tokens/sec: 9000, step 4", {"tokens/s": (9000, "4")}, {}),
        ("12.3MB/s, 3 of 4 files, loss is low", {}, {}),
        ("wandb: View run at https://wandb.ai/ada/c/runs/ab", {}, {"W&B": b"https://wandb.ai/ada/c/runs/ab"}),
        (
            "\x1b[34mwandb\x1b[0m: 🚀 View run \x1b[3mx\x1b[0m at: \x1b[4mhttp://w/a/c/runs/b\x1b[0m",
            {},
            {"W&B": b"http://w/a/c/runs/b"},
        ),
        ("wandb: \x1b[1mwandb sync /a b/offline-run-1-x\x1b[0m", {}, {"W&B": b"/a b/offline-run-1-x"}),
        ("View run x at: https://d/ml/experiments/3/runs/0f", {}, {"MLflow": b"https://d/ml/experiments/3/runs/0f"}),
        (
            "View run x at: http://m/#/experiments/3/runs/0f?workspace=a",
            {},
            {"MLflow": b"http://m/#/experiments/3/runs/0f?workspace=a"},
        ),
        (
            "TensorBoard 2.21.0 at http://localhost:6006/ (Press CTRL+C to quit)",
            {},
            {"TensorBoard": b"http://localhost:6006/"},
        ),
        ("View run x at: http://m/#/experiments/3/runs/0f", {}, {"MLflow": b"http://m/#/experiments/3/runs/0f"}),
        ("see it by tensorboard --logdir=logs/a;b", {}, {"TensorBoard": b"logs/a"}),
        ("TensorBoard logs in runs/Nov29", {}, {"TensorBoard": b"runs/Nov29"}),
        ("no tensorboard here, javascript:alert(1)/runs/1", {}, {}),
    ],
)
def test_figures_and_addresses_are_read_from_what_rank_0_printed(
    line: str, curve: dict[str, tuple[float, str]], shown_at: dict[str, bytes]
) -> None:
    assert curves_in([f"{line}\n".encode()]) == {"loss": []} | {name: [point] for name, point in curve.items()}
    assert also_shown([line.encode()]) == shown_at


def test_source_is_shown_around_the_failed_line_unless_it_has_changed(folder: Path) -> None:
    directory = record(folder / ".ddplaunch", "first")
    outcome = json.loads((directory / "outcome.json").read_text())
    outcome["diagnosis"]["calls"] = [
        {"place": "train.py:5 in main", "source": "fail(5)", "file": str(folder / "train.py")}
    ]
    (directory / "outcome.json").write_text(json.dumps(outcome))
    script = folder / "train.py"
    script.write_text("".join(f"    fail({number})\n" for number in range(1, 12)))
    text = page(folder)
    shown_lines = re.findall(r"<span(?: class=\"failed-line\")?>(?:&gt;)? *(\d+)      fail\((\d+)\)", text)
    assert shown_lines == [(str(number),) * 2 for number in range(2, 9)]
    assert '<span class="failed-line">&gt;    5' in text
    script.write_text(f"# {SECRET}\n" + script.read_text())
    text = page(folder)
    assert 'id="source"' not in text and "train.py:5 in main  fail(5)" in text


def test_time_is_split_by_the_measured_steps(folder: Path) -> None:
    attempt = record(folder / ".ddplaunch", "first") / "node-0" / "attempt-0"
    steps = [[step, BEGAN_S + 1 + step, 1, 500_000, None, None, None, None, None, 32, 3 << 30] for step in (0, 1, 2)]
    lines = [{"schema": 1, "device": "cuda"}, *([*step, None] for step in steps)]
    (attempt / "rank-0.phases.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = page(folder)
    assert "launch 0.0 s, start of the ranks 1.0 s, training 2.0 s, end 2.0 s" in text
    assert "<b>64</b><span>samples/s, measured" in text and "<b>3 GiB</b><span>GPU memory of a rank" in text
    assert "<b>samples/s of rank 0</b> measured at steps, from step 0 to 2" in text


def test_the_loss_that_rank_0_printed_is_drawn(folder: Path) -> None:
    output = record(folder / ".ddplaunch", "first") / "node-0" / "attempt-0" / "rank-0.out"
    assert '<svg id="loss"' not in page(folder)
    losses = [2.0, 1.0, float("nan"), 1.5, 0.5]
    lines = "".join(f"step {step} loss {loss}\n" for step, loss in enumerate(losses, 1))
    output.write_text(f"{lines}wandb: View run at https://wandb.ai/ada/cats/runs/ab12\n7 it/s\n")
    text = page(folder)
    assert 'href="https://wandb.ai/ada/cats/runs/ab12"' in text and "<b>7</b><span>it/s, last" in text
    assert "rank 0 printed it 5 times, from step 1 to 5: highest 2, lowest 0.5, last 0.5" in text
    points = [line.split() for line in re.findall(r'<polyline points="([^"]*)"', text)]
    assert points == [["0.0,0.0", "225.0,106.7"], ["675.0,53.3", "900.0,160.0"]], "a loss that is no number is a gap"
    output.write_text("wandb sync /a b/wandb/offline-run-2-x\n")
    assert "<p>W&amp;B: <code>wandb sync &#39;/a b/wandb/offline-run-2-x&#39;</code></p>" in page(folder)
    output.write_text("".join(f"epoch {epoch} step {step} loss {step}0000000\n" for epoch in (0, 1) for step in (1, 2)))
    text = page(folder)
    assert "<b>20,000,000</b><span>loss, last</span>" in text, "steps that begin anew say nothing of how far it is"
    assert "printed it 4 times: highest 20,000,000, lowest 10,000,000" in text and "<span>first</span>" in text
    output.write_text("".join(f"loss {100 / step}\n" for step in range(1, 3001)))
    (line,) = re.findall(r'<polyline points="([^"]*)"', page(folder))
    points = [tuple(map(float, point.split(","))) for point in line.split()]
    assert len(points) == 600 and all(0 <= x <= 900 and 0 <= y <= 160 for x, y in points)
    assert [y for _, y in points] == sorted(y for _, y in points)  # it falls, and y counts downwards


# Options that name a file to write replace nothing but an earlier file of the same kind


@pytest.fixture
def run(call: Call, folder: Path) -> Call:
    """A call in a folder that has a recorded run."""
    record(folder / ".ddplaunch", "first")
    return call


def test_an_earlier_file_of_the_same_kind_is_replaced_and_keeps_its_mode(run: Call, folder: Path) -> None:
    out, link = folder / "out", folder / "link"
    assert run("report", "--output", "out").status in (0, 1)
    out.chmod(0o640)
    first, inode = out.read_text(), out.stat().st_ino
    out.write_text(first + "older\n")
    link.symlink_to("out")
    assert run("report", "--output", "link").status in (0, 1)
    assert link.is_symlink() and not out.read_text().endswith("older\n")
    assert stat.S_IMODE(out.stat().st_mode) == 0o640 and out.stat().st_ino != inode  # a new file in one step
    assert {each.name for each in folder.iterdir()} == {".ddplaunch", "train.py", "out", "link"}


def test_force_replaces_a_file_and_nothing_else(run: Call, folder: Path) -> None:
    said = run("report", "--output", "train.py")
    assert said.status == 2 and "error[output-not-written]: `train.py` exists and is not" in said.err
    assert "`--force`" in said.err and (folder / "train.py").read_text() == TRAIN
    (folder / "train.py").chmod(0o751)
    assert run("report", "--output", "train.py", "--force").status in (0, 1)
    assert (folder / "train.py").read_text() != TRAIN
    assert stat.S_IMODE((folder / "train.py").stat().st_mode) == 0o751
    os.mkfifo(folder / "pipe")
    (folder / "broken").symlink_to("missing")
    (folder / "loop").symlink_to("loop")
    kinds = dict.fromkeys(("pipe", "loop", ".", "/dev/null"), "is not a regular file")
    kinds |= {"broken": "is a link that leads nowhere", "no/such": "there is no directory `no`"}
    for name, problem in kinds.items():
        said = run("report", "--output", name, "--force")
        assert said.status == 2 and problem in " ".join(said.err.split()), name
    assert not (folder / "missing").exists() and Path("/dev/null").is_char_device()
