"""What is read beyond options: local imports, process groups, own processes, environment, and hostile files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplaunch.script.read import read_script
from ddplaunch.script.script_report import GROUP_NOT_FOLLOWED, NO_GROUP
from ddplaunch.script.source import locate
from ddplaunch.values.resolved import Unavailable
from tests.script.test_declared import meanings, option, read

PARSER = "import argparse\ndef parse():\n    p = argparse.ArgumentParser()\n    p.add_argument('--lr')\n"
NET = f"{PARSER}class Net: ...\nif __name__ == '__main__':\n    parse()\n"


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("import args as a\na.parse()\n", {"args": PARSER}),
        ("from pkg.cli import parse\nparse()\n", {"pkg/cli": PARSER}),
        ("import pkg.cli\npkg.cli.parse()\n", {"pkg/cli": PARSER, "pkg/__init__": ""}),
        ("from pkg import cli\ncli.parse()\n", {"pkg/cli": PARSER, "pkg/__init__": ""}),
        ("from pkg import parse\nparse()\n", {"pkg/cli": PARSER, "pkg/__init__": "from .cli import *"}),
        ("from pkg.cli import parse\nparse()\n", {"src/pkg/cli": PARSER}),
    ],
)
def test_options_in_another_local_module(tmp_path: Path, text: str, others: dict[str, str]) -> None:
    report = read(tmp_path, text, **others)
    assert meanings(report) == {"lr": "--lr"}
    assert option(report, "--lr").at.line == 4
    assert report.complete


@pytest.mark.parametrize(
    ("text", "others", "complete"),
    [
        ("from model import Net\nNet()\n", {"model": NET}, True),
        ("import a\na.f()\n", {"a": "from b import f\n", "b": "from a import f\n"}, True),
        ("import m0\n", {f"m{index}": f"import m{index + 1}\n" for index in range(9)} | {"m9": ""}, False),
        ("import big\nbig.parse()\n", {"big": PARSER + "#" * 150_000}, False),
    ],
)
def test_modules_that_declare_nothing(tmp_path: Path, text: str, others: dict[str, str], complete: bool) -> None:
    report = read(tmp_path, text, **others)
    assert (report.options, report.complete) == ((), complete)


def test_installed_packages_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "venv" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "args.py").write_text(PARSER)
    (tmp_path / "train.py").write_text("from args import parse\nparse()\n")
    report = read_script(tmp_path / "train.py", tmp_path, [folder])
    assert report.options == ()
    assert not report.complete


OWN_METHOD = (
    "import torch\nclass Adapter:\n    def init_process_group(self, backend):\n"
    "        torch.distributed.init_process_group(backend, rank=self.rank)\nAdapter().init_process_group('nccl')\n"
)
SPAWNED = "import torch.multiprocessing as mp\ndef f(rank):\n    dist.init_process_group(rank=rank, world_size=4)\n"
OF_SLURM = "import torch\ntorch.distributed.init_process_group(rank=int(os.environ['SLURM_PROCID']))\n"
TAKES_RANK = "os.environ['RANK'] = os.environ['SLURM_PROCID']\nprint(os.environ['RANK'])\ndist.init_process_group()\n"
MPI = "import os\nfrom mpi4py import MPI\nimport torch.distributed as dist\n"
SETS_RANK = "os.environ['RANK'] = str(MPI.COMM_WORLD.Get_rank())\ndist.init_process_group('nccl')\n"
SUPER = (
    "import torch\nclass Base:\n    def __init__(self, kind):\n        self.kind = kind\n"
    "        if self.kind == 'ddp':\n"
    "            torch.distributed.init_process_group()\n"
    "class Mine(Base):\n    def __init__(self, kind):\n        super().__init__(kind)\n"
)


UP = "def up(many):\n    if many:\n        dist.init_process_group()\n"


# What follows from the text: whether what was not read may set up a group, None if one was followed.
@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("from torch.distributed import init_process_group\ninit_process_group()\n", None),
        ("from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cuda', (2,))\n", None),
        ("import ddp\nddp.setup()\n", None),
        ("from own import Own\nOwn().train()\n", None),
        ("from pytorch_lightning import Trainer as T\nT(devices='auto').fit(model)\n", None),
        ("from transformers import Trainer\nclass Mine(Trainer): ...\nMine().train()\n", None),
        ("import deepspeed\ndeepspeed.initialize()\n", None),
        ("import torch, os\nif 'RANK' in os.environ:\n    torch.distributed.init_process_group()\n", None),
        ("import unknown\ndef main():\n    unknown.x()\n    dist.init_process_group()\nmain()\n", None),
        ("from mpi4py import MPI\nrank = MPI.COMM_WORLD.Get_rank()\ndist.init_process_group('nccl')\n", None),
        ("import torch\nmodel = torch.nn.DataParallel(model)\n", False),
        ("import unknown\nunknown.train()\n", True),
        ("from ultralytics.models.yolo.detect import DetectionTrainer\nDetectionTrainer().train()\n", True),
        ("import deepspeed\nimport argparse\n", True),
        ("import transformers, wandb\nwandb.init()\n", False),
        ("from lightning import Trainer\nt: Trainer = hydra.utils.instantiate(cfg.trainer)\n", True),
        ("from lightning import Trainer\nt = made(cfg.trainer, Trainer)\n", True),
        ("from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n", True),
        ("from lightning import Trainer\ndef fit(t: Trainer | None) -> Trainer: ...\nfit(make())\n", True),
        ("from accelerate import Accelerator\nif cfg['many']:\n    Accelerator()\n", True),
        (UP + "up(my_config.many)\n", True),
        (UP + "self.many = my_config.many\nup(my_config.many)\n", True),
        (UP + "my_config.many = size > 1\nup(my_config.many)\n", None),
        ("from accelerate import Accelerator\ncfg.many = size > 1\nif cfg.many:\n    Accelerator()\n", None),
        ("import torch\ndef unused():\n    torch.distributed.init_process_group()\nif False:\n    unused()\n", True),
        ("def up():\n    dist.init_process_group()\nif my_config.mode == 'train':\n    up()\n", None),
        ("class Many:\n    def __init__(self):\n        dist.init_process_group()\n{'nccl': Many}[kind]()\n", True),
        ("import accelerate as a\nHAS = False\nif a:\n    HAS = True\nif HAS:\n    a.Accelerator()\n", True),
        (SUPER + "Mine('pytorch')\n", True),
        ("import os, torch\nos.environ['RANK'] = str(rank)\ntorch.distributed.init_process_group()\n", True),
        (OWN_METHOD, True),
        (SPAWNED + "launch = mp.spawn\nlaunch(f, (1,), 4)\n", True),
        (SPAWNED + "own = mp.get_context('spawn')\n[own.Process(target=f, args=(n,)) for n in range(4)]\n", True),
        ("import os\nif 'SLURM_PROCID' in os.environ:\n    " + OF_SLURM.replace("\n", "; ", 1), True),
        ("import os\nif 'RANK' in os.environ:\n    os.environ['SLURM_PROCID']\n    dist.init_process_group()\n", True),
        ("import os\nif 'RANK' in os.environ:\n    dist.init_process_group()\nelse:\n    os.environ['OMPI_X']\n", None),
        ("import os\nos.system(command)", True),
        ("import os\nos.system('date')", False),
        ("import os\nn = os.environ['WORLD_SIZE']\n" + OF_SLURM, True),
        (TAKES_RANK, True),
        ("import os\nif args.slurm:\n    " + TAKES_RANK, None),
        (MPI + SETS_RANK, True),
        (MPI + "comm = MPI.COMM_WORLD\ndist.init_process_group('nccl', rank=comm.rank, world_size=comm.size)\n", True),
    ],
)
def test_ranks_of_a_launch_that_may_not_meet_are_in_doubt(tmp_path: Path, text: str, hidden: bool | None) -> None:
    own = "from transformers import Trainer\nclass Own(Trainer):\n    " + 500 * "x = 1; "
    report = read(tmp_path, text, ddp="import torch\ndef setup():\n    init_process_group()\n", own=own)
    clause = dict(report.doubts).get("world_size")
    assert clause in ((None,) if hidden is None else (NO_GROUP, GROUP_NOT_FOLLOWED))
    assert hidden is None or (clause == NO_GROUP and report.complete) is not hidden


@pytest.mark.parametrize(
    ("step", "doubts"),
    [
        ("loss = model.module.loss(x)", ["world_size"]),
        ("out = model(x)\n    loss = model.module.loss(out)", []),
        ("val_loss = model.module.loss(x)", []),
        ("loss, log = self.model.compute_loss(x)", ["world_size"]),
        ("loss = model.forward(x)", []),
        ("o = DummyOptim(weights)", ["world_size"]),
        ("x = x[:, seq_parallel_chunk * rank :]", ["world_size"]),
        ("a.state.deepspeed_plugin.deepspeed_config['x'] = 1", ["world_size"]),
        ("a.state.deepspeed_plugin.deepspeed_config['x'] = DeepSpeedPlugin()", []),
    ],
)
def test_ranks_train_apart_without_what_joins_their_gradients(tmp_path: Path, step: str, doubts: list[str]) -> None:
    text = f"import torch\ntorch.distributed.init_process_group()\nfor x in y:\n    {step}\n    loss.backward()\n"
    text += "    optimizer.step()\n"
    assert [name for name, _ in read(tmp_path, f"model = DDP(model)\n{text}").doubts] == doubts
    averaged = "for p in model.parameters():\n    dist.all_reduce(p.grad)\n"
    assert [name for name, _ in read(tmp_path, text + averaged).doubts] == doubts
    alone = read(tmp_path, f"from torch.distributed.fsdp import FSDP\n{text}dist.all_reduce(loss)\n")
    assert "deepspeed" in step or [name for name, _ in alone.doubts] == ["world_size"]
    unwrapped = read(tmp_path, f"if False:\n    model = DDP(model)\n{text}")
    assert [name for name, _ in unwrapped.doubts] == ["world_size"]


VISIBLE = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\n"
UNSURE = ("something else", 0, 0)
OF_ACTOR = (
    "import lightning as L, os\nL.Trainer()\n@ray.remote\nclass Actor:\n    def __init__(self, number):\n        "
)


@pytest.mark.parametrize(
    ("body", "fixed"),
    [
        ("import lightning as L\nL.Trainer(devices=1)\n", ("devices", 1, 2)),
        ("import pytorch_lightning as pl\npl.Trainer(gpus=[0, 1])\n", ("gpus", 2, 2)),
        ("import lightning as L\nL.Trainer(devices=-1)\n", None),
        ("import lightning as L\nL.Trainer(devices=torch.cuda.device_count())\n", None),
        ("import lightning as L\nif False:\n    L.Trainer(devices=1)\n", None),
        ("import lightning as L\nif config['find_rate']:\n    L.Trainer(devices=1)\n", UNSURE),
        (
            "import lightning as L\ndef find():\n    L.Trainer(devices=1)\nL.pytorch.cli.LightningCLI(M, D)\nfind()",
            UNSURE,
        ),
        (VISIBLE + "dist.init_process_group()\n", ("CUDA_VISIBLE_DEVICES", 2, 2)),
        (VISIBLE + "torch.nn.DataParallel(model)\n", None),
        ("import lightning as L\nL.Trainer(devices=int(os.environ.get('SLURM_NTASKS', 1)))", UNSURE),
        ("import lightning as L\nL.Trainer(**kwargs)", UNSURE),
        ("import lightning as L\nL.Fabric(num_nodes=2)", UNSURE),
        ("import lightning as L\nL.Fabric(num_nodes=1)", None),
        ("import transformers as t\nm = t.AutoModel.from_pretrained(path, device_map='auto')\nt.Trainer(m)", UNSURE),
        ("import transformers as t\nm = t.AutoModel.from_pretrained(path, device_map={'': 0})\nt.Trainer(m)", None),
        ("import transformers as t\nk = {}\nk['device_map'] = 'auto'\nt.Trainer(t.AutoModel(**k))", UNSURE),
        ("import lightning as L\nL.Trainer.from_argparse_args(args)", UNSURE),
        (OF_ACTOR + "os.environ['CUDA_VISIBLE_DEVICES'] = str(number)", None),
        (OF_ACTOR + "os.environ['CUDA_VISIBLE_DEVICES'] = str(number)\nActor.remote(1)", None),
        (
            "import lightning as L\nnum_gpus = seen()\nif not num_gpus:\n    num_gpus = 1\nL.Trainer(devices=num_gpus)",
            UNSURE,
        ),
        ("import lightning as L, os\nL.Trainer()\nos.environ['CUDA_VISIBLE_DEVICES'] = str(number)", UNSURE),
    ],
)
def test_devices_that_the_script_fixes(tmp_path: Path, body: str, fixed: tuple[str, int, int] | None) -> None:
    report = read(tmp_path, body)
    found = report.devices and (report.devices.name, report.devices.number, report.devices.at.line)
    decided = dict(report.doubts).get("world_size", "").endswith("may decide how many devices train")
    assert (found, decided) == ((None, True) if fixed == UNSURE else (fixed, False))


SPAWN = "import torch, os, sys\nimport torch.multiprocessing as mp\n"


@pytest.mark.parametrize(
    ("body", "recorded"),
    [
        ("def main():\n    n = 3\n    if not n:\n        sys.exit(1)\n    mp.spawn(f, nprocs=n)\nmain()\n", True),
        ("mp.spawn(f, nprocs=torch.cuda.device_count())\n", True),
        ("mp.spawn(f, (2,), 2)\n", True),
        ("if torch.cuda.device_count() > 1:\n    mp.spawn(f, nprocs=2)\n", True),
        ("if 'RANK' not in os.environ:\n    mp.spawn(f, nprocs=2)\n", False),
        ("if os.environ.get('LOCAL_RANK') is None:\n    mp.spawn(f, nprocs=2)\n", False),
        ("def unused():\n    mp.spawn(f, nprocs=2)\n", False),
        ("def main():\n    if args.single:\n        return f(0)\n    mp.spawn(f, nprocs=2)\nmain()\n", False),
        ("def local():\n    mp.spawn(f, nprocs=2)\nif args.local:\n    local()\n", False),
        ("mp.spawn(f, nprocs=1)\n", False),
    ],
)
def test_own_processes_are_recorded(tmp_path: Path, body: str, recorded: bool) -> None:
    assert (read(tmp_path, SPAWN + body).spawns is not None) is recorded


def test_variables_that_are_read(tmp_path: Path) -> None:
    reads = "a = int(os.environ['RANK'])\nb = os.environ.get('MASTER_PORT', '1')\nc = os.getenv('WORLD_SIZE')\n"
    report = read(tmp_path, f"import os\n{reads}os.environ['MASTER_ADDR'] = 'localhost'\n")
    assert report.reads_env == ("RANK", "MASTER_PORT", "WORLD_SIZE")


def test_syntax_error_has_file_and_line_and_an_archive_has_none(tmp_path: Path) -> None:
    wrong = read_script(write(tmp_path, b"import os\n\ndef f(:\n    pass\n"), tmp_path)
    assert (wrong.syntax_error, wrong.complete) == ("train.py:3: invalid syntax", False)
    archive = read_script(write(tmp_path, b"#!/usr/bin/env python3\nPK\x03\x04\0\0", "app.pyz"), tmp_path)
    assert (archive.syntax_error, archive.complete) == (None, False)


ALL = ("batch_size", "global_batch_size", "accum", "lr", "warmup_steps")


def write(folder: Path, data: bytes, name: str = "train.py") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


@pytest.mark.parametrize(
    "data",
    [
        b"x = " + b"(" * 5000 + b")" * 5000,
        b"x = " + b"-" * 20000 + b"1",
        b"x = " + b"1+" * 20000 + b"1",
        b"#" + b" " * 5_000_000,
        b"import argparse\0",
        b"# caf\xe9\n",
        b"# -*- coding: nonsense -*-\n",
        b"\xff\xfe" + "import os".encode("utf-16-le"),
    ],
    ids=["parentheses", "minus", "sums", "5MB", "null", "latin", "cookie", "utf16"],
)
def test_hostile_sources_are_incomplete(tmp_path: Path, data: bytes) -> None:
    report = read_script(write(tmp_path, data), tmp_path)
    assert report.options == ()
    if b"1+" not in data and not data.endswith(b"-1"):
        assert not report.complete


def test_byte_order_mark_and_cookie_are_read(tmp_path: Path) -> None:
    declaration = "p.add_argument('--lr', help='\xe9')\n"
    for data in (b"\xef\xbb\xbf" + declaration.encode(), b"# coding: latin-1\n" + declaration.encode("latin-1")):
        report = read_script(write(tmp_path, data), tmp_path)
        assert meanings(report) == {"lr": "--lr"}
        assert report.complete


def test_what_is_no_regular_file_is_incomplete(tmp_path: Path) -> None:
    loop = tmp_path / "loop.py"
    loop.symlink_to(loop)
    os.mkfifo(tmp_path / "pipe.py")
    for path in (tmp_path, tmp_path / "absent.py", loop, tmp_path / "pipe.py", Path("/dev/zero"), tmp_path / "a\0b"):
        assert not read_script(path, tmp_path).complete
    assert not read(tmp_path, "import loop\n").complete


TOKENS = r"""
import from a . as ( ) [ ] : = def class if @ click.option typer.run add_argument('--lr') * ** , x 'y' mp.spawn(
tyro.cli( HfArgumentParser( os.environ[ lambda HfArgumentParser(()) f(**k) __name__
"""
WORDS = st.sampled_from([*TOKENS.split(), "\n", "\t"])


@settings(max_examples=50)
@given(st.one_of(st.binary(max_size=200), st.lists(WORDS, max_size=40).map(lambda words: " ".join(words).encode())))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = read_script(write(Path(folder), data), Path(folder))
        assert report.path == "train.py"


def test_locating_modules_without_importing(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for name in ("pkg/__init__.py", "pkg/train.py", "pkg/app/__init__.py", "pkg/app/__main__.py"):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("raise SystemExit('imported')\n")
    (elsewhere / "space" / "deep").mkdir(parents=True)
    (elsewhere / "space" / "deep" / "run.py").write_text("")
    assert locate("module", "pkg.train", tmp_path, []) == tmp_path / "pkg/train.py"
    assert locate("module", "pkg.app", tmp_path, []) == tmp_path / "pkg/app/__main__.py"
    assert locate("module", "space.deep.run", tmp_path, [elsewhere]) == elsewhere / "space/deep/run.py"
    for name in ("pkg", "pkg.absent", "space", "a..b", "", "x\0y"):
        assert isinstance(locate("module", name, tmp_path, [elsewhere]), Unavailable)
    assert locate("script", "t.py", tmp_path, []) == tmp_path / "t.py"


def test_executables_count_if_python_runs_them(tmp_path: Path) -> None:
    write(tmp_path, b"#!/usr/bin/env python3\n", "tool")
    write(tmp_path, b"#!/bin/sh\n", "other")
    assert locate("executable", "tool", tmp_path, []) == tmp_path / "tool"
    assert locate("executable", "other", tmp_path, []) == Unavailable("not a Python file")
    assert locate("executable", "absent", tmp_path, []) == Unavailable("not a Python file")


SET_UP = "import torch, os, argparse\nimport torch.distributed as dist\nimport torch.multiprocessing as mp\n"
PARSE = "p = argparse.ArgumentParser()\np.add_argument('--n_gpu', type=int, default=1)\nargs = p.parse_args()\n"
WORKER = "def worker(rank, n):\n    dist.init_process_group('nccl', rank=rank, world_size=n)\n    train(n)\n"
LAUNCH = (
    "def launch(fn, n):\n    if n > 1:\n        mp.spawn(worker, nprocs=n, args=(n, fn))\n    else:\n        fn()\n"
)
READS = "def rank():\n    return int(os.environ['RANK'])\nprint(rank())\n"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (PARSE + WORKER + LAUNCH + "launch(train, args.n_gpu)\n", 12),
        (PARSE + WORKER + LAUNCH + READS + "for each in configs():\n    launch(train, args.n_gpu)\n", 12),
        (WORKER + "for rank in range(args.gpus):\n    mp.Process(target=worker, args=(rank, args.gpus)).start()\n", 8),
        (
            "def run(rank, world):\n    if world > 1:\n        dist.init_process_group('nccl')\n    train()\n"
            + PARSE
            + "if args.n_gpu > 1:\n    mp.spawn(run, nprocs=args.n_gpu)\nelse:\n    run(rank=0, world=1)\n",
            12,
        ),
        ("from detectron2.engine import launch as start\nstart(main, args.num_gpus, args=(args,))\n", 5),
        (PARSE + WORKER + LAUNCH + "launch(train, args.n_gpu)\nworker(int(os.environ['RANK']), 4)\n", None),
        (WORKER + "for number in range(args.workers):\n    mp.Process(target=load).start()\nworker(0, 1)\n", None),
        ("from local import launch\nlaunch(main, args.num_gpus)\ndist.init_process_group('nccl')\n", None),
    ],
)
def test_a_process_group_between_own_processes_alone_is_recorded(tmp_path: Path, body: str, line: int | None) -> None:
    report = read(tmp_path, SET_UP + body, local="def launch(main, number):\n    main()\n")
    alone = (report.spawns and report.spawns.line, report.spawns_alone, report.switched_off)
    assert alone == (line, line is not None, None)


SWITCH = "p.add_argument('--distributed', action='store_true')\nargs = p.parse_args()\n"
KEYED = SWITCH + "opt['dist'] = args.distributed\nif opt['dist']:\n    dist.init_process_group('nccl')\n"
OFF = "p.add_argument('--single', dest='distributed', action='store_false')\nargs = p.parse_args()\n"
BOTH = (
    "p.add_argument('--ddp', dest='distributed', action='store_true')\n"
    "p.add_argument('--no-ddp', dest='distributed', action='store_false')\nargs = p.parse_args()\n"
)
RANK = "p.add_argument('--local_rank', type=int, default=-1)\nargs = p.parse_args()\n"
URL = (
    "p.add_argument('--dist-url', default='tcp://10.0.0.1:1')\np.add_argument('--world-size', type=int, default=-1)\n"
    "args = p.parse_args()\nif args.dist_url == 'env://' and args.world_size == -1:\n"
    "    args.world_size = int(os.environ['WORLD_SIZE'])\nargs.distributed = args.world_size > 1\n"
)
ON = "p.set_defaults(distributed=True)\nargs ="
DEEPSPEED = "import deepspeed\nif args.local_rank != -1:\n    deepspeed.init_distributed()\n"
GUARDED = "def main():\n    if args.distributed:\n        dist.init_process_group('nccl')\nmain()\n"


LAUNCHER = (
    "p.add_argument('--cfg', required=True)\np.add_argument('--launcher', default='none')\nargs = p.parse_args()\n"
    "if args.launcher != 'none' and args.cfg != 'alone':\n    dist.init_process_group('nccl')\n"
)


@pytest.mark.parametrize(
    ("body", "args", "switches"),
    [
        (SWITCH + GUARDED, [], ("--distributed",)),
        (SWITCH + GUARDED, ["--distributed"], ()),
        (SWITCH + "args.distributed = os.environ.get('WORLD_SIZE', '1') != '1'\n" + GUARDED, [], ()),
        (RANK + "args.distributed = args.local_rank != -1\n" + GUARDED, [], ("--local_rank",)),
        (KEYED, [], ("--distributed",)),
        (KEYED.replace("opt['dist']:", "batch['dist']:"), [], ()),
        (OFF + GUARDED, [], ()),
        (BOTH + GUARDED, [], ("--ddp", "--no-ddp")),
        (BOTH + GUARDED, ["--ddp"], ()),
        (BOTH.replace("args =", ON) + GUARDED, [], ()),
        (BOTH.replace("args =", ON) + GUARDED, ["--no-ddp"], ("--ddp", "--no-ddp")),
        (URL + GUARDED, [], ("--dist-url", "--world-size")),
        (URL + GUARDED, ["--dist-url", "env://"], ()),
        (SWITCH + "if 'RANK' in os.environ:\n    dist.init_process_group('nccl')\n", [], ()),
        (SWITCH + GUARDED + "import accelerate\n", [], ("--distributed",)),
        (SWITCH + GUARDED + "import accelerate\naccelerate.Accelerator()\n", [], ()),
        (RANK + DEEPSPEED, [], ("--local_rank",)),
        (SWITCH + GUARDED.replace("'nccl'", "'nccl', world_size=1, rank=0"), [], ()),
        (LAUNCHER, [], ("--launcher",)),
    ],
)
def test_a_switch_that_keeps_from_a_process_group(
    tmp_path: Path, body: str, args: list[str], switches: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(SET_UP + "p = argparse.ArgumentParser()\n" + body)
    report = read_script(tmp_path / "train.py", tmp_path, args=args)
    assert (report.switches, report.switched_off is not None) == (switches, bool(switches))


def test_files_that_declare_options_are_read_before_others(tmp_path: Path) -> None:
    others = {f"model{index}": f"x = {index}\n" for index in range(60)}
    text = "".join(f"import {name}\n" for name in others) + "from options import parse\nparse()\n"
    declares = "import argparse\ndef parse():\n    argparse.ArgumentParser().add_argument('--lr', type=float)\n"
    large = "import torch.distributed as dist\nn = dist.get_world_size()\n" + "#" * 149_900
    report = read(tmp_path, "import large\n" + text, options=declares, large=large, **others)
    assert [option.flags for option in report.options] == [("--lr",)]
    assert not report.complete


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("from ddplaunch import current\nplan = current()\nif plan:\n    print(plan, plan.accum)", ("accum",)),
        ("import ddplaunch as d\ndef f(p):\n    opt(lr=p.lr)\n    return p.rank\nf(d.current())", ("lr",)),
        (
            "import ddplaunch\nclass A:\n    def __init__(self):\n        self.plan = ddplaunch.current()\n"
            "    def run(self):\n        return self.plan.batch_size, self.plan.warmup_steps\nA().run()",
            ("batch_size", "warmup_steps"),
        ),
        ("import ddplaunch\nplan = ddplaunch.current()\nargs.lr = other.lr\nb = plan.batch_size", ("batch_size",)),
        ("import ddplaunch\nvalues = ddplaunch.current().asdict()\nmain(**values)", ALL),
        ("import ddplaunch\nwandb.init(config=ddplaunch.current().asdict())", ()),
        ("import ddplaunch, library\nlibrary.train(ddplaunch.current())", ALL),
        ("from here import plan\nplan().lr", ALL),
    ],
)
def test_the_numbers_that_a_script_asks_ddplaunch_for(tmp_path: Path, text: str, asked: tuple[str, ...]) -> None:
    (tmp_path / "here.py").write_text("import ddplaunch\ndef plan():\n    return ddplaunch.current()\n")
    assert read_script(write(tmp_path, text.encode()), tmp_path).asks_for == asked


DEVICE = (
    "import argparse, os, torch\np = argparse.ArgumentParser()\np.add_argument('--local_rank', type=int, default=0)\n"
    "args = p.parse_args()\n"
)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("device = torch.device('cuda', args.local_rank)\n", 5),
        ("d = torch.device(f'cuda:{args.local_rank}')\n", 5),
        ("c = Config()\nc.HERE = args.local_rank\ntorch.cuda.set_device(c.HERE)", 7),
        ("def run(gpu):\n    DDP(model, device_ids=[gpu])\nrun(p.parse_args().local_rank)\n", 6),
        ("print(args.local_rank)\n", None),
        ("engine, *_ = deepspeed.initialize(args)\nx.to(engine.local_rank)\n", None),
        ("if args.local_rank > 0:\n    torch.cuda.set_device(args.local_rank)\n", None),
        ("args.local_rank = int(os.environ['LOCAL_RANK'])\ntorch.cuda.set_device(args.local_rank)\n", None),
        ("rank = int(os.environ['LOCAL_RANK'])\nmodel.cuda(args.local_rank)\n", 6),
        ("p.set_defaults(local_rank=int(os.environ['LOCAL_RANK']))\nmodel.cuda(args.local_rank)\n", None),
        ("import accelerate\ntorch.cuda.set_device(args.local_rank)\n", None),
        ("import mmseg\ntorch.cuda.set_device(args.local_rank)\ntorch.distributed.init_process_group()\n", 6),
        (  # it is not the GPU alone that is wrong then: no process group is set up at all
            "if args.local_rank > 0:\n    torch.distributed.init_process_group()\n"
            "DDP(model, device_ids=[args.local_rank])\n",
            None,
        ),
    ],
)
def test_where_an_option_alone_chooses_the_gpu(tmp_path: Path, body: str, line: int | None) -> None:
    found = read(tmp_path, DEVICE + body).takes_local_rank
    assert (None if found is None else found.line) == line


READS, ENVIRON = "os.environ['DATA']", "import os\n"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (f"data = {READS}\n", 2),
        (f"def main():\n    data = {READS}\nif __name__ == '__main__':\n    main()\n", 3),
        (f"if 'RANK' in os.environ:\n    data = {READS}\n", 3),
        (f"def main():\n    data = {READS}\nif debug:\n    main()\n", None),
        (f"def main():\n    if debug:\n        return\n    data = {READS}\nmain()\n", None),
        (f"try:\n    data = {READS}\nexcept KeyError: pass\n", None),
        (f"data = debug or {READS}\n", None),
        (f"os.environ.setdefault('DATA', '.')\ndata = {READS}\n", None),
        (f"dotenv.load_dotenv()\ndata = {READS}\n", None),
        (f"import sets\ndata = {READS}\n", None),
        ("data = os.environ.get('DATA')\n", None),
    ],
)
def test_variables_without_which_each_rank_ends(tmp_path: Path, body: str, line: int | None) -> None:
    needed = read(tmp_path, ENVIRON + body, sets=f"{ENVIRON}{READS} = '.'\n").needs_env
    assert [(name, at.line) for name, at in needed] == ([("DATA", line)] if line else [])


SETS = "for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):\n    os.environ[name] = '1'\n"


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("import os\nfrom torch.utils import data\n" + SETS, None),
        ("import os\nimport numpy as np\n" + SETS + "import torch\n", "train.py"),
        ("import os\nos.environ['MASTER_PORT'] = '1'\nimport torch\n", None),
        ("import before\nimport torch\n", "before.py"),
        ("import after\n", None),
    ],
)
def test_variables_that_torch_reads_when_it_is_imported(tmp_path: Path, text: str, file: str | None) -> None:
    before, after = "import os\n" + SETS, "import os, sys\nimport torch.nn as nn\n" + SETS
    report = read(tmp_path, text, before=before, after=after)
    variable = "MKL_NUM_THREADS"  # the first in the list
    assert report.early == (f"{file} names {variable} before it imports torch" if file else "")
