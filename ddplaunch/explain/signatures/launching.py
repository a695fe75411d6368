"""Refused command lines of scripts and launchers, missing scripts, and missing variables of ranks."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier

_LAUNCHERS = (
    r"(?:torchrun|launch\.py|accelerate(?: <command> \[<args>\])?(?: launch)?|Accelerate CLI tool|deepspeed|colossalai|"
    r"mpirun|mpiexec|horovodrun|srun|sbatch|ddplaunch(?: run)?|python\S* -m torch\.distributed\.\w+)"
)
_LAUNCHER_OPTIONS = (
    r"--?(?:nproc[-_]per[-_]node|nnodes|node[-_]rank|rdzv[-_]\w+|max[-_]restarts|monitor[-_]interval|master[-_](?:ad"
    r"dr|port)|"
    r"standalone|use[-_]env|no[-_]python|log[-_]dir|redirects|tee|start[-_]method|local[-_]addr|num_processes|num_ma"
    r"chines|num_gpus|machine_rank)"
)
_PROBLEMS = (
    r"unrecognized arguments|the following arguments are required|argument \S+|one of the arguments|too few arguments|"
    r"ambiguous option|unknown option|expected (?:one|at least one|\d+) argument|invalid choice|Parser key|Key \S+ is "
    r"required"
)
_NAMES = (
    r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|NODE_RANK|GROUP_RANK|GROUP_WORLD_SIZE|"
    r"SLURM_(?:PROCID|LOCALID|NTASKS|NPROCS|NODEID|NODELIST|JOB_NODELIST)|OMPI_COMM_WORLD_(?:RANK|SIZE|LOCAL_RANK)"
)
_LOCAL_RANK_WHY = (
    "torch.distributed.launch passes `--local-rank` (since torch 2.0; `--local_rank` before) as an argument; torchrun "
    "and ddplaunch set the variable LOCAL_RANK instead. Launcher and script speak different ones of these."
)
_LOCAL_RANK_FIXES = (
    'Read it from the environment: `local_rank = int(os.environ["LOCAL_RANK"])`, and start with '
    "`ddplaunch run 4 -- train.py`.",
    "To work with every launcher, declare both names, `--local-rank` and `--local_rank`, with "
    '`default=int(os.environ.get("LOCAL_RANK", 0))`.',
)

#: What a rank is told with that could not start a program; the exception is that of any other file that is missing.
PROGRAM_MISSING = Signature(
    code="script-not-found",
    tier=Tier.CAUSE,
    patterns=(),
    what="the script starts `{path}`, and that is not there: no such program, or no such folder to start it in",
    why="a name without a slash is looked for along the rank's PATH, on its own node",
    fixes=(
        "`command -v {path}` on the node that failed, as the ranks' user: install it there, or give its full path",
        "if it is there: another PATH (a container, `env=` in the script) hides it; or its `cwd=` is not there",
    ),
    examples=(),
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="script-exception",
        tier=Tier.UNCERTAIN,
        patterns=(
            r"\bERROR\b.{0,20}\brank[ _]?(?P<culprit>\d+)\b.*?(?P<line>\b[\w.]+(?:Error|Exception)(?:: |\(['\"]).+)",
            r"\b(?:thread|worker|loader) (?:stopped|died|failed|ended): (?P<line>[\w.]+(?:Error|Exception): .+)",
        ),
        what="an exception was logged: {line}",
        why="a thread, a worker or a handler of the rank caught it, and the rank did not come to the next collective",
        fixes=("let it end the rank: raise it in the main thread, with its traceback (`logging.exception`)",),
        examples=("ERROR | rank 6 | stopped: ValueError('no labels')", "loader thread stopped: KeyError: 'spacing'"),
        near_misses=("| ERROR | rank 6 | no labels",),
        unless=(r"(?i)\b(?:skip\w*|retry\w*|ignor\w*|continu\w*)\b",),
        source="https://docs.python.org/3/library/logging.html#logging.exception",
    ),
    Signature(
        code="script-arguments",
        tier=Tier.CAUSE,
        patterns=(rf"(?:^|[\s\]:])(?P<program>[\w./-]+): error: (?P<problem>(?:{_PROBLEMS}).*)",),
        what="`{program}` rejected its command line: {problem}",
        why="argparse ends the process with status 2 before anything else runs; every rank does the same",
        fixes=(
            "correct the arguments after `--`: `ddplaunch run 4 -- {program} …`; `python {program} --help` lists them",
            "if ddplaunch filled the option in, turn that off: `--no-forward`",
        ),
        examples=(
            "rank.py: error: the following arguments are required: --data",
            "train.py: error: unrecognized arguments: --epoch 3",
            "main.py: error: argument --amp: invalid choice: 'fp8' (choose from 'fp16', 'bf16')",
        ),
        near_misses=(
            "torchrun: error: unrecognized arguments: --nproc",
            "baby_train.py: error: unrecognized arguments: --local-rank=0",
            "srun: error: node1: task 0: Exited with exit code 2",
            "slurmstepd: error: argument of execve() unknown",
        ),
        unless=(
            rf"(?:^|\s){_LAUNCHERS}: error",
            r"--local[-_]rank",
            r"required: .*(?:training_script|user_script)",
            rf"run\.py: error: .*{_LAUNCHER_OPTIONS}\b",
            r"(?:slurmstepd|srun|sbatch|mpirun|gcc|g\+\+|nvcc|ld): error",
        ),
        log_unless=(r"usage: (?:run|launch)\.py \[-h\] \[--(?:nnodes|nproc)",),
        source="https://docs.python.org/3/library/argparse.html#exiting-methods",
    ),
    Signature(
        code="script-arguments",
        tier=Tier.CAUSE,
        patterns=(
            r"[Ss]ome specified arguments are not used by the HfArgumentParser: .*",
            r"FATAL Flags parsing error: ?(?P<line>.*)",
            r"^Error: (?P<line>(?:No such option|Missing (?:option|argument|parameter)|Invalid value for|"
            r"Got unexpected extra arguments?).*)",
            r"│ (?P<line>(?:No such option: -|Missing (?:option|argument) '|Invalid value for '|"
            r"Got unexpected extra arguments? \()[^│]*\S)",
            r"Could not (?:override '[^']+'|consume arg: .*|parse override.*)",
            r"absl\.flags\._exceptions\.(?P<line>\w+Error: .*)",
        ),
        what="the script rejected its command line: {line}",
        why="the option parser ends the process before anything else runs; every rank does the same",
        fixes=(
            "correct the arguments after `--`; the script's own `--help` lists them",
            "if ddplaunch filled the option in, turn that off: `--no-forward`",
        ),
        examples=(
            "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--lrr', '3']",
            "FATAL Flags parsing error: Unknown command line flag 'lrr'. Did you mean: lr ?",
            "Error: No such option: --lrr",
            "Error: Got unexpected extra arguments (--epochs 3)",
            "│ Got unexpected extra argument (16)                                           │",
            "Error: Missing option '--data'.",
            "Error: Invalid value for '--epochs': 'x' is not a valid integer.",
            "Could not override 'trainer.gpus'.",
            "ERROR: Could not consume arg: --lrr",
            "│ Invalid value for '--epochs': 'x' is not a valid integer.        │",
            "absl.flags._exceptions.UnrecognizedFlagError: Unknown command line flag 'lrr'",
        ),
        near_misses=(
            "Missing key(s) in state_dict: 'a'",
            "Could not load library libcudnn",
            "Invalid value 0 was replaced",
        ),
        unless=(r"local[-_]rank",),
        source="https://click.palletsprojects.com/en/stable/exceptions/",
    ),
    Signature(
        code="launcher-arguments",
        tier=Tier.CAUSE,
        patterns=(
            rf"(?:^|[\s\]:])(?P<program>{_LAUNCHERS}): error: (?P<problem>(?:{_PROBLEMS}).*)",
            rf"(?P<program>run\.py): error: (?P<problem>.*{_LAUNCHER_OPTIONS}\b.*)",
            r"(?P<program>(?<![\w./-])[\w./-]{1,120}): error: (?P<problem>the following arguments are required: "
            r".*(?:training|user)_script.*)",
            r"(?P<program>ValueError): (?P<problem>Unsupported nproc_per_node value.*)",
            r"(?P<program>ValueError): (?P<problem>The rendezvous backend '[^']*' is not registered.*)",
            r"(?P<program>ValueError): (?P<problem>You need to manually pass in `--num_processes`.*)",
        ),
        what="the launcher rejected its own command line ({program}): {problem}",
        why="the launcher's options stand before the script, the script's own after it; an option on the wrong side "
        "is refused",
        fixes=(
            "put a `--` between them: `ddplaunch run 4 --master-port 29501 -- train.py --epochs 20`",
            "look the option up: `ddplaunch run --help`; other options of torchrun go through `--torchrun-arg`",
        ),
        examples=(
            "torchrun: error: unrecognized arguments: --nprocpernode",
            "launch.py: error: the following arguments are required: training_script, training_script_args",
            "run.py: error: argument --nproc_per_node: expected one argument",
            "ValueError: Unsupported nproc_per_node value: gpus",
            "ValueError: The rendezvous backend 'c10' is not registered. Did you forget to call `register`?",
            "Accelerate CLI tool: error: unrecognized arguments: --deepspeed_multinode_launcher",
            "deepspeed: error: the following arguments are required: user_script, user_args",
            "ds: error: the following arguments are required: user_script, user_args",
            "ValueError: You need to manually pass in `--num_processes` using this config yaml.",
        ),
        near_misses=(
            "train.py: error: unrecognized arguments: --epoch",
            "run.py: error: unrecognized arguments: --batchsize 3",
            "launch.py: error: unrecognized arguments: --local_rank=0",
        ),
        unless=(r"--local[-_]rank=",),
        source="https://pytorch.org/docs/stable/elastic/run.html",
    ),
    Signature(
        code="launcher-arguments",
        tier=Tier.CAUSE,
        patterns=(
            r"No module named '?(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch)'?",
            r"(?:torchrun|accelerate|deepspeed|mpirun|horovodrun): (?:command )?not found",
            r"SyntaxError: (?P<line>Non-UTF-8 code starting with .* in file \S*bin/\S+)",
            r"No slot '\S+' specified on host '\S+'",
            r"Cannot specify num_nodes/gpus with include/exclude",
            r"[Hh]ostname '?\S+'? not found in hostfile",
            r"not enough slots available in the system",
            r"Less than two GPU ids were configured",
        ),
        what="the launcher is misused or missing: {line}",
        why="the launch failed before any rank existed, so the script is not the cause",
        fixes=(
            "use one launcher and its own spelling: `ddplaunch run 4 -- train.py` (never `python` between launcher "
            "and script)",
            "if the command is not found, activate the environment that has torch; `ddplaunch doctor` names the "
            "interpreter",
        ),
        examples=(
            "/usr/bin/python3: No module named torchrun",
            "bash: torchrun: command not found",
            "train.sh: 4: torchrun: not found",
            "SyntaxError: Non-UTF-8 code starting with '\\x80' in file /opt/env/bin/python on line 2",
            "ValueError: No slot '4' specified on host 'localhost'",
            "ValueError: Cannot specify num_nodes/gpus with include/exclude",
            "ValueError: Hostname 'gpu7' not found in hostfile",
            "There are not enough slots available in the system to satisfy the 8",
            "ValueError: Less than two GPU ids were configured and tried to run on on multiple GPUs.",
        ),
        near_misses=("ModuleNotFoundError: No module named 'torchvision'", "Unable to find hostfile, will proceed"),
        source="https://pytorch.org/docs/stable/elastic/quickstart.html",
    ),
    Signature(
        code="launcher-arguments",
        tier=Tier.CAUSE,
        patterns=(r"(?P<program>mpirun|mpiexec|prterun|prun) has detected an attempt to run as root",),
        what="{program} does not run as root, and nothing was launched",
        why="Open MPI asks for an option or for another user: what root breaks, it breaks for all",
        fixes=("`{program} --allow-run-as-root …`, as in a container; else run it as another user",),
        examples=("mpirun has detected an attempt to run as root.",),
        near_misses=("to the mpirun command line. However, we reiterate our strong advice",),
        source="https://docs.open-mpi.org/en/main/man-openmpi/man1/mpirun.1.html",
    ),
    Signature(
        code="launcher-arguments",
        tier=Tier.CAUSE,
        patterns=(r"Bootstrap Root : rank (?P<culprit>\d+) of (?P<size>\d+) ranks has already checked in",),
        what="two processes say that they are rank {culprit} of {size}",
        why="each rank has to have a number of its own: the nodes were started with the same node rank, two launchers "
        "share a port, or the script reads its rank from a variable that counts per node",
        fixes=(
            "give each node its own `--node-rank`, or let ddplaunch start them: `ddplaunch run 2x4 --hosts a,b "
            "-- train.py`",
            "under Slurm use one launcher: `srun` with a task for each GPU, or one task for each node and a launcher "
            "in it",
            "look for a run of yours that is left over on the same port: `ss -ltnp`",
        ),
        examples=("bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 1 of 8 ranks has already checked in",),
        near_misses=("NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",),
        source="https://github.com/NVIDIA/nccl/blob/master/src/bootstrap.cc",
    ),
    Signature(
        code="script-not-found",
        tier=Tier.CAUSE,
        patterns=(
            r"can't open file '(?P<script>[^']+)': \[Errno (?:2|20)\]",
            r"execve\(\): (?P<script>\S+): No such file or directory",
            r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<script>[^']+\.(?:py|sh))'",
            r"(?:line \d+|bash): (?P<script>\S+\.(?:py|sh)): (?:command not found|No such file or directory)",
        ),
        what="the script `{script}` does not exist for the ranks",
        why="the interpreter looked for it from its working directory on this node; another directory or an unshared "
        "disk hides it",
        fixes=(
            "check it where the ranks start, on every node: `ls -l {script}`; give the full path or `cd` there first",
            "for a module use `-m`: `ddplaunch run 4 -- -m package.module`, from the directory that holds the package",
        ),
        examples=(
            "/opt/venv/bin/python: can't open file '/home/ana/tarin.py': [Errno 2] No such file or directory",
            "slurmstepd: error: execve(): python: No such file or directory",
            "FileNotFoundError: [Errno 2] No such file or directory: './rank.sh'",
            "bash: run_all.sh: No such file or directory",
            "bash: train.py: command not found",
        ),
        near_misses=(
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'",
            "ModuleNotFoundError: No module named 'pkg'",
        ),
        source="https://docs.python.org/3/using/cmdline.html#cmdoption-m",
    ),
    Signature(
        code="script-not-found",
        tier=Tier.CAUSE,
        patterns=(
            r"Error while finding module specification for '(?P<script>[^']+)'",
            r"(?:^|[\s/])python[\d.]*\S*: No module named (?P<script>[\w.]+)",
        ),
        what="the module `{script}` does not exist for the ranks",
        why="`-m` looks for it among the installed packages and below the working directory of this node, and its "
        "packages have to be there too",
        fixes=(
            "check the name; start from the directory that holds its first part, or install the package where the "
            "ranks run: `python -m pip install -e .`",
            "a file is started without `-m`: `ddplaunch run 4 -- train.py`",
        ),
        examples=(
            "/opt/venv/bin/python: Error while finding module specification for 'pkg.train' (ModuleNotFoundError: No "
            "module named 'pkg')",
            "/usr/bin/python3.10: No module named mypkg.train",
        ),
        near_misses=("/usr/bin/python3: No module named torchrun", "ModuleNotFoundError: No module named 'pkg'"),
        unless=(r"No module named '?(?:torchrun|torch\.distributed|accelerate)\b",),
        source="https://docs.python.org/3/using/cmdline.html#cmdoption-m",
    ),
    Signature(
        code="missing-rank-environment",
        tier=Tier.CAUSE,
        patterns=(
            rf"environment variable (?P<name>{_NAMES}) expected, but not set",
            rf"KeyError: '(?P<name>{_NAMES})'",
            rf"[Ee]nvironment variables? [`'\"]?(?P<name>{_NAMES})[`'\"]? (?:is |are |was )?(?:not "
            rf"set|missing|undefined|required)",
            rf"\b(?P<name>{_NAMES})\b[`'\"]? (?:environment variable )?is not set",
            r"Error: Can't find any (?P<name>rank or local rank)",
            rf"line \d+: (?P<name>{_NAMES}): unbound variable",
        ),
        what="the variable {name} is not set in this process",
        why="RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR come from a launcher; this process was started without one",
        fixes=(
            "start the script with a launcher: `ddplaunch run 4 -- train.py` (or `ddplaunch run 1 -- train.py` for "
            "one process)",
            "in a notebook or test set them for one process: RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 "
            "MASTER_PORT=29500",
        ),
        examples=(
            "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
            "expected, but not set",
            "KeyError: 'LOCAL_RANK'",
            "KeyError: 'SLURM_PROCID'",
            "run.sh: line 5: WORLD_SIZE: unbound variable",
            "RuntimeError: Environment variable WORLD_SIZE is not set",
            "AssertionError: LOCAL_RANK is not set",
            "RuntimeError: Can't find any rank or local rank",
        ),
        near_misses=("KeyError: 'rank'", "KeyError: 'WORLD_SIZE_FACTOR'", "MASTER_ADDR is set to 10.0.0.1"),
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/rendezvous.py",
    ),
    Signature(
        code="local-rank-argument",
        tier=Tier.CAUSE,
        patterns=(
            r"unrecognized arguments:.*(?P<option>--local[-_]rank)",
            r"(?:[Nn]o such option:?|[Uu]nknown command line flag|[Uu]nrecognized option:?|unexpected (?:keyword "
            r")?argument) [`'\"]?(?P<option>-{0,2}local[-_]rank)",
            r"not used by the HfArgumentParser: .*(?P<option>--local[-_]rank)",
            r"Could not consume arg: (?P<option>--local[-_]rank)",
            r"Got unexpected extra arguments? \((?:.* )?(?P<option>--local[-_]rank)",
            r"required: (?:.*, )?(?P<option>--local[-_]rank)",
            r"Override '(?P<option>local[-_]rank)' not found",
            r"object has no attribute '(?P<option>local[-_]rank)'",
        ),
        what="the script and its launcher disagree about `{option}`",
        why=_LOCAL_RANK_WHY,
        fixes=_LOCAL_RANK_FIXES,
        examples=(
            "baby_train.py: error: unrecognized arguments: --local-rank=0",
            "pretrain.py: error: unrecognized arguments: --local_rank=1",
            "Error: No such option: --local-rank Did you mean --local_rank?",
            "FATAL Flags parsing error: Unknown command line flag 'local-rank'. Did you mean: local_rank ?",
            "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--local-rank=0']",
            "train.py: error: the following arguments are required: --local_rank",
            "ERROR: Could not consume arg: --local_rank=0",
            "KeyError: \"Override 'local-rank' not found in: ['seed', 'lr']\"",
            "Error: Got unexpected extra argument (--local-rank=1)",
            "AttributeError: 'Namespace' object has no attribute 'local_rank'",
        ),
        near_misses=(
            "If your script expects `--local-rank` argument to be set, please",
            "       [--local_rank LOCAL_RANK]",
            "train.py: error: unrecognized arguments: --epoch",
        ),
        source="https://pytorch.org/docs/stable/elastic/run.html#transitioning-from-torch-distributed-launch-to-torchrun",
    ),
    Signature(
        code="launcher-arguments",
        tier=Tier.HINT,
        patterns=(
            r"(?:sh|line \d+|: \d+): (?P<program>python3?|srun|apptainer|singularity|uv): (?:command )?not found",
            r"exec: \"(?P<program>[^\"]+)\": executable file not found in \$PATH",
            r"failed to run command \W(?P<program>[\w./-]+)\W: No such file",
        ),
        what="the program `{program}` is not there where it was to start",
        why="the shell or the container that starts the work has another PATH, or the environment is not active there",
        fixes=("`command -v {program}` there; activate the environment in the job's script, or give the full path",),
        examples=(
            "/bin/sh: 1: python: not found",
            'OCI runtime exec failed: exec failed: exec: "torchrun": executable file not found in $PATH: unknown',
            "nohup: failed to run command 'torchrun': No such file or directory",
        ),
        near_misses=("run.sh: line 3: nvidia-smi: command not found",),
        source="https://www.gnu.org/software/bash/manual/html_node/Exit-Status.html",
    ),
    Signature(
        code="syntax-error",
        tier=Tier.HINT,
        patterns=(
            r"(?P<line>env: \Wbash\\r\W: No such file)",
            r"(?P<line>/\S+\^M: bad interpreter)",
            r"line \d+: (?P<line>\$'\\r': command not found|syntax error near unexpected token .+)",
        ),
        what="the shell cannot read the job's script: {line}",
        why="it ends its lines as Windows does (`^M` or `\\r` in the message), or a quote or a keyword is missing",
        fixes=("`sed -i 's/\\r$//' SCRIPT` takes the Windows ends away", "`bash -n SCRIPT` reads it and runs nothing"),
        examples=(
            "/usr/bin/env: 'bash\\r': No such file or directory",
            "bash: ./run.sh: /bin/bash^M: bad interpreter: No such file or directory",
            "run.sh: line 3: syntax error near unexpected token `fi'",
        ),
        near_misses=("SyntaxError: invalid syntax",),
        source="https://www.gnu.org/software/bash/manual/html_node/Invoking-Bash.html",
    ),
)
