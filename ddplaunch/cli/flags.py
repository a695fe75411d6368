"""Every flag of every command as data, and a parser of command lines that are right, without Typer.

The flags of a launch are the fields of ``Options``; the others stand here. Importing Typer and building its application
takes 65 to 100 ms, more than the rest of a launch until torchrun.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from ddplaunch.planning.flag import Flag
from ddplaunch.planning.options import CHECKING, Said, flags_of_options
from ddplaunch.values.finding import usage
from ddplaunch.values.resolved import Resolved, Source

_OUTPUT, _CLUSTER, _SEVERAL, _KUBERNETES = "Output", "Job", "Hosts over ssh", "Kubernetes"
_FORCE = Flag("force", "switch", _OUTPUT, "Replace FILE, also if it is not an earlier report.")
_PROFILE = Flag("profile", "text", CHECKING, "Named profile of ddplaunch.toml.", "NAME", offers="profiles")

#: Which hosts, for the commands that reach them over ssh.
HOSTS = (
    Flag(
        "hosts",
        "text",
        _SEVERAL,
        "Hosts as ssh knows them, with commas: gpu-a,gpu-b. The first has rank 0.",
        "LIST",
        offers="hosts",
    ),
    Flag("hostfile", "text", _SEVERAL, "A file of hosts: `gpu-a slots=8` or `gpu-a:8`, one a line.", "FILE"),
    Flag(
        "include",
        "many",
        _SEVERAL,
        "Use only this host, or only some of its GPUs (repeatable).",
        "HOST[:0,2]",
        offers="hosts",
    ),
    Flag(
        "exclude",
        "many",
        _SEVERAL,
        "Leave out this host, or some of its GPUs (repeatable).",
        "HOST[:0,2]",
        offers="hosts",
    ),
    Flag("chdir", "text", _SEVERAL, "Directory on every host [this one].", "DIR"),
    Flag("python", "text", _SEVERAL, "Interpreter on every host [the path of this one].", "PATH"),
    Flag(
        "join_timeout",
        "duration",
        _SEVERAL,
        "Time for hosts to answer [20]; without --hosts, for all nodes to join [600; 0: do not wait].",
        "TIME",
    ),
    Flag("bootstrap", "switch", _SEVERAL, "Bring ddplaunch to hosts without it, below ~/.cache there."),
)
_RUN_DIR = Flag("run_dir", "text", "", "Where records are [.ddplaunch].", "DIR")

_LIVE_RUN = Flag(
    "run", "argument", "", "Id of the run, or a part of it [the youngest of this directory].", "RUN", offers="live runs"
)
_SIZES = "Numbers of processes: 1,2,4,2x4 [1, 2, 4 … up to the GPUs, or CPUs, of all machines]."
_TRIALS = "Trials"
#: How long trials are, and what is kept of them.
TRIALS = {
    command: (
        Flag("warmup_steps", "integer", _TRIALS, "Steps before measuring, at least; step times settle too [5].", "N"),
        Flag("steps", "integer", _TRIALS, "Measure so many steps [as many as there are in --seconds].", "N"),
        Flag(
            "seconds", "duration", _TRIALS, f"Measure for so long [{usual}; with --steps until they are over].", "TIME"
        ),
        Flag("keep", "switch", _TRIALS, "Keep what the script wrote into the trials' folders."),
    )
    for command, usual in (("scale", 10), ("fit", 5))
}

#: Each command's flags beside those of a launch. ``plan --env`` without K=V is another spelling of ``--exports``.
OWN: dict[str, tuple[Flag, ...]] = {
    "run": (
        _PROFILE,
        Flag("dry_run", "switch", _OUTPUT, "Print the launch as shell text; start nothing."),
        Flag("json", "switch", _OUTPUT, "With --dry-run: the whole plan as JSON."),
        Flag("detach", "switch", _OUTPUT, "Launch, print the run's id and go on without this terminal."),
        *HOSTS,
        Flag("sync", "switch", _SEVERAL, "First copy the files that git tracks here to every host; deletes nothing."),
        Flag("join_secret", "text", _SEVERAL, "Without --hosts: a file that all nodes have, and nobody else.", "FILE"),
    ),
    "plan": (
        _PROFILE,
        Flag("compare", "text", _OUTPUT, "The numbers for several world sizes, side by side.", "1,2,4,8"),
        Flag("json", "switch", _OUTPUT, "The whole plan as JSON."),
        Flag("exports", "switch", _OUTPUT, "Shell exports; a bare --env says the same."),
        Flag("yaml", "switch", _OUTPUT, "The whole plan as YAML."),
        *HOSTS,
    ),
    "doctor": (
        _PROFILE,
        Flag("list_checks", "switch", _OUTPUT, "List every check and what it looks at.", spelling="--list"),
        Flag("json", "switch", _OUTPUT, "Outcomes and facts as JSON."),
        Flag("report", "output", _OUTPUT, "Write a bug report without secrets to FILE (- is stdout).", "FILE"),
        _FORCE,
        Flag("comm", "switch", CHECKING, "Test collectives: the ranks of each host, then hosts in pairs (seconds)."),
        Flag("comm_timeout", "duration", CHECKING, "With --comm: time for each step [20; with GPUs 60].", "TIME"),
        *HOSTS,
    ),
    "submit": (
        _PROFILE,
        Flag("nodes", "integer", _CLUSTER, "Nodes of the job [1].", "N", example="4"),
        Flag("gpus_per_node", "integer", _CLUSTER, "GPUs of each node, one process per GPU.", "N", example="4"),
        Flag("cpus_per_task", "integer", _CLUSTER, "CPUs of each node, shared by its processes.", "N"),
        Flag("mem", "text", _CLUSTER, "Host memory of each node: 200G.", "SIZE"),
        Flag("time", "text", _CLUSTER, "Time limit: 24:00:00, 2-00:00:00, or minutes.", "LIMIT"),
        Flag("partition", "text", _CLUSTER, "Slurm partition.", "NAME"),
        Flag("account", "text", _CLUSTER, "Slurm account.", "NAME"),
        Flag("qos", "text", _CLUSTER, "Slurm quality of service.", "NAME"),
        Flag("constraint", "text", _CLUSTER, "Features that the nodes must have.", "LIST"),
        Flag("job_name", "text", _CLUSTER, "Name of the job [the script's].", "NAME"),
        Flag("sbatch_arg", "many", _CLUSTER, "Any other option of sbatch (repeatable).", "ARG"),
        Flag(
            "setup", "many", _CLUSTER, "Shell line to run before the launch: 'module load cuda' (repeatable).", "LINE"
        ),
        Flag(
            "signal", "text", _CLUSTER, "Instead of SIGTERM before the limit: USR1@120.", "NAME@N", example="USR1@120"
        ),
        Flag("requeue", "switch", _CLUSTER, "Start again after preemption, a lost node or the time limit."),
        Flag("to", "text", _CLUSTER, "slurm or kubernetes [slurm].", "CLUSTER", offers=("slurm", "kubernetes")),
        Flag("image", "text", _KUBERNETES, "The container image.", "IMAGE"),
        Flag("shm_size", "text", _KUBERNETES, "Size of /dev/shm [16Gi].", "SIZE"),
        Flag("secret", "many", _KUBERNETES, "A variable from a Secret (repeatable).", "VAR=SECRET/KEY"),
        Flag("namespace", "text", _KUBERNETES, "Where the job is made [that of kubectl's context].", "NAME"),
        Flag("volume", "many", _KUBERNETES, "A claim or a host's folder, and where it is seen.", "CLAIM:/PATH[:ro]"),
        Flag("toleration", "many", _KUBERNETES, "A taint that nodes may have.", "KEY[=VALUE][:EFFECT]"),
        Flag("node_selector", "many", _KUBERNETES, "A label that the nodes must have.", "KEY=VALUE"),
        Flag("image_pull_secret", "many", _KUBERNETES, "The Secret for a private registry.", "NAME"),
        Flag("queue", "text", _KUBERNETES, "Kueue's LocalQueue in which the job waits.", "NAME"),
        Flag("rdma", "many", _KUBERNETES, "Network cards of each node; IPC_LOCK comes with them.", "RESOURCE[=N]"),
        Flag("host_network", "switch", _KUBERNETES, "Use the nodes' own network."),
        Flag("wait", "switch", _OUTPUT, "Follow the job's log to its end, and exit as it did."),
        Flag("dry_run", "switch", _OUTPUT, "Print the batch script, or the manifest alone; submit nothing."),
    ),
    "scale": (
        _PROFILE,
        Flag("strong", "switch", _TRIALS, "Keep the effective batch, not that of each process."),
        *TRIALS["scale"],
        Flag("resume", "switch", _TRIALS, "Take what the same command has measured before, and do the rest."),
        *HOSTS,
        Flag("json", "switch", _OUTPUT, "Everything as JSON."),
    ),
    "fit": (
        _PROFILE,
        Flag("headroom", "text", _TRIALS, "How much of the memory stays free [10%].", "PERCENT"),
        Flag("trials", "integer", _TRIALS, "Most trials to run [8].", "N"),
        *TRIALS["fit"],
        Flag("json", "switch", _OUTPUT, "Everything as JSON."),
    ),
    "ps": (
        Flag("all", "switch", "", "All recorded runs, not only the newest."),
        Flag("json", "switch", "", "All details of the runs, as JSON."),
        _RUN_DIR,
    ),
    "logs": (
        Flag("run", "argument", "", "Id of the run, or a part of it [the newest].", "RUN", offers="runs"),
        Flag("rank", "text", "", "Ranks: 0, 0,3, 0-7 or all [all].", "RANKS", offers=("0", "all")),
        Flag("follow", "switch", "", "Keep printing new lines, also after restarts, until the run ends."),
        Flag("lines", "text", "", "Start with the last N lines of each rank, or all [all; 10 with --follow].", "N"),
        Flag("since", "text", "", "Only lines newer than this: 10m, 2h, or a date and time.", "TIME"),
        Flag("grep", "text", "", "Only lines that match this regular expression.", "PATTERN"),
        _RUN_DIR,
    ),
    "stop": (
        Flag(
            "run",
            "argument",
            "",
            "Id of the run, or a part of it [the only one of this directory].",
            "RUN",
            offers="live runs",
        ),
        Flag("all", "switch", "", "Every run of this directory, one after the other."),
        Flag(
            "grace", "duration", "", "Time between SIGTERM and SIGKILL: 30, 2m [the run's own grace and 5 s].", "TIME"
        ),
        Flag("json", "switch", "", "How every process ended, as JSON."),
        _RUN_DIR,
    ),
    "report": (
        Flag("run", "argument", "", "Id of the run, or a part of it [the newest].", "RUN"),
        Flag("output", "output", "", "Where the page goes, - for stdout [ddplaunch-RUN.html].", "FILE"),
        _FORCE._replace(panel=""),
        _RUN_DIR,
    ),
    "clean": (
        Flag("run", "argument", "", "Clean up only this run; keep all records.", "RUN", offers="runs"),
        Flag("yes", "switch", "", "Do not ask for confirmation."),
        Flag("dry_run", "switch", "", "List what would be ended and removed; change nothing."),
        Flag("keep", "text", "", "Number of the newest records to keep [50].", "N"),
        Flag("grace", "duration", "", "Time between SIGTERM and SIGKILL: 5, 1m [5].", "TIME"),
        Flag("json", "switch", "", "Everything that was found and done, as JSON."),
        _RUN_DIR,
    ),
    "top": (
        _LIVE_RUN,
        Flag("interval", "duration", "", "Time between samples: 1, 5s [1].", "TIME"),
        Flag("count", "text", "", "Stop after N samples [when the run ends].", "N"),
        Flag(
            "metric",
            "text",
            "",
            r"Regex for the step in the output, or a group called rate or loss: 'seen (\d+)' [step, iter, tqdm; loss].",
            "PATTERN",
        ),
        Flag("json", "switch", "", "Every sample as a line of JSON."),
        _RUN_DIR,
    ),
    "stacks": (
        _LIVE_RUN,
        Flag("full", "switch", "", "Every frame of every thread."),
        Flag("json", "switch", "", "All stacks as JSON."),
        _RUN_DIR,
    ),
    "explain": (
        Flag(
            "targets",
            "arguments",
            "",
            "A run, log files, - for stdin, or a code [the newest run].",
            "RUN|FILE|CODE",
            offers="runs and codes",
        ),
        Flag("json", "switch", "", "The diagnosis as JSON."),
        _RUN_DIR,
    ),
    "convert": (
        Flag("files", "arguments", "", "Shell and sbatch scripts, or files of other launchers; - for stdin.", "FILE"),
        Flag("write", "switch", "", "Change the scripts, and keep a copy of each as FILE.orig."),
        Flag("json", "switch", "", "Every line with its translation, as JSON."),
    ),
}
#: Kinds of flags whose values are a list.
REPEATED = ("many", "rates", "arguments")
LAUNCHING = ("run", "plan", "doctor", "submit", "scale", "fit")


def flags_of(command: str) -> tuple[Flag, ...]:
    """Return every flag of a command."""
    own = OWN[command]
    if command not in LAUNCHING:
        return own
    launch = flags_of_options()
    if command == "scale":
        launch = {**launch, "nproc": launch["nproc"]._replace(metavar="SIZES", text=_SIZES)}
    return (*launch.values(), *own)


def spellings(flags: tuple[Flag, ...]) -> dict[str, tuple[Flag, bool | None]]:
    """Return each spelling with its flag and, for one that takes no value, what it means."""
    found: dict[str, tuple[Flag, bool | None]] = {}
    for flag in flags:
        if flag.kind in ("argument", "arguments"):
            continue
        found[flag.flag] = (flag, True if flag.kind in ("switch", "pair") else None)
        if flag.kind == "pair":
            found["--no-" + flag.flag[2:]] = (flag, False)
    return found


def parse_quickly(command: str, words: list[str]) -> dict[str, Any] | None:
    """Return the value of every flag by name, None where it was not given; None if Typer has to look.

    It accepts a subset of what Typer accepts, with the same result; a test holds the two against each other.
    """
    flags = flags_of(command)
    values: dict[str, Any] = {flag.name: [] if flag.kind in REPEATED else None for flag in flags}
    spelled = spellings(flags)
    arguments = [flag.name for flag in flags if flag.kind == "argument"]
    all_others = next((values[flag.name] for flag in flags if flag.kind == "arguments"), None)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if arguments:
                values[arguments.pop(0)] = word
            elif all_others is not None:
                all_others.append(word)
            else:
                return None
            continue
        name, equals, attached = word.partition("=")
        if name not in spelled:
            return None
        flag, meaning = spelled[name]
        if meaning is not None:
            if equals:
                return None
            value: Any = meaning
        elif not equals and (not rest or rest[0].startswith("-")):
            return None
        else:
            value = attached if equals else rest.pop(0)
        if not _keep(values, flag, value):
            return None
    return values


def _keep(values: dict[str, Any], flag: Flag, value: Any) -> bool:
    """Put a value down; False for a second one where one is wanted, and Typer says so."""
    if flag.kind in REPEATED:
        values[flag.name].append(value)
        return True
    if values[flag.name] is not None and (values[flag.name] is not value or not isinstance(value, bool)):
        return False
    values[flag.name] = value
    return True


def own_values(command: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return what was typed for the command itself: integers and, of lengths of time, seconds. Raises UsageError."""
    return {flag.name: flag.typed(values[flag.name]) for flag in OWN[command]}


def said_on_command_line(values: dict[str, Any]) -> Said:
    """Return what was typed for the launch, each value with its flag as source. Raises UsageError for no number."""
    said: dict[str, Any] = {}
    for flag in flags_of_options().values():
        value = values[flag.name]
        if value is None or value == []:
            continue
        source = Source("flag", "--no-" + flag.flag[2:] if value is False else flag.shown)
        several = isinstance(value, list)
        said[flag.name] = (
            tuple(Resolved(each, source) for each in value) if several else Resolved(flag.typed(value), source)
        )
    return said


def launch_words(said: Said, without: Container[str] = ()) -> list[str]:
    """Return the words of a command line that say what ``said`` does; NPROC is left to the caller."""
    words: list[str] = []
    for flag in flags_of_options().values():
        value = said.get(flag.name)
        if flag.name in without or flag.kind == "argument" or value is None:
            continue
        if flag.kind in ("switch", "pair"):
            words.append(flag.flag if value.value else f"--no-{flag.flag[2:]}")
        else:
            items = value if isinstance(value, tuple) else (value,)
            words += [word for item in items for word in spelled(flag.flag, str(item.value))]
    return words


def spelled(flag: str, value: str) -> list[str]:
    """Return the words of an option with a value that may look like another option."""
    return [f"{flag}={value}"] if value.startswith("-") else [flag, value]


def whole_number(flag: str, text: str, noun: str, why: str, fix: str, least: int = 0) -> int:
    """Return how many ``noun`` a flag gives. Raises UsageError for what is no number, or less than ``least``."""
    if text.isascii() and text.isdecimal() and int(text) >= least:
        return int(text)
    raise usage(f"`{flag} {text}` is not a number of {noun}", why=why, fix=fix, where=f"flag: {flag}")
