"""How exhausted descriptors, threads and processes show; refuses memory and disks."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

LIMITS: tuple[Signature, ...] = (
    Signature(
        code="too-many-open-files",
        role="root",
        literals=(
            "Too many open files",
            "items of ancdata",
            "shared memory object",
            "out of range in select",
            "errno = 24",
        ),
        patterns=(
            r"(?P<line>\[Errno 24\] Too many open files)",
            r"(?P<line>Too many open files)(?!\")",
            r"(?P<line>received \d+ items of ancdata)",
            r"(?P<line>unable to open shared memory object <[^>]*>(?: in read-write mode)?)\s*(?:at /|$)",
            r"(?P<line>filedescriptor out of range in select\(\))",
            r"(?P<line>unable to open file.*errno = 24)",
        ),
        what="the process ran out of file descriptors: `{line}`",
        why=(
            "every tensor that a DataLoader worker hands over holds a descriptor with the default sharing strategy, "
            "and "
            "sockets, index files and memory maps count too; `ulimit -n` is often 1024"
        ),
        fixes=(
            "raise the limit in the shell that launches, on every node: `ulimit -n 65535`",
            'share tensors by name: `torch.multiprocessing.set_sharing_strategy("file_system")` at the top of the '
            "script",
            "keep fewer tensors of workers alive (copy what is kept), open index files once, use fewer workers",
        ),
        examples=(
            "OSError: [Errno 24] Too many open files",
            "OSError: [Errno 24] Too many open files: '/data/shard-00017.idx'",
            "RuntimeError: Too many open files. Communication with the workers is no longer possible.",
            "RuntimeError: received 0 items of ancdata",
            "RuntimeError: unable to open shared memory object </torch_29919_1396182366> in read-write mode",
            "NCCL WARN Call to socket failed : Too many open files",
            "ValueError: filedescriptor out of range in select()",
            "OSError: Unable to open file (unable to open file: name = 'a.h5', errno = 24, error message = 'Too many "
            "o')",
        ),
        near_misses=(
            'sample: "Too many open files" -> label: incident',
            "RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode: Permission denied (13)",
        ),
        priority=70,
        source="https://pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor",
    ),
    Signature(
        code="process-limit",
        role="root",
        literals=(
            "Resource temporarily unavailable",
            "start new thread",
            "pthread_create",
            "pids controller",
            "RLIMIT_NPROC",
            "OMP: Error #34",
            "hread creation failed",
        ),
        patterns=(
            r"(?P<line>BlockingIOError: \[Errno 11\] Resource temporarily unavailable)",
            r"(?P<line>(?:RuntimeError|what\(\)|OSError|thread constructor failed):? +(?:\[Errno 11\] )?"
            r"Resource temporarily unavailable)",
            r"(?P<line>can't start new thread)",
            r"(?P<line>pthread_create(?:\(\))? ?(?:failed|:|error)[^:]*(?:: Resource temporarily unavailable)?)",
            r"(?P<line>[Tt]hread creation failed: Resource temporarily unavailable)",
            r"(?P<line>fork: (?:retry: )?Resource temporarily unavailable)",
            r"(?P<line>fork rejected by pids controller)",
            r"(?P<line>OMP: Error #34)",
            r"(?P<line>RLIMIT_NPROC \d+ current)",
        ),
        what="no further thread or process could be created: `{line}`",
        why=(
            "each rank starts threads for OpenMP, autograd, NCCL and its DataLoader workers; the user's process limit "
            "or the "
            "cgroup's pids limit is reached and the kernel answers EAGAIN"
        ),
        fixes=(
            "start fewer: `--env OMP_NUM_THREADS=1 --env OPENBLAS_NUM_THREADS=1`, fewer DataLoader workers per rank",
            "raise the limit: `ulimit -u 65535`, `docker run --pids-limit=-1`, or the pids.max of the job's cgroup",
            "look for left-over processes: `ps -u $USER -L | wc -l` against `ulimit -u`",
        ),
        examples=(
            "BlockingIOError: [Errno 11] Resource temporarily unavailable",
            "RuntimeError: Resource temporarily unavailable",
            "  what():  Resource temporarily unavailable",
            "RuntimeError: can't start new thread",
            "OpenBLAS blas_thread_init: pthread_create failed for thread 61 of 64: Resource temporarily unavailable",
            "OpenBLAS blas_thread_init: RLIMIT_NPROC 4096 current, 4096 max",
            "libgomp: Thread creation failed: Resource temporarily unavailable",
            "bash: fork: retry: Resource temporarily unavailable",
            "kernel: cgroup: fork rejected by pids controller in /docker/0a1b",
            "OMP: Error #34: System unable to allocate necessary resources for OMP thread:",
        ),
        near_misses=(
            "UserWarning: This DataLoader will create 16 worker processes in total.",
            "NCCL INFO Call to recv from 10.0.0.3<4111> failed : Resource temporarily unavailable, retrying",
            "accept() returned EAGAIN: Resource temporarily unavailable",
        ),
        log_unless=(r"\b(?:flock|lockf)\(|unable to lock file|portalocker",),
        priority=65,
        source="https://man7.org/linux/man-pages/man2/fork.2.html",
    ),
)
