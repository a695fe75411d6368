"""Options of every parser library, read from sources of the kind that people write."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from ddplaunch.script.read import read_script
from ddplaunch.script.script_report import DeclaredOption, ScriptReport


def read(folder: Path, text: str, *args: str, **others: str) -> ScriptReport:
    for name, content in others.items():
        target = folder / f"{name}.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(dedent(content))
    script = folder / "train.py"
    script.write_text(dedent(text))
    return read_script(script, folder, args=args)


def meanings(report: ScriptReport) -> dict[str | None, str]:
    return {option.meaning: option.flags[0] for option in report.options if option.meaning}


def option(report: ScriptReport, flag: str) -> DeclaredOption:
    return next(item for item in report.options if flag in item.flags)


CROWD_BT = """
    import argparse
    import torch.distributed as dist

    def parse_args():
        parser = argparse.ArgumentParser()
        group = parser.add_argument_group("training")
        group.add_argument("--batch-size", "-b", type=int, default=16)
        group.add_argument("--lr", type=float, default=1e-4)
        parser.add_argument("--distributed", action="store_true")
        parser.add_argument("--world-size", type=int, default=-1)
        parser.add_argument("--local_rank", type=int, default=0)
        parser.add_argument("--amp", action=argparse.BooleanOptionalAction)
        parser.add_argument("data")
        return parser.parse_args()

    if __name__ == "__main__":
        args = parse_args()
        if args.distributed:
            dist.init_process_group("nccl")
"""


def test_argparse_as_in_crowd_bt(tmp_path: Path) -> None:
    report = read(tmp_path, CROWD_BT)
    assert meanings(report) == {"batch_size": "--batch-size", "lr": "--lr"}
    batch = option(report, "-b")
    assert (batch.flags, batch.default, str(batch.at)) == (("--batch-size", "-b"), "16", "train.py:8")
    assert option(report, "--lr").default == "1e-4"
    assert not option(report, "--distributed").takes_value
    assert "--no-amp" in option(report, "--amp").flags
    assert report.complete
    assert report.demands_local_rank is None
    assert str(option(report, "--local_rank").at) == "train.py:12"
    assert not any("data" in item.flags for item in report.options)


def test_literal_choices_are_read(tmp_path: Path) -> None:
    head = "import argparse\np = argparse.ArgumentParser()\nNAMES = ['a']\n"
    lines = "p.add_argument('--a', choices=['x', -1])\np.add_argument('--b', choices=NAMES)\n"
    report = read(tmp_path, head + lines + "p.add_argument('--c', choices=('x', other()))\np.parse_args()\n")
    assert [each.choices for each in report.options] == [("x", "-1"), (), ("x", None)]


@pytest.mark.parametrize(
    "text",
    [
        "TYPES = [Args, TrainingArguments]\nHfArgumentParser(TYPES)\n",
        "def make():\n    types = (Args, TrainingArguments)\n    return HfArgumentParser(types, prog='x')\nmake()\n",
        "if fast:\n    Base = Other\nelse:\n    Base = TrainingArguments\n"
        "class Mine(Base):\n    pass\nHfArgumentParser(Mine)\n",
        "HfArgumentParser(TrainingArguments)\ndef other():\n"
        "    return HfArgumentParser((Args, TrainingArguments))\nother()\n",
    ],
)
def test_hugging_face_classes_are_found_behind_names(tmp_path: Path, text: str) -> None:
    head = "from transformers import HfArgumentParser, TrainingArguments\nclass Args:\n    name: str = 'x'\n"
    report = read(tmp_path, head + text)
    rates = [item for item in report.options if item.meaning == "lr"]
    assert [item.flags[0] for item in rates] == ["--learning_rate"]


CLICK = """
    import click
    @click.command()
    @click.option("--batch_size", default=64, help="Batch size per GPU")
    @click.option("--learning_rate", "-l", type=click.FLOAT, default=2e-5)
    @click.option("--use_projection", type=bool, default=True)
    @click.option("--shuffle/--no-shuffle", default=True)
    @click.option("--save_to_artifacts", is_flag=True)
    @click.option("--local_rank", required=True)
    def main(**options): ...
    main()
"""


def test_click(tmp_path: Path) -> None:
    report = read(tmp_path, CLICK)
    assert meanings(report) == {"batch_size": "--batch_size", "lr": "--learning_rate"}
    assert option(report, "--no-shuffle").flags == ("--shuffle", "--no-shuffle")
    takes = [each.takes_value for each in report.options]
    assert takes == [True, True, True, False, False, True]
    assert report.demands_local_rank is not None and report.complete


HUGGING_FACE = """
    from dataclasses import dataclass, field
    from transformers import HfArgumentParser, Trainer, TrainingArguments

    @dataclass
    class DataArguments:
        max_length: int = field(default=512)
        global_batch_size: int = 64

    parser = HfArgumentParser((DataArguments, TrainingArguments))
    data, training = parser.parse_args_into_dataclasses()
"""


def test_hugging_face(tmp_path: Path) -> None:
    report = read(tmp_path, HUGGING_FACE)
    assert meanings(report) == {
        "global_batch_size": "--global_batch_size",
        "batch_size": "--per_device_train_batch_size",
        "accum": "--gradient_accumulation_steps",
        "lr": "--learning_rate",
        "warmup_steps": "--warmup_steps",
    }
    assert str(option(report, "--learning_rate").at) == "train.py:10"
    assert option(report, "--max_length").default == "512"
    assert "world_size" not in dict(report.doubts)


PARSER = "import argparse\np = argparse.ArgumentParser()\n"
GROUP = "import click\n@click.group()\ndef cli(): ...\n@cli.command()\n@click.option('--lr')\ndef f(lr): ...\ncli()\n"
TYRO = "import tyro\nclass Config:\n    batch_size: int = 8\n    lr: float = 1e-3\ntyro.cli(Config)\n"
FIRE = "import fire\ndef main(batch_size=8, lr=1e-3): ...\nfire.Fire(main)\n"


@pytest.mark.parametrize(
    ("text", "found", "complete"),
    [
        (PARSER + "p.add_argument('--lr')\np.add_argument('--learning-rate')\n", {}, True),
        (PARSER + "t = p.add_subparsers().add_parser('t')\nt.add_argument('--lr', type=float)\n", {}, True),
        (PARSER + "for name in ['lr', 'batch-size']:\n    p.add_argument('--' + name)\n", {}, False),
        (GROUP, {}, True),
        (FIRE, {"batch_size": "--batch_size", "lr": "--lr"}, True),
        ("import fire\nfire.Fire()\n", {}, False),
        (TYRO, {"batch_size": "--batch-size", "lr": "--lr"}, True),
        (HUGGING_FACE.replace("args_into_dataclasses()", "json_file(path)"), {}, True),
    ],
)
def test_numbers_of_options(tmp_path: Path, text: str, found: dict[str, str], complete: bool) -> None:
    report = read(tmp_path, text)
    assert (meanings(report), report.complete) == (found, complete)


def test_a_class_that_extends_training_arguments_in_another_file(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        "from transformers import HfArgumentParser\nfrom conf import Mine\nHfArgumentParser(Mine)\n",
        conf="""
        from dataclasses import dataclass
        from transformers import TrainingArguments
        @dataclass
        class Mine(TrainingArguments):
            learning_rate: float = 3e-4
        """,
    )
    assert option(report, "--learning_rate").default == "3e-4"
    assert str(option(report, "--learning_rate").at) == "conf.py:6"
    assert meanings(report)["batch_size"] == "--per_device_train_batch_size"


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("import argparse, sys\nargparse.ArgumentParser().parse_args(sys.argv[1:])\n", True),
        ("import sys\nprint(sys.argv[0])\n", True),
        ("import argparse, apexlike\np = argparse.ArgumentParser()\nargs = p.parse_args()\n", False),
        ("import argparse, hydra\nargs = argparse.ArgumentParser().parse_args()\n", False),
        ("import hydra\n@hydra.main(config_path='.')\ndef main(cfg): ...\nmain()\n", False),
        ("exec(open('configurator.py').read())\n", False),
        ("import sys\nepochs = int(sys.argv[1])\n", False),
        ("from sys import argv\nepochs = argv[1:]\n", False),
        ("import argparse\nargparse.ArgumentParser().parse_known_args()\n", False),
        ("import argparse\nargparse.ArgumentParser().add_argument('--x', nargs=argparse.REMAINDER)\n", False),
        ("import argparse\nargparse.ArgumentParser().add_argument('rest', nargs='...')\n", False),
        ("from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n", False),
        ("import typer\ndef main(batch_size: int = 8): ...\ntyper.run(main)\n", False),
        ("from absl import app, flags\nflags.DEFINE_integer('batch_size', 8, 'per GPU')\napp.run(main)\n", False),
        ("from torchtune import config\n@config.parse\ndef main(cfg): ...\n", False),
        ("import argparse, pytorch_lightning as pl\npl.Trainer.add_argparse_args(argparse.ArgumentParser())\n", False),
        ("from .missing import parse\nparse()\n", False),
    ],
)
def test_what_cannot_be_seen_leaves_the_report_incomplete(tmp_path: Path, text: str, complete: bool) -> None:
    assert read(tmp_path, text).complete is complete
