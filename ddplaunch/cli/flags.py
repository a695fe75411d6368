"""Every flag of every command, declared once as data; refuses to parse."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["argument", "arguments", "text", "integer", "number", "switch", "pair", "many"]


class Flag(NamedTuple):
    """One flag. ``kind`` "pair" is ``--x/--no-x``, "switch" a plain ``--x``, "many" may be repeated.

    "arguments" takes all words that are left.
    """

    name: str
    kind: Kind
    panel: str
    text: str
    metavar: str = ""
    spelling: str = ""

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return self.spelling or "--" + self.name.replace("_", "-")


_SIZE, _NUMBERS, _INPUTS = "Size and devices", "Numbers", "Inputs"
_NETWORK, _ENVIRONMENT, _CHECKING = "Network", "Environment and torchrun", "Checking and records"
_SHOWING, _OUTPUT = "Console and capture", "Output"
_CLUSTER = "Job"
_SEVERAL = "Several hosts over ssh"

#: What describes a launch: the fields of ``Options`` in the order of ``--help``.
LAUNCH = (
    Flag(
        "nproc",
        "argument",
        "",
        "Processes per node: 4, auto (every visible GPU), or NxM (N nodes of M).",
        "NPROC",
    ),
    Flag("gpus", "text", _SIZE, "0,1,3 (as nvidia-smi counts), UUIDs, or free:4 to pick and hold 4 idle ones.", "LIST"),
    Flag("device", "text", _SIZE, "auto, cuda or cpu.", "KIND"),
    Flag("nnodes", "text", _SIZE, "Nodes, or MIN:MAX.", "N"),
    Flag("batch_size", "integer", _NUMBERS, "Samples per process and forward pass.", "N"),
    Flag("accum", "integer", _NUMBERS, "Gradient accumulation: forward passes per optimizer step.", "N"),
    Flag("global_batch_size", "integer", _NUMBERS, "Samples per optimizer step over all processes.", "N"),
    Flag("base_lr", "number", _NUMBERS, "Learning rate to scale from.", "X"),
    Flag("base_batch_size", "integer", _NUMBERS, "Effective batch that --base-lr was tuned for [one process's].", "N"),
    Flag("lr", "number", _NUMBERS, "Final learning rate, never scaled.", "X"),
    Flag("lr_scaling", "text", _NUMBERS, "linear, sqrt or none [linear].", "RULE"),
    Flag("lr_max_factor", "number", _NUMBERS, "Largest factor that scaling may apply.", "X"),
    Flag("base_warmup", "integer", _NUMBERS, "Warmup steps, scaled like --base-lr.", "N"),
    Flag("dataset_size", "integer", _NUMBERS, "Samples in the training set: gives steps per epoch.", "N"),
    Flag("forward", "pair", _NUMBERS, "Fill in the options that the script declares [yes]."),
    Flag("data", "many", _INPUTS, "A file or directory that must be readable (repeatable).", "PATH"),
    Flag("output", "many", _INPUTS, "A file or directory that must be writable (repeatable).", "PATH"),
    Flag("workers", "integer", _INPUTS, "DataLoader workers per process, for the checks.", "N"),
    Flag("node_rank", "integer", _NETWORK, "This node's rank, from 0.", "K"),
    Flag("master_addr", "text", _NETWORK, "Address of the node with rank 0.", "ADDR"),
    Flag("master_port", "integer", _NETWORK, "Port of the rendezvous [a free one on one node].", "PORT"),
    Flag("socket_ifname", "text", _NETWORK, "Network interface for NCCL and gloo.", "NAME"),
    Flag("nccl_debug", "text", _NETWORK, "NCCL_DEBUG: WARN, INFO, TRACE [WARN].", "LEVEL"),
    Flag("nccl_ib", "pair", _NETWORK, "Use InfiniBand or not [if a port is up]."),
    Flag("env", "many", _ENVIRONMENT, "Set a variable for the ranks (repeatable).", "K=V"),
    Flag("env_file", "many", _ENVIRONMENT, "Set the variables of a file of K=V lines.", "FILE"),
    Flag("max_restarts", "integer", _ENVIRONMENT, "Restarts of the ranks after a failure [0].", "N"),
    Flag("relaunch", "integer", _ENVIRONMENT, "Launch a failed run anew, if it got anywhere, up to N times [0].", "N"),
    Flag(
        "relaunch_after",
        "text",
        _ENVIRONMENT,
        "It did if ranks ran so long, or --output has a newer checkpoint [60].",
        "TIME",
    ),
    Flag("relaunch_wait", "text", _ENVIRONMENT, "Pause before the first relaunch, then doubled [10].", "TIME"),
    Flag("grace", "number", _ENVIRONMENT, "Seconds that ranks get to save when they are told to end [30].", "SECONDS"),
    Flag("timeout", "text", _ENVIRONMENT, "End the run after this time: 90s, 10m, 2h; exit status 124.", "TIME"),
    Flag("start", "text", _ENVIRONMENT, "cold, warm (ranks fork from one with torch), or auto [auto: cold].", "HOW"),
    Flag("preload", "text", _ENVIRONMENT, "With --start warm: modules to import once.", "NAMES"),
    Flag("torchrun_arg", "many", _ENVIRONMENT, "Any other option of the installed torchrun.", "ARG"),
    Flag("ignore", "many", _CHECKING, "Leave this check out (repeatable).", "CODE"),
    Flag("checks", "pair", _CHECKING, "Check before launching [yes]."),
    Flag("run_id", "text", _CHECKING, "Name of the run [time and a random part].", "ID"),
    Flag("run_dir", "text", _CHECKING, "Where records go [.ddplaunch].", "DIR"),
    Flag("show", "text", _SHOWING, "Ranks on the console: 0, 0,3 or all [0].", "RANKS"),
    Flag("verbose", "switch", _SHOWING, "Show torchrun's own messages too."),
    Flag("capture", "pair", _SHOWING, "Record every rank's output, and explain a failure [yes]."),
    Flag("hang_timeout", "text", _SHOWING, "Name the rank that the others wait for when nothing moves: 10m.", "TIME"),
    Flag("on_hang", "text", _SHOWING, "report, or stop: end the run, exit status 124 [report].", "WHAT"),
    Flag("stacks", "pair", _SHOWING, "Let ranks show where they are, for `stacks` [with a time-out]."),
    Flag("trace", "text", _SHOWING, "Write how long each phase of the launch took: FILE.svg or FILE.json.", "FILE"),
    Flag("record_metrics", "switch", _SHOWING, "Record what ranks and GPUs use, for `top --replay` and `top --plot`."),
)
_PROFILE = Flag("profile", "text", _CHECKING, "Named profile of ddplaunch.toml.", "NAME")

#: Which hosts, for the commands that reach them over ssh.
HOSTS = (
    Flag("hosts", "text", _SEVERAL, "Hosts as ssh knows them, with commas: gpu-a,gpu-b. The first has rank 0.", "LIST"),
    Flag("hostfile", "text", _SEVERAL, "A file of hosts: `gpu-a slots=8` or `gpu-a:8`, one a line.", "FILE"),
    Flag("include", "many", _SEVERAL, "Of these, only this host or some of its GPUs (repeatable).", "HOST[:0,2]"),
    Flag("exclude", "many", _SEVERAL, "Not this host or some of its GPUs (repeatable).", "HOST[:0,2]"),
    Flag("chdir", "text", _SEVERAL, "Directory on every host [this one].", "DIR"),
    Flag("python", "text", _SEVERAL, "Interpreter on every host [this one's path].", "PATH"),
    Flag(
        "join_timeout",
        "text",
        _SEVERAL,
        "Seconds for hosts to answer [20]; by hand, for all nodes to join [600; 0: do not wait].",
        "SECONDS",
    ),
)
_RUN_DIR = Flag("run_dir", "text", "", "Where records are [.ddplaunch].", "DIR")

#: What each command has beside that. ``plan --env`` without K=V is another spelling of ``--exports``.
OWN: dict[str, tuple[Flag, ...]] = {
    "run": (
        _PROFILE,
        Flag("dry_run", "switch", _OUTPUT, "Print the launch as shell text; start nothing."),
        Flag("json", "switch", _OUTPUT, "With --dry-run: the whole plan as JSON."),
        *HOSTS,
    ),
    "plan": (
        _PROFILE,
        Flag("compare", "text", _OUTPUT, "The numbers for several world sizes, side by side.", "1,2,4,8"),
        Flag("json", "switch", _OUTPUT, "The whole plan as JSON."),
        Flag("exports", "switch", _OUTPUT, "Shell exports; a bare --env says the same."),
        Flag("yaml", "switch", _OUTPUT, "The whole plan as YAML."),
    ),
    "doctor": (
        _PROFILE,
        Flag("list_checks", "switch", _OUTPUT, "Every check, with what it looks at.", spelling="--list"),
        Flag("json", "switch", _OUTPUT, "Outcomes and facts as JSON."),
        Flag("report", "text", _OUTPUT, "Write a text for a bug report, without secrets (- is stdout).", "FILE"),
        Flag("comm", "switch", _CHECKING, "Test collectives: the ranks of each host, then hosts in pairs (seconds)."),
        Flag("comm_timeout", "text", _CHECKING, "With --comm: time for each step [20; with GPUs 60].", "TIME"),
        *HOSTS,
    ),
    "submit": (
        _PROFILE,
        Flag("nodes", "integer", _CLUSTER, "Nodes of the job [1].", "N"),
        Flag("gpus_per_node", "integer", _CLUSTER, "GPUs of each node, a process for each.", "N"),
        Flag("cpus_per_task", "integer", _CLUSTER, "CPUs of each node, for all its processes together.", "N"),
        Flag("mem", "text", _CLUSTER, "Host memory of each node: 200G.", "SIZE"),
        Flag("time", "text", _CLUSTER, "Time limit: 24:00:00, 2-00:00:00, or minutes.", "LIMIT"),
        Flag("partition", "text", _CLUSTER, "Slurm partition.", "NAME"),
        Flag("account", "text", _CLUSTER, "Slurm account.", "NAME"),
        Flag("qos", "text", _CLUSTER, "Slurm quality of service.", "NAME"),
        Flag("constraint", "text", _CLUSTER, "Features that the nodes must have.", "LIST"),
        Flag("job_name", "text", _CLUSTER, "Name of the job [the script's].", "NAME"),
        Flag("sbatch_arg", "many", _CLUSTER, "Any other option of sbatch (repeatable).", "ARG"),
        Flag("setup", "many", _CLUSTER, "Shell line in front of the launch: 'module load cuda' (repeatable).", "LINE"),
        Flag("requeue", "switch", _CLUSTER, "Start again after preemption, a lost node or the time limit."),
        Flag("to", "text", _CLUSTER, "slurm or kubernetes [slurm].", "CLUSTER"),
        Flag("kind", "text", _CLUSTER, "Kubernetes: trainjob, pytorchjob or jobset [trainjob].", "KIND"),
        Flag("image", "text", _CLUSTER, "Kubernetes: the container image.", "IMAGE"),
        Flag("shm_size", "text", _CLUSTER, "Kubernetes: size of /dev/shm [16Gi].", "SIZE"),
        Flag("secret", "many", _CLUSTER, "Kubernetes: a variable from a Secret (repeatable).", "VAR=SECRET/KEY"),
        Flag("wait", "switch", _OUTPUT, "Follow the job's log to its end, and exit as it did."),
        Flag("dry_run", "switch", _OUTPUT, "Print the batch script or manifest; submit nothing."),
    ),
    "ps": (
        Flag("all", "switch", "", "Every run that has a record, not only the newest."),
        Flag("json", "switch", "", "Everything that is known of them, as JSON."),
        _RUN_DIR,
    ),
    "logs": (
        Flag("run", "argument", "", "Id of the run, or a part of it [the newest].", "RUN"),
        Flag("rank", "text", "", "Ranks: 0, 0,3, 0-7 or all [all].", "RANKS"),
        Flag("follow", "switch", "", "Go on with what comes, across restarts, until the run is over."),
        Flag("lines", "text", "", "Last lines of each file to begin with, or all [all; 10 with --follow].", "N"),
        Flag("since", "text", "", "Only what lines date later: 10m, 2h, or a date and time.", "TIME"),
        Flag("grep", "text", "", "Only lines in which this regular expression matches.", "PATTERN"),
        _RUN_DIR,
    ),
    "stop": (
        Flag("run", "argument", "", "Id of the run, or a part of it [the only one that runs].", "RUN"),
        Flag("grace", "text", "", "Time to end before SIGKILL: 30, 2m [the run's own and 5 s].", "TIME"),
        Flag("json", "switch", "", "What became of every process, as JSON."),
        _RUN_DIR,
    ),
    "clean": (
        Flag("run", "argument", "", "Only what is left of the run of this id [of all], and no records.", "RUN"),
        Flag("yes", "switch", "", "Do it without a question."),
        Flag("dry_run", "switch", "", "Only list."),
        Flag("keep", "text", "", "How many of the newest records stay [50].", "N"),
        Flag("grace", "text", "", "Time to end before SIGKILL: 5, 1m [5].", "TIME"),
        Flag("json", "switch", "", "Everything found and done, as JSON."),
        _RUN_DIR,
    ),
    "top": (
        Flag("run", "argument", "", "Id of the run, or a part of it [the youngest, of this directory first].", "RUN"),
        Flag("interval", "text", "", "Time between samples: 1, 5s [1; with --replay 0.1].", "TIME"),
        Flag("count", "text", "", "End after so many samples [when the run ends].", "N"),
        Flag("metric", "text", "", r"Regex of what ranks print: 'seen (\d+) samples' [step, iter, tqdm].", "PATTERN"),
        Flag("replay", "switch", "", "Show what `run --record-metrics` recorded."),
        Flag("plot", "text", "", "Draw what was recorded into an SVG file.", "FILE"),
        Flag("json", "switch", "", "Every sample as a line of JSON."),
        _RUN_DIR,
    ),
    "stacks": (
        Flag("run", "argument", "", "Id of the run, or a part of it [the youngest, of this directory first].", "RUN"),
        Flag("full", "switch", "", "Every frame of every thread."),
        Flag("json", "switch", "", "All of it as JSON."),
        _RUN_DIR,
    ),
    "explain": (
        Flag(
            "targets", "arguments", "", "A run id, log files, - for stdin, or a code [the newest run].", "RUN|FILE|CODE"
        ),
        Flag("json", "switch", "", "The diagnosis as JSON."),
        _RUN_DIR,
    ),
}
HELP = {
    "run": "Check, plan, and become torchrun: ddplaunch run 4 --batch-size 8 -- train.py --epochs 20",
    "plan": "Show everything that run would decide; start nothing.",
    "doctor": "Check this machine; with a launch behind it, as for run, check that too.",
    "explain": "Name the root cause of a failed run or of any log; or describe a code.",
    "submit": "Hand the same launch to Slurm, or print it for Kubernetes.",
    "ps": "List running and recent runs of this machine.",
    "logs": "Show what the ranks of a run printed.",
    "stop": "End a run: SIGTERM to its torchrun, SIGKILL to what is left after a grace.",
    "top": "Watch a run: step rate, CPU, memory, DataLoader workers and GPU of every rank.",
    "stacks": "Show where every rank of a run is now, the odd one out first.",
    "clean": "End ranks and DataLoader workers whose launcher is gone; remove old records.",
}
LAUNCHING = ("run", "plan", "doctor", "submit")


def flags_of(command: str) -> tuple[Flag, ...]:
    """Return every flag of a command."""
    return (*LAUNCH, *OWN[command]) if command in LAUNCHING else OWN[command]
