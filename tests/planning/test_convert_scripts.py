"""Launch lines of shell scripts: what is replaced, what stays, what is said of it, and that the same ranks start."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ddplaunch.planning.convert.shell_script import sites_of
from ddplaunch.planning.convert.translation import changed
from tests.cli.cli_calls import Call
from tests.golden import sections
from tests.ports import free_port

EXAMPLES = sections(Path(__file__).with_name("convert_scripts.txt"))


@pytest.mark.parametrize("marked", [text for _, text in EXAMPLES], ids=[title for title, _ in EXAMPLES])
def test_a_script(marked: str) -> None:
    """In the text there is ⟦before → after⟧, or ``=>`` at the line of a launch that stays: it cannot be known."""
    stays = [number for number, line in enumerate(marked.splitlines(), start=2) if line.startswith("=> ")]
    sides = (re.sub("⟦(.*?) → (.*?)⟧", side, marked, flags=re.DOTALL) for side in (r"\g<1>", r"\g<2>"))
    before, after = (f"#!/bin/bash\n{text}".replace("\n=> ", "\n") for text in sides)
    sites = sites_of(before.encode())
    assert changed(before.encode(), sites).decode() == after
    if before == after:
        (site,) = sites
        assert [site.line] == stays and site.said.unknown[0].why


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("if true; then\n  echo a\nfi fi\ntorchrun train.py\n", "stands from line 1 on means"),
        ('echo "never closed\n', "stands from line 1 on means"),
        ("torchrun train.py \\\n  --amp \\\n", None),  # bash takes a backslash at the end
    ],
)
def test_where_a_script_is_no_whole_commands_is_said(text: str, lines: str | None) -> None:
    said = [site.said.unknown[0].what for site in sites_of(text.encode()) if not site.text]
    assert said == ([] if lines is None else [f"what {lines}"])


def test_what_is_no_launch_is_left_alone_what_no_grammar_takes_is_said_once_and_scripts_nest() -> None:
    data = b"if then fi ((( torchrun a.py\n}}}\ntorchrun b.py\n"
    sites = sites_of(data)
    assert changed(data, sites).endswith(b"ddplaunch run 1 -- b.py\n")
    assert [site.line for site in sites if not site.replacement] == [1]
    for script in ("", "echo torchrun t.py\n", "# torchrun t.py\n", "\xff\n"):
        assert sites_of(script.encode()) == []
    for data in (b"$(" * 5_000, b"( " * 5_000 + b"torchrun t.py", b'"${' * 5_000, b"{\n" * 5_000):
        sites_of(data)


EXPORTED = {
    **{"MASTER_ADDR": "192.0.2.9", "MASTER_PORT": "12399", "NNODES": "7", "NODE_RANK": "1", "WORLD_SIZE": "14"},
    **{"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "5", "PET_NNODES": "3", "OMP_NUM_THREADS": "2"},
}


@pytest.mark.parametrize(
    "launch",
    [
        "torchrun --standalone --nproc_per_node 2",
        "torchrun --nnodes 2 --node_rank 0 --master_addr 127.0.0.1",
        "torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:29400",
        "accelerate launch --num_processes 4 --num_machines 2 --machine_rank 0 --main_process_ip 127.0.0.1",
    ],
)
def test_what_the_launcher_did_not_read_changes_nothing(
    call: Call, monkeypatch: pytest.MonkeyPatch, launch: str
) -> None:
    exports = "".join(f"export {name}={value}\n" for name, value in EXPORTED.items())
    data = f"{exports}{launch} train.py\n".encode()
    sites = sites_of(data)
    unknown = {note.what: note.why for site in sites for note in site.said.unknown}
    words = shlex.split(changed(data, sites).decode().splitlines()[-1])
    split = words.index("--")
    place = [] if "NODE_RANK" not in unknown.get("the rank of each node", "") else ["--node-rank", "0"]
    line = ["plan", *words[2:split], *place, "--json", "--no-checks", "--run-id", "a", *words[split:]]
    before = json.loads(call(*line).out)
    for name, value in EXPORTED.items():
        monkeypatch.setenv(name, value)
    after = json.loads(call(*line).out)
    assert [after[part] for part in ("argv", "target")] == [before[part] for part in ("argv", "target")]


def test_a_line_in_a_shell_that_exports_a_port(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "12399")
    assert call("convert", "--", "torchrun", "train.py").out == "ddplaunch run 1 --master-port 0 -- train.py\n"


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("x.sh", b"\x7fELF\0\0", "error[file-not-readable]"),
        ("none.sh", None, "error[file-not-readable]"),
        ("app.py", b"from torchx.components import dist\n", "`app.py` is a program of Python"),
        ("a.yaml", b"distributed_type: MULTI_GPU\n", "there is no launcher in `a.yaml`"),
    ],
)
def test_other_files_hold_no_launch(call: Call, folder: Path, name: str, content: bytes | None, what: str) -> None:
    if content is not None:
        (folder / name).write_bytes(content)
    said = call("convert", name)
    assert said.status == 2 and what in said.err


def test_the_diff_and_the_change(call: Call, folder: Path) -> None:
    script = folder / "old.sh"
    script.write_text("#!/bin/bash\nset -e\ntorchrun --nproc_per_node=2 train.py\ntorchrun $OPTS train.py\n")
    script.chmod(0o750)
    said = call("convert", "old.sh")
    assert said.status == 1 and "old.sh:4" in said.err
    assert "-torchrun --nproc_per_node=2 train.py\n+ddplaunch run 2 -- train.py\n" in said.out
    assert "torchrun --nproc" in script.read_text()
    subprocess.run(["patch", "-b", "-p0"], input=said.out, cwd=folder, text=True, check=True)
    assert script.read_text().splitlines()[2] == "ddplaunch run 2 -- train.py"
    assert (folder / "old.sh.orig").read_text().splitlines()[2] == "torchrun --nproc_per_node=2 train.py"
    for path in (script, folder / "old.sh.orig"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert sorted(path.name for path in folder.iterdir()) == ["old.sh", "old.sh.orig", "train.py"]
    (folder / "other.sh").write_text("torchrun --nproc_per_node=2 train.py\n")
    assert call("convert", "old.sh", "other.sh").status == 1, "of one that is converted and one that is not"


def test_a_script_on_stdin(call: Call, folder: Path) -> None:
    for data, status, says in (
        (b"set -e\ntorchrun --nproc_per_node=4 train.py\n", 0, "+ddplaunch run 4 -- train.py\n"),
        (b"\0", 2, "`stdin` is not text"),
    ):
        (folder / "typed").write_bytes(data)
        with (folder / "typed").open() as typed, os.fdopen(os.dup(0)) as before:
            os.dup2(typed.fileno(), 0)
            said = call("convert", "-")
            os.dup2(before.fileno(), 0)
        assert said.status == status and says in said.out + said.err


# Before and after, both really run on the CPU

STANDIN = """
import os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES", "MODE")
line = repr((sys.argv[1:], [os.environ.get(name) for name in names])) + "\\n"
os.write(os.open("ranks.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), line.encode())
"""
SCRIPTS = {
    "options and arguments in variables": 'N=${1:-2}\nD="--nproc_per_node $N \\\n --node_rank 0"\nA=(--lr 1 "a b")\n'
    'MODE=x torchrun $D train.py "${A[@]}" \'{lr}\' "$@"\n',
    "launch, and a port that others have": "export MODE=y MASTER_PORT=TAKEN\n"
    "python -m torch.distributed.launch --standalone --nproc_per_node=2 train.py --x 1 > log 2>&1\n",
    "a port, a wrapper and a sourced size": ". ./sizes.sh\n"
    '$WRAPPER torchrun --nproc_per_node $N --master_port PORT $(dirname "$0")/train.py -c=$1 ${@:2}\n',
    "eval, a here-document, a function in a loop": "cat > inner.sh <<END\n"
    'go() { PYTHONPATH="\\$(pwd)":\\$PYTHONPATH torchrun --nproc_per_node=2 "\\$@"; }\n'
    'for i in 1; do go train.py --i \\$i "a b" \\$1 "$1"; done\nEND\neval bash inner.sh x\n',
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_both_start_the_same_ranks(tmp_path: Path, name: str) -> None:
    (tmp_path / "bin").mkdir()
    for program, module in {"torchrun": "torch.distributed.run", "ddplaunch": "ddplaunch", "python": ""}.items():
        file = tmp_path / "bin" / program
        file.write_text(f'#!/bin/sh\nexec {sys.executable} {module and "-m " + module} "$@"\n')
        file.chmod(0o755)
    taken = socket.create_server(("", 0))
    old = SCRIPTS[name].replace("TAKEN", str(taken.getsockname()[1])).replace(" PORT ", f" {free_port()} ").encode()
    new = changed(old, sites_of(old))
    assert new != old
    ranks = []
    for place, script in (("old", old), ("new", new)):
        folder = tmp_path / place
        folder.mkdir()
        (folder / "train.py").write_text(STANDIN)
        (folder / "job.sh").write_bytes(script)
        (folder / "sizes.sh").write_text("N=2\n")
        root = Path(__file__).resolve().parents[2]
        path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(root)}
        done = subprocess.run(
            ["bash", "job.sh", "2"], cwd=folder, env={**os.environ, **path}, capture_output=True, text=True, timeout=300
        )
        assert (folder / "ranks.txt").exists(), done.stderr
        ranks.append(sorted((folder / "ranks.txt").read_text().splitlines()))
    taken.close()
    assert ranks[0] == ranks[1] and len(ranks[0]) == 2
