"""How processes that died of SIGKILL, SIGSEGV and SIGABRT show outside torchrun's own trailer."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

_OOM = (
    r"[Oo]ut of memory: Kill",
    r"oom[-_]kill",
    r"Out Of Memory",
    r"OOMKilled",
    r"DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)",
)
_KILLED_FIXES = (
    "Look whether memory was the reason: `dmesg -T | grep -iE 'oom|killed process'`, `cat "
    "/sys/fs/cgroup/memory.events`, "
    "`sacct -j JOBID --format=State,MaxRSS`.",
    "If it was: fewer DataLoader workers, less memory per rank, or a larger limit.",
    "If not: ask who sends SIGKILL: a supervisor, an eviction, a person.",
)
_NATIVE = (
    "Native code of torch, an extension, a driver or a data library failed; Python could not turn it into an exception."
)
_NATIVE_FIXES = (
    "Get the stack: run again with `--env PYTHONFAULTHANDLER=1`, or open the core dump (`coredumpctl gdb`).",
    "Take out suspects one at a time: DataLoader workers (`num_workers=0`), own extensions, packages built for "
    "another torch.",
)


def _ends(signal: int, name: str, words: str) -> tuple[str, ...]:
    """The lines with which shells, Python, launchers and Slurm say that a process died of ``signal``."""
    return (
        rf"(?P<line>died with <Signals\.{name}: {signal}>)",
        rf"(?P<line>exits with return code = -{signal})\b",
        rf"(?P<line>(?:terminated with|exited on|killed by) signal:? (?:{name}|{signal} \({words}\)|{words}))",
        rf"(?P<line>(?<!\S)\S{{1,80}}: tasks? [\d,\-\[\]]+: {words})",
        rf"(?P<line>(?:\bline \d{{1,6}}: +)?\b\d{{1,8}}:? +{words}(?: \(core dumped\))?)(?:\s|$)",
        rf"^(?P<line>{words}(?: \(core dumped\))?)\.?\s*$",
    )


SIGNALS: tuple[Signature, ...] = (
    Signature(
        code="killed",
        role="root",
        literals=("SIGKILL", "return code = -9", "Killed", "signal 9"),
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
        ),
        near_misses=(
            'sample: "the process was killed by signal 9 after it ran out of memory" -> label: incident',
            "Killing subprocess 61377",
            "RuntimeError: DataLoader worker (pid 402) is killed by signal: Bus error.",
        ),
        unless=(r"^\w+: \"",),
        log_unless=(*_OOM, r"forcefully exiting via"),
        priority=32,
        source="https://man7.org/linux/man-pages/man7/signal.7.html",
    ),
    Signature(
        code="segmentation-fault",
        role="root",
        literals=("egmentation fault", "SIGSEGV", "return code = -11", "Segfault encountered", "segfault at"),
        patterns=(
            r"(?P<line>Fatal Python error: Segmentation fault)",
            r"(?P<line>Signal: Segmentation fault \(11\))",
            r"(?P<line>Segfault encountered)",
            r"(?P<line>\*\*\* SIGSEGV .*received by PID \d+)",
            r"(?P<line>\b[\w.-]{1,40}\[\d{1,9}\]: segfault at \S+)",
            *_ends(11, "SIGSEGV", "Segmentation fault"),
        ),
        what="a process crashed with SIGSEGV: {line}",
        why=_NATIVE,
        fixes=_NATIVE_FIXES,
        examples=(
            "Fatal Python error: Segmentation fault",
            "[node:60014] Signal: Segmentation fault (11)",
            "!!!!!!! Segfault encountered !!!!!!!",
            "*** SIGSEGV (@0x0) received by PID 4133 (TID 0x7f) from PID 0; stack trace: ***",
            "kernel: python[4133]: segfault at 18 ip 00007f error 4 in libtorch_cpu.so",
            "subprocess.CalledProcessError: Command '['python', 'a.py']' died with <Signals.SIGSEGV: 11>.",
            "['python', '-u', 'a.py'] exits with return code = -11",
            "ERROR: DataLoader worker (pid 88) is killed by signal: Segmentation fault. ",
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV",
            "mpirun noticed that process rank 9 with PID 60014 on node x exited on signal 11 (Segmentation fault).",
            "srun: error: nid1: task 3: Segmentation fault (core dumped)",
            "run.sh: line 3: 3456 Segmentation fault      (core dumped) python a.py",
            "Segmentation fault (core dumped)",
        ),
        near_misses=('label: "Segmentation fault" of class 3', "Enable faulthandler to see segmentation faults"),
        priority=54,
        source="https://docs.python.org/3/library/faulthandler.html",
    ),
    Signature(
        code="aborted",
        role="root",
        literals=(
            "Aborted",
            "SIGABRT",
            "return code = -6",
            "double free",
            "invalid pointer",
            "malloc()",
            "munmap_chunk",
            "corrupted size",
            "stack smashing",
            "pure virtual method",
            "signal 6",
        ),
        patterns=(
            r"(?P<line>Fatal Python error: Aborted)",
            r"(?P<line>double free or corruption)",
            r"(?P<line>(?:free|realloc)\(\): invalid (?:pointer|next size|size))",
            r"(?P<line>malloc\(\): [a-z ]+)",
            r"(?P<line>munmap_chunk\(\): invalid pointer)",
            r"(?P<line>corrupted size vs\. prev_size)",
            r"(?P<line>\*\*\* stack smashing detected \*\*\*)",
            r"(?P<line>pure virtual method called)",
            r"(?P<line>Signal: Aborted \(6\))",
            *_ends(6, "SIGABRT", "Aborted"),
        ),
        what="a process aborted in native code: {line}",
        why=_NATIVE,
        fixes=_NATIVE_FIXES,
        examples=(
            "Fatal Python error: Aborted",
            "double free or corruption (!prev)",
            "free(): invalid pointer",
            "malloc(): unsorted double linked list corrupted",
            "munmap_chunk(): invalid pointer",
            "corrupted size vs. prev_size",
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
        ),
        near_misses=("srun: Job step aborted: Waiting up to 32 seconds", "Aborted by user request: no"),
        priority=30,
        source="https://man7.org/linux/man-pages/man3/abort.3.html",
    ),
    Signature(
        code="aborted",
        role="root",
        literals=("without an active exception",),
        patterns=(r"(?P<line>terminate called without an active exception)",),
        what="a process aborted while its threads were still running: {line}",
        why="the interpreter ended while native threads (a DataLoader, NCCL's watchdog, a writer) still ran; C++ then "
        "calls abort",
        fixes=(
            "if training was complete: call `dist.destroy_process_group()` and close loaders and writers before the "
            "script ends",
            "if a traceback stands above it, that is the cause and this is its echo",
        ),
        examples=("terminate called without an active exception",),
        near_misses=("terminate called after throwing an instance of 'std::runtime_error'",),
        priority=22,
        source="https://en.cppreference.com/w/cpp/thread/thread/~thread",
    ),
)
