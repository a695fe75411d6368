"""Host memory or /dev/shm that ran out, as kernel, cgroup, Slurm, Python, torch and NCCL tell it."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier

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
_WHY = (
    "DataLoader workers and NCCL pass tensors through files in /dev/shm; containers get 64 MB of it by default, and "
    "a write beyond the limit ends in SIGBUS or ENOSPC."
)
_SHARED_FIXES = (
    "Enlarge it: `docker run --shm-size=16g` (or `--ipc=host`); in Kubernetes an emptyDir with `medium: Memory` at "
    "/dev/shm; on a host `mount -o remount,size=32G /dev/shm`.",
    "Use less of it: fewer DataLoader workers, a smaller batch per worker, or "
    '`torch.multiprocessing.set_sharing_strategy("file_system")`.',
    "Check it: `df -h /dev/shm`, or `ddplaunch doctor`.",
)
_OOM = (r"[Oo]ut of memory: Kill", r"oom[-_]kill", r"is killed by signal: Killed")


def _ended_by(patterns: tuple[str, ...], more: str, measure: str, examples: tuple[str, ...], source: str) -> Signature:
    """Return the signature of another scheduler's limit; ``more`` is how a job asks for more memory there."""
    return Signature(
        code="host-out-of-memory",
        tier=Tier.CAUSE,
        patterns=patterns,
        what="host memory ran out: `{line}`",
        why=_WHY_KILLED,
        fixes=(_FIXES[0], f"Raise the limit: {more}, or start fewer ranks on the node.", measure),
        examples=examples,
        near_misses=("oom_score_adj set to 500", "#PBS -l mem=64gb", '"OOMKilled": false,'),
        source=source,
    )


SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="host-out-of-memory",
        tier=Tier.CAUSE,
        patterns=(
            r"[Oo]ut of memory(?:: Kill(?:ed)?| \(\w+\): Killed) process (?P<pid>\d+),? (?:UID \d+,? "
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
        source="https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer",
    ),
    _ended_by(
        (r"PBS: job killed: (?:vmem|p?v?mem) \S+ exceeded limit \S+",),
        "`#PBS -l select=1:mem=256gb`",
        "Measure: `qstat -fx JOBID | grep resources_used.mem`.",
        ("=>> PBS: job killed: mem 135200172kb exceeded limit 134217728kb",),
        "https://github.com/openpbs/openpbs/blob/master/src/resmom/linux/mom_mach.c",
    ),
    _ended_by(
        (
            r"Your session crashed after using all available RAM",
            r"Your notebook tried to allocate more memory than is available",
        ),
        "a runtime with more memory",
        "Measure: the memory that the notebook shows while the cell runs.",
        (
            "Your session crashed after using all available RAM. If you are interested in access to high-RAM runtimes",
            "Your notebook tried to allocate more memory than is available. It has restarted.",
        ),
        "https://research.google.com/colaboratory/faq.html",
    ),
    _ended_by(
        (r"TERM_MEMLIMIT[^.]*",),
        '`#BSUB -M 256G` and `#BSUB -R "rusage[mem=256G]"`',
        "Measure: `bjobs -l JOBID | grep MAX`.",
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",),
        "https://www.ibm.com/docs/en/spectrum-lsf",
    ),
    _ended_by(
        (r"(?:\"reason\": ?\")?\bOOMKilled\b(?!\"?: ?false|\}\})", r"node was low on resource: memory\b"),
        "`resources.limits.memory` of the container, with as much in `requests`",
        "Measure: `kubectl top pod POD --containers` while it runs, `kubectl describe pod POD` afterwards.",
        (
            "    Reason:       OOMKilled",
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 88Mi. Container trainer was",
        ),
        "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/",
    ),
    Signature(
        code="host-out-of-memory",
        tier=Tier.CAUSE,
        patterns=(
            r"Detected \d+ oom[-_]kill event(?:s|\(s\))? in \S+",
            r"\b[\w.-]{1,80}: tasks? [\d,\-\[\]]+: Out Of Memory",
            r"(?:[Jj]ob|[Ss]tep) \S+ exceeded memory limit \(\d+ > \d+\)",
            r"Exceeded (?:job|step) memory limit",
            r"Task in \S+ killed as a result of (?:memory|limit) \S+",
            r"systemd-oomd\S* Killed \S+ due to memory|Failed with result 'oom-kill'",
            r"unit has been killed by the OOM killer|has gone over (?:cgroup )?memory limit of \d+ \w+",
            r"Container killed due to memory usage|Container '\w+' exceeded memory limit|Exit Message: \"OOM Killed\"",
            r"beyond the '(?:PHYSICAL|VIRTUAL)' memory limit",
            r"ran out[- ]of[- ]memory and exited with|Replicas low on memory",
            r"killed due to (?:the node running low on memory|memory pressure \(OOM\))",
        ),
        what="host memory ran out: `{line}`",
        why=_WHY_KILLED,
        fixes=_FIXES,
        examples=(
            "The replica workerpool0-0 ran out of memory and exited with a non-zero status of 137(SIGKILL).",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=88123.0. Some of the step tasks have been OOM "
            "Killed.",
            "slurmstepd: error: Detected 3 oom-kill event(s) in StepId=12.batch. Some of your processes may have been "
            "killed",
            "srun: error: gpu-x04: task 1: Out Of Memory",
            "slurmstepd: error: Step 4411.0 exceeded memory limit (66125824 > 65536000), being killed",
            "slurmstepd: error: Exceeded step memory limit at some point.",
            "Task in /docker/0a1b killed as a result of limit of /docker/0a1b",
            "systemd-oomd[612]: Killed /user.slice/user-1000.slice due to memory pressure for /user.slice",
            "systemd[1]: train.service: Failed with result 'oom-kill'.",
            "OutOfMemoryError: Container killed due to memory usage",
            "Container [pid=9] is running 1003456B beyond the 'PHYSICAL' memory limit. Current usage: 8.0 GB of 8 GB",
            "Error from slot1@n2: Docker job has gone over memory limit of 16000 Mb",
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        ),
        near_misses=(
            "oom_score_adj set to 500",
            "[batch finder] 64 -> CUDA OOM, trying 32",
            "Using memory limit of 32 GiB for the cache",
            '"OOMKilled": false,',
        ),
        source="https://slurm.schedmd.com/cgroup.conf.html",
    ),
    Signature(
        code="host-out-of-memory",
        tier=Tier.GENERAL,
        patterns=(r"(?P<process>\b[\w./:-]{1,60}) invoked oom-killer",),
        what="the kernel ran out of memory when {process} asked for more, and looked for a process to end",
        why=_WHY_KILLED,
        fixes=_FIXES,
        examples=("[184220.771] python3 invoked oom-killer: gfp_mask=0x140cca, order=0, oom_score_adj=0",),
        near_misses=("oom_score_adj set to 500",),
        source="https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer",
    ),
    Signature(
        code="host-out-of-memory",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:DefaultCPUAllocator|Torch): (?:can't allocate memory|not enough memory): you tried to allocate "
            r"(?P<size>\d+ ?(?:bytes|[KMGT]i?B))",
            r"Unable to allocate (?P<size>[\d.]+ (?:bytes|[KMGTP]iB)) for an array with shape",
        ),
        what="host memory could not hold another {size}",
        why="the allocator asked the operating system for this amount in one piece and was refused: there is no more, "
        "or a limit holds, of the cgroup or `ulimit -v`",
        fixes=_FIXES,
        examples=(
            "RuntimeError: [enforce fail at alloc_cpu.cpp:83] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)",
            "RuntimeError: $ Torch: not enough memory: you tried to allocate 5GB. Buy new RAM! at THGeneral.cpp:218",
            "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape "
            "(1000000000,)",
        ),
        near_misses=("CUDA out of memory. Tried to allocate 5.00 GiB",),
        source="https://github.com/pytorch/pytorch/blob/main/c10/core/impl/alloc_cpu.cpp",
    ),
    Signature(
        code="host-out-of-memory",
        tier=Tier.CAUSE,
        patterns=(
            r"\[Errno 12\] Cannot allocate memory",
            r"(?P<line>Cannot allocate memory(?: \(12\))?)\.?$",
            r"std::bad_alloc|The paging file is too small for this operation to complete",
            r"ArrowMemoryError: (?P<line>(?:malloc|realloc) of size \d+ failed)",
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
            "OSError: [WinError 1455] The paging file is too small for this operation to complete.",
            "MemoryError",
            "terminate called after throwing an instance of 'std::bad_alloc'",
            "pyarrow.lib.ArrowMemoryError: malloc of size 4294967296 failed",
        ),
        near_misses=(
            "torch.cuda.OutOfMemoryError: CUDA out of memory.",
            "except MemoryError:",
            "NCCL WARN Cuda failure 2 'out of memory'",
        ),
        unless=(r"ibv_|ib_|InfiniBand|libibverbs|NET/IB",),
        source="https://docs.python.org/3/library/exceptions.html#MemoryError",
    ),
    Signature(
        code="shm-too-small",
        tier=Tier.CAUSE,
        patterns=(
            r"Unexpected bus error encountered in worker",
            r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Bus error",
        ),
        what="a DataLoader worker died of SIGBUS: most often /dev/shm has no room for its batch then",
        why=_WHY,
        fixes=_SHARED_FIXES,
        examples=(
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory "
            "(shm).",
            "RuntimeError: DataLoader worker (pid 402) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory.",
        ),
        near_misses=(
            "RuntimeError: DataLoader worker (pid 33290) is killed by signal: Killed.",
            "RuntimeError: DataLoader worker (pid(s) 402) exited unexpectedly",
        ),
        log_unless=_OOM,
        source="https://github.com/pytorch/pytorch/blob/main/torch/utils/data/_utils/signal_handling.py",
    ),
    Signature(
        code="shm-too-small",
        tier=Tier.CAUSE,
        patterns=(
            r"unable to allocate shared memory ?\(shm\) for file <(?P<file>[^>]*)>: No space left",
            r"unable to write to file <(?P<file>/torch_[^>]*)>",
            r"unable to resize file <(?P<file>/?torch_[^>]*|filename not specified)> to the right size",
            r"unable to (?:open|create|mmap)[^<]*<(?P<file>/?torch_[^>]*)>[^:]*: No space left",
            r"[Ee]rror while (?:creating|attaching to) shared memory segment (?P<file>/dev/shm/nccl-\S+|nccl-shm-\S+)",
            r"failed to extend (?P<file>/dev/shm/nccl-\S+)",
            r"No space left on device.*(?P<file>/dev/shm/[^'\"\s]+)",
            r"(?P<file>/dev/shm/[^'\":\s]+).*No space left on device",
            r"Call to (?P<file>posix_fallocate) failed",
        ),
        what="/dev/shm is full: `{file}` could not be written",
        why=_WHY,
        fixes=_SHARED_FIXES,
        examples=(
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_1517_15614_0>: No space left on "
            "device (28)",
            "RuntimeError: unable to write to file </torch_21744_1180260338>",
            "RuntimeError: unable to resize file </torch_9_1> to the right size",
            "RuntimeError: unable to open shared memory object </torch_9_1> in read-write mode: No space left on "
            "device (28)",
            "misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-8KbjrA to 9637892 bytes",
            "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-UYvHFu (size 9637888)",
            "NCCL WARN Error while creating shared memory segment nccl-shm-recv-d3a5-1-0-2 (size 9637888)",
            "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
            "cannot write /dev/shm/plasma: No space left on device",
            "OSError: [Errno 28] No space left on device: '/dev/shm/joblib_memmapping_folder_1_2/3.pkl'",
        ),
        near_misses=(
            "OSError: [Errno 28] No space left on device",
            "RuntimeError: unable to open shared memory object </torch_9_54> in read-write mode: Too many open files "
            "(24)",
            "NCCL INFO Using shared memory for rank 0 -> 1",
        ),
        unless=(r"Too many open files|Permission denied|Operation not permitted",),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory",
    ),
    Signature(
        code="shm-too-small",
        tier=Tier.CAUSE,
        patterns=(
            r"_semlock = (?P<user>_multiprocessing\.SemLock)\(",
            r"(?P<user>pandarallel)[/\\]core\.py\", line \d+, in closure",
            r"joblib[/\\](?P<user>_memmapping_reducer)\.py\", line \d+, in (?:dump|__call__|reduce)",
        ),
        what="`{user}` could not place its data in /dev/shm",
        why="locks and buffers of multiprocessing libraries are files in /dev/shm; a full or missing one refuses them",
        fixes=_SHARED_FIXES,
        examples=(
            "    sl = self._semlock = _multiprocessing.SemLock(",
            '  File "/opt/venv/lib/python3.9/site-packages/pandarallel/core.py", line 263, in closure',
            '  File "/opt/venv/lib/python3.9/site-packages/joblib/_memmapping_reducer.py", line 442, in __call__',
        ),
        near_misses=("INFO: Pandarallel will use Memory file system to transfer data", "import _multiprocessing"),
        log_unless=(r"PermissionError|Errno 13|RemoteTraceback|Function not implemented|KeyboardInterrupt",),
        source="https://github.com/python/cpython/blob/main/Lib/multiprocessing/synchronize.py",
    ),
)
