"""Fixes that are whole commands, made from the command line and the plan of the run."""

from __future__ import annotations

from typing import Any

import pytest

from ddplaunch.explain.diagnosis import RunFacts
from tests.explain.logs import diagnosed, raised

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.42 GiB. GPU 1 has a total capacity of 39.38 GiB "
    "of which 411.56 MiB is free."
)


def plan(**numbers: int) -> dict[str, Any]:
    return {"numbers": {name: {"value": value, "source": {"kind": "flag"}} for name, value in numbers.items()}}


def first_fix(argv: str, error: str, **numbers: int) -> str:
    facts = RunFacts(state="failed", argv=tuple(argv.split()), plan=plan(**numbers))
    return diagnosed(raised(1, error), facts).fixes[0]


def test_out_of_memory_gets_the_whole_command_with_the_same_effective_batch() -> None:
    odd = first_fix("ddplaunch run 2 --accum=3 -- t.py --batch-size 6", OOM, batch_size=6, accum=3, world_size=2)
    assert "`ddplaunch run 2 --accum 6 --batch-size 3 -- t.py --batch-size 6`" in odd
    prime = first_fix("ddplaunch run 2 --batch-size 7 -- t.py", OOM, batch_size=7, world_size=2)
    assert "--batch-size 1 --accum 7" in prime


def of_run(command: str, receives: tuple[str, ...], typed: str = "", **numbers: int) -> str:
    """The first fix for a run that recorded what its script receives; ``typed`` is its own option for the batch."""
    recorded = plan(**numbers) | {"receives": list(receives)}
    if typed:
        recorded["numbers"]["batch_size"]["source"] = {"kind": "script", "detail": f"`{typed}` after `--`"}
    return diagnosed(raised(1, OOM), RunFacts(state="failed", argv=tuple(command.split()), plan=recorded)).fixes[0]


SIZES = {"batch_size": 8, "world_size": 2, "global_batch_size": 16}
SAME = "same effective batch of 16 in less memory: `ddplaunch run 2 %s`"
IN_THE_SCRIPT = "a smaller batch, in the script itself: no option was found by which it takes one"
HALF = "an effective batch of 8 in the place of 16, since the script does not accumulate: `ddplaunch run 2 %s`"


@pytest.mark.parametrize(
    ("command", "receives", "typed", "fix"),
    [
        ("--batch-size 8 -- t.py", ("batch_size", "accum"), "", SAME % "--batch-size 4 --accum 2 -- t.py"),
        ("--global-batch-size 16 -- t.py", ("batch_size",), "", HALF % "--batch-size 4 -- t.py"),
        ("-- t.py --bs 8 --x", ("accum",), "--bs", SAME % "--accum 2 -- t.py --bs 4 --x"),
        ("-- t.py --total=16", (), "--total", HALF % "-- t.py --total=8"),
        ("--batch-size 8 -- t.py", (), "", IN_THE_SCRIPT),
    ],
)
def test_out_of_memory_advice_is_what_the_script_can_receive(
    command: str, receives: tuple[str, ...], typed: str, fix: str
) -> None:
    assert of_run(f"ddplaunch run 2 {command}", receives, typed, **SIZES) == fix


def test_no_command_is_made_up() -> None:
    assert "ddplaunch run" not in first_fix("ddplaunch run 2 -- t.py", OOM, world_size=2)
    assert "ddplaunch run" not in first_fix("ddplaunch run 2 --batch-size 1 -- t.py", OOM, batch_size=1, world_size=2)
    trial = "ddplaunch run 2 --run-id fit-x.batch-8 --env DDPLAUNCH_TRIAL=fit-x/batch-8 --batch-size 8 -- t.py"
    assert "ddplaunch run" not in first_fix(trial, OOM, batch_size=8, world_size=2), "nobody is to type a trial's"


def test_other_whole_commands() -> None:
    files = first_fix("ddplaunch run 2 -- t.py", "OSError: [Errno 24] Too many open files")
    assert files == "`ulimit -n 65535 && ddplaunch run 2 -- t.py`"
    taken = "RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."
    assert "`ddplaunch run 2 -- t.py`" in first_fix("ddplaunch run 2 --master-port 29500 -- t.py", taken)


def test_a_port_that_the_script_asks_for_is_not_the_launchs() -> None:
    taken = "torch.distributed.DistNetworkError: port: 44079, useIpv6: false, code: -98, name: EADDRINUSE, message: x"
    for port, nodes, own in ((None, 1, True), ({"value": 44079}, 1, False), (None, 2, False)):
        topology = {"topology": {"nnodes": {"value": nodes}, "master_port": port}}
        facts = RunFacts(state="failed", argv=("ddplaunch", "run", "2", "--", "train.py"), plan=topology)
        fixes = diagnosed(raised(0, taken), facts).fixes
        assert fixes[0].startswith("the launch had picked a free port") == own
        assert ("--master-port" in " ".join(fixes)) != own


@pytest.mark.parametrize(
    ("code", "named"), [("rendezvous-in-script", True), ("master-addr-unroutable", True), ("few-threads", False)]
)
def test_a_failed_rendezvous_is_told_by_what_the_launch_had_warned_of(code: str, named: bool) -> None:
    warned = {"code": code, "what": "the script meets at 29500", "why": "torchrun is elsewhere", "fix": "`setdefault`"}
    late = (
        "DistNetworkError: The client socket has timed out after 12000ms while trying to connect to (localhost, 29500)."
    )
    found = diagnosed(raised(1, late), RunFacts(state="failed", findings=(warned,)))
    assert (found.code, found.rank) == ("rendezvous-failed", 1)
    assert found.what == "nobody answered at localhost:29500" + ": the script meets at 29500" * named
    assert (found.fixes == ("`setdefault`",)) == ("torchrun is elsewhere" in found.why) == named
    assert "29500" not in diagnosed(raised(1, OOM), RunFacts(state="failed", findings=(warned,))).what


def test_an_example_of_a_command_is_the_users_own() -> None:
    refused = "t.py: error: unrecognized arguments: --lrr"
    for typed in ("t.py", "uv run t.py"):  # a wrapper stays what it is
        own = first_fix(f"x/ddplaunch run 2 --device cpu -- {typed} --lrr", refused)
        assert "`ddplaunch run 2 --device cpu -- …`" in own and "what `t.py` takes" in own
    assert "`ddplaunch run 4 -- …`" in diagnosed(f"{refused}\n").fixes[0]
    assert "run 4" in first_fix("ddplaunch run 2 --env DDPLAUNCH_TRIAL=fit-x/b -- t.py --lrr", refused)


@pytest.mark.parametrize(("factor", "blamed"), [(None, False), (1.0, False), (4.0, True)])
def test_more_gpus_are_blamed_for_a_loss_only_where_they_multiplied_its_rate(
    factor: float | None, blamed: bool
) -> None:
    lost_all = raised(1, "RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.")
    found = diagnosed(lost_all, RunFacts(state="failed", plan={"numbers": {"lr_factor": {"value": factor}}}))
    assert found.code == "not-a-number" and any("lower the learning rate" in fix for fix in found.fixes)
    assert any("`--lr-scaling sqrt`" in fix for fix in found.fixes) == blamed


@pytest.mark.parametrize("plan", [None, {}, {"receives": ["batch_size"]}, {"receives": ["batch_size", "lr"]}])
def test_a_lower_rate_is_an_option_of_ours_only_where_the_script_receives_it(plan: dict[str, object] | None) -> None:
    lost_all = raised(1, "RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.")
    (fix,) = (fix for fix in diagnosed(lost_all, RunFacts(state="failed", plan=plan)).fixes if "lower the" in fix)
    takes_rate = "lr" in str(plan)
    assert fix == f"lower the learning rate{' (`--lr` or `--base-lr`)' * takes_rate}, or lengthen the warmup"


@pytest.mark.parametrize(
    ("environment", "active"),
    [
        ({"CONDA_PREFIX": "/opt/conda", "VIRTUAL_ENV": "/home/ana/env"}, "/home/ana/env"),
        ({"CONDA_PREFIX": "/opt/conda"}, "/opt/conda"),
        ({"CONDA_PREFIX": "/opt/conda", "VIRTUAL_ENV": "/opt/env"}, ""),  # the ranks' own
        ({}, ""),
    ],
)
def test_a_missing_module_names_the_ranks_interpreter_and_the_active_environment(
    environment: dict[str, str], active: str
) -> None:
    run = {"environment": environment, "host": {"python": {"version": "3.11", "executable": "/opt/env/bin/python"}}}
    ours = {"plan": {"target": {"kind": "script"}}, **run}
    fixes = diagnosed(raised(1, "ModuleNotFoundError: No module named 'tokenkit'"), RunFacts(run=ours)).fixes
    there = f"the ranks ran /opt/env/bin/python, and the active environment is {active}: "
    assert [fix for fix in fixes if "active environment" in fix] == (
        [f"{there}start ddplaunch there, if it has `tokenkit`"] if active else []
    )
    assert any(fix.startswith("`/opt/env/bin/python -m pip install tokenkit`") for fix in fixes)
    other = {"plan": {"target": {"kind": "executable"}}, **run}  # which has an interpreter of its own
    fixes = diagnosed(raised(1, "ModuleNotFoundError: No module named 'tokenkit'"), RunFacts(run=other)).fixes
    assert not any("/opt/env" in fix for fix in fixes)
