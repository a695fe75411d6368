"""How processes end: killed, crashed or aborted by a signal, or asked to end."""

from __future__ import annotations

from dataclasses import replace

from ddplaunch.explain.signatures.signature import Signature, Tier

_TOLD_ELSEWHERE = (
    r"[Oo]ut of memory: Kill|oom[-_]kill|Out Of Memory|OOMKilled|DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)"
    r"|forcefully exiting via|Forcefully terminating all other processes"
)
_KILLED_FIXES = (
    "Look whether memory was the reason: `dmesg -T | grep -iE 'oom|killed process'`, `cat "
    "/sys/fs/cgroup/memory.events`, `sacct -j JOBID --format=State,MaxRSS`.",
    "If it was: fewer DataLoader workers, less memory per rank, or a larger limit.",
    "If not: ask who sends SIGKILL: a supervisor, an eviction, a person.",
)
_NATIVE = "Native code of torch, an extension, a driver or a data library failed; Python cannot make it an exception."
_NATIVE_FIXES = (
    "Get the stack: run again with `--env PYTHONFAULTHANDLER=1`, or open the core dump (`coredumpctl gdb`).",
    "Take out suspects one at a time: DataLoader workers (`num_workers=0`), own extensions, packages built for "
    "another torch.",
)

_STILL_RUNNING = Signature(
    code="aborted",
    tier=Tier.SYMPTOM,
    patterns=(r"terminate called without an active exception",),
    what="a process aborted while its threads were still running: {line}",
    why="the interpreter ended while native threads (a DataLoader, NCCL's watchdog) still ran; C++ then calls abort",
    fixes=(
        "if training was complete: end with `dist.destroy_process_group()`, and close loaders and writers before",
        "if a traceback stands above it, that is the cause and this is its echo",
    ),
    examples=("terminate called without an active exception",),
    near_misses=("terminate called after throwing an instance of 'std::runtime_error'",),
    source="https://en.cppreference.com/w/cpp/thread/thread/~thread",
)
#: How a rank says that its program has come to its end.
_THROUGH = (
    r"(?i)\b(?:training (?:is )?(?:finished|completed?|done|over)|done in \d+(?:\.\d+)? ?(?:s|min|h)|(?:good ?)?bye"
    r"|all done|total training time)\b|`Trainer\.fit` stopped: `max_"
    r"|\bprocess[ _]group (?:is )?destroyed|\bdestroy_process_group (?:done|returned)"
)
#: A shell writes behind a bar that is not done.
_START = r"(?:^|(?:s/it|it/s)\b[^\]]*\])"


def _ends(signal: int, name: str, words: str) -> tuple[str, ...]:
    """The lines with which shells, Python, launchers and Slurm say that a process died of ``signal``."""
    return (
        rf"(?P<line>died with <Signals\.{name}: {signal}>)",
        rf"(?P<line>exits with return code = -{signal})\b",
        rf"(?P<line>(?:terminated with|exited on|killed by) signal:? (?:{name}|{signal} \({words}\)|{words}))",
        rf"(?P<line>code=(?:killed|dumped), status={signal}/\w+|\bterminated by {name}(?: \(core dumped\))?(?=; not))",
        rf"(?P<line>(?<!\S)\S{{1,80}}: tasks? [\d,\-\[\]]+: {words})",
        rf"(?P<line>(?:\bline \d{{1,6}}: +)?(?<![=-])\b\d{{1,8}}:? +{words}(?: \(core dumped\))?)(?:\s|$)",
        _START + rf"(?P<line>{words}(?: \(core dumped\))?)\.?\s*$",
    )


_KEEP = "Start inside `tmux` or `screen`, or submit the run: nohup does not help, torchrun reacts to SIGHUP."
_ASK = "Ask who sent it: `sacct -j JOBID`, `kubectl describe pod`, `journalctl`, others; save on SIGTERM to resume."
_STEP_ENDED = (r"srun: Terminating (?:[Ss]tep|job)", r"DUE TO (?:TIME LIMIT|NODE FAILURE)")
_ONLY_SHOWN = r"[$#] (?:tail|kubectl) .*-f\b"  # Ctrl-C ends what shows the log
_SAVE = "Save a checkpoint when it comes, and resume from it: it is the scheduler's warning."


def _ended(name: str, number: int, sender: str, fix: str) -> Signature:
    """The launcher's lines about signal ``name``: Python before 3.11 writes the name, later ones the number."""
    return Signature(
        code="terminated",
        tier=Tier.GENERAL,
        patterns=(
            rf"Received (?:(?:Signals\.)?{name}|{number}) death signal, shutting down workers",
            rf"SignalException: Process \d+ got signal: {number}\b",
            *((rf"Sending process \d+ closing signal {name}\b",) if name != "SIGTERM" else ()),
        ),
        what=f"the launcher was ended from outside by {name}",
        why=f"The launcher itself was signalled and passed it on to its ranks: {sender}. The training had no error of "
        "its own.",
        fixes=(fix,),
        examples=(
            f"W0209 api.py:704] Received Signals.{name} death signal, shutting down workers",
            f"WARNING:torch.distributed.elastic.agent.server.api:Received {number} death signal, shutting down workers",
            f"torch.distributed.elastic.multiprocessing.api.SignalException: Process 9120 got signal: {number}",
            *((f"W0209 api.py:897] Sending process 20877 closing signal {name}",) if name != "SIGTERM" else ()),
        ),
        near_misses=("WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 2 closing signal SIGTERM",),
        log_unless=_STEP_ENDED,
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/multiprocessing/api.py",
    )


SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="killed",
        tier=Tier.CAUSE,
        patterns=(r"[Cc]ontainer (?P<name>[\w.-]+) failed (?P<probe>liveness|startup) probe, will be restarted",),
        what="Kubernetes ended the container `{name}`: its {probe} probe failed",
        why="a rank that computes or writes a checkpoint does not answer in time, and the kubelet takes it for dead",
        fixes=(
            "a longer `timeoutSeconds` and `failureThreshold` in the container's `livenessProbe`, or no such probe",
            "what failed stands in `kubectl describe pod`, in a line `Unhealthy`",
        ),
        examples=("Normal   Killing    6m    kubelet  Container trainer failed liveness probe, will be restarted",),
        near_misses=("Warning  Unhealthy  6m (x3 over 8m)  kubelet  Liveness probe failed: context deadline exceeded",),
        source="https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/",
    ),
    Signature(
        code="killed",
        tier=Tier.UNCERTAIN,
        patterns=_ends(9, "SIGKILL", "Killed"),
        what="a process was ended by SIGKILL, and no line says who sent it: {line}",
        why="SIGKILL leaves no message in the process; most often the kernel's OOM killer or a cgroup limit sent it",
        fixes=_KILLED_FIXES,
        examples=(
            "subprocess.CalledProcessError: Command '['python', 'a.py']' died with <Signals.SIGKILL: 9>.",
            "[ERROR] [launch.py:325:sigkill_handler] ['python', '-u', 'a.py', '--local_rank=1'] exits with return "
            "code = -9",
            "RuntimeError: DataLoader worker (pid 1771) is killed by signal: Killed. ",
            "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL",
            "mpirun noticed that process rank 3 with PID 41 on node n exited on signal 9 (Killed).",
            "srun: error: nid1: task 3: Killed",
            "run.sh: line 12: 12345 Killed                  python train.py",
            "Killed",
            "systemd[1]: train.service: Main process exited, code=killed, status=9/KILL",
            " 29%|###       | 9413/32393 [3:28:18<8:28:33,  1.33s/it, loss=3.23]Killed",
        ),
        near_misses=(
            'sample: "the process was killed by signal 9 after it ran out of memory" -> label: incident',
            "Killing subprocess 61377",
            "RuntimeError: DataLoader worker (pid 402) is killed by signal: Bus error.",
        ),
        unless=(r"^\w+: \"",),
        log_unless=(_TOLD_ELSEWHERE,),
        source="https://man7.org/linux/man-pages/man7/signal.7.html",
    ),
    Signature(
        code="segmentation-fault",
        tier=Tier.UNCERTAIN,
        patterns=(
            r"Fatal Python error: Segmentation fault|Windows fatal exception: (?:access violation|stack overflow)",
            r"Signal: Segmentation fault \(11\)",
            r"Segfault encountered",
            r"\*\*\* SIGSEGV .*received (?:by PID|at time=)|\bRAW: (?:Raising 11 signal|Signal 11 raised) ",
            r"\b[\w.-]{1,40}\[\d{1,9}\]: segfault at \S+",
            *_ends(11, "SIGSEGV", "Segmentation fault"),
        ),
        what="native code crashed with SIGSEGV: {line}",
        why=_NATIVE,
        fixes=_NATIVE_FIXES,
        examples=(
            "Fatal Python error: Segmentation fault",
            "Windows fatal exception: access violation",
            "[node:60014] Signal: Segmentation fault (11)",
            "!!!!!!! Segfault encountered !!!!!!!",
            "*** SIGSEGV (@0x0) received by PID 4133 (TID 0x7f) from PID 0; stack trace: ***",
            "E1204 11:02:33.5 88 process_state.cc:1163] RAW: Raising 11 signal with default behavior",
            "kernel: python[4133]: segfault at 18 ip 00007f error 4 in libtorch_cpu.so",
            "subprocess.CalledProcessError: Command '['python', 'a.py']' died with <Signals.SIGSEGV: 11>.",
            "['python', '-u', 'a.py'] exits with return code = -11",
            "ERROR: DataLoader worker (pid 88) is killed by signal: Segmentation fault. ",
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV",
            "mpirun noticed that process rank 9 with PID 60014 on node x exited on signal 11 (Segmentation fault).",
            "srun: error: nid1: task 3: Segmentation fault (core dumped)",
            "run.sh: line 3: 3456 Segmentation fault      (core dumped) python a.py",
            "Segmentation fault (core dumped)",
            "WARN exited: trainer (terminated by SIGSEGV (core dumped); not expected)",
        ),
        near_misses=('label: "Segmentation fault" of class 3', "Enable faulthandler to see segmentation faults"),
        source="https://docs.python.org/3/library/faulthandler.html",
    ),
    Signature(
        code="aborted",
        tier=Tier.SYMPTOM,
        patterns=(
            r"double free or corruption",
            r"(?:free|realloc)\(\): (?:invalid (?:pointer|(?:next |old )?size)|double free detected in tcache \d+)",
            r"malloc(?:_consolidate)?\(\): [a-z ]+",
            r"munmap_chunk\(\): invalid pointer",
            r"corrupted size vs\. prev_size",
            r"corrupted double-linked list",
        ),
        what="a process aborted because its heap is damaged: glibc says `{line}`",
        why="native code freed memory twice, or wrote past the end of a block, maybe long before; Python cannot do "
        "that, an extension or a library can",
        fixes=(
            "`--env LD_PRELOAD=libc_malloc_debug.so.0 --env MALLOC_CHECK_=3` aborts nearer to the call that does it "
            "(glibc 2.34 or newer; older ones need no LD_PRELOAD)",
            _NATIVE_FIXES[0],
            "take out suspects one at a time: own extensions, packages built for another torch or NumPy, an "
            "LD_PRELOAD of tcmalloc or jemalloc",
        ),
        examples=(
            "double free or corruption (!prev)",
            "free(): double free detected in tcache 2",
            "free(): invalid pointer",
            "free(): invalid next size (fast)",
            "malloc(): unsorted double linked list corrupted",
            "malloc_consolidate(): unaligned fastbin chunk detected",
            "munmap_chunk(): invalid pointer",
            "corrupted size vs. prev_size",
            "corrupted double-linked list",
        ),
        near_misses=("malloc(): ", "note: free() invalid in this state", "the corrupted double linked sample"),
        source="https://sourceware.org/git/?p=glibc.git;a=blob;f=malloc/malloc.c",
    ),
    Signature(
        code="aborted",
        tier=Tier.SYMPTOM,
        patterns=(
            r"Fatal Python error: Aborted",
            r"\*\*\* stack smashing detected \*\*\*",
            r"pure virtual method called",
            r"Signal: Aborted \(6\)",
            *_ends(6, "SIGABRT", "Aborted"),
        ),
        what="a process aborted in native code: {line}",
        why=_NATIVE,
        fixes=_NATIVE_FIXES,
        examples=(
            "Fatal Python error: Aborted",
            "*** stack smashing detected ***: terminated",
            "pure virtual method called",
            "subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGABRT: 6>.",
            "['python', '-u', 'a.py'] exits with return code = -6",
            "ERROR: DataLoader worker (pid 88) is killed by signal: Aborted. ",
            "mpirun noticed that process rank 1 with PID 4 on node x exited on signal 6 (Aborted).",
            "srun: error: nid1: task 3: Aborted (core dumped)",
            "[node:60014] Signal: Aborted (6)",
            "run.sh: line 3: 3456 Aborted                 (core dumped) python a.py",
            "Aborted (core dumped)",
            "systemd[1]: train.service: Main process exited, code=dumped, status=6/ABRT",
        ),
        near_misses=("srun: Job step aborted: Waiting up to 32 seconds", "Aborted by user request: no"),
        source="https://man7.org/linux/man-pages/man3/abort.3.html",
    ),
    Signature(
        code="aborted-at-exit",
        tier=Tier.SYMPTOM,
        patterns=(
            r"(?P<line>(?:CUDA error|gloo/cuda_private\.h:\d+): driver shutting down)",
            r"NCCL WARN (?P<line>Cuda failure (?:\d+ )?'driver shutting down')",
        ),
        what="a process aborted while it ended: {line}",
        why="the interpreter had come to its end and CUDA had been taken down; threads of NCCL, gloo or a loader still "
        "used it then",
        fixes=(
            "end what runs in the background before the script ends: `dist.destroy_process_group()`, and loaders and "
            "writers closed",
            "what was saved before is whole: the work was done, or an exception above is what ended it",
        ),
        examples=(
            "  what():  CUDA error: driver shutting down",
            "  what():  [enforce fail] error == cudaSuccess. 29 vs 0. Error at: gloo/cuda_private.h:40: driver "
            "shutting down",
            "gpu1:40:301 [0] init.cc:9 NCCL WARN Cuda failure 4 'driver shutting down'",
        ),
        near_misses=("driver shutting down the bus", "CUDA error: initialization error"),
        source="https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
    ),
    replace(_STILL_RUNNING, code="aborted-at-exit", log_with=(_THROUGH,)),
    _STILL_RUNNING,
    _ended("SIGHUP", 1, "a terminal or ssh session was closed", _KEEP),
    _ended(
        "SIGINT",
        2,
        "Ctrl-C, or whoever sends SIGINT",
        "If it was no person: look for what sends SIGINT to the launcher's process group.",
    ),
    _ended("SIGQUIT", 3, "Ctrl-backslash, or a container that stops", _ASK),
    _ended("SIGTERM", 15, "a person, a supervisor, a preemption or a scheduler", _ASK),
    _ended("SIGUSR1", 10, "a scheduler's warning before its limit", _SAVE),
    _ended("SIGUSR2", 12, "a scheduler's warning before its limit", _SAVE),
    Signature(
        code="terminated",
        tier=Tier.GENERAL,
        patterns=(
            r"Main process received SIG(?:TERM|INT), exiting",
            r"Received SIG(?:TERM|INT|USR[12])(?:: \d+)?",
            r"(?:Bypassing|Caught) signal SIG(?:TERM|INT|CONT|USR[12])",
            r"Detected KeyboardInterrupt|User aborted: stopping task",
            r"Main process exited, (?P<line>code=killed, status=15/TERM)",
            r"deepspeed[\\/]launcher[\\/]runner\.py\", line \d+, in (?P<line>sig\w*_handler)",
            r"(?:^|\s)(?P<line>KeyboardInterrupt)(?:$|: )",
            r"^(?:\([^)]*\) ?)?(?P<line>\^C)",
            _START + r"(?P<line>Hangup|Terminated)\s*$",
        ),
        what="the run was interrupted from outside: {line}",
        why="a person or a supervisor stopped it; nothing in the log says that the training failed before",
        fixes=(
            "if you pressed Ctrl-C because nothing moved: the traceback shows where the rank waited",
            _ASK,
        ),
        examples=(
            "[2024-01-09 10:00:00,1] [INFO] [launch.py:93:main] Main process received SIGTERM, exiting",
            "Received SIGTERM: 15",
            "submitit WARNING (2024-01-01) - Bypassing signal SIGTERM",
            "Terminated",
            "Detected KeyboardInterrupt, attempting graceful shutdown...",
            '  File "/opt/x/deepspeed/launcher/runner.py", line 548, in sigkill_handler',
            "KeyboardInterrupt",
            "^CTraceback (most recent call last):",
            "INFO submitit - Caught signal SIGUSR2 on node1: this job is timed-out.",
            "(APIServer pid=201) ^C",
            "User aborted: stopping task (1)",
            "systemd[1]: train.service: Main process exited, code=killed, status=15/TERM",
        ),
        near_misses=(
            "except KeyboardInterrupt:",
            "Sending process 4 closing signal SIGTERM",
            "handler for SIGTERM set",
        ),
        log_unless=(*_STEP_ENDED, _ONLY_SHOWN),
        source="https://docs.python.org/3/library/signal.html",
    ),
    Signature(  # it then ends all of the server's processes, some of them by SIGKILL
        code="hang",
        tier=Tier.GENERAL,
        patterns=(
            r"(?P<line>[Ww]atchdog timeout \(self\.watchdog_timeout=[\d.]+\)?)",
            r"(?P<line>(?:neue Zeile|no (?:output|progress|new (?:log )?line)|\d+ s without)"
            r".*(?:[Ss]tillstand|stalled|progress|killing|ending|giving up))",
            r"(?P<line>\bstalled for \d+ ?(?:s|min|h)\b.*)",
        ),
        what="nothing moved, and a watchdog ended it: {line}",
        why="a step does not end: a rank waits for another one, or a kernel does not return",
        fixes=(
            "what each rank was in stands in the stacks that the watchdog prints, where `py-spy` is installed",
            "a longer time, if a step compiles kernels or loads that long: SGLang's `--watchdog-timeout`",
        ),
        examples=(
            "TP4] Watchdog timeout (self.watchdog_timeout=300)",
            "no output for 2409 s, job considered stalled",
            "WATCHDOG 03:41:40 stalled for 30 min, all 8 processes alive, collecting stacks",
        ),
        near_misses=("server_args=ServerArgs(watchdog_timeout=300, dist_timeout=None)",),
        source="https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/scheduler.py",
    ),
    Signature(
        code="hang",
        tier=Tier.SYMPTOM,
        patterns=(r"^(?P<line>Timeout \([\d:.]+\)!)$",),
        what="the script's own timer ended the rank: {line}",
        why="the script calls faulthandler.dump_traceback_later: the rank had not come further by then, and the "
        "stacks of its threads are printed below the line",
        fixes=(
            "look at where it stood: what it waits for there (data, a lock, another rank) did not come",
            "a longer time in `faulthandler.dump_traceback_later(SECONDS)`, if the work before it takes that long",
        ),
        examples=("Timeout (0:00:30)!", "Timeout (0:05:00.500000)!"),
        near_misses=("Timeout (30 s) of the reader, trying again", "Timeout in 0:00:30"),
        source="https://docs.python.org/3/library/faulthandler.html#dumping-the-tracebacks-after-a-timeout",
    ),
)
