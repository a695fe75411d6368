from __future__ import annotations

import dataclasses

import pytest

from ddplaunch.ui.speech import counted, finding_text, findings_text, refusal_text, typed, where_text
from ddplaunch.ui.terminal import Terminal, cells, visible, wrap
from ddplaunch.values.finding import Finding, error
from tests.conftest import Golden
from tests.planning.sample_launch import FILES, SHM


def test_a_finding_has_the_four_parts_of_the_design_page() -> None:
    assert finding_text(SHM, Terminal(200)) == (
        "error[shm-too-small]: /dev/shm is 64 MiB\n  --> node-1, node-2, and 2 more hosts\n  why: NCCL and DataLoader "
        "workers allocate from it and die with SIGBUS when it is full\n  fix: restart the container with `--ipc=host` "
        "or `--shm-size=16g`\n"
    )


def test_at_40_columns(golden: Golden) -> None:
    text = findings_text((SHM, FILES), Terminal(40))
    assert max(map(len, text.splitlines())) <= 40
    golden("findings-40", text)


def test_colour_changes_nothing_but_colour() -> None:
    import re

    styled = finding_text(SHM, Terminal(60, True))
    assert "\x1b[" in styled
    assert re.sub(r"\x1b\[[0-9;]*m", "", styled) == finding_text(SHM, Terminal(60))


@pytest.mark.parametrize("width", [20, 30, 40, 60])
def test_a_command_in_backticks_is_never_broken(width: int) -> None:
    command = "`sudo mount -o remount,size=16g /dev/shm`"
    finding = dataclasses.replace(SHM, fix=f"as root, {command}, then the same command again")
    assert command in finding_text(finding, Terminal(width))


def test_a_quotation_of_what_happened_is_broken_where_it_is_wider_than_a_line() -> None:
    words = "cuDNN version incompatibility: PyTorch was compiled against (8, 9, 2) but found (8, 5, 0)"
    wide = finding_text(error("cudnn-error", f"another cuDNN: `{words}`", why="w", fix="f"), Terminal(60))
    assert max(map(cells, wide.splitlines())) <= 60 and f'"{words}"' in " ".join(wide.split())
    narrow = finding_text(error("x", "another cuDNN: `libcudnn.so.8 of conda`", why="w", fix="f"), Terminal(40))
    assert "\n  `libcudnn.so.8 of conda`\n" in narrow


def test_control_characters_of_a_path_cannot_reach_the_terminal() -> None:
    finding = error("data-missing", "data path `a\nb\x1b[2J\udcff` is missing", why="w", fix="f", where="x\ny")
    text = finding_text(finding, Terminal(80))
    assert "`a\\nb\\x1b[2J\\xff`" in text
    assert "--> x\\ny" in text
    assert "\x1b" not in text
    text.encode("utf-8")


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (("node-1", "node-2", "node-3"), "node-1, node-2, node-3"),
        (("node-1", "node-2", "node-3", "node-4"), "node-1, node-2, and 2 more hosts"),
        (("GPU 0", "GPU 1", "GPU 2", "GPU 3", "GPU 4"), "GPU 0, GPU 1, and 3 more GPUs"),
        (("train.py:1", "train.py:2", "train.py:3", "train.py:4"), "train.py:1, train.py:2, and 2 more"),
    ],
)
def test_long_lists_of_places_are_counted(where: tuple[str, ...], text: str) -> None:
    assert where_text(where) == text


def test_errors_come_last() -> None:
    text = findings_text((SHM, FILES), Terminal(80))
    assert text.index("warning[") < text.index("error[")


@pytest.mark.parametrize(
    ("findings", "text"),
    [((), ""), ((SHM,), "1 error"), ((FILES, FILES), "2 warnings"), ((SHM, SHM, FILES), "2 errors, 1 warning")],
)
def test_counted(findings: tuple[Finding, ...], text: str) -> None:
    assert counted(findings) == text


def test_a_refusal_says_that_nothing_was_launched_and_how_to_override() -> None:
    text = refusal_text((FILES, SHM), Terminal(80))
    assert text.startswith("nothing was launched: 1 error")
    assert "`--ignore shm-too-small`" in text.replace("\n  ", " ")
    assert "open-files-low" not in text


def test_newlines_outside_of_backticks_are_kept_and_hang() -> None:
    assert wrap("first\nsecond", 40, "  fix: ", "       ") == ["  fix: first", "       second"]


def test_an_empty_text_still_has_its_label() -> None:
    assert wrap("", 40, "  why: ", "       ") == ["  why:"]


def test_wide_characters_count_twice() -> None:
    assert cells("数据") == 4
    assert cells("e\u0301") == 1
    assert visible("数据 ü") == "数据 ü"


SCRIPT = Terminal(200, called_as="`./run_ddp.sh {nproc} …`\n--batch-size BATCH\n--data A_ROOT or B_ROOT")


@pytest.mark.parametrize(
    ("fix", "typed_there"),
    [
        ("`ddplaunch run 8 …`, or wait", "`./run_ddp.sh 8 …`, or wait"),
        ("`ddplaunch run 1 -- …`", "`./run_ddp.sh 1 …`"),
        ("again by `ddplaunch run … -- SCRIPT …`: it", "again by `./run_ddp.sh N …`: it"),
        (
            "`ddplaunch run 2 --gpus free:2 …`",
            "`./run_ddp.sh 2 …` with `DDPLAUNCH_OPTIONS='--gpus free:2'` in front",
        ),
        ("or `--device cpu` for all 4", "or `DDPLAUNCH_OPTIONS='--device cpu'` for all 4"),
        ("`--no-checks`", "`DDPLAUNCH_OPTIONS='--no-checks'`"),
        ("`--batch-size 4` fits", "`BATCH 4` fits"),
        ("name it with `--data`", "name it with A_ROOT or B_ROOT"),
        # what is no option of ddplaunch, and what can be pasted as it is
        ("restart with `--ipc=host`", "restart with `--ipc=host`"),
        ("`docker run --gpus all`; `ddplaunch doctor`", "`docker run --gpus all`; `ddplaunch doctor`"),
        ("`ddplaunch run 2 --accum 2 -- train.py --x`", "`ddplaunch run 2 --accum 2 -- train.py --x`"),
    ],
)
def test_fixes_are_in_the_words_of_the_script_that_was_called(fix: str, typed_there: str) -> None:
    assert typed(fix, SCRIPT) == typed_there
    assert typed(fix, Terminal(200)) == fix


def test_a_refusal_says_how_the_script_is_overruled() -> None:
    finding = error("data-missing", "no data", why="ranks open it", fix="name it with `--data`", where="--data")
    assert "  --> A_ROOT or B_ROOT\n" in findings_text([finding], SCRIPT)
    way = "put `DDPLAUNCH_OPTIONS='--ignore data-missing'` in front of the command.\n"
    assert refusal_text([finding], SCRIPT).endswith(way)
    assert refusal_text([finding], Terminal(200)).endswith("add `--ignore data-missing`.\n")


def test_who_called_is_known_from_the_environment() -> None:
    assert Terminal.of(None, {"DDPLAUNCH_CALLED_AS": "`./x.sh {nproc} …`"}).called_as == "`./x.sh {nproc} …`"
    assert Terminal.of(None, {}).called_as == ""
