"""The script and numbers families, on described reports and on real sources."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.checks.script import CHECKS
from ddplaunch.checks.variables import CHECKS as OF_LAUNCHERS
from ddplaunch.planning.launch import Launch, Missing, Target
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.script.read import read_script
from ddplaunch.script.script_report import (
    GROUP_NOT_FOLLOWED,
    NO_GROUP,
    DeclaredAt,
    DeclaredOption,
    FixedDevices,
    ScriptReport,
)
from ddplaunch.values.finding import Severity
from ddplaunch.values.resolved import Resolved
from tests.checks.cases import found, outcome_of, silent_when_healthy
from tests.checks.healthy import FLAG, healthy_facts, healthy_launch, healthy_script, topology

HERE = DeclaredAt("train.py", 7)
LOCAL_RANK = DeclaredOption(("--local_rank",), HERE, required=True)


def test_healthy() -> None:
    silent_when_healthy(CHECKS)


def test_script_syntax_error() -> None:
    finding = found(CHECKS, "script-syntax-error", script=healthy_script(syntax_error="line 3: invalid syntax"))
    assert finding and finding.severity is Severity.ERROR
    assert finding.what == "train.py does not compile: line 3: invalid syntax"


def test_script_spawns_processes() -> None:
    report = healthy_script(spawns=HERE, reads_env=())
    finding = found(CHECKS, "script-spawns-processes", script=report)
    assert finding and finding.severity is Severity.ERROR and finding.where == ("train.py:7",)
    aware = found(CHECKS, "script-spawns-processes", script=healthy_script(spawns=HERE, reads_env=("LOCAL_RANK",)))
    assert aware and aware.severity is Severity.WARNING
    assert found(CHECKS, "script-spawns-processes", launch=healthy_launch(1), script=report) is None
    other = healthy_launch(target=Target("module", "a.train"))
    module = found(CHECKS, "script-spawns-processes", launch=other, script=report)
    assert "`python train.py`" in finding.fix and module and "`python -m a.train`" in module.fix


def test_script_spawns_processes_that_alone_share_a_group() -> None:
    report = healthy_script(spawns=HERE, spawns_alone=True, reads_env=("RANK",))
    finding = found(CHECKS, "script-spawns-processes", script=report)
    assert finding and finding.severity is Severity.ERROR and "train alone" in finding.why
    assert "only between processes that it starts itself" in finding.what, "it may start none with these options"


def test_distributed_switch_off() -> None:
    report = healthy_script(switched_off=HERE, switches=("--distributed",))
    finding = found(CHECKS, "distributed-switch-off", script=report)
    assert finding and finding.severity is Severity.WARNING and "`--distributed`" in finding.fix
    several = healthy_script(switched_off=HERE, switches=("--dist-url", "--world-size"))
    finding = found(CHECKS, "distributed-switch-off", script=several)
    assert finding and "`--dist-url` or `--world-size`" in finding.fix
    assert found(CHECKS, "distributed-switch-off", launch=healthy_launch(1), script=report) is None


def test_distributed_switch_off_names_what_is_left_to_pass() -> None:
    option = DeclaredOption(("-opt",), HERE)
    report = healthy_script(switched_off=HERE, switches=("-opt", "--launcher"), options=(option,))
    launch = healthy_launch(target=Target("script", "train.py", ("-opt", "a.yml")))
    finding = found(CHECKS, "distributed-switch-off", launch=launch, script=report)
    assert finding and finding.fix == "pass `--launcher` after `--` as the script wants it for several processes"
    report = healthy_script(switched_off=HERE, switches=("--resume", "--local_rank"))
    finding = found(CHECKS, "distributed-switch-off", launch=launch, script=report)
    assert finding and "local_rank" in finding.fix and "$LOCAL_RANK" in finding.fix
    report = replace(report, switches=("-opt",), options=(option,))
    finding = found(CHECKS, "distributed-switch-off", launch=launch, script=report)
    assert finding and finding.fix == "leave `-opt` out, or give it another value"
    report = replace(report, switches=("--resume", "--local_rank"), options=())
    module = healthy_launch(target=Target("module", "pkg.train", ()))
    finding = found(CHECKS, "distributed-switch-off", launch=module, script=report)
    assert finding and finding.fix.startswith("pass `--resume` or `--local_rank` after")


def test_script_demands_local_rank() -> None:
    report = healthy_script(options=(LOCAL_RANK,), demands_local_rank=HERE)
    launch = healthy_launch(target=Target("script", "train.py", ("--name", "a b")))
    finding = found(CHECKS, "script-demands-local-rank", launch=launch, script=report)
    assert finding and "`--local_rank`" in finding.what
    assert finding.where == ("train.py:7",)
    optional = healthy_script(options=(DeclaredOption(("--local_rank",), HERE),))
    assert found(CHECKS, "script-demands-local-rank", script=optional) is None


def test_a_gpu_that_only_the_local_rank_option_chooses() -> None:
    report = healthy_script(options=(DeclaredOption(("--local_rank",), HERE),), takes_local_rank=HERE)
    finding = found(CHECKS, "script-demands-local-rank", script=report)
    assert finding and finding.severity is Severity.WARNING
    assert "chooses its GPU by `--local_rank`" in finding.what and '--local_rank "$LOCAL_RANK"' in finding.fix
    assert "required" not in finding.fix
    assert found(CHECKS, "script-demands-local-rank", launch=healthy_launch(1), script=report) is None
    passed = healthy_launch(target=Target("script", "train.py", ("--local_rank", "0")))  # contradicts the launch
    assert found(CHECKS, "script-demands-local-rank", launch=passed, script=report) is None


def test_the_shell_line_for_local_rank_runs_as_printed() -> None:
    """Pasted into a shell, with echo in python's place, it passes the arguments and the rank on unharmed."""
    import subprocess

    report = healthy_script(options=(LOCAL_RANK,), demands_local_rank=HERE)
    launch = healthy_launch(target=Target("script", "train.py", ("--name", "it's 'a b'")))
    finding = found(CHECKS, "script-demands-local-rank", launch=launch, script=report)
    assert finding
    line = finding.fix.partition("`-- ")[2].removesuffix("`").replace("exec python", "exec echo", 1)
    said = subprocess.run(["sh", "-c", line], env={"LOCAL_RANK": "5", "PATH": "/usr/bin:/bin"}, capture_output=True)
    assert said.stdout.decode() == "train.py --name it's 'a b' --local_rank 5\n"


def sized(*flags: str, help: str = "", **more: Any) -> ScriptReport:
    more = {"reads_env": (), **more}
    return healthy_script(options=tuple(DeclaredOption((flag,), HERE, help=help) for flag in flags), **more)


WORLD = sized("--world-size")
LOCAL = sized("--local_rank")
NODES = sized("--nnodes", "--node_rank", "--master_addr", "--ngpus_per_node")
SCRIPT_OF_NODES = sized("--world-size", help="number of nodes for distributed training")


@pytest.mark.parametrize(
    ("args", "script", "severity", "what"),
    [
        (("--world-size", "4"), WORLD, Severity.ERROR, "`--world-size 4` after `--`, but this launch has 8 ranks"),
        (("--world-size=16",), WORLD, Severity.ERROR, "`--world-size 16` after `--`, but this launch has 8 ranks"),
        (("--world-size", "4"), sized("--world-size", reads_env=("WORLD_SIZE",)), Severity.WARNING, "has 8 ranks"),
        (("--world-size", "8"), WORLD, None, ""),
        (("--world-size", "-1"), WORLD, None, ""),
        (("--world-size", "0"), WORLD, None, ""),
        (("--world-size", "4"), sized(), None, ""),
        (("--world-size", "1"), SCRIPT_OF_NODES, None, ""),
        (("--world-size", "4"), sized("--world-size", spawns=HERE), None, ""),
        (("--nproc_per_node", "4"), sized("--nproc_per_node"), Severity.ERROR, "this launch has 8 ranks on each node"),
        (("--nproc", "4"), sized("--nproc", help="processes that tokenize"), None, ""),
        (("--nproc", "4"), sized("--nproc", help="number of GPUs"), Severity.ERROR, "has 8 ranks on each node"),
        (
            ("--nnodes", "2", "--node_rank", "1"),
            NODES,
            Severity.ERROR,
            "`--nnodes 2` after `--`, but this launch has 1",
        ),
        (("--num_machines=2",), sized("--num_machines"), Severity.ERROR, "but this launch has 1 node"),
        (("--nnodes", "1", "--node_rank", "0", "--master_addr", "127.0.0.1"), NODES, None, ""),
        (("--ngpus_per_node", "4"), NODES, Severity.ERROR, "but this launch has 8 ranks on each node"),
        (("--ngpus_per_node", "8"), NODES, None, ""),
        (("--nnodes", "2"), sized(), None, ""),
        (("--local_rank", "0"), LOCAL, Severity.ERROR, "`--local_rank 0` after `--` is the same for all ranks"),
        (("--local_rank=0",), sized("--local_rank", reads_env=("LOCAL_RANK",)), Severity.WARNING, "is the same"),
        (("--local_rank", "-1"), LOCAL, None, ""),
    ],
)
def test_launch_contradicted(args: tuple[str, ...], script: ScriptReport, severity: Severity | None, what: str) -> None:
    launch = healthy_launch(target=Target("script", "train.py", args))
    finding = found(CHECKS, "launch-contradicted", launch=launch, script=script)
    assert (finding.severity if finding else None) == severity
    assert finding is None or what in finding.what


def test_devices_that_the_script_fixes() -> None:
    for name, number, fires in (("gpus", 1, True), ("devices", 8, False), ("devices", 9, True)):
        report = healthy_script(devices=FixedDevices(name, number, HERE))
        finding = found(CHECKS, "launch-contradicted", launch=healthy_launch(8), script=report)
        assert (finding is not None) is fires
    visible = healthy_script(devices=FixedDevices("CUDA_VISIBLE_DEVICES", 9, HERE))
    assert found(CHECKS, "launch-contradicted", launch=healthy_launch(8), script=visible) is None, "one is left over"


def test_a_contradiction_is_mended_by_a_placeholder_or_a_shell() -> None:
    launch = healthy_launch(target=Target("script", "train.py", ("--world-size", "4")))
    finding = found(CHECKS, "launch-contradicted", launch=launch, script=WORLD)
    assert finding and finding.fix.startswith("`--world-size {world_size}`") and "`ddplaunch run 4 -- …`" in finding.fix
    launch = healthy_launch(target=Target("script", "train.py", ("--a", "--local_rank", "0", "b")))
    finding = found(CHECKS, "launch-contradicted", launch=launch, script=LOCAL)
    assert finding and "`-- sh -c 'exec python train.py --a b --local_rank \"$LOCAL_RANK\"'`" in finding.fix


def test_several_nodes_of_the_script_alone_are_mended_by_the_line_that_is_meant() -> None:
    args = ("--nnodes", "2", "--node_rank", "1", "--master_addr", "10.0.0.1", "--ngpus_per_node", "4")
    launch = healthy_launch(1, target=Target("script", "train.py", args))
    findings = outcome_of(CHECKS, "launch-contradicted", launch=launch, script=NODES).findings
    assert [finding.what.partition(" after")[0] for finding in findings] == ["`--nnodes 2`", "`--ngpus_per_node 4`"]
    for finding in findings:
        assert "`ddplaunch run 4 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 -- …`" in finding.fix
    two = replace(topology(4), nnodes=Resolved(2, FLAG), min_nodes=2)
    launch = healthy_launch(4, topology=two, target=Target("script", "train.py", args))
    assert found(CHECKS, "launch-contradicted", launch=launch, script=NODES) is None


def test_a_node_rank_alone_names_a_node_that_this_launch_has_not() -> None:
    for value, nodes, said in (("1", 1, True), ("0", 1, False), ("1", 2, False), ("2", 2, True)):
        size = replace(topology(4), nnodes=Resolved(nodes, FLAG), min_nodes=nodes)
        launch = healthy_launch(4, topology=size, target=Target("script", "train.py", ("--node_rank", value)))
        finding = found(CHECKS, "launch-contradicted", launch=launch, script=NODES)
        assert (finding is not None) is said
        if finding:
            assert f"`ddplaunch run 4 --nnodes N --node-rank {value} --master-addr HOST -- …`" in finding.fix


def test_one_process_has_a_local_rank_of_its_own() -> None:
    launch = healthy_launch(1, target=Target("script", "train.py", ("--local_rank", "0")))
    assert found(CHECKS, "launch-contradicted", launch=launch, script=LOCAL) is None


def test_script_never_initialises() -> None:
    doubts = (("world_size", NO_GROUP),)
    bare = healthy_script(doubts=doubts)
    finding = found(CHECKS, "script-never-initialises", script=bare)
    assert finding and finding.severity is Severity.WARNING and "8 ranks" in finding.why
    for report in (
        healthy_script(),
        healthy_script(doubts=doubts, complete=False),
        healthy_script(doubts=(("world_size", GROUP_NOT_FOLLOWED),)),
        healthy_script(doubts=doubts, spawns=HERE),
        healthy_script(doubts=doubts, syntax_error="line 3"),
    ):
        assert found(CHECKS, "script-never-initialises", script=report) is None
    assert found(CHECKS, "script-never-initialises", launch=healthy_launch(1), script=bare) is None
    launcher = healthy_launch(target=Target("executable", "/venv/bin/torchrun", ("train.py",)))
    assert found(CHECKS, "script-never-initialises", launch=launcher, script=bare) is None


@pytest.mark.parametrize(
    ("args", "fires"),
    [
        (("--batch-size", "32", "--batch-size=64"), True),
        (("--batch-size", "32", "--batch-size=32"), False),
        (("--batch-size", "32"), False),
        (("--batch-size", "32", "--", "--batch-size", "64"), False),
        (("--tag", "a", "--tag", "b"), False),
    ],
)
def test_option_given_twice(args: tuple[str, ...], fires: bool) -> None:
    options = (*healthy_script().options, DeclaredOption(("--tag",), HERE))
    launch = healthy_launch(target=Target("script", "train.py", args))
    finding = found(CHECKS, "option-given-twice", launch=launch, script=healthy_script(options=options))
    assert (finding is not None) is fires
    if finding:
        assert finding.what == "`--batch-size` is given 2 times, with 32 and 64"
        assert finding.where == ("train.py:31",)


def test_the_same_number_in_another_spelling_is_no_contradiction() -> None:
    report = healthy_script(options=(DeclaredOption(("--lr",), HERE, meaning="lr"),))
    launch = healthy_launch(target=Target("script", "train.py", ("--lr", "1e-3", "--lr", "0.001")))
    assert found(CHECKS, "option-given-twice", launch=launch, script=report) is None


@pytest.mark.parametrize(
    ("target", "fix"),
    [
        (Target("executable", "torchrun", ("--nproc-per-node", "8", "train.py", "--lr", "1")), "8 -- train.py --lr 1"),
        (
            Target("executable", "torchrun", ("--nproc_per_node=4", "--nnodes=2", "--node_rank=1", "train.py")),
            "2x4 --node-rank 1 -- train.py",
        ),
        (Target("executable", "/opt/env/bin/accelerate", ("launch", "train.py")), "auto -- train.py"),
        (
            Target("module", "torch.distributed.launch", ("train.py",)),
            "1 -- train.py '--local-rank=${local_rank}'",
        ),
        (Target("module", "torch.distributed.run", ("my train.py",), ("python3",)), "1 -- 'my train.py'"),
        (Target("script", "train.py", ("--lr", "1"), ("uv", "run", "torchrun")), "1 -- train.py --lr 1"),
        (Target("executable", "llamafactory-cli", ("train", "a.yaml")), "8 -- -m llamafactory.launcher a.yaml"),
        (Target("executable", "/venv/bin/axolotl", ("train", "a.yml")), "8 -- -m axolotl.cli.train a.yml"),
        (Target("executable", "swift", ("sft", "--model", "x")), "8 -- -m swift.cli.sft --model x"),
        (Target("executable", "tune", ("run", "lora")), "8 -- recipe.py --config CONFIG"),
        (Target("executable", "composer", ("-n", "4", "train.py", "--lr", "1")), "8 -- train.py --lr 1"),
        (Target("script", "train.py", ("--x",), ("poetry", "run", "fabric", "run")), "8 -- train.py --x"),
        (Target("executable", "deepspeed", ()), "8 -- train.py"),
    ],
)
def test_script_is_launcher(target: Target, fix: str) -> None:
    finding = found(OF_LAUNCHERS, "script-is-launcher", launch=healthy_launch(target=target))
    assert finding and finding.fix.endswith(f"`ddplaunch run {fix}`")


@pytest.mark.parametrize(
    ("lines", "fix"),
    [
        (("ddplaunch run 2 -- t.py",), "`ddplaunch run 2 -- t.py`"),
        (("ddplaunch run 2 -- t.py",) * 2, "`ddplaunch run 2 -- t.py`; `ddplaunch convert old.sh` shows all 2"),
        (("ddplaunch run $N -- t.py",), "`ddplaunch convert old.sh | patch -p0`, then `bash old.sh`"),
    ],
)
def test_a_script_that_starts_a_launcher(lines: tuple[str, ...], fix: str) -> None:
    launch = healthy_launch(target=Target("executable", "/bin/bash", ("old.sh",)))
    finding = found(OF_LAUNCHERS, "script-is-launcher", healthy_facts(launch_lines=lines), launch=launch)
    assert finding and finding.fix == fix


@pytest.mark.parametrize(
    "target",
    [
        Target("script", "torchrun_me.py", ()),
        Target("module", "my.launcher", ()),
        Target("script", "train.py", ("-m", "torch.distributed.run"), ("python",)),
        Target("executable", "llamafactory-cli", ("chat", "a.yaml")),
        Target("script", "train.py", ("composer",), ("uv", "run")),
        Target("executable", "bash", ("train.sh",)),
        None,
    ],
)
def test_script_is_no_launcher(target: Target | None) -> None:
    assert found(OF_LAUNCHERS, "script-is-launcher", launch=healthy_launch(target=target)) is None


def read(folder: Path, source: str) -> ScriptReport:
    (folder / "train.py").write_text(source)
    return read_script(folder / "train.py", folder, ())


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import torch\nmodel = torch.nn.Linear(1, 1)\n", "script-never-initialises"),
        ("def (:\n", "script-syntax-error"),
        (
            "import torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.spawn(print, nprocs=4)\n",
            "script-spawns-processes",
        ),
        (
            "import argparse\nimport torch.distributed as dist\np = argparse.ArgumentParser()\n"
            "p.add_argument('--local-rank', type=int, required=True)\np.parse_args()\n"
            "dist.init_process_group('gloo')\n",
            "script-demands-local-rank",
        ),
        ("import torch.distributed as dist\ndist.init_process_group('gloo')\n", None),
    ],
)
def test_on_real_sources(tmp_path: Path, source: str, code: str | None) -> None:
    report = read(tmp_path, source)
    codes = [check.code for check in CHECKS if found(CHECKS, check.code, script=report)]
    assert codes == ([] if code is None else [code])


def numbered(**numbers: Any) -> Launch:
    resolved: dict[str, Any] = {name: Resolved(value, FLAG) for name, value in numbers.items()}
    return healthy_launch(8, numbers=Numbers(world_size=Resolved(8, FLAG), **resolved))


def test_dataset_smaller_than_batch() -> None:
    finding = found(
        CHECKS, "dataset-smaller-than-batch", launch=numbered(dataset_size=100, global_batch_size=256, accum=4)
    )
    assert finding and finding.what == "the dataset has 100 samples, one effective batch 256"
    assert "`--batch-size 12 --accum 1` makes one step of 96 samples" in finding.fix
    tiny = found(CHECKS, "dataset-smaller-than-batch", launch=numbered(dataset_size=3, global_batch_size=256))
    assert tiny and "at most 3 processes" in tiny.fix


@pytest.mark.parametrize(
    ("receives", "fix"),
    [
        (("batch_size", "accum"), "`--batch-size 12 --accum 1` makes"),
        (("batch_size",), "`--batch-size 12` makes"),
        ((), "a batch of at most 12 per process, in the script itself"),
    ],
)
def test_a_batch_is_made_smaller_where_the_script_takes_it_from(receives: tuple[str, ...], fix: str) -> None:
    launch = replace(numbered(dataset_size=100, global_batch_size=256, accum=4), receives=receives)
    finding = found(CHECKS, "dataset-smaller-than-batch", launch=launch)
    assert finding and finding.fix.startswith(fix)


@pytest.mark.parametrize(
    "numbers", [{"dataset_size": 256, "global_batch_size": 256}, {"dataset_size": 1}, {"global_batch_size": 256}]
)
def test_dataset_large_enough_or_unknown(numbers: dict[str, int]) -> None:
    assert found(CHECKS, "dataset-smaller-than-batch", launch=numbered(**numbers)) is None


LARGE = {"lr": 0.8, "base_lr": 0.1, "lr_factor": 8.0, "lr_scaling": "linear"}


def test_lr_factor_large() -> None:
    finding = found(CHECKS, "lr-factor-large", launch=numbered(**LARGE))
    assert finding and finding.what == "the learning rate is 8 times the base one, 0.8, with no warmup"
    assert "`--base-warmup`" in finding.fix
    without = found(CHECKS, "lr-factor-large", launch=replace(numbered(**LARGE), receives=("lr",)))
    assert without and without.fix.startswith("cap the factor with `--lr-max-factor 4`")


@pytest.mark.parametrize(
    "change",
    [{"lr_factor": 4.0}, {"lr_scaling": "sqrt"}, {"base_warmup": 500}, {"warmup_steps": 500}],
    ids=lambda change: next(iter(change)),
)
def test_lr_factor_with_a_remedy(change: dict[str, Any]) -> None:
    assert found(CHECKS, "lr-factor-large", launch=numbered(**{**LARGE, **change})) is None


def test_lr_that_is_final_is_not_judged() -> None:
    assert found(CHECKS, "lr-factor-large", launch=numbered(lr=0.8)) is None


@pytest.mark.parametrize(
    ("number", "value", "unseen"),
    [
        ("batch_size", "8", "the batch size 8"),
        ("accum", "4", "the accumulation of 4"),
        ("lr", "0.1", "the learning rate 0.1"),
        ("warmup_steps", "500", "the warmup of 500 steps"),
    ],
)
def test_a_number_that_does_not_reach_the_script(number: str, value: str, unseen: str) -> None:
    reason, fix = "no option for it was found", f"read `ddplaunch.current().{number}` in the script"
    launch = healthy_launch(missing=(Missing(number, value, reason, fix),))
    finding = found(CHECKS, "number-not-received", launch=launch)
    assert finding and finding.severity is Severity.WARNING
    assert finding.what == f"train.py will not see {unseen}"
    assert finding.why.startswith("no option for it was found;")
    assert finding.fix == fix


def test_numbers_that_do_not_arrive_for_one_reason_are_one_finding() -> None:
    reason = "no option for it was found"
    launch = healthy_launch(
        missing=tuple(
            Missing(number, value, reason, f"read `ddplaunch.current().{number}` in the script")
            for number, value in (("accum", "2"), ("lr", "0.1"), ("warmup_steps", "400"))
        )
    )
    finding = found(CHECKS, "number-not-received", launch=launch)
    assert finding
    assert (finding.what, finding.why, finding.fix) == (
        "train.py will not see the accumulation of 2, the learning rate 0.1 and the warmup of 400 steps",
        "no option for them was found; it trains with numbers of its own",
        "read `ddplaunch.current().accum`, `ddplaunch.current().lr` and `ddplaunch.current().warmup_steps` in the "
        "script",
    )


def test_numbers_that_do_not_arrive_for_other_reasons_stand_apart() -> None:
    missing = (Missing("accum", "2", "no option", "a"), Missing("lr", "0.1", "`lr` is 0.3", "b"))
    outcome = outcome_of(CHECKS, "number-not-received", launch=healthy_launch(missing=missing))
    assert [finding.fix for finding in outcome.findings] == ["a", "b"]


def test_an_accumulation_that_nothing_reads_leaves_none() -> None:
    reason = "nothing reads `--accum-steps` (train.py:9); the effective batch is without it"
    finding = found(
        CHECKS, "number-not-received", launch=healthy_launch(missing=(Missing("accum", "2", reason, "read it"),))
    )
    assert finding and finding.why == reason


def test_a_number_that_is_held_back_is_no_surprise() -> None:
    launch = healthy_launch(missing=(Missing("lr", "0.1", "`--lr-option none`", asked=True),))
    assert found(CHECKS, "number-not-received", launch=launch) is None


def test_numbers_that_arrive_are_not_mentioned() -> None:
    assert found(CHECKS, "number-not-received", launch=healthy_launch()) is None
