"""Options and commands that were removed, or are another launcher's, each with what to use instead."""

from __future__ import annotations

from ddplaunch.values.finding import UsageError, usage

_REPORT = "`ddplaunch report` draws what rank 0 printed and where the time of its steps went"
_RESTARTS = "`--max-restarts N` restarts the ranks; `ddplaunch submit --requeue` has Slurm start the whole job again"
_ONE_KIND = (
    "the manifest is an Indexed Job, which every cluster takes; in a TrainJob of yours, `ddplaunch run` is the command"
)
_BY_HAND = "edit what `ddplaunch submit --to kubernetes` prints, or patch it with `kubectl kustomize`"

_ONE_MACHINE = (
    "`ddplaunch run 2x4 --hosts a,b --phases -- train.py` for each size; `ddplaunch report` has where its steps went"
)
_KEPT = "`--in-place` lets trials write as the script does; stderr lists what they wrote otherwise"

#: Removed ``COMMAND --option``, ``--option`` (of any command) or ``COMMAND`` → what to use instead, in one line.
REMOVED = {
    "attach": "`ddplaunch logs RUN --follow` shows what a run prints, `ddplaunch explain RUN` how it ended",
    "convert --json": "`ddplaunch convert` prints a diff, which `patch -p0` takes, or a command line",
    "convert --write": "`ddplaunch convert FILE | patch -b -p0` changes the script, and keeps the old one as FILE.orig",
    "doctor --report": "`ddplaunch doctor --json > FILE` has outcomes, facts and versions, without secrets",
    "explain RUN RUN": "`ddplaunch explain RUN` for each; `diff` of the two `run.json` shows what else differs",
    "logs --grep": "`ddplaunch logs RUN | grep -E PATTERN`; with `--follow`, `grep --line-buffered -E PATTERN`",
    "logs --since": "`ddplaunch logs RUN --lines N`: a record knows no time of a line but what the line itself says",
    "plan --exports": "`ddplaunch run … --dry-run` prints `env NAME=value …`, `ddplaunch plan --json` every variable",
    "plan --yaml": "`ddplaunch plan --json`: JSON is YAML as well",
    **{
        f"scale --{name}": _ONE_MACHINE
        for name in ("hosts", "hostfile", "include", "exclude", "chdir", "python", "join-timeout")
    },
    "scale --keep": _KEPT,
    "fit --keep": _KEPT,
    "scale --strong": "`--global-batch-size N` keeps the effective batch, whatever the size",
    "scale --resume": "name the sizes that are missing: `ddplaunch scale 1,4,8 … -- train.py`",
    "scale --plot": "`ddplaunch scale --json` has all numbers to draw",
    **{
        f"submit --{name}": _BY_HAND
        for name in ("host-network", "image-pull-secret", "node-selector", "rdma", "toleration")
    },
    "submit --kind": _ONE_KIND,
    "submit --patch": _BY_HAND,
    "submit --set": _BY_HAND,
    "submit --wait": "`ddplaunch submit … --dry-run -- train.py | sbatch --wait` waits, and exits as the job did",
    "submit --trainer": _ONE_KIND,
    "top --metric": "`ddplaunch.step()` in the script, or lines such as `step 12 loss 0.5`",
    "top --plot": _REPORT,
    "top --replay": _REPORT,
    "queue": "a task spooler (`tsp ddplaunch run 4 -- train.py`) or Slurm; `--gpus free:N` takes idle GPUs",
    "--env-file": '`env = ["A=1", …]` in ddplaunch.toml, or `set -a; . FILE; set +a` in the shell before the launch',
    "--bootstrap": "the finding `host-without-ddplaunch` types a loop that installs it on all hosts that lack it",
    "--join-secret": '`export DDPLAUNCH_JOIN_SECRET="$(cat FILE)"` on every node',
    "--orphan-grace": "`--detach`: a launch that needs no terminal; the hosts end when their launcher is gone",
    "--record-metrics": f"{_REPORT}; `ddplaunch top --json` prints samples of a run while it lasts",
    "--relaunch": _RESTARTS,
    "--relaunch-after": _RESTARTS,
    "--relaunch-wait": _RESTARTS,
    "--tolerate-exit-aborts": "`dist.destroy_process_group()` at the end of the script; if it still aborts, "
    "`sys.stdout.flush(); os._exit(0)` as its last line",
    "--workers": "the script's own option after `--`: its `--num-workers` is read, and compared with the usable CPUs",
    "--sync": "`git ls-files -z | rsync -a0 --files-from=- ./ HOST:DIR/` for each host, or a directory that all share",
    "--trace": "`ddplaunch report` draws when each rank began and ended",
}


#: Options of torchrun, accelerate and DeepSpeed that people type here, and their equivalents.
_NPROC = "NPROC, the processes of each node: `ddplaunch run 4 -- train.py`, `run 2x4` on 2 nodes"
ELSEWHERE = {
    **dict.fromkeys(("--nproc-per-node", "--nproc", "--num-gpus", "--num-processes", "-n", "-np"), _NPROC),
    **dict.fromkeys(("--standalone", "--multi-gpu"), "leave it out: a launch on one node is standalone"),
    "--cpu": "`--device cpu`",
    "--num-machines": "`--nnodes`",
    "--machine-rank": "`--node-rank`",
    "--main-process-ip": "`--master-addr`",
    "--main-process-port": "`--master-port`",
    "--rdzv-endpoint": "`--master-addr` and `--master-port`",
    "--gpu-ids": "`--gpus`",
}


def called_otherwise(option: str) -> UsageError | None:
    """Return the error for another launcher's option; None for any other word."""
    fix = ELSEWHERE.get(option.replace("_", "-"))
    return None if fix is None else usage(f"no such option: `{option}`", why="", fix=fix)


def removed(command: str, word: str = "") -> UsageError | None:
    """Return the error for a removed command, or removed option of ``command``; None for any other word."""
    word = word.replace("_", "-")
    removal = next((spelling for spelling in (f"{command} {word}".strip(), word) if spelling in REMOVED), None)
    if removal is None:
        return None
    why = "this version of ddplaunch does without it"
    return usage(f"`{removal}` is gone", why=why, fix=REMOVED[removal], code="removed")
