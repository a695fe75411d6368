"""What ``plan`` and ``--dry-run`` print for programs, and profiles behind them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.cli.configuration import merge, said_in_table
from ddplaunch.cli.prepare import probe_request
from ddplaunch.planning.options import parse_options
from ddplaunch.values.resolved import Resolved, Source
from ddplaunch.values.variable_names import SETTINGS
from tests.cli.cli_calls import Call
from tests.golden import sections


def test_what_is_beside_the_launch_is_found_where_python_looks_there(call: Call, folder: Path) -> None:
    """The ranks' path begins with the script's folder."""
    (folder / "beside_the_launch").mkdir()
    (folder / "inner").mkdir()
    (folder / "inner" / "train.py").write_text("import beside_the_launch\n")
    for words, lacking in (((), True), (("--env", "PYTHONPATH=."), False), (("--env", "PYTHONPATH=:/nowhere"), False)):
        said = call("plan", "2", "--device", "cpu", *words, "--", "inner/train.py")
        assert ("error[module-not-found]" in said.err) is lacking, said.err


def test_a_variable_of_the_shell_or_the_launch_is_there(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "reads.py").write_text("import os\nprint(os.environ['SHARDS_OF'])\n")
    plan = ("plan", "2", "--device", "cpu")
    assert "error[variable-not-set]: reads.py reads the variable SHARDS_OF" in call(*plan, "--", "reads.py").err
    assert "variable-not-set" not in call(*plan, "--env", "SHARDS_OF=/d", "--", "reads.py").err
    monkeypatch.setenv("SHARDS_OF", "/d")
    assert "variable-not-set" not in call(*plan, "--", "reads.py").err


def test_a_module_that_was_installed_to_be_edited_is_read(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editable installation is known to a finder of its own, and its folder to no entry of sys.path."""
    package = tmp_path / "sources" / "edited_here"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('a package is not imported to be read')")
    (package / "train.py").write_text(OWN)

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            at = str(package / "__init__.py")
            places = [str(package)]
            found = importlib.util.spec_from_file_location(name, at, submodule_search_locations=places)
            return found if name == "edited_here" else None

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    words = ("plan", "2", "--device", "cpu", "--batch-size", "4", "--json", "--", "-m", "edited_here.train")
    passed = json.loads(call(*words).out)["passed"]
    assert [each["arguments"] for each in passed] == [["--batch-size", "4"]]


OWN = """
import argparse
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--head-lr", type=float, default=0.01)
parser.add_argument("--grad-accum", type=int, default=1)
parser.add_argument("--warmup-steps", type=int, default=100)
args = parser.parse_args()
dist.init_process_group("gloo")
"""


@pytest.mark.parametrize(
    ("words", "args"),
    [
        ((), []),
        (("--base-lr", "0.1"), ["--lr", "0.4"]),
        (("--base-batch-size", "16"), ["--lr", "0.2"]),  # from the script's own
        (("--base-warmup", "50"), ["--warmup-steps", "200"]),
        (("--global-batch-size", "64", "--batch-size", "8"), ["--batch-size", "8", "--grad-accum", "2"]),
        (("--dataset-size", "640"), []),
        (("--lr", "0.4", "--lr-option=--head-lr"), ["--head-lr", "0.4"]),
        (("--batch-size", "8", "--batch-option=none"), []),
    ],
)
def test_only_what_a_number_was_given_for_is_filled_in(call: Call, words: tuple[str, ...], args: list[str]) -> None:
    """Of a script with an option for every number, on 4 processes without GPUs."""
    Path("own.py").write_text(OWN)
    said = call("plan", "4", "--device", "cpu", "--no-checks", *words, "--json", "--", "own.py")
    assert json.loads(said.out)["target"]["args"] == args, said.err


def test_a_launch_that_would_be_refused_is_still_shown(call: Call) -> None:
    words = ("2", "--ignore", "cpus-short", "--data", "nowhere")
    said = call("run", *words, "--dry-run", "--", "train.py")
    assert said.status == 4 and "error[data-missing]" in said.err and "torch.distributed.run" in said.out
    said = call("plan", *words, "--json", "--", "train.py")
    assert said.status == 0 and "error[data-missing]" in said.err
    plan = json.loads(said.out)
    assert [finding["code"] for finding in plan["findings"]] == ["data-missing"]
    (agent,) = (json.loads(one["value"]) for one in plan["environment"] if one["name"] == SETTINGS)
    assert agent["directory"] == f".ddplaunch/runs/{plan['run_id']}"


PROFILE = """
batch-size = 2
accum = 2
env = ["A=profile", "B=profile"]

[profiles.big]
batch-size = 16
"""


@pytest.mark.parametrize(("name", "head"), [("ddplaunch.toml", ""), ("pyproject.toml", "[tool.ddplaunch]")])
def test_profiles(call: Call, folder: Path, name: str, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PROFILE.replace("[profiles.big]", "[tool.ddplaunch.profiles.big]") if head else PROFILE
    (folder / name).write_text(head + text)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    plain = json.loads(call("plan", "2", "--json").out)
    assert plain["numbers"]["batch_size"] == {"value": 2, "source": "profile", "detail": name}
    big = json.loads(call("plan", "2", "--profile", "big", "--json").out)
    assert big["numbers"]["batch_size"] == {"value": 16, "source": "profile", "detail": f"{name}, big"}
    assert big["numbers"]["accum"]["value"] == 2
    said = json.loads(call("plan", "2", "--profile", "big", "--batch-size", "4", "--env", "A=flag", "--json").out)
    assert said["numbers"]["batch_size"] == {"value": 4, "source": "flag", "detail": "--batch-size"}
    variables = {each["name"]: (each["value"], each["source"]) for each in said["environment"]}
    assert variables["A"] == ("flag", "flag") and variables["B"] == ("profile", "profile")
    assert variables["OMP_NUM_THREADS"] == ("7", "environment")
    assert "profile: " + name in call("plan", "2").out


#: In the text what is said stands above each; never the value of a variable.
WRONG = [
    *((says, content.encode()) for says, content in sections(Path(__file__).with_name("configurations.txt"))),
    ("decode byte 0xff in position 0", b"\xff"),
    ("cannot be read", b"accum = " + b"1" * 5000),
    ("`ddplaunch.toml` cannot be read: ", b"accum = " + b"[" * 9000),
]


@pytest.mark.parametrize(("says", "content"), WRONG)
def test_a_configuration_that_is_wrong(call: Call, folder: Path, says: str, content: bytes) -> None:
    (folder / "ddplaunch.toml").write_bytes(content)
    said = call("run", "2", *(["--profile", "big"] if b"profiles" in content else []), "--", "train.py")
    assert said.status == 2 and "nothing was launched" in said.err
    assert says in " ".join(said.err.split()) and "hunter2" not in said.out + said.err, said.err
    assert not (folder / ".ddplaunch").exists()
    if says == "is not a number":
        (folder / "ddplaunch.toml").unlink()
        (folder / "ddplaunch.toml").mkdir()
        assert "`ddplaunch.toml` cannot be read: is no plain file" in call("plan", "2").err


def test_sizes_are_compared_in_one_table(call: Call) -> None:
    Path("own.py").write_text(OWN)
    words = ("--device", "cpu", "--batch-size", "8", "--base-lr", "0.1", "--dataset-size", "640")
    said = call("plan", "--compare", "1,2,4", *words, "--", "own.py")
    assert said.status == 0 and "world size  effective batch size  learning rate  steps per epoch" in said.out
    rows = [line.split() for line in said.out.splitlines()[1:]]
    assert rows == [["1", "8?", "0.1?", "80"], ["2", "16?", "0.2?", "40"], ["4", "32?", "0.4?", "20"]]
    refused = call("plan", "--compare", "1,x", "--", "own.py")
    assert refused.status == 2 and "`x` is not a number of processes" in refused.err and "--compare" in refused.err
    for other in (("--json",), ("--hosts", "gpu-a,gpu-b")):
        refused = call("plan", "--compare", "1,2", *other, "--", "own.py")
        assert refused.status == 2 and "`--compare` with `--json`, or with other hosts" in refused.err


# What profiles and the environment may say beside flags

FLAG, SCALING = Source("flag"), {"base_lr", "base_batch_size", "lr_scaling", "lr_max_factor"}


@pytest.mark.parametrize(
    ("flags", "table", "gone"),
    [
        ({"lr": 0.1}, {"base-lr": 1e-4, "base-batch-size": 8, "lr-scaling": "sqrt", "lr-max-factor": 2}, SCALING),
        ({"lr": 0.1}, {"base-lr": 1e-4, "base-warmup": 9, "lr-scaling": "sqrt"}, {"base_lr"}),
        ({"lr": 0.1, "base_warmup": 9}, {"warmup": 3, "lr-scaling": "sqrt"}, {"warmup"}),
        ({"warmup": 3}, {"base-warmup": 9}, {"base_warmup"}),
        ({"base_lr": 0.1}, {"lr": 1e-4}, {"lr"}),
        ({"device": "cpu"}, {"gpus": "0,1"}, {"gpus"}),
        ({"device": "cuda"}, {"gpus": "0,1"}, set()),
        ({"gpus": "0"}, {"device": "cpu"}, {"device"}),
        ({"nnodes": "2"}, {"nproc": "4x8"}, {"nproc"}),
        ({"nnodes": "2"}, {"nproc": "4"}, set()),
        ({}, {"lr-scaling": "sqrt", "device": "cpu"}, set()),  # the script's own rate is scaled
    ],
)
def test_a_flag_takes_away_what_would_contradict_it(
    flags: dict[str, Any], table: dict[str, Any], gone: set[str]
) -> None:
    said: dict[str, Any] = {name: Resolved(value, FLAG) for name, value in flags.items()}
    merged = merge(said, said_in_table(table, "f"))
    assert {name.replace("-", "_") for name in table} - merged.keys() == gone
    assert merged | said == merged


def test_repeatable_options_are_joined_and_the_flag_comes_last() -> None:
    first = {"env": (Resolved("A=flag", FLAG),)}
    second = said_in_table({"env": ["A= =\n\x1b'é"], "nproc": 4}, "f")
    options = parse_options(merge(first, second))
    assert [item.value for item in options.env] == [("A", " =\n\x1b'é"), ("A", "flag")]
    assert options.nproc == Resolved(4, Source("profile", "f"))


@pytest.mark.parametrize(
    ("flags", "environ", "asked"),
    [
        ({}, {"MASTER_ADDR": "a", "MASTER_PORT": "29500"}, (None, 29500)),
        ({"nnodes": "2"}, {"MASTER_ADDR": "tcp://a:5", "MASTER_PORT": "soon"}, ("a", None)),
        ({"nnodes": "2", "node_rank": 0, "master_addr": "b"}, {"MASTER_ADDR": "a"}, ("b", None)),
        ({"nnodes": "2", "node_rank": 1, "master_port": 7}, {}, (None, None)),  # node 0 binds it
        *(({"master_port": port}, {}, (None, kept)) for port, kept in ((0, None), (65535, 65535), (65536, None))),
    ],
)
def test_what_is_asked_of_the_network(flags: dict[str, Any], environ: dict[str, str], asked: tuple[Any, Any]) -> None:
    options = parse_options({name: Resolved(value, FLAG) for name, value in flags.items()})
    request = probe_request(options, environ)
    assert (request.master_addr, request.master_port) == asked


def test_in_json_errors_come_first_though_a_warning_was_found_before(call: Call, folder: Path) -> None:
    (folder / "gpu.py").write_text("import torch\nmodel = torch.nn.Linear(2, 2).cuda()\n")
    findings = json.loads(call("plan", "2", "--device", "cpu", "--json", "--", "gpu.py").out)["findings"]
    assert [one["severity"] for one in findings] == ["error", "warning"]
