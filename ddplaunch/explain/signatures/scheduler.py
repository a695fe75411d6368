"""Schedulers: time limits, refused steps, lost nodes, cancelled jobs, and how Slurm lists an ended job."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier


def _state(code: str, word: str, cut: str, what: str, why: str, fixes: tuple[str, ...]) -> Signature:
    """Return the signature of one state; ``cut`` is as much of it as sacct has room for."""
    return Signature(
        code=code,
        tier=Tier.GENERAL,
        patterns=(
            rf"(?:JobState=|State: |\|){word}(?=[\s|,(]|$)",
            rf"^\s*\d+(?:[._]\S+)?\s(?:.*\s)?(?:{word}|{cut.replace('+', '[+]')})(?=\s|$)",
        ),
        what=what,
        why=why,
        fixes=fixes,
        examples=(
            f"4411|train|{word.replace('[0-9]+', '1000')}|0:15",
            f"4411          train        gpu        lab         32 {cut}      0:15",
        ),
        near_misses=(f'if state in ("{word}", "COMPLETED"):', f"INFO: {word} is not handled"),
        source="https://slurm.schedmd.com/job_state_codes.html",
    )


_LIMIT_WHY = (
    "The scheduler ends a job when its wall-clock limit is over; what the program was doing then is not the cause."
)
_LIMIT_FIXES = (
    "Ask for more time (`#SBATCH --time=24:00:00`, at most what `sinfo -o '%P %l'` allows) or train in several jobs.",
    "Save a checkpoint in time: `#SBATCH --signal=B:USR1@300` warns 300 s before the end; resume from it.",
    "If the last lines show no progress, find the hang first: a longer limit only hides it.",
)
_CANCELLED_WHY = (
    "The scheduler signalled the job: a person's scancel, a job of higher priority, a requeue, or a "
    "warning before the limit."
)
_CANCELLED_FIXES = (
    "Ask who it was: `sacct -j JOBID --format=JobID,State,Reason,End` (CANCELLED by UID, PREEMPTED, REQUEUED).",
    "If it was preempted: save on SIGTERM and submit with `--requeue`, so that it goes on by itself.",
)


def _limit(pattern: str, more: str, example: str, source: str) -> Signature:
    """Return the signature of another scheduler's time limit; ``more`` is how a job asks for more time there."""
    return Signature(
        code="time-limit",
        tier=Tier.CAUSE,
        patterns=(pattern,),
        what="the job reached its time limit: {line}",
        why=_LIMIT_WHY,
        fixes=(f"Ask for more time ({more}) or train in several jobs.", _KEPT, _LIMIT_FIXES[2]),
        examples=(example,),
        near_misses=("#PBS -l walltime=24:00:00", "#BSUB -W 24:00", "grpc StatusCode.DEADLINE_EXCEEDED"),
        source=source,
    )


_KEPT = "Save a checkpoint every so often, and resume from it: what came after the last one is lost at the limit."

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="download-failed",
        tier=Tier.CAUSE,
        patterns=(r"pyxis: +\[ERROR\] (?:URL )?(?P<url>https?://\S+) returned error code: (?P<answer>\d+\b.{0,40})",),
        what="the container's image could not be fetched: {url} answers {answer}",
        why="pyxis fetches the image on each node before a task starts; 401 and 403: it wants a login, 404: "
        "there is none",
        fixes=(
            "on one of the nodes: `enroot import docker://REGISTRY#IMAGE:TAG`; it takes a login from "
            "`~/.config/enroot/.credentials`",
            "import it once, and give srun the file: `--container-image=/shared/image.sqsh`",
        ),
        examples=(
            "slurmstepd: error: pyxis:     [ERROR] URL https://registry.example.org/v2/a/manifests/1 returned error "
            "code: 401 Unauthorized",
        ),
        near_misses=("slurmstepd: error: pyxis:     [INFO] Fetching image manifest list",),
        source="https://github.com/NVIDIA/enroot/blob/master/src/docker.sh",
    ),
    Signature(
        code="download-failed",
        tier=Tier.CAUSE,
        patterns=(
            r"Failed to pull image \"(?P<image>[^\"]+)\"",
            r"manifest for (?P<image>\S+) not found",
            r"pull access denied for (?P<image>[^\s,]+)",
        ),
        what="the container's image could not be fetched: {image}",
        why="the node's runtime fetches it before the container starts: the name or tag is wrong, or the registry "
        "wants a login",
        fixes=(
            "`kubectl describe pod POD` has the registry's answer; `docker pull IMAGE` on another machine tells more",
            "a private registry needs `imagePullSecrets` in the pod",
        ),
        examples=(
            'Warning  Failed  3s  kubelet  Failed to pull image "reg.io/t:1": rpc error: code = NotFound',
            "docker: Error response from daemon: manifest for reg.io/t:9 not found: manifest unknown.",
            "docker: Error response from daemon: pull access denied for acme/t, repository does not exist",
        ),
        near_misses=('Normal  Pulling  3s  kubelet  Pulling image "reg.io/t:1"',),
        source="https://kubernetes.io/docs/concepts/containers/images/",
    ),
    Signature(
        code="scheduler-error",
        tier=Tier.GENERAL,
        patterns=(
            r"pyxis: (?P<line>couldn't start container|failed to (?:import docker image|create container filesystem))$",
            r"^FATAL: +(?P<line>container creation failed: .+|While making image from \w+ registry: .+)",
            r"^exec \S+: (?P<line>exec format error)$",
        ),
        what="the container could not be started: {line}",
        why="it starts before the task; the lines above say what it missed: an image, a mount, a CPU that fits",
        fixes=("on one of the nodes, start a shell in the same image with the same mounts: it says more",),
        examples=(
            "slurmstepd: error: pyxis: couldn't start container",
            "slurmstepd: error: pyxis: failed to create container filesystem",
            "FATAL:   container creation failed: mount /scratch->/scratch error: while mounting: no such file",
            "exec /app/start.sh: exec format error",
        ),
        near_misses=("pyxis: importing docker image: registry.example.org/ml/trainer:24.11",),
        source="https://github.com/NVIDIA/pyxis/blob/master/pyxis_slurmstepd.c",
    ),
    Signature(
        code="time-limit",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ DUE TO TIME LIMIT",
            r"(?:^|CANCELLED (?:AT \S+ )?)DUE TO TIME LIMIT",
            r"exceeded (?:hard )?wall-?clock(?: (?:time|limit))?",
            r"(?P<line>due to wall[- ]?(?:clock|time) limit.{0,60})",
        ),
        what="the job reached its time limit: {line}",
        why=_LIMIT_WHY,
        fixes=_LIMIT_FIXES,
        examples=(
            "slurmstepd: error: *** STEP 30219901.0 ON nid009911 CANCELLED AT 2026-02-02T03:00:12 DUE TO TIME LIMIT "
            "***",
            "slurmstepd: error: *** JOB 12 CANCELLED DUE TO TIME LIMIT ***",
            "job 4411 exceeded hard wallclock time",
            "job 4411 exceeded wall-clock limit 24:00:00, killing",
            "ERROR:RetryJob Not retrying job due to wall clock limit (job automatically killed on the worker node)",
        ),
        near_misses=(
            "slurmstepd: error: *** STEP 4.0 ON node1 CANCELLED AT 2026-11-21T11:21:58 ***",
            "grpc StatusCode.DEADLINE_EXCEEDED",
            "#PBS -l walltime=24:00:00",
        ),
        source="https://slurm.schedmd.com/sbatch.html#OPT_time",
    ),
    _limit(
        r"PBS: job killed: walltime \d+ exceeded limit \d+",
        "`#PBS -l walltime=48:00:00`",
        "=>> PBS: job killed: walltime 86423 exceeded limit 86400",
        "https://github.com/openpbs/openpbs/blob/master/src/resmom/linux/mom_mach.c",
    ),
    _limit(
        r"has exceeded the maximum execution time of \d+ minutes",
        "`timeout-minutes:` of the job, at most what the runner allows",
        "##[error]The job running on runner GitHub Actions 12 has exceeded the maximum execution time of 360 minutes.",
        "https://docs.github.com/en/actions/reference/limits",
    ),
    _limit(
        r"Your notebook tried to run for longer than the allowed \d+ seconds",
        "another session that resumes",
        "43200.1s 402 Your notebook tried to run for longer than the allowed 43200 seconds.",
        "https://www.kaggle.com/docs/notebooks",
    ),
    _limit(
        r"Job failed: (?P<line>execution took longer than \w+)",
        "`timeout: 3 days` in `.gitlab-ci.yml`; the runner has a limit of its own",
        "ERROR: Job failed: execution took longer than 1h0m0s seconds",
        "https://docs.gitlab.com/ci/yaml/#timeout",
    ),
    _limit(
        r"(?P<line>Cancelling nested steps due to timeout)",
        "`timeout(time: 3, unit: 'DAYS')` in the Jenkinsfile",
        "Cancelling nested steps due to timeout",
        "https://www.jenkins.io/doc/pipeline/steps/workflow-basic-steps/",
    ),
    _limit(
        r"hit its timeout of \d+s\b",
        "`timeout=` of the function, in seconds",
        "Task's current input in-1 hit its timeout of 3600s",
        "https://modal.com/docs/guide/timeouts",
    ),
    _limit(
        r"runtime exceeded MaxRuntimeInSeconds",
        "`max_run` of the estimator",
        "MaxRuntimeExceeded - Training job runtime exceeded MaxRuntimeInSeconds provided",
        "https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html",
    ),
    Signature(
        code="terminated",
        tier=Tier.GENERAL,
        patterns=(
            r"Host EC2 \(instance \S+\) terminated",
            r"[Ss]pot (?:instance )?(?:termination|interruption) notice",
            r"Instance .{1,40} (?:was|is being|has been) preempted",
        ),
        what="the cloud took the machine back: {line}",
        why="a machine that was rented as spot or preemptible goes back when somebody pays more; nothing failed on it",
        fixes=(
            "save a checkpoint every so often, and at the notice; start again from it on another machine",
            "rent it on demand, if there is no time to start again",
        ),
        examples=(
            "Host EC2 (instance i-0abc) terminated.",
            "WARNING: spot instance interruption notice received, 120 s left",
            "Instance train-1 was preempted.",
        ),
        near_misses=("using spot instances to save money",),
        source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html",
    ),
    _limit(
        r"TERM_RUNLIMIT",
        "`#BSUB -W 48:00`",
        "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
        "https://www.ibm.com/docs/en/spectrum-lsf",
    ),
    _limit(
        r"DeadlineExceeded",
        "`activeDeadlineSeconds` of the Job",
        "  Reason: DeadlineExceeded",
        "https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup",
    ),
    Signature(  # lists of events name pods of others, too
        code="scheduler-error",
        tier=Tier.UNCERTAIN,
        patterns=(r"FailedScheduling .*",),
        what="a pod found no node: {line}",
        why="the scheduler knows no node that has what the pod requests, and lets it wait",
        fixes=("`kubectl describe pod POD` says of each node what is missing; request less, or wait for a free one",),
        examples=("Warning  FailedScheduling  0/4 nodes are available: insufficient nvidia.com/gpu.",),
        near_misses=("Normal  Scheduled  Successfully assigned research/train-0 to gpu-4",),
        source="https://kubernetes.io/docs/concepts/scheduling-eviction/kube-scheduler/",
    ),
    Signature(
        code="scheduler-error",
        tier=Tier.CAUSE,
        patterns=(
            r"Unable to create step for job \d+: .*",
            r"Node failure on \S+",
            r"CANCELLED AT \S+ DUE TO NODE FAILURE",
            r"Unable to allocate resources: .*",
            r"Batch job submission failed: .*",
            r"Unable to confirm allocation for job \d+.*",
            r"Invalid generic resource \(gres\) specification",
            r"Application launch failed: .*",
            r"Task launch for StepId=\S+ failed on node \S+: .*",
            r"(?:Communication connection failure|Zero Bytes were transmitted or received)",
            r"(?:Job|Step) credential expired",
            r"Socket timed out on send/recv operation",
            r"Requested node configuration is not available",
            r"^(?:srun|sbatch|salloc): fatal: .*",
            r"^(?:srun|sbatch|salloc) ?: error: (?P<line>(?:Munge encode failed|s_p_parse_file): .*)",
        ),
        what="the scheduler refused or lost the job: {line}",
        why="the step was not started or its node went away; the training program had no part in it",
        fixes=(
            "for a refused request: compare `--mem`, `--gres` and `--cpus-per-task` of the step with the allocation "
            "(`scontrol show job $SLURM_JOB_ID`, `sinfo -N -o '%N %G'`)",
            "for a lost node: resubmit without it, `sbatch --exclude=NODE`, and tell the administrators",
            "resume from the last checkpoint",
        ),
        examples=(
            "srun: error: Unable to create step for job 4411: Invalid generic resource (gres) specification",
            "srun: error: Node failure on node4",
            "slurmstepd-node3: error: *** JOB 18 ON node3 CANCELLED AT 2026-11-21T10:17:14 DUE TO NODE FAILURE, SEE "
            "LOG ***",
            "srun: error: Unable to allocate resources: Requested node configuration is not available",
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            "srun: error: Unable to confirm allocation for job 99: Invalid job id specified",
            "srun: error: Application launch failed: Invalid node name specified",
            "srun: error: Task launch for StepId=7.0 failed on node n3: Communication connection failure",
            "srun: error: Zero Bytes were transmitted or received",
            "srun: error: Job credential expired",
            "sbatch: error: Invalid generic resource (gres) specification",
            "srun: fatal: cpus-per-task set by two different environment variables SLURM_CPUS_PER_TASK=13",
            "srun: error: Requested node configuration is not available",
            "sbatch: error: Socket timed out on send/recv operation",
            'srun: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory',
        ),
        near_misses=(
            "srun: error: node1: task 0: Exited with exit code 1",
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        ),
        source="https://slurm.schedmd.com/faq.html",
    ),
    Signature(
        code="scheduler-error",
        tier=Tier.CAUSE,
        patterns=(r"step creation (?:temporarily disabled|still disabled), retrying \([^)]*\)",),
        what="the scheduler does not start the step: {line}",
        why="srun waits for resources of the allocation that another step holds; without a free one it waits for ever",
        fixes=(
            "let steps share: `srun --overlap`, or give the inner srun only what it needs (`--exact --gpus=1 "
            "--mem=16G`)",
            "end the step that holds them: `squeue -s -j $SLURM_JOB_ID`",
        ),
        examples=("srun: Job 4411 step creation temporarily disabled, retrying (Requested nodes are busy)",),
        near_misses=("srun: Step created for StepId=4411.1",),
        log_unless=(r"[Ss]tep created for",),
        source="https://slurm.schedmd.com/srun.html#OPT_overlap",
    ),
    Signature(
        code="terminated",
        tier=Tier.CAUSE,
        patterns=(r"(?:(?:JOB|STEP) \S+ ON \S+ )?CANCELLED AT \S+ DUE TO (?:PREEMPTION|JOB REQUEUE)",),
        what="Slurm took the job back: {line}",
        why="a job of higher priority took its nodes, or `scontrol requeue` asked for it; the program is not to blame",
        fixes=(
            "submit with `--requeue` (`ddplaunch submit --requeue --grace 120`): Slurm starts it again by itself",
            "save a checkpoint on SIGTERM and resume from it",
        ),
        examples=(
            "slurmstepd: error: *** JOB 17 ON node1 CANCELLED AT 2026-11-21T10:16:04 DUE TO JOB REQUEUE ***",
            "slurmstepd: error: *** STEP 17.0 ON node1 CANCELLED AT 2026-11-21T10:16:04 DUE TO PREEMPTION ***",
        ),
        near_misses=("slurmstepd: error: *** JOB 12 ON n CANCELLED AT 2026-11-21T10:16:20 DUE TO TIME LIMIT ***",),
        source="https://slurm.schedmd.com/preempt.html",
    ),
    Signature(
        code="terminated",
        tier=Tier.CAUSE,
        patterns=(
            r"(?<!\")User defined signal [12]",
            r"TERM_(?:PREEMPT|OWNER|ADMIN|BUCKET_KILL)\w*",
        ),
        what="the scheduler ended the job: {line}",
        why=_CANCELLED_WHY,
        fixes=_CANCELLED_FIXES,
        examples=("srun: error: node2: task 1: User defined signal 1", "TERM_OWNER: job killed by owner."),
        near_misses=("slurmstepd: error: *** JOB 12 ON n CANCELLED AT 2026-11-21T10:16:20 DUE TO TIME LIMIT ***",),
        source="https://slurm.schedmd.com/preempt.html",
    ),
    Signature(
        code="terminated",
        tier=Tier.GENERAL,
        patterns=(
            r"(?P<line>(?:JOB|STEP) \S+ ON \S+ CANCELLED AT [\dT:-]+)(?: DUE to SIGNAL Terminated)?(?: ?\*\*\*)?\s*$",
        ),
        what="the job was cancelled: {line}",
        why=_CANCELLED_WHY,
        fixes=_CANCELLED_FIXES,
        examples=("slurmstepd-node1: error: *** STEP 4.0 ON node1 CANCELLED AT 2026-11-21T11:21:58 ***",),
        near_misses=("slurmstepd: error: *** JOB 12 ON n CANCELLED AT 2026-11-21T10:16:20 DUE TO TIME LIMIT ***",),
        log_unless=(
            r"srun: (?:launch/slurm: \w+: )?Terminating (?:[Ss]tep|job)",
            r"DUE TO (?:TIME|NODE)",
            r"oom[-_]kill|Out Of Memory",
        ),
        source="https://slurm.schedmd.com/scancel.html",
    ),
    _state(
        "host-out-of-memory",
        "OUT_OF_MEMORY",
        "OUT_OF_ME+",
        "Slurm lists the job as OUT_OF_MEMORY",
        "the kernel kills what goes over the host memory that the job asked for",
        ("`--mem` for more (`sacct -j JOBID -o MaxRSS,ReqMem` shows both)", "fewer DataLoader workers"),
    ),
    _state(
        "time-limit",
        "TIMEOUT",
        "TIMEOUT",
        "Slurm lists the job as TIMEOUT: it reached its time limit",
        "Slurm ends a job when its time is over; what the program did then is not the cause",
        ("`--time` for more", "`ddplaunch submit --requeue --grace 120`, if the script saves on SIGTERM and resumes"),
    ),
    _state(
        "scheduler-error",
        "NODE_FAIL",
        "NODE_FAIL",
        "Slurm lists the job as NODE_FAIL: it lost a node",
        "the node stopped answering Slurm; the program had no part in it",
        ("`--requeue` lets Slurm start the job again by itself", "`sinfo -R` shows why nodes are away"),
    ),
    _state(
        "terminated",
        "PREEMPTED",
        "PREEMPTED",
        "Slurm lists the job as PREEMPTED",
        "a job of higher priority took its nodes",
        ("`--requeue` lets Slurm start it again by itself", "save a checkpoint on SIGTERM and resume from it"),
    ),
    _state(
        "terminated",
        "CANCELLED by [0-9]+",
        "CANCELLED+",
        "Slurm lists the job as CANCELLED",
        "somebody ran scancel, or a job that it depends on failed",
        ("`sacct -P -j JOBID -o JobID,State` says by whom: `CANCELLED by UID`",),
    ),
)
