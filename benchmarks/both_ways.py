"""Whether converted scripts start what the originals start: ``python -m benchmarks.both_ways FOLDER…``.

Each folder is searched for shell scripts and for blocks of shell in Markdown that launch torchrun, torch.distributed or
accelerate. Original and converted run one after the other, on the CPU, with a stand-in for the training script that
writes down its arguments, its ranks and the variables that the script sets; they are the same if both leave the same
lines. What scripts do beside it (`mkdir`, `wget`, `cd`, …) is replaced by commands that do nothing, and PATH has
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
from contextlib import suppress
from pathlib import Path

from benchmarks.publishing import parser, publish
from ddplaunch.cli.commands.convert import read_config
from ddplaunch.planning.convert.shell_script import sites_of
from ddplaunch.planning.convert.translation import Site, changed
from tests.hosts.launching import run_to_end

DEADLINE_S = 60
SUFFIXES = {".sh", ".sbatch", ".slurm"}
LAUNCHERS = {"torchrun", "torch.distributed.launch", "accelerate", "torchx"}
FENCED = re.compile(r"```(?:bash|sh|shell)?\n(.*?)```", re.S)
#: Arguments that scripts may want, in the order in which they are tried.
ARGUMENTS: tuple[list[str], ...] = (["2", "2", "2"], ["train.py", "2", "2"], [], ["2"])
REAL = """bash sh cat echo date dirname basename seq awk grep sed tr wc expr head tail cut hostname nproc tee env true
false test printf nohup readlink realpath sort uniq pwd"""
NOTHING = "mkdir rm sleep wget cp mv tar pip git ls sudo module scontrol chmod find touch unzip kill"
FUNCTIONS = "cd() { :; }\npushd() { :; }\nsource() { :; }\nconda() { :; }\nmodule() { :; }\n"
STAND_IN = """#!{python} -S
import fcntl, json, os, sys
ranks = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK CUDA_VISIBLE_DEVICES".split()
off = ("no", "false", "default")
kept = {{k: v for k, v in os.environ.items() if k in ranks or k in os.environ.get("PROOF_NAMES", "").split()
        or k.startswith(("ACCELERATE_", "FSDP_")) and v.lower() not in off}}
with open(os.environ["PROOF_OUT"], "a") as file:
    fcntl.flock(file, 2)
    file.write(json.dumps([sys.argv[1:], kept], sort_keys=True) + "\\n")
"""
PYTHON = """#!/bin/bash
if [ -n "$RANK" ]; then exec {bin}/stand-in "$@"; fi
case " $* " in *" -m torch.distributed"*) exec {python} "$@";; esac
"""
SRUN = """#!/bin/bash
while [ $# -gt 0 ]; do case $1 in torchrun|ddplaunch|python*|bash|accelerate) exec "$@";; esac; shift; done
"""


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
    made["accelerate"] = launch.format(shift="shift\n", what="accelerate.commands.accelerate_cli launch --cpu")
    made |= {"srun": SRUN, "stand-in": STAND_IN.format(python=sys.executable)}
    for name, text in made.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder.parent / "functions.sh").write_text(FUNCTIONS)
    return folder


def started(script: bytes, like: str, arguments: Sequence[str], commands: Path) -> list[str]:
    """Return what a script starts, a line for each process; the files and variables are those that ``like`` names."""
    with tempfile.TemporaryDirectory(dir=commands.parent) as name:
        folder = Path(name)
        named = {*re.findall(r"[\w./-]+\.py", like), "train.py", *(f"{each}/main.py" for each in arguments)}
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
        status, _ = run_to_end(["/bin/bash", "script.sh", *arguments], folder, environ, DEADLINE_S)
        out = folder / "out"
        return sorted(out.read_text().splitlines()) if status is not None and out.exists() else []


def excluded(sites: Sequence[Site]) -> str:
    """Return why a script is not run both ways; "" if it is."""
    if any(not site.replacement for site in sites):
        return "a launch stays as it is"
    if any(site.said.launcher not in LAUNCHERS for site in sites):
        return "another launcher"
    nodes = (re.search(r"--nnodes|run \d+x|hostfile", site.said.source) for site in sites)
    return "several nodes" if any(nodes) else ""


def answer(script: bytes, sites: Sequence[Site], commands: Path) -> str:
    """Return "same", "different", or why nobody can tell."""
    if said := excluded(sites):
        return said
    like = script.decode("utf-8", "replace")
    for arguments in ARGUMENTS:
        if before := started(script, like, arguments, commands):
            after = started(changed(script, sites), like, arguments, commands)
            return "same" if before == after else "different"
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
            sites = [site for site in sites_of(data, read_config) if not site.aside]
            if sites and sum(each in ("same", "different") for each in found.values()) < asked.most:
                found[script] = answer(data, sites, commands)
                print(f"{found[script]}: {script}", file=sys.stderr, flush=True)
    counts = Counter(found.values())
    lines = ["| scripts | |", "|---|---|", *(f"| {what} | {number} |" for what, number in counts.most_common()), ""]
    publish("both_ways", "\n".join(lines), dict(counts), write=not asked.no_write)
    return int(asked.check and counts["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
