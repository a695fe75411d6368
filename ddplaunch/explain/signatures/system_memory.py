"""How exhausted host memory shows: kernel, cgroup, Slurm, allocators of Python and torch; refuses GPU memory."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

_WHY_KILLED = (
    "a host that runs out of memory, or a cgroup that reaches its limit, sends SIGKILL to a large process; "
    "the process prints nothing, and its peers only see a closed connection."
)
_FIXES = (
    "Lower host memory per rank: fewer DataLoader workers (`--workers 2` lets ddplaunch check it), a smaller "
    "prefetch_factor, one copy of the checkpoint instead of one per rank (`torch.load(..., mmap=True)`).",
    "Raise the limit: `#SBATCH --mem=0` (all of the node), a larger memory limit of the container, or fewer ranks on "
    "it.",
    "Measure: `ddplaunch doctor` shows free memory and the cgroup's limit; `dmesg -T | grep -i oom` names the victims.",
)

MEMORY: tuple[Signature, ...] = (
    Signature(
        code="host-out-of-memory",
        role="root",
        literals=("out of memory: Kill", "Out of memory: Kill", "Killed process", "oom-kill:"),
        patterns=(
            r"[Oo]ut of memory(?: \(\w+\))?: Kill(?:ed)? process (?P<pid>\d+),? (?:UID \d+,? "
            r")?\(?(?P<process>[^),]+)\)?",
            r"oom-kill:constraint=.*\btask=(?P<process>[^,]+),pid=(?P<pid>\d+)",
            r"Killed process (?P<pid>\d+),? (?:UID \d+,? )?\((?P<process>[^)]+)\),? ?(?:total-vm|vm-?size|UID)",
        ),
        what="the kernel's OOM killer ended process {pid} ({process}): host memory, not GPU memory, ran out",
        why=_WHY_KILLED,
        fixes=_FIXES,
        examples=(
            "[184220.9056] Out of memory: Killed process 88214 (python3) total-vm:612214400kB, anon-rss:241880160kB",
            "Memory cgroup out of memory: Kill process 1711 (python) score 1042 or sacrifice child",
            "Memory cgroup out of memory: Killed process 1711 (pt_data_worker) total-vm:9812kB, anon-rss:88kB, "
            "UID:1000",
            "kernel: Killed process 5120 (python) total-vm:98123456kB, anon-rss:64123456kB, file-rss:0kB, "
            "shmem-rss:12kB",
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0-1,oom_memcg=/slurm,"
            "task_memcg=/slurm/uid_1000/job_5,task=python,pid=4141,uid=1000",
        ),
        near_misses=(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            'sample: "the process was killed by signal 9 after it ran out of memory" -> label: incident',
            "oom_reaper: reaped process 33290 (pt_data_worker), now anon-rss:0kB",
        ),
        priority=75,
        source="https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer",
    ),
    Signature(
        code="host-out-of-memory",
        role="root",
        literals=(
            "oom",
            "Out Of Memory",
            "memory limit",
            "exceeded limit",
            "OOM",
            "TERM_MEMLIMIT",
            "low on memory",
            "killed as a result of",
        ),
        patterns=(
            r"(?P<line>Detected \d+ oom[-_]kill event(?:s|\(s\))? in \S+)",
            r"(?P<line>\b[\w.-]{1,80}: tasks? [\d,\-\[\]]+: Out Of Memory)",
            r"(?P<line>(?:[Jj]ob|[Ss]tep) \S+ exceeded memory limit \(\d+ > \d+\))",
            r"(?P<line>Exceeded (?:job|step) memory limit)",
            r"(?P<line>PBS: job killed: (?:vmem|p?v?mem) \S+ exceeded limit \S+)",
            r"(?P<line>TERM_MEMLIMIT[^.]*)",
            r"(?P<line>Task in \S+ killed as a result of (?:memory|limit) \S+)",
            r"(?P<line>\bOOMKilled\b(?!\"?: ?false))",
            r"(?P<line>systemd-oomd\S* Killed \S+ due to memory)",
            r"(?P<line>killed due to (?:the node running low on memory|memory pressure \(OOM\)))",
        ),
        what="host memory ran out: `{line}`",
        why=_WHY_KILLED,
        fixes=_FIXES,
        examples=(
            "slurmstepd: error: Detected 1 oom_kill event in StepId=88123.0. Some of the step tasks have been OOM "
            "Killed.",
            "slurmstepd: error: Detected 3 oom-kill event(s) in StepId=12.batch. Some of your processes may have been "
            "killed",
            "srun: error: gpu-x04: task 1: Out Of Memory",
            "slurmstepd: error: Step 4411.0 exceeded memory limit (66125824 > 65536000), being killed",
            "slurmstepd: error: Exceeded step memory limit at some point.",
            "=>> PBS: job killed: mem 135200172kb exceeded limit 134217728kb",
            "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
            "    Reason:       OOMKilled",
            "Task in /docker/0a1b killed as a result of limit of /docker/0a1b",
            "systemd-oomd[612]: Killed /user.slice/user-1000.slice due to memory pressure for /user.slice",
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        ),
        near_misses=(
            "oom_score_adj set to 500",
            "[batch finder] 64 -> CUDA OOM, trying 32",
            "Using memory limit of 32 GiB for the cache",
            '"OOMKilled": false,',
        ),
        priority=70,
        source="https://slurm.schedmd.com/cgroup.conf.html",
    ),
    Signature(
        code="host-out-of-memory",
        role="root",
        literals=("invoked oom-killer",),
        patterns=(r"(?P<process>\b[\w./:-]{1,60}) invoked oom-killer",),
        what="the kernel ran out of memory when {process} asked for more, and looked for a process to end",
        why=_WHY_KILLED,
        fixes=_FIXES,
        examples=("[184220.771] python3 invoked oom-killer: gfp_mask=0x140cca, order=0, oom_score_adj=0",),
        near_misses=("oom_score_adj set to 500",),
        priority=55,
        source="https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer",
    ),
    Signature(
        code="host-out-of-memory",
        role="root",
        literals=("you tried to allocate", "Unable to allocate"),
        patterns=(
            r"(?:DefaultCPUAllocator|Torch): (?:can't allocate memory|not enough memory): you tried to allocate "
            r"(?P<size>\d+ ?(?:bytes|[KMGT]i?B))",
            r"Unable to allocate (?P<size>[\d.]+ (?:bytes|[KMGTP]iB)) for an array with shape",
        ),
        what="host memory could not hold another {size}",
        why="the allocator asked the operating system for this amount in one piece and was refused",
        fixes=_FIXES,
        examples=(
            "RuntimeError: [enforce fail at alloc_cpu.cpp:83] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)",
            "RuntimeError: $ Torch: not enough memory: you tried to allocate 5GB. Buy new RAM! at THGeneral.cpp:218",
            "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape "
            "(1000000000,)",
        ),
        near_misses=("CUDA out of memory. Tried to allocate 5.00 GiB",),
        priority=65,
        source="https://github.com/pytorch/pytorch/blob/main/c10/core/impl/alloc_cpu.cpp",
    ),
    Signature(
        code="host-out-of-memory",
        role="root",
        literals=("MemoryError", "Cannot allocate memory", "std::bad_alloc"),
        patterns=(
            r"(?P<line>\[Errno 12\] Cannot allocate memory)",
            r"(?P<line>Cannot allocate memory(?: \(12\))?)\.?$",
            r"(?P<line>std::bad_alloc)",
            r"(?:^|\s)(?:\w+\.)*_?(?P<line>(?:Array)?MemoryError)(?:$|: )",
        ),
        what="an allocation of host memory was refused: `{line}`",
        why="the operating system refused memory to this process: the limit of the host, the cgroup or `ulimit -v` is "
        "reached",
        fixes=_FIXES,
        examples=(
            "OSError: [Errno 12] Cannot allocate memory",
            "RuntimeError: unable to mmap 4194304 bytes from file </torch_4_5_6>: Cannot allocate memory (12)",
            "bash: fork: Cannot allocate memory",
            "MemoryError",
            "terminate called after throwing an instance of 'std::bad_alloc'",
        ),
        near_misses=(
            "torch.cuda.OutOfMemoryError: CUDA out of memory.",
            "except MemoryError:",
            "NCCL WARN Cuda failure 2 'out of memory'",
        ),
        unless=(r"ibv_|ib_|InfiniBand|libibverbs|NET/IB",),
        priority=60,
        source="https://docs.python.org/3/library/exceptions.html#MemoryError",
    ),
)
