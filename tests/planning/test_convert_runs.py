"""A script of torchrun and its conversion, both really run on the CPU, start the same ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddplaunch.planning.convert.shell_script import sites_of
from ddplaunch.planning.convert.translation import changed
from tests.ports import free_port

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
