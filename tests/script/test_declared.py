"""Options of every parser library, read from sources of the kind that people write."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from ddplaunch.script.read import read_script
from ddplaunch.script.script_report import DeclaredOption, ScriptReport


def read(folder: Path, text: str, **others: str) -> ScriptReport:
    for name, content in others.items():
        target = folder / f"{name}.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(dedent(content))
    script = folder / "train.py"
    script.write_text(dedent(text))
    return read_script(script, folder)


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


def test_a_required_local_rank_is_demanded(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        'import argparse\np = argparse.ArgumentParser()\np.add_argument("--local-rank", type=int, required=True)\n',
    )
    assert str(report.demands_local_rank) == "train.py:3"


@pytest.mark.parametrize(
    ("declaration", "meaning"),
    [
        ('"--warmup-steps", type=int', "warmup_steps"),
        ('"--warmup", type=int', "warmup_steps"),
        ('"--warmup", default=500', "warmup_steps"),
        ('"--warmup", type=float, default=0.1', "warmup_ratio"),
        ('"--warmup", default=0.1', "warmup_ratio"),
        ('"--warmup"', None),
        ('"--train_batch_size", type=int', "batch_size"),
        ('"--micro_batch_size", type=int', "batch_size"),
        ('"--global-batch-size", type=int', "total_batch_size"),
        ('"--gradient_accumulation_steps", type=int', "accum"),
        ('"--accum-iter", default=1, type=int', "accum"),
        ('"--batch-size", type=str', None),
        ('"--batch-size", nargs="+", type=int', None),
        ('"--batch-size-val", type=int', None),
        ('"--lr", action="store_true"', None),
        ('"-lr", type=float', "lr"),
    ],
)
def test_meaning_only_of_exact_names_and_fitting_types(tmp_path: Path, declaration: str, meaning: str | None) -> None:
    report = read(tmp_path, f"import argparse\np = argparse.ArgumentParser()\np.add_argument({declaration})\n")
    assert [item.meaning for item in report.options] == [meaning]


def test_two_candidates_have_no_meaning(tmp_path: Path) -> None:
    report = read(
        tmp_path, "def f(p):\n    p.add_argument('--lr')\n    p.add_argument('--learning-rate')\nimport x\nf(x)\n"
    )
    assert meanings(report) == {}


def test_options_of_a_subcommand_have_no_meaning(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        """
        import argparse
        top = argparse.ArgumentParser()
        train = top.add_subparsers().add_parser("train")
        train.add_argument("--batch-size", type=int)
        """,
    )
    assert option(report, "--batch-size").meaning is None


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


def test_computed_flags_leave_the_report_incomplete(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        """
        import argparse
        p = argparse.ArgumentParser()
        for name in ["lr", "batch-size"]:
            p.add_argument("--" + name)
        """,
    )
    assert not report.complete


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


def test_click_as_in_the_retriever(tmp_path: Path) -> None:
    report = read(tmp_path, CLICK)
    assert meanings(report) == {"batch_size": "--batch_size", "lr": "--learning_rate"}
    assert option(report, "--use_projection").takes_value
    assert option(report, "--no-shuffle").flags == ("--shuffle", "--no-shuffle")
    assert not option(report, "--save_to_artifacts").takes_value
    assert report.demands_local_rank is not None
    assert report.complete


def test_click_group_commands_have_no_meaning(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        """
        import click
        @click.group()
        def cli(): ...
        @cli.command()
        @click.option("--batch-size")
        def train(batch_size): ...
        cli()
        """,
    )
    assert option(report, "--batch-size").meaning is None


def test_fire(tmp_path: Path) -> None:
    report = read(tmp_path, "import fire\ndef main(batch_size=8, lr=1e-3): ...\nfire.Fire(main)\n")
    assert meanings(report) == {"batch_size": "--batch_size", "lr": "--lr"}
    assert report.complete
    assert not read(tmp_path, "import fire\nfire.Fire()\n").complete


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


def test_options_that_only_a_file_fills_are_none(tmp_path: Path) -> None:
    assert not read(tmp_path, HUGGING_FACE.replace("args_into_dataclasses()", "json_file(path)")).options


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


def test_tyro(tmp_path: Path) -> None:
    config = (
        "from dataclasses import dataclass\n@dataclass\nclass Config:\n    batch_size: int = 8\n    lr: float = 1e-3\n"
    )
    report = read(tmp_path, f"import tyro\n{config}tyro.cli(Config)\n")
    assert option(report, "--batch-size").flags == ("--batch-size", "--batch_size")


@pytest.mark.parametrize(
    "text",
    [
        "import hydra\n@hydra.main(config_path='.')\ndef main(cfg): ...\nmain()\n",
        "exec(open('configurator.py').read())\n",
        "import sys\nepochs = int(sys.argv[1])\n",
        "from sys import argv\nepochs = argv[1:]\n",
        "import argparse\nargparse.ArgumentParser().parse_known_args()\n",
        "import argparse\nargparse.ArgumentParser().add_argument('--x', nargs=argparse.REMAINDER)\n",
        "import argparse\nargparse.ArgumentParser().add_argument('rest', nargs='...')\n",
        "from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n",
        "import nobody_knows_this\n",
        "import typer\ndef main(batch_size: int = 8): ...\ntyper.run(main)\n",
        "from absl import app, flags\nflags.DEFINE_integer('batch_size', 8, 'per GPU')\napp.run(main)\n",
        "from docopt import docopt\nargs = docopt(__doc__)\n",
        "from tap import Tap\nclass Args(Tap):\n    lr: float = 0.1\nArgs().parse_args()\n",
        "import simple_parsing\nsimple_parsing.parse(dict)\n",
        "from torchtune import config\n@config.parse\ndef main(cfg): ...\n",
        "from lib import HParams\nHParams(lr=0.1).parse(text)\n",
        "from lib import ConfigManager\nConfigManager().parse_args()\n",
        "import argparse, pytorch_lightning as pl\npl.Trainer.add_argparse_args(argparse.ArgumentParser())\n",
        "from .missing import parse\nparse()\n",
        "import sys\nfrom mingpt.utils import CfgNode\nCfgNode().merge_from_args(sys.argv[1:])\n",
    ],
)
def test_what_cannot_be_seen_leaves_the_report_incomplete(tmp_path: Path, text: str) -> None:
    assert not read(tmp_path, text).complete


@pytest.mark.parametrize(
    "text",
    [
        "import argparse, sys\nargparse.ArgumentParser().parse_args(sys.argv[1:])\n",
        "import sys\nprint(sys.argv[0])\n",
        "import os, torch, numpy as np\n",
    ],
)
def test_what_hides_nothing_is_complete(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text).complete
