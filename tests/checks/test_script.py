"""The script and numbers families, on described reports and on real sources."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import partial
from typing import Any

from ddplaunch.checks.script import CHECKS
from ddplaunch.planning.launch import Launch, Missing, Target
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.script.script_report import (
    GROUP_NOT_FOLLOWED,
    NO_GROUP,
    DeclaredAt,
    DeclaredOption,
    FixedDevices,
    ScriptReport,
)
from ddplaunch.values.resolved import Resolved
from tests.checks.cases import Case, fires, found, judged, outcome_of, silent
from tests.checks.healthy import FLAG, healthy_launch, healthy_script, topology

HERE = DeclaredAt("train.py", 7)


def given(args: str, nproc: int = 8, **replace: Any) -> Launch:
    return healthy_launch(nproc, target=Target("script", "train.py", tuple(args.split())), **replace)


def sized(*flags: str, help: str = "", **more: Any) -> ScriptReport:
    """Return the report of a script that declares these options."""
    more = {"reads_env": (), **more}
    return healthy_script(options=tuple(DeclaredOption((flag,), HERE, help=help) for flag in flags), **more)


spawning = partial(fires, "script-spawns-processes")
switch_off = partial(fires, "distributed-switch-off")
demands = partial(fires, "script-demands-local-rank")
SPAWNS = healthy_script(spawns=HERE, reads_env=())
MODULE = healthy_launch(target=Target("module", "a.train"))
ALONE = healthy_script(spawns=HERE, spawns_alone=True, reads_env=("RANK",))
OF_SCRIPT = (
    fires("script-syntax-error", "not compile: line 3: b", script=healthy_script(syntax_error="line 3: bad")),
    silent("script-syntax-error"),
    spawning("train.py:7 … python train.py --batch-size 32`", script=SPAWNS),
    spawning("PORT=29500 python -m a.train`", launch=MODULE, script=SPAWNS),
    spawning("train.py:7", "warning", script=healthy_script(spawns=HERE)),
    silent("script-spawns-processes", launch=1, script=SPAWNS),
    spawning("only between processes that it starts itself … trains alone", script=ALONE),
)


def switched(*switches: str, options: tuple[DeclaredOption, ...] = ()) -> ScriptReport:
    return healthy_script(switched_off=HERE, switches=switches, options=options)


OPT = (DeclaredOption(("-opt",), HERE),)
WITH_OPT, RESUMES = given("-opt a.yml"), switched("--resume", "--local_rank")
SWITCH = (
    silent("distributed-switch-off", launch=1, script=switched("--distributed")),
    switch_off("pass `--launcher`", "warning", launch=WITH_OPT, script=switched("-opt", "--launcher", options=OPT)),
    switch_off("local_rank … $LOCAL_RANK", "warning", launch=WITH_OPT, script=RESUMES),
    switch_off("leave `-opt` out", "warning", launch=WITH_OPT, script=switched("-opt", options=OPT)),
    switch_off("pass `--resume` or `--local_rank` after", "warning", launch=MODULE, script=RESUMES),
)
LOCAL_RANK = DeclaredOption(("--local_rank",), HERE, required=True)
DEMANDS = healthy_script(options=(LOCAL_RANK,), demands_local_rank=HERE)
TAKES = healthy_script(options=(DeclaredOption(("--local_rank",), HERE),), takes_local_rank=HERE)
DEMANDED = (
    demands("`--local_rank` … train.py:7", launch=given("--name a"), script=DEMANDS),
    silent("script-demands-local-rank", script=sized("--local_rank")),
    demands('chooses its GPU by `--local_rank` … --local_rank "$LOCAL_RANK"', "warning", script=TAKES),
    silent("script-demands-local-rank", launch=1, script=TAKES),
    silent("script-demands-local-rank", "it contradicts the launch", launch=given("--local_rank 0"), script=TAKES),
)


def test_the_shell_line_for_local_rank_runs_as_printed() -> None:
    """Pasted into a shell, with echo in python's place, it passes the arguments and the rank on unharmed."""
    launch = healthy_launch(target=Target("script", "train.py", ("--name", "it's 'a b'")))
    finding = found(CHECKS, "script-demands-local-rank", launch=launch, script=DEMANDS)
    assert finding
    line = finding.fix.partition("`-- ")[2].removesuffix("`").replace("exec python", "exec echo", 1)
    said = subprocess.run(["sh", "-c", line], env={"LOCAL_RANK": "5", "PATH": "/usr/bin:/bin"}, capture_output=True)
    assert said.stdout.decode() == "train.py --local_rank 5 --name it's 'a b'\n"


WORLD, LOCAL = sized("--world-size"), sized("--local_rank")
NODES = sized("--nnodes", "--node_rank", "--master_addr", "--ngpus_per_node")
TWO = replace(topology(4), nnodes=Resolved(2, FLAG), min_nodes=2)
MEANT = "--nnodes 2 --node_rank 1 --master_addr 10.0.0.1 --ngpus_per_node 4"


def against(says: str, args: str, script: ScriptReport, severity: str = "error", **launch: Any) -> Case:
    return fires("launch-contradicted", says, severity, launch=given(args, **launch), script=script)


def agreeing(args: str, script: ScriptReport, **launch: Any) -> Case:
    return silent("launch-contradicted", launch=given(args, **launch), script=script)


def fixed(name: str, number: int) -> ScriptReport:
    return healthy_script(devices=FixedDevices(name, number, HERE))


CONTRADICTED = (
    against("but this launch has 8 ranks … `--world-size {world_size}` … run 4 -- ", "--world-size 4", WORLD),
    against("`--world-size 16` after `--`, but this launch has 8 ranks", "--world-size=16", WORLD),
    against("has 8 ranks", "--world-size 4", sized("--world-size", reads_env=("WORLD_SIZE",)), "warning"),
    *(agreeing(f"--world-size {size}", WORLD) for size in ("8", "-1", "0")),
    agreeing("--world-size 4", sized()),
    agreeing("--world-size 1", sized("--world-size", help="number of nodes for distributed training")),
    agreeing("--world-size 4", sized("--world-size", spawns=HERE)),
    agreeing("--world-size 4", WORLD, nproc=4, topology=replace(TWO, min_nodes=1)),
    against("this launch has 8 ranks on each node", "--nproc_per_node 4", sized("--nproc_per_node")),
    against("ranks on each node", "--nproc_per_node 4", sized("--nproc_per_node", help="not the number of nodes")),
    agreeing("--nproc 4", sized("--nproc", help="processes that tokenize")),
    against("has 8 ranks on each node", "--nproc 4", sized("--nproc", help="number of GPUs")),
    against("`--nnodes 2` after `--`, but this launch has 1", "--nnodes 2 --node_rank 1", NODES),
    agreeing("--nnodes 1 --node_rank 0 --master_addr 127.0.0.1", NODES),
    against("but this launch has 8 ranks on each node", "--ngpus_per_node 4", NODES),
    agreeing("--ngpus_per_node 8", NODES),
    against('`--local_rank 0` … is the same … --local_rank "$LOCAL_RANK" --a b', "--a --local_rank 0 b", LOCAL),
    against("is the same … leave `", "--local_rank=0", sized("--local_rank", reads_env=("LOCAL_RANK",)), "warning"),
    agreeing("--local_rank -1", LOCAL),
    agreeing("--local_rank 0", LOCAL, nproc=1),
    against("takes 1 device by `gpus` … `ddplaunch run 1 -- …`", "", fixed("gpus", 1), "warning"),
    against("takes 9 devices by `devices`", "", fixed("devices", 9), "warning"),
    agreeing("", fixed("devices", 8)),
    agreeing("", fixed("CUDA_VISIBLE_DEVICES", 9)),  # one is left over
    agreeing(MEANT, NODES, nproc=4, topology=TWO),
    against("run 4 --nnodes N --node-rank 1 --ma", "--node_rank 1", NODES, nproc=4, topology=topology(4)),
    against("--node-rank 2 --master-addr HOST", "--node_rank 2", NODES, nproc=4, topology=TWO),
    agreeing("--node_rank 0", NODES, nproc=4, topology=topology(4)),
    agreeing("--node_rank 1", NODES, nproc=4, topology=TWO),
)


def test_several_nodes_of_the_script_alone_are_mended_by_the_line_that_is_meant() -> None:
    findings = outcome_of(CHECKS, "launch-contradicted", launch=given(MEANT, 1), script=NODES).findings
    assert [finding.what.partition(" after")[0] for finding in findings] == ["`--nnodes 2`", "`--ngpus_per_node 4`"]
    for finding in findings:
        assert "`ddplaunch run 4 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 -- …`" in finding.fix


NO_GROUPS = (("world_size", NO_GROUP),)
TORCHRUN = healthy_launch(target=Target("executable", "/venv/bin/torchrun", ("train.py",)))
NEVER = (
    fires("script-never-initialises", "8 ranks", "warning", script=healthy_script(doubts=NO_GROUPS)),
    silent("script-never-initialises", script=healthy_script(doubts=NO_GROUPS, complete=False)),
    silent("script-never-initialises", script=healthy_script(doubts=(("world_size", GROUP_NOT_FOLLOWED),))),
    silent("script-never-initialises", script=healthy_script(doubts=NO_GROUPS, spawns=HERE)),
    silent("script-never-initialises", script=healthy_script(doubts=NO_GROUPS, syntax_error="line 3")),
    silent("script-never-initialises", launch=1, script=healthy_script(doubts=NO_GROUPS)),
    silent("script-never-initialises", launch=TORCHRUN, script=healthy_script(doubts=NO_GROUPS)),
)
TAGGED = healthy_script(options=(*healthy_script().options, DeclaredOption(("--tag",), HERE)))
GIVEN_TWICE = "option-given-twice"
WITH_LR = healthy_script(options=(DeclaredOption(("--lr",), HERE, meaning="lr"),))
TWICE = (
    fires(
        GIVEN_TWICE,
        "32 and 64 … last one, 64 … size 64` … py:31",
        launch=given("--batch-size 32 --batch-size=64"),
        script=TAGGED,
    ),
    *(
        silent(GIVEN_TWICE, launch=given(args), script=TAGGED)
        for args in ("--batch-size 32 --batch-size=32", "--batch-size 32 -- --batch-size 6", "--tag a --tag b")
    ),
    silent(GIVEN_TWICE, "the same in another spelling", launch=given("--lr 1e-3 --lr 0.001"), script=WITH_LR),
)


def executable(name: str, args: str, *before: str) -> Launch:
    return healthy_launch(target=Target("script" if before else "executable", name, tuple(args.split()), before))


def module(name: str, args: str) -> Launch:
    return healthy_launch(target=Target("module", name, tuple(args.split())))


LAUNCHERS = (
    *(
        fires("script-is-launcher", f"`ddplaunch run {fix}`", launch=launch)
        for launch, fix in (
            (executable("torchrun", "--nproc-per-node 4 train.py --lr 1"), "4 -- train.py --lr 1"),
            (executable("torchrun", "--nnodes=2 --node_rank=1 train.py"), "2x8 --node-rank 1 -- train.py"),
            (executable("/opt/env/bin/accelerate", "launch train.py"), "auto -- train.py"),
            (module("torch.distributed.launch", "train.py"), "8 -- train.py '--local-rank=${local_rank}'"),
            (module("torch.distributed.run", "train.py"), "8 -- train.py"),
            (executable("train.py", "--lr 1", "uv", "run", "torchrun"), "8 -- train.py --lr 1"),
            (executable("llamafactory-cli", "train a.yaml"), "8 -- -m llamafactory.launcher a.yaml"),
            (executable("tune", "run lora"), "8 -- recipe.py --config CONFIG"),
            (executable("composer", "-n 4 train.py --lr 1"), "8 -- train.py --lr 1"),
            (executable("deepspeed", ""), "8 -- train.py"),
        )
    ),
    *(
        fires("script-is-launcher", fix, launch=executable("/bin/bash", "old.sh"), launch_lines=lines)
        for lines, fix in (
            (("ddplaunch run 2 -- t.py",), "`ddplaunch run 2 -- t.py`\n"),
            (("ddplaunch run 2 -- t.py",) * 2, "`ddplaunch run 2 -- t.py`; `ddplaunch convert old.sh` shows all 2"),
            (("ddplaunch run $N -- t.py",), "`ddplaunch convert old.sh | patch -p0`, then `bash old.sh`"),
        )
    ),
    *(
        silent("script-is-launcher", launch=launch)
        for launch in (
            given("--x"),
            module("my.launcher", ""),
            executable("train.py", "-m torch.distributed.run", "python"),
            executable("llamafactory-cli", "chat a.yaml"),
            executable("train.py", "composer", "uv", "run"),
            executable("bash", "train.sh"),
            healthy_launch(target=None),
        )
    ),
)


def numbered(receives: tuple[str, ...] = ("batch_size", "accum", "warmup_steps"), **numbers: Any) -> Launch:
    resolved: dict[str, Any] = {name: Resolved(value, FLAG) for name, value in numbers.items()}
    return healthy_launch(8, numbers=Numbers(world_size=Resolved(8, FLAG), **resolved), receives=receives)


SMALL: dict[str, Any] = {"dataset_size": 100, "global_batch_size": 256, "accum": 4}
LARGE: dict[str, Any] = {"lr": 0.8, "base_lr": 0.1, "lr_factor": 8.0, "lr_scaling": "linear"}
EMPTY = "dataset-smaller-than-batch"
too_small = partial(fires, EMPTY)
OF_NUMBERS = (
    too_small("`--batch-size 12 --accum 1` makes one step of 96", "warning", launch=numbered(**SMALL)),
    too_small("`--batch-size 12` makes", "warning", launch=numbered(("batch_size",), **SMALL)),
    too_small("a batch of at most 12 per process, in the script itself", "warning", launch=numbered((), **SMALL)),
    too_small("at most 3 processes", "warning", launch=numbered(dataset_size=3, global_batch_size=256)),
    silent(EMPTY, launch=numbered(dataset_size=256, global_batch_size=256)),
    silent(EMPTY, launch=numbered(dataset_size=1)),
    silent(EMPTY, launch=numbered(global_batch_size=256)),
    fires("lr-factor-large", "8 times the base one, 0.8 … `--base-w", "warning", launch=numbered(**LARGE)),
    fires("lr-factor-large", "cap the factor with `--lr-max-factor 4`", "warning", launch=numbered(("lr",), **LARGE)),
    *(
        silent("lr-factor-large", launch=numbered(**{**LARGE, **remedy}))
        for remedy in ({"lr_factor": 4.0}, {"lr_scaling": "sqrt"}, {"base_warmup": 500}, {"warmup_steps": 500})
    ),
    silent("lr-factor-large", "it is final", launch=numbered(lr=0.8)),
)


def lacking(*missing: tuple[str, str], reason: str = "no option for it was recognized") -> Launch:
    return healthy_launch(missing=tuple(Missing(name, value, reason, f"read `{name}`") for name, value in missing))


unseen_is = partial(fires, "number-not-received")
BOTH = lacking(("accum", "2"), ("lr", "0.1"))
HELD_BACK = healthy_launch(missing=(Missing("lr", "0.1", "`--lr-option none`", asked=True),))
UNREAD = "nothing reads `--accum-steps` (train.py:9); the effective batch is without it"
NOT_RECEIVED = (
    *(
        unseen_is(f"{unseen} … for it was recognized … read `{name}`", "warning", launch=lacking((name, value)))
        for name, value, unseen in (
            ("batch_size", "8", "the batch size 8"),
            ("accum", "4", "the accumulation of 4"),
            ("lr", "0.1", "the learning rate 0.1"),
            ("warmup_steps", "500", "the warmup of 500 steps"),
        )
    ),
    unseen_is("accumulation of 2 and the … for them … read `accum` and `lr`", "warning", launch=BOTH),
    unseen_is(UNREAD, "warning", launch=lacking(("accum", "2"), reason=UNREAD)),
    silent("number-not-received", "it is held back", launch=HELD_BACK),
    silent("number-not-received"),
)
CASES = (*(*OF_SCRIPT, *SWITCH, *DEMANDED, *CONTRADICTED, *NEVER, *TWICE, *LAUNCHERS, *OF_NUMBERS, *NOT_RECEIVED),)
test_fires_with_words_and_stays_silent_without = judged(*CASES)


def test_numbers_that_do_not_arrive_for_other_reasons_stand_apart() -> None:
    missing = (Missing("accum", "2", "no option", "a"), Missing("lr", "0.1", "`lr` is 0.3", "b"))
    outcome = outcome_of(CHECKS, "number-not-received", launch=healthy_launch(missing=missing))
    assert [finding.fix for finding in outcome.findings] == ["a", "b"]
