"""What ddplaunch replaces and calls of torch's internals: that the installed torch has it, and what happens without."""

import ast
import inspect
import multiprocessing.popen_fork
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from ddplaunch.agent import torch_names
from ddplaunch.agent.plugin.signals import Signals
from ddplaunch.agent.rank_site import ddplaunch_marks, ddplaunch_observer, ddplaunch_phases
from ddplaunch.agent.torch_names import TORCH_NAMES, TorchName, unknown_names
from ddplaunch.agent.torch_patches import (
    RankCpus,
    judge_failures,
    notice_start,
    skip_the_spread,
    spare_children_of_ranks,
    wait_for_ranks,
)
from ddplaunch.planning.settings import Settings
from tests.source import PACKAGE

#: Private names of Python's own library; what they are for is said where they are used.
PYTHONS = {"_bootstrap", "_children", "_counter", "_current_process", "_exit", "_fd", "_fixup_main_from_path"}
PYTHONS |= {"_getframe", "_initializing", "_parent_process", "_pid", "_process_counter", "_resource_tracker"}
PYTHONS |= {"_replace", "_run_module_as_main", "_set_native_id", "_startTime"}
PYTHONS |= {"_exitfunc", "_registered_with_atexit"}  # of `weakref.finalize`
#: Modules of torch that are looked up where somebody has imported them, and parts of the names in the list.
LOOKED_UP = {"_C", "_distributed_c10d", "_dynamo"}


def shown(name: TorchName) -> str:
    return f"{name.module}.{name.name}"


@pytest.mark.slow  # imports torch
@pytest.mark.parametrize("name", TORCH_NAMES, ids=shown)
def test_the_installed_torch_has_the_name(name: TorchName) -> None:
    installed = version("torch")
    assert name.is_known() if name.expected_in(installed) else name.value() is None
    assert name.why and name.fallback and name.since in ("2.4", "2.13")


def test_a_name_is_expected_since_it_was_first_seen() -> None:
    assert not torch_names.CLOSE_RANK.expected_in("2.6.0+cu124")
    assert all(torch_names.CLOSE_RANK.expected_in(each) for each in ("2.13.0a0+git1234", "3.0", "of our own"))


@pytest.mark.slow  # imports torch
@pytest.mark.parametrize("name", [each for each in TORCH_NAMES if each.beside], ids=shown)
def test_what_is_used_with_a_name_is_there(name: TorchName) -> None:
    if not name.expected_in(version("torch")):
        pytest.skip("this torch is older than the name")
    owner = name.owner()
    source = inspect.getsource(owner) if inspect.isclass(owner) else ""
    assert [each for each in name.beside if not (hasattr(owner, each) or f"self.{each}" in source)] == []


def test_no_private_name_is_used_that_nobody_lists() -> None:
    listed = {part for each in TORCH_NAMES for part in (*each.module.split("."), *each.name.split("."), *each.beside)}
    inside = {
        path: ast.parse(path.read_bytes()) for room in ("agent", "comm") for path in (PACKAGE / room).rglob("*.py")
    }
    nodes = {path: [*ast.walk(tree)] for path, tree in inside.items()}
    own = {name for walked in nodes.values() for node in walked for name in defined(node)}
    used = {
        (name, path.name)
        for path in inside
        if path.name != "torch_names.py"
        for node in nodes[path]
        for name in touched(node)
        if re.match(r"_[A-Za-z]", name) and name not in own
    }
    assert ("_num_yielded", "ddplaunch_observer.py") in used and ("_children", "fresh.py") in used
    assert {each for each in used if each[0] not in listed | PYTHONS | LOOKED_UP} == set()


def defined(node: ast.AST) -> list[str]:
    """Return the names that are the project's own: functions, classes, variables, attributes of an object's own."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    own = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)
    return [node.attr] if own and node.value.id == "self" else []  # type: ignore[attr-defined]


def touched(node: ast.AST) -> list[str]:
    """Return the names that are looked up: attributes, parts of modules, and texts that are names."""
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.Import | ast.ImportFrom):
        inside = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
        return [part for each in inside for part in each.split(".")]
    named = isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.]+", node.value)
    return node.value.split(".") if named else []  # type: ignore[attr-defined]


def never(*_: object) -> NoReturn:
    raise AssertionError("it was called")


def workers_die_of_sigterm() -> None:
    module, before = torch_names.WORKER_SIGNALS.owner(), multiprocessing.popen_fork.Popen.terminate
    ddplaunch_marks._say(ddplaunch_marks.spare_workers, module)
    assert not hasattr(module, "_set_worker_signal_handlers")
    assert multiprocessing.popen_fork.Popen.terminate is before


def signals_stay_torchs() -> None:
    handlers = {each: signal.getsignal(each) for each in signal.valid_signals()}
    signals: Any = SimpleNamespace(first=None, _ignored=())
    Signals.ranks_run(signals, torch_names.ON_SIGNAL.value())
    assert {each: signal.getsignal(each) for each in signal.valid_signals()} == handlers


def ranks_are_not_bound() -> None:
    said: list[str] = []
    RankCpus(["0", "1"], said.append).bind()
    assert said == ["ranks are not bound to CPUs: this torch starts them in a way unknown to ddplaunch"]


def measured_without(name: TorchName) -> None:
    """The module's functions are looked for when it has run, and what that raises is let go."""
    rank = ddplaunch_phases._Rank("/dev/null/none")
    look = {torch_names.ENGINE: rank.engine, torch_names.WORK_WAIT: rank.collectives}.get(name, rank.dataloaders)
    ddplaunch_marks.after_import({name.module: look})


def phases_end() -> None:
    rank = ddplaunch_phases._Rank("/dev/null/none")
    module = SimpleNamespace(logger=object(), _set_ddp_runtime_logging_sample_rate=lambda _: None)
    rank._wrapped.append(lambda: module)
    rank.safely(rank._comm.of_passes_us)
    assert rank._off


def observed_without(name: TorchName) -> None:
    observer = ddplaunch_observer._Observer("/dev/null/none")
    ddplaunch_marks.after_import(
        {name.module: observer.dataloaders if name is torch_names.ITERATOR else observer.parallel}
    )


def no_collectives_are_counted() -> None:
    world = torch_names.GROUPS.value()
    group = sys.modules[torch_names.SEQUENCE.module].ProcessGroup(0, 1)
    if world is not None:
        world.pg_map[group] = ("gloo", None)
    try:
        assert ddplaunch_observer._collectives() is None
    finally:
        if world is not None:
            del world.pg_map[group]


#: What uses each name. It raises nothing without it, and puts nothing in its place.
WITHOUT: dict[TorchName, Callable[[], None]] = {
    torch_names.SPREAD: skip_the_spread,
    torch_names.START: partial(notice_start, never),
    torch_names.MONITOR: partial(judge_failures, never),
    torch_names.CLOSE: partial(wait_for_ranks, 1.0, never),
    torch_names.CLOSE_RANK: spare_children_of_ranks,
    torch_names.WORKER_SIGNALS: workers_die_of_sigterm,
    torch_names.ON_SIGNAL: signals_stay_torchs,
    torch_names.POPEN: ranks_are_not_bound,
    torch_names.DDP_TIMES: phases_end,
    **{
        each: partial(measured_without, each)
        for each in (torch_names.ENGINE, torch_names.FETCH, torch_names.WORK_WAIT, torch_names.GET_ITERATOR)
    },
    **{each: partial(observed_without, each) for each in (torch_names.ITERATOR, torch_names.WRAPPED)},
    **dict.fromkeys((torch_names.GROUPS, torch_names.SEQUENCE), no_collectives_are_counted),
}


@pytest.mark.slow  # imports torch
@pytest.mark.parametrize("name", TORCH_NAMES, ids=shown)
def test_without_the_name_torch_does_as_ever(name: TorchName, monkeypatch: pytest.MonkeyPatch) -> None:
    if not name.expected_in(version("torch")):
        pytest.skip("this torch is older than the name")
    monkeypatch.delattr(name.owner(), name.name.rpartition(".")[2])
    assert name.value() is None
    WITHOUT[name]()
    assert name.value() is None


def elsewise(only_here: object = None) -> None:
    """A function of a torch to come, with parameters of its own."""


@pytest.mark.slow  # imports torch
@pytest.mark.parametrize("name", [each for each in TORCH_NAMES if each.parameters and each.in_torchrun], ids=shown)
def test_a_function_with_other_parameters_is_told_and_left_alone(
    name: TorchName, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from ddplaunch.agent import logs_specs  # torch: not while every worker collects

    for each in TORCH_NAMES:  # what is replaced here is put back
        if each.in_torchrun:
            monkeypatch.setattr(each.owner(), each.name.rpartition(".")[2], each.value())
    monkeypatch.setattr(name.owner(), name.name.rpartition(".")[2], elsewise)
    assert unknown_names("3.0") == [name]
    logs_specs._tell_of_an_unknown_torch()
    told = capfd.readouterr().err.splitlines()
    assert told[0].endswith("is unlike those that this ddplaunch knows, which does without:")
    assert told[1:] == [f"ddplaunch:   `{name.name}`: {name.fallback}"]
    for one in (torch_names.SPREAD, torch_names.START, torch_names.MONITOR, torch_names.CLOSE, torch_names.CLOSE_RANK):
        WITHOUT[one]()
    RankCpus(["0"], lambda _: None).bind()
    assert name.value() is elsewise


@pytest.mark.slow  # imports torch
@pytest.mark.parametrize(("nodes", "pauses"), [("1", [(0, 10), 1]), ("2", [(0, 0.3), (0, 10), 1])])
def test_only_a_node_that_is_alone_skips_the_random_pause(
    nodes: str, pauses: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddplaunch.agent.logs_specs import CapturedLogs  # torch: not while every worker collects

    monkeypatch.setenv("DDPLAUNCH_NNODES", nodes)
    paused: list[object] = []
    module = torch_names.SPREAD.owner()
    monkeypatch.setattr(module, "_delay", lambda seconds: paused.append(seconds))
    logs: Any = SimpleNamespace(_say=never)
    assert CapturedLogs._prepared(logs, Settings()) is None
    module._delay(seconds=(0, 0.3))
    module._delay(seconds=(0, 10))  # 2.15, when it could not write to the store
    module._delay(seconds=1)
    assert paused == pauses
