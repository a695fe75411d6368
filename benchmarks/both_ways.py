"""Whether converted scripts start what the originals start: ``python -m benchmarks.both_ways FOLDER…``.

Each folder is searched for shell scripts and for blocks of shell in Markdown that launch torchrun, torch.distributed or
accelerate. Original and converted run one after the other, on the CPU, with a stand-in for the training script that
writes down its arguments, its ranks and the variables that the script sets; they are the same if both leave the same
lines. A script that takes NNODES and NODE_RANK from its environment runs on two nodes: twice at once, with one port.
srun is a stand-in that starts the tasks of one node with SLURM_PROCID and its like, which count as the ranks of the
original.
What scripts do beside it (`mkdir`, `wget`, `cd`, …) is replaced by commands that do nothing, and PATH has
nothing else: but a path such as `/usr/bin/rm` is run, so give it only scripts that you would run. Writes
benchmarks/results/both_ways.json and both_ways.md. ``--check``: a difference is exit status 1.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from benchmarks.publishing import parser, publish
from ddplaunch.planning.convert.shell_script import sites_of
from ddplaunch.planning.convert.translation import Site, changed
from tests.hosts.launching import run_to_end
from tests.ports import free_port

DEADLINE_S = 240
SUFFIXES = {".sh", ".sbatch", ".slurm"}
LAUNCHERS = {"torchrun", "torch.distributed.launch", "accelerate", "torchx", "srun"}
FENCED = re.compile(r"```(?:bash|sh|shell)?\n(.*?)```", re.S)
#: Arguments that scripts may want, in the order in which they are tried.
ARGUMENTS: tuple[list[str], ...] = (["train.py", "2", "2"], ["2", "2", "2"], [], ["2"])
REAL = """bash sh cat echo date dirname basename seq awk grep sed tr wc expr head tail cut hostname nproc tee env true
false test printf nohup readlink realpath sort uniq pwd"""
NOTHING = "mkdir rm sleep wget cp mv tar pip git ls sudo module scontrol chmod find touch unzip kill"
#: What each shell reads first; numbers of a script that chooses some are alike both ways.
FUNCTIONS = "RANDOM=1\ncd() { :; }\npushd() { :; }\nsource() { :; }\nconda() { :; }\nmodule() { :; }\n"
STAND_IN = """#!{python} -S
import fcntl, json, os, sys
if "RANK" not in os.environ:
    for name, of_slurm in {{"RANK": "PROCID", "LOCAL_RANK": "LOCALID", "GROUP_RANK": "NODEID", "WORLD_SIZE": "NTASKS",
                            "LOCAL_WORLD_SIZE": "NTASKS"}}.items():
        os.environ[name] = os.environ["SLURM_" + of_slurm]
said = [word for word in sys.argv[1:] if word != "-u"]
if not (said and (said[0].startswith("-") or os.path.isfile(said[0]))):
    sys.exit("no such program")
ranks = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK CUDA_VISIBLE_DEVICES".split()
off = ("no", "false", "default")
by_device = "ACCELERATE_USE_CPU"  # of `--device cpu`, which is no part of the conversion
kept = {{k: v for k, v in os.environ.items() if k in ranks or k in os.environ.get("PROOF_NAMES", "").split()
        or k.startswith(("ACCELERATE_", "FSDP_")) and v.lower() not in off and k != by_device}}
with open(os.environ["PROOF_OUT"], "a") as file:
    fcntl.flock(file, 2)
    file.write(json.dumps([said, kept], sort_keys=True) + "\\n")
"""
PYTHON = """#!/bin/bash
if [ -n "$RANK" ]; then exec {bin}/stand-in "$@"; fi
case " $* " in *" -m torch.distributed"*) exec {python} "$@";; esac
if [ -n "$SLURM_PROCID" ]; then exec {bin}/stand-in "$@"; fi
"""
SRUN = """#!{python} -S
import os, re, subprocess, sys
words, sizes = sys.argv[1:], {{"nodes": "1", "ntasks": "", "ntasks-per-node": ""}}
names = {{"-n": "ntasks", "-N": "nodes"}}
while words and not re.fullmatch("torchrun|ddplaunch|python.*|bash|accelerate", words[0]):
    option, equals, value = words.pop(0).partition("=")
    name = names.get(option, option[2:])
    if name in sizes:
        sizes[name] = value if equals else words.pop(0)
number = int(sizes["ntasks"] or int(sizes["nodes"]) * int(sizes["ntasks-per-node"] or 1))
if number < 1 or sizes["nodes"] != "1" or number > int(sizes["ntasks-per-node"] or number):
    sys.exit("one node alone")
of_all = {{"SLURM_NODEID": "0", "SLURM_NTASKS": str(number)}}
tasks = [subprocess.Popen(words, env={{**os.environ, **of_all, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}})
         for i in range(number)]
sys.exit(max(task.wait() for task in tasks))
"""
# accelerate starts several ranks on the CPU only if it is told that there are several GPUs.
SEVERAL = """shift
case "$*" in *--multi*gpu*|*--tpu*|*--num_processes[=\\ ]1[^0-9]*) several=;; *) several=--multi_gpu;; esac
"""
ON_NODES = re.compile(r"\bNNODES\b[\s\S]*\bNODE_RANK\b|\bNODE_RANK\b[\s\S]*\bNNODES\b")


def scripts(folders: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield the launch scripts of some folders, with a name for each."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder.parent))
            if path.suffix in SUFFIXES and path.is_file():
                yield name, path.read_bytes()
            elif path.suffix == ".md":
                for number, block in enumerate(FENCED.findall(path.read_text(errors="replace"))):
                    yield f"{name} block {number}", block.encode()


def prepare(folder: Path) -> Path:
    """Make the commands that scripts may run in ``folder``, and return it."""
    folder.mkdir()
    for name in REAL.split():
        if (found := shutil.which(name)) is not None:
            (folder / name).symlink_to(found)
    made = dict.fromkeys(NOTHING.split(), "#!/bin/bash\n")
    made |= {name: PYTHON.format(bin=folder, python=sys.executable) for name in ("python", "python2", "python3")}
    launch = "#!/bin/bash\n{shift}exec " + sys.executable + ' -m {what} "$@"\n'
    made["torchrun"] = launch.format(shift="", what="torch.distributed.run")
    made["ddplaunch"] = launch.format(shift="shift\n", what="ddplaunch run --no-checks --device cpu")
    made["accelerate"] = launch.format(shift=SEVERAL, what="accelerate.commands.accelerate_cli launch $several")
    made |= {"srun": SRUN.format(python=sys.executable), "stand-in": STAND_IN.format(python=sys.executable)}
    for name, text in made.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder.parent / "functions.sh").write_text(FUNCTIONS)
    return folder


def started(script: bytes, like: str, arguments: Sequence[str], commands: Path, nodes: int = 1) -> list[str]:
    """Return what a script starts, a line for each process; the files and variables are those that ``like`` names.

    It is run once for each of several ``nodes``, at the same time.
    """
    with tempfile.TemporaryDirectory(dir=commands.parent) as name:
        folder = Path(name)
        named = {
            *re.findall(r"[\w./-]+\.py", like),
            "train.py",
            *(f"{each}/main.py" for each in arguments if "." not in each),
        }
        modules = {each.replace(".", "/") + ".py" for each in re.findall(r"-m\s+([a-z_]\w*(?:\.\w+)*)", like)}
        for each in {*named, *modules, *(Path(each).name for each in named)}:
            if not each.startswith(("/", "..", "~", "torch/")):
                with suppress(OSError):
                    (folder / each).parent.mkdir(parents=True, exist_ok=True)
                    (folder / each).write_text("pass\n")
        (folder / "script.sh").write_bytes(script)
        unlike = {"PYTHONPATH", "PATH", "OMP_NUM_THREADS", "HOME", "MASTER_ADDR", "MASTER_PORT"}
        variables = set(re.findall(r"^\s*(?:export\s+)?(\w+)=", like, re.M)) - unlike
        environ = {"PATH": str(commands), "HOME": name, "PROOF_OUT": f"{name}/out", "LANG": "C.UTF-8"}
        environ |= {"PYTHON_EXEC": f"{commands}/stand-in", "BASH_ENV": f"{commands.parent}/functions.sh"}
        environ |= {"PROOF_NAMES": " ".join(variables), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        if nodes > 1:
            environ |= {"NNODES": str(nodes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        command = ["/bin/bash", "script.sh", *arguments]
        environs = [environ | ({"NODE_RANK": str(node)} if nodes > 1 else {}) for node in range(nodes)]
        with ThreadPoolExecutor() as threads:
            statuses = [
                status for status, _ in threads.map(lambda own: run_to_end(command, folder, own, DEADLINE_S), environs)
            ]
        out = folder / "out"
        lines = out.read_text().replace(name, "~").splitlines() if out.exists() else []
        return sorted(lines) if None not in statuses else []


def excluded(sites: Sequence[Site]) -> str:
    """Return why a script is not run both ways; "" if it is."""
    if any(not site.replacement for site in sites):
        return "a launch stays as it is"
    if any(site.said.launcher not in LAUNCHERS for site in sites):
        return "another launcher"
    written = re.compile(r"--nnodes[= ]+[\"']?[2-9]|run [2-9]\d*x|hostfile|SLURM_|scontrol|--hosts")
    return "several nodes" if any(written.search(site.said.source) for site in sites) else ""


def answer(script: bytes, sites: Sequence[Site], commands: Path) -> str:
    """Return "same", "different", or why nobody can tell."""
    if said := excluded(sites):
        return said
    like = script.decode("utf-8", "replace")
    for nodes in (2, 1) if ON_NODES.search(like) else (1,):
        for arguments in ARGUMENTS:
            if before := started(script, like, arguments, commands, nodes):
                after = started(changed(script, sites), like, arguments, commands, nodes)
                for line in sorted({*before} ^ {*after}):
                    print("before:" if line in before else "after: ", line, file=sys.stderr)
                same = "same on two nodes" if nodes > 1 else "same"
                return same if before == after else "different"
    return "the original starts nothing"


def main() -> int:
    """Run all scripts both ways and write how many are the same."""
    arguments = parser(__doc__)
    arguments.add_argument("folders", nargs="+", type=Path)
    arguments.add_argument("--most", type=int, default=1000, help="how many scripts are run")
    asked = arguments.parse_args()
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        commands = prepare(Path(name) / "bin")
        for script, data in scripts([folder.resolve() for folder in asked.folders]):
            sites = [site for site in sites_of(data) if not site.aside]
            if sites and sum(each.startswith(("same", "different")) for each in found.values()) < asked.most:
                found[script] = answer(data, sites, commands)
                print(f"{found[script]}: {script}", file=sys.stderr, flush=True)
    counts = Counter(found.values())
    lines = ["| scripts | |", "|---|---|", *(f"| {what} | {number} |" for what, number in counts.most_common()), ""]
    publish("both_ways", "\n".join(lines), dict(counts), write=not asked.no_write)
    return int(asked.check and counts["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
