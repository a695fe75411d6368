"""Launch lines of shell scripts: what is replaced, what stays, and what is said of it."""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from ddplaunch.planning.convert.shell_script import sites_of
from ddplaunch.planning.convert.translation import changed
from tests.cli.cli_calls import Call, call, folder
from tests.hosts.launching import ddplaunch

__all__ = ["call", "folder"]

CONVERTED = [
    (
        "torchrun --nproc_per_node=$N \\\n  train.py \\\n  --lr 1 # x\n",
        "ddplaunch run $N -- train.py \\\n  --lr 1 # x\n",
    ),
    ('torchrun train.py "$@" > log 2>&1 &\n', 'ddplaunch run 1 -- train.py "$@" > log 2>&1 &\n'),
    ("A=1 B=$C exec torchrun train.py\n", "A=1 B=$C exec ddplaunch run 1 -- train.py\n"),
    ("S=train.py\ntorchrun $S\n", "S=train.py\nddplaunch run 1 -- $S\n"),
    (
        ". ./size.sh\nS=train\ntorchrun --nproc_per_node=$N $S\n",
        ". ./size.sh\nS=train\nddplaunch run $N -- python -u $S\n",
    ),
    ("S=train\ntorchrun $S\n", "S=train\nddplaunch run 1 -- python -u $S\n"),
    ('D="--nproc_per_node $N"\ntorchrun $D t.py\n', 'D="--nproc_per_node $N"\nddplaunch run $N -- t.py\n'),
    ("D=(--nproc_per_node 2)\ntorchrun ${D[@]} t.py\n", "D=(--nproc_per_node 2)\nddplaunch run 2 -- t.py\n"),
    ('D=(--nproc_per_node 2)\ntorchrun "${D[@]}" t.py\n', "D=(--nproc_per_node 2)\nddplaunch run 2 -- t.py\n"),
    ("NODES=1\ntorchrun --nnodes $NODES t.py\n", "NODES=1\nddplaunch run 1 -- t.py\n"),
    ('bash -c "torchrun t.py $1"\n', 'bash -c "ddplaunch run 1 -- t.py $1"\n'),
    ('docker run img bash -c "torchrun t.py"\n', 'docker run img bash -c "ddplaunch run 1 -- t.py"\n'),
    ("bash -lc 'cd a && torchrun t.py'\n", "bash -lc 'cd a && ddplaunch run 1 -- t.py'\n"),
    (
        'srun -N 1 -n 2 apptainer exec a.sif bash -c "python t.py $X"\n',
        "srun --nodes=1 --ntasks-per-node=1 --ntasks=1 "
        'ddplaunch run 2 -- apptainer exec a.sif bash -c "python t.py $X"\n',
    ),
    ("eval 'torchrun t.py $1'\n", "eval 'ddplaunch run 1 -- t.py $1'\n"),
    ("cat <<EOF >job\ntorchrun t.py \\$1\nEOF\n", "cat <<EOF >job\nddplaunch run 1 -- t.py \\$1\nEOF\n"),
    ("f() {\n  if x; then torchrun t.py; fi\n}\n", "f() {\n  if x; then ddplaunch run 1 -- t.py; fi\n}\n"),
    (
        "for i in 1 2; do torchrun t.py $i | tee a; done\n",
        "for i in 1 2; do ddplaunch run 1 -- t.py $i | tee a; done\n",
    ),
    ("torchrun t.py {lr}\n", "ddplaunch run 1 -- t.py {{lr}}\n"),
    ("torchrun t.py ${lr}\n", "ddplaunch run 1 -- t.py ${lr}\n"),
    ("$(which torchrun) t.py\n", "ddplaunch run 1 -- t.py\n"),
    ("$PYTHON -m torch.distributed.run t.py\n", "$PYTHON -m ddplaunch run 1 -- t.py\n"),
    (
        "torchrun --nnodes $N --rdzv_endpoint $HOST:29500 t.py\n",
        'ddplaunch run 1 --nnodes $N --master-addr "$HOST" --master-port 29500 -- t.py\n',
    ),
    (
        "accelerate launch --num_processes $((N * 8)) --num_machines 1 t.py\n",
        "ddplaunch run $((N * 8)) -- t.py\n",
    ),
    (
        'go() { torchrun --nproc_per_node 2 "$@"; }\ngo t.py --x\n',
        'go() { ddplaunch run 2 -- "$@"; }\ngo t.py --x\n',
    ),
    (
        "srun -p x --ntasks=$G --ntasks-per-node=${P} --cpus-per-task=$C python -u t.py\n",
        "srun -p x --nodes=$((G / P)) --ntasks-per-node=1 --ntasks=$((G / P)) --cpus-per-task=$((C * P)) "
        "ddplaunch run ${P} -- t.py\n",
    ),
    (
        "srun -p x --ntasks=$G --ntasks-per-node=4 ${SRUN_ARGS} ${RUN_COMMAND} $X\n",
        "srun -p x ${SRUN_ARGS} --nodes=$((G / 4)) --ntasks-per-node=1 --ntasks=$((G / 4)) "
        "ddplaunch run 4 -- ${RUN_COMMAND} $X\n",
    ),
    ("eval torchrun t.py --x\n", "eval ddplaunch run 1 -- t.py --x\n"),
    ("B=deepspeed\ntorchrun t.py --backend $B\n", "B=deepspeed\nddplaunch run 1 -- t.py --backend $B\n"),
    (
        'G=1\nG=$1\nD="--nproc_per_node $G"\ntorchrun $D t.py\n',
        'G=1\nG=$1\nD="--nproc_per_node $G"\nddplaunch run $G -- t.py\n',
    ),
    ("$MAYBE torchrun t.py --x\n", "$MAYBE ddplaunch run 1 -- t.py --x\n"),
    (
        "#SBATCH --ntasks-per-node=8\n#SBATCH -N 2 -c 4\n\nsrun -l python -u t.py --x\n",
        "#SBATCH --ntasks-per-node=8\n#SBATCH -N 2 -c 4\n\n"
        'srun -l --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" --cpus-per-task=32 ddplaunch run 8 -- t.py --x\n',
    ),
    (
        "#SBATCH --ntasks-per-node=8 # GPUs\nsrun --nodes=2 --ntasks=8 python t.py\n",
        "#SBATCH --ntasks-per-node=8 # GPUs\nsrun --nodes=2 --ntasks-per-node=1 --ntasks=2 ddplaunch run 4 -- t.py\n",
    ),
    ("xargs -n1 torchrun t.py < list\n", "xargs -n1 ddplaunch run 1 -- t.py < list\n"),
    (
        "python -m torch.distributed.launch --nproc_per_node 2 t.py --x\n",
        "ddplaunch run 2 -- t.py '--local-rank=${local_rank}' --x\n",
    ),
]


@pytest.mark.parametrize(("script", "expected"), CONVERTED)
def test_a_script(script: str, expected: str) -> None:
    data = f"#!/bin/bash\n{script}".encode()
    assert changed(data, sites_of(data)).decode() == f"#!/bin/bash\n{expected}"


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("x\ntorchrun $OPTIONS t.py\n", 2),
        ("torchrun $(cat options) t.py\n", 1),
        ("N=1\nN=$2\nD='--nproc_per_node 2'\nD+=' --nnodes 2'\n\ntorchrun $D t.py\n", 6),
        ('eval "torchrun t.py \\"$x\\""\n', 1),
        ("bash -c 'python -m torch.distributed.launch --nproc_per_node 2 t.py'\n", 1),
        ('docker run img bash -c "python -m torch.distributed.launch t.py"\n', 1),
        ("mpirun -np 2 bash -c 'python t.py'\n", 1),
        ("D='--nproc_per_node 2'\n. ./size.sh\ntorchrun $D t.py\n", 3),
        ('x\nsrun -N 1 -n 2 bash -lc "python t.py \\${SLURM_PROCID}"\n', 2),
        ("for D in 1 2; do\n torchrun $D t.py\ndone\n", 2),
        ("\ntorchrun --master_addr=<the address> --nnodes=2 t.py\n", 2),
        ('x\ntorchrun "$@"\n', 2),
        ('A=($1)\nA+=($2)\ntorchrun "${A[@]}"\n', 3),
        ("\neval torchrun $OPTIONS t.py\n", 2),
        ("eval python -m torch.distributed.launch --nproc_per_node 2 t.py\n", 1),
        ('D="--nproc_per_node $N"\nN=2\ntorchrun $D t.py\n', 3),
        ("A=($A --nnodes 2)\ntorchrun ${A[@]} t.py\n", 2),
        ("\ntorchx run dist.ddp -j 1x4 --script t.py\n", 2),
        ('\nC="torchrun --nproc_per_node 2 t.py"\n$C --x\n', 2),
        ('\nC="torchrun t.py --to "a b""\neval "$C"\n', 2),
        ('\nC=(accelerate launch t.py)\n"${C[@]}"\n', 2),
        ('L="python \\\n -m torch.distributed.run"\nsrun --ntasks-per-node=2 bash -c "$L t.py"\n', 1),
        ("if x; then\n  L=deepspeed\nfi\nexec $L t.py\n", 2),
    ],
)
def test_what_cannot_be_known_stays_and_is_said_at_its_line(script: str, line: int) -> None:
    data = script.encode()
    (site,) = sites_of(data)
    assert changed(data, [site]) == data
    assert site.line == line and site.said.unknown[0].why


@pytest.mark.parametrize(
    "script",
    ["", "echo torchrun t.py\n", "# torchrun t.py\n", "pip install deepspeed\n", "python train.py\n", "\xff\n"],
)
def test_what_is_no_launch_is_left_alone(script: str) -> None:
    assert sites_of(script.encode()) == []


def test_a_broken_script_is_converted_where_it_is_whole() -> None:
    data = b"torchrun a.py\n" + b"if [ x; then (( \n" * 3 + b"torchrun b.py\n"
    assert changed(data, sites_of(data)).startswith(b"ddplaunch run 1 -- a.py\n")


def test_a_here_document_elsewhere_is_no_blank_to_fill_in() -> None:
    sites = sites_of(b'torchrun "${A[@]}" t.py\ncat <<EOF > x\nhi\nEOF\nif then fi ((\n')
    assert [site.line for site in sites if "<EOF >" in site.said.unknown[0].what] == []
    assert any(site.line == 1 for site in sites)


def test_what_no_grammar_takes_is_said_once_where_it_stays() -> None:
    data = b"if then fi ((( torchrun a.py\n}}}\ntorchrun b.py\n"
    sites = sites_of(data)
    assert changed(data, sites).endswith(b"ddplaunch run 1 -- b.py\n")
    assert [site.line for site in sites if not site.replacement] == [1]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("if true; then\n  echo a\nfi fi\ntorchrun train.py\n", "stands from line 1 on means"),
        ('echo "never closed\n', "stands from line 1 on means"),
        ("torchrun train.py\ncase $x in\n a) echo\necho done\n", "stands from line 1 on means"),
        ("torchrun train.py \\\n  --amp \\\n", None),  # bash takes a backslash at the end
        ("torchrun train.py\n", None),
    ],
)
def test_where_a_script_is_no_whole_commands_is_said(text: str, lines: str | None) -> None:
    said = [site.said.unknown[0].what for site in sites_of(text.encode()) if not site.text]
    assert said == ([] if lines is None else [f"what {lines}"])


def test_scripts_nest_and_grow() -> None:
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
        "torchrun --nproc_per_node 2 --rdzv_endpoint localhost:0",
        "torchrun --nnodes 2 --node_rank 0 --master_addr 127.0.0.1",
        "torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:29400",
        "python -m torch.distributed.launch --nproc_per_node 2",
        "accelerate launch --num_processes 2",
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


@pytest.mark.parametrize("content", [b"\x7fELF\0\0", None])
def test_what_is_no_script_is_said(call: Call, folder: Path, content: bytes | None) -> None:
    if content is not None:
        (folder / "x.sh").write_bytes(content)
    said = call("convert", "x.sh")
    assert said.status == 2 and "error[file-not-readable]" in said.err


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("app.py", "from torchx.components import dist\n", "`app.py` is a program of Python"),
        ("a.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\n", "there is no launcher in `a.yaml`"),
    ],
)
def test_other_files_hold_no_launch(call: Call, folder: Path, name: str, text: str, what: str) -> None:
    (folder / name).write_text(text)
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


def from_stdin(folder: Path, data: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(ddplaunch("convert", "-"), input=data, capture_output=True, cwd=folder, check=False)


def test_a_script_on_stdin(folder: Path) -> None:
    script = b"set -e\ntorchrun --nproc_per_node=4 train.py\n"
    seen = from_stdin(folder, script)
    assert seen.returncode == 0 and b"+ddplaunch run 4 -- train.py\n" in seen.stdout, seen.stderr
    refused = from_stdin(folder, b"\0")
    assert refused.returncode == 2 and b"`stdin` is not text" in refused.stderr
