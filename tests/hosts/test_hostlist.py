"""Which hosts were meant: lists, host files, choices of them, and what is no such thing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddplaunch.hosts.hostlist import Host, chosen, from_file, from_words
from ddplaunch.planning.hosts_plan import forwarded, names_text, options_from_plain, sized
from ddplaunch.planning.options import Options, parse_options
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source

FLAG = Source("flag", "--x")
DEEPSPEED = """# two racks
gpu-a slots=8   # with a comment

me@gpu-b slots=8
"""


def code_of(problem: pytest.ExceptionInfo[UsageError]) -> str:
    return problem.value.findings[0].code


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        (" gpu-a , me@gpu-b:4", (Host("gpu-a"), Host("me@gpu-b", 4))),
        ("10.0.0.1:2", (Host("10.0.0.1", 2),)),
        ("fd00::1,[fd00::2]:3", (Host("fd00::1"), Host("fd00::2", 3))),
        ("me@[fd00::2]", (Host("me@fd00::2"),)),
    ],
)
def test_lists(text: str, hosts: tuple[Host, ...]) -> None:
    assert from_words(text) == hosts


@pytest.mark.parametrize(
    "text", ["", "a,,b", "a b", "a:0", "a:x", "a;reboot", "$(id)", "a/b", "@a", "a:1x", "ü", "-oProxyCommand=x"]
)
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(UsageError) as problem:
        from_words(f"gpu-z,{text}")
    assert code_of(problem) == "host-name-malformed"


def test_duplicates() -> None:
    with pytest.raises(UsageError, match="`gpu-a` is named twice") as problem:
        from_words("gpu-a,gpu-b,gpu-a")
    assert code_of(problem) == "host-named-twice"
    with pytest.raises(UsageError) as problem:
        from_file("gpu-a\ngpu-b\n\ngpu-a:4\n", "hosts")
    assert problem.value.findings[0].where == ("hosts:1", "hosts:4")


def test_host_files() -> None:
    assert from_file(DEEPSPEED, "hosts") == (Host("gpu-a", 8), Host("me@gpu-b", 8))
    assert from_file("\ufeffgpu-a:4\r\ngpu-b slots=4 max_slots=8\r\n", "hosts") == (Host("gpu-a", 4), Host("gpu-b", 4))


@pytest.mark.parametrize(
    ("text", "line"),
    [("gpu-a slots=8\ngpu-b slot=8\n", 2), ("\n\ngpu-a 8\n", 3), ("a slots=0\n", 1), ("a:2 slots=3", 1), ("a b", 1)],
)
def test_malformed_line_is_named(text: str, line: int) -> None:
    with pytest.raises(UsageError) as problem:
        from_file(text, "my/hosts")
    assert code_of(problem) == "hostfile-malformed"
    assert problem.value.findings[0].where == (f"my/hosts:{line}",)


def test_empty_host_file_and_choices() -> None:
    with pytest.raises(UsageError, match="names no host"):
        from_file("# nobody\n\n", "hosts")
    four = (Host("a", 4), Host("b", 4), Host("c"))
    assert chosen(four, []) == four and chosen(four, ["b"]) == (Host("a", 4), Host("c"))
    for exclude, said in ((["a:4"], "`--exclude a:4` names no host"), (["a", "b", "c"], "no host is left")):
        with pytest.raises(UsageError, match=said):
            chosen(four, exclude)


def said(nproc: str | None, nnodes: str | None = None) -> Options:
    typed = {"nproc": nproc, "nnodes": nnodes}
    return parse_options({name: Resolved(text, FLAG) for name, text in typed.items() if text is not None})


@pytest.mark.parametrize(
    ("options", "slots", "processes"),
    [
        (said("2x4"), (None, None), 4),
        (said(None), (None, None), "auto"),
        (said(None), (8, 8), 8),
        (said("2xauto"), (8, None), 8),
        (said("4", "2"), (8, 4), 4),
    ],
)
def test_sizes(options: Options, slots: tuple[int | None, ...], processes: int | str) -> None:
    found = sized(options, ("a", "b"), slots)
    assert found.nproc is not None and found.nproc.value == processes
    assert found.nnodes is not None and found.nnodes.value == (2, 2)


@pytest.mark.parametrize(
    ("options", "slots", "code"),
    [
        (said("3x4"), (None, None), "hosts-not-nodes"),
        (said("4", "2:4"), (None, None), "hosts-not-nodes"),
        (said("4"), (8, 2), "slots-exceeded"),
        (said(None), (8, 4, None), "slots-uneven"),
    ],
)
def test_sizes_that_contradict(options: Options, slots: tuple[int | None, ...], code: str) -> None:
    with pytest.raises(UsageError) as problem:
        sized(options, ("a", "b", "c")[: len(slots)], slots)
    assert code_of(problem) == code


def test_what_helps_where_slots_are_few_suits_every_command() -> None:
    with pytest.raises(UsageError) as problem:
        sized(said("4"), ("a", "b"), (8, 2))
    assert problem.value.findings[0].fix == "`2` in the place of `4`, or correct the list"


def test_environment_by_an_allow_list() -> None:
    kept = {"NCCL_DEBUG": "INFO", "HF_TOKEN": "x", "PYTHONPATH": "/p"}
    dropped = {"HOME": "/root", "CUDA_VISIBLE_DEVICES": "0", "MASTER_ADDR": "a", "SSH_AUTH_SOCK": "s"}
    assert forwarded({**dropped, **kept}) == kept


def test_options_cross_as_they_are() -> None:
    said = {"nproc": "2x4", "nnodes": "2", "show": "0,3", "preload": "a,b", "timeout": "10m"}
    typed: dict[str, Any] = {name: Resolved(value, FLAG) for name, value in said.items()}
    options = parse_options(
        {**typed, "env": (Resolved("A=b\nc", FLAG), Resolved("D=$e", FLAG)), "lr": Resolved(0.1, FLAG)}
    )
    assert options_from_plain(json.loads(json.dumps(plain(options)))) == options


def test_many_names_are_cut_short() -> None:
    assert names_text(["a", "b"]) == "a, b"
    assert names_text([f"h{number}" for number in range(1000)]) == "h0, h1, h2, h3, h4, h5, h6, h7 … h999 (1000 hosts)"
