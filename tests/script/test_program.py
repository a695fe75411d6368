"""What is read beyond options: local imports, process groups, own processes, environment, and hostile files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplaunch.script.read import read_script
from ddplaunch.script.source import locate
from ddplaunch.values.resolved import Unavailable
from tests.script.test_declared import meanings, option, read

PARSER = "import argparse\ndef parse():\n    p = argparse.ArgumentParser()\n    p.add_argument('--lr')\n"


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("from args import parse\nparse()\n", {"args": PARSER}),
        ("import args\nargs.parse()\n", {"args": PARSER}),
        ("import args as a\na.parse()\n", {"args": PARSER}),
        ("from pkg.cli import parse\nparse()\n", {"pkg/cli": PARSER}),
        ("import pkg.cli\npkg.cli.parse()\n", {"pkg/cli": PARSER, "pkg/__init__": ""}),
        ("from pkg import cli\ncli.parse()\n", {"pkg/cli": PARSER, "pkg/__init__": ""}),
        ("from pkg import parse\nparse()\n", {"pkg/cli": PARSER, "pkg/__init__": "from .cli import parse"}),
        ("from pkg import parse\nparse()\n", {"pkg/cli": PARSER, "pkg/__init__": "from .cli import *"}),
        ("from src.pkg.cli import parse\nparse()\n", {"src/pkg/cli": PARSER}),
        ("from pkg.cli import parse\nparse()\n", {"src/pkg/cli": PARSER}),
    ],
)
def test_options_in_another_local_module(tmp_path: Path, text: str, others: dict[str, str]) -> None:
    report = read(tmp_path, text, **others)
    assert meanings(report) == {"lr": "--lr"}
    assert option(report, "--lr").at.line == 4
    assert report.complete


def test_a_module_that_is_a_script_of_its_own_declares_nothing(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        "from model import Net\ndef main(): Net()\nmain()\n",
        model=PARSER + "class Net: ...\ndef main(): parse()\nif __name__ == '__main__':\n    main()\n",
    )
    assert report.options == ()


def test_installed_packages_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "venv" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "args.py").write_text(PARSER)
    (tmp_path / "train.py").write_text("from args import parse\nparse()\n")
    report = read_script(tmp_path / "train.py", tmp_path, [folder])
    assert report.options == ()
    assert not report.complete


def test_circular_imports_end(tmp_path: Path) -> None:
    report = read(tmp_path, "import a\na.f()\n", a="from b import f\n", b="from a import f\n")
    assert report.options == ()


def test_long_chains_are_cut_and_said_so(tmp_path: Path) -> None:
    chain = {f"m{index}": f"import m{index + 1}\n" for index in range(9)}
    assert not read(tmp_path, "import m0\n", **chain, m9="").complete


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("import torch.distributed as dist\ndist.init_process_group('nccl')\n", None),
        ("from torch.distributed import init_process_group\ninit_process_group()\n", None),
        ("from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cuda', (2,))\n", None),
        ("import lightning as L\n", "lightning"),
        ("from accelerate import Accelerator\n", "accelerate"),
        ("import transformers\ntransformers.Trainer()\n", "transformers"),
    ],
)
def test_process_group_is_initialised(tmp_path: Path, text: str, framework: str | None) -> None:
    report = read(tmp_path, text)
    assert report.initialises is not None
    assert report.framework == framework


@pytest.mark.parametrize("text", ["import torch\n", "from transformers import AutoModel\n"])
def test_process_group_is_not_initialised(tmp_path: Path, text: str) -> None:
    report = read(tmp_path, text)
    assert report.initialises is None
    assert report.complete


def test_process_group_in_a_helper(tmp_path: Path) -> None:
    report = read(tmp_path, "import ddp\nddp.setup()\n", ddp="import torch\ndef setup():\n    init_process_group()\n")
    assert str(report.initialises) == "ddp.py:3"


SPAWN = "import torch, os, sys\nimport torch.multiprocessing as mp\n"


@pytest.mark.parametrize(
    "body",
    [
        "def main():\n    n = 3\n    if not n:\n        sys.exit(1)\n    mp.spawn(f, args=(n,), nprocs=n)\n"
        "if __name__ == '__main__':\n    main()\n",
        "mp.spawn(f, nprocs=torch.cuda.device_count())\n",
        "if torch.cuda.device_count() > 1:\n    mp.spawn(f, nprocs=2)\n",
        "import subprocess\nsubprocess.run(['torchrun', 'worker.py'])\n",
        "os.system('python -m torch.distributed.launch worker.py')\n",
    ],
)
def test_own_processes_are_recorded(tmp_path: Path, body: str) -> None:
    assert read(tmp_path, SPAWN + body).spawns is not None


@pytest.mark.parametrize(
    "body",
    [
        "if 'RANK' not in os.environ:\n    mp.spawn(f, nprocs=2)\n",
        "if os.environ.get('LOCAL_RANK') is None:\n    mp.spawn(f, nprocs=2)\n",
        "if args.multiprocessing_distributed:\n    mp.spawn(f, nprocs=2)\n",
        "def unused():\n    mp.spawn(f, nprocs=2)\n",
        "def main():\n    if args.single:\n        return f(0)\n    mp.spawn(f, nprocs=2)\nmain()\n",
        "def local():\n    mp.spawn(f, nprocs=2)\nif args.local:\n    local()\n",
        "mp.spawn(f, nprocs=1)\n",
        "import subprocess\nsubprocess.run(['nvidia-smi'])\n",
    ],
)
def test_processes_that_may_not_start_are_not_recorded(tmp_path: Path, body: str) -> None:
    assert read(tmp_path, SPAWN + body).spawns is None


def test_environment_and_imports(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        """
        import os
        import numpy as np, yaml
        from typing import TYPE_CHECKING
        from local import thing
        try:
            import apex
        except ImportError:
            apex = None
        if TYPE_CHECKING:
            import pandas
        def lazily():
            import scipy
        rank = int(os.environ["RANK"])
        port = os.environ.get("MASTER_PORT", "1")
        size = os.getenv("WORLD_SIZE")
        os.environ["MASTER_ADDR"] = "localhost"
        """,
        local="thing = 1\n",
    )
    assert report.reads_env == ("RANK", "MASTER_PORT", "WORLD_SIZE")
    assert [item.package for item in report.imports] == ["os", "numpy", "yaml", "typing"]


def test_syntax_error_has_file_and_line(tmp_path: Path) -> None:
    report = read(tmp_path, "import os\n\ndef f(:\n    pass\n")
    assert report.syntax_error == "train.py:3: invalid syntax"
    assert not report.complete


def write(folder: Path, data: bytes, name: str = "train.py") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


@pytest.mark.parametrize(
    "data",
    [
        b"x = " + b"(" * 5000 + b")" * 5000,
        b"x = " + b"-" * 20000 + b"1",
        b"x = " + b"a." * 20000 + b"b",
        b"x = " + b"1+" * 20000 + b"1",
        b"#" + b" " * 5_000_000,
        b"import argparse\0",
        b"# caf\xe9\n",
        b"# -*- coding: nonsense -*-\n",
        b"\xff\xfe" + "import os".encode("utf-16-le"),
    ],
    ids=["parentheses", "minus", "attributes", "sums", "5MB", "null", "latin", "cookie", "utf16"],
)
def test_hostile_sources_are_incomplete(tmp_path: Path, data: bytes) -> None:
    report = read_script(write(tmp_path, data), tmp_path)
    assert report.options == ()
    if b"a." not in data and b"1+" not in data and not data.endswith(b"-1"):
        assert not report.complete


def test_byte_order_mark_and_cookie_are_read(tmp_path: Path) -> None:
    declaration = "p.add_argument('--lr', help='\xe9')\n"
    for data in (
        b"\xef\xbb\xbf" + declaration.encode(),
        b"# coding: latin-1\n" + declaration.encode("latin-1"),
    ):
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


def test_a_zip_application_is_not_called_broken(tmp_path: Path) -> None:
    report = read_script(write(tmp_path, b"#!/usr/bin/env python3\nPK\x03\x04\0\0", "app.pyz"), tmp_path)
    assert report.syntax_error is None
    assert not report.complete


TOKENS = r"""
import from a . as ( ) [ ] : = def class if @ click.option typer.run add_argument('--lr') * ** , x 'y' mp.spawn(
tyro.cli( HfArgumentParser( os.environ[ lambda HfArgumentParser(()) f(**k) __name__
"""
WORDS = st.sampled_from([*TOKENS.split(), "\n", "\t"])


@settings(max_examples=150)
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


def test_what_is_parsed_has_a_limit(tmp_path: Path) -> None:
    report = read(tmp_path, "import big\nbig.parse()\n", big=PARSER + "x = 1\n" * 30_000)
    assert report.options == ()
    assert not report.complete
