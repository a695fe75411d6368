"""How a full /dev/shm shows in DataLoader workers, NCCL and multiprocessing; refuses full disks."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

_WHY = (
    "DataLoader workers and NCCL pass tensors through files in /dev/shm; containers get 64 MB of it by default, and "
    "a write beyond the limit ends in SIGBUS or ENOSPC."
)
_FIXES = (
    "Enlarge it: `docker run --shm-size=16g` (or `--ipc=host`); in Kubernetes an emptyDir with `medium: Memory` at "
    "/dev/shm; on a host `mount -o remount,size=32G /dev/shm`.",
    "Use less of it: fewer DataLoader workers, a smaller batch per worker, or "
    '`torch.multiprocessing.set_sharing_strategy("file_system")`.',
    "Check it: `df -h /dev/shm`, or `ddplaunch doctor`.",
)
_OOM = (r"[Oo]ut of memory: Kill", r"oom[-_]kill", r"is killed by signal: Killed")

SHARED_MEMORY: tuple[Signature, ...] = (
    Signature(
        code="shm-too-small",
        role="root",
        literals=("bus error encountered in worker", "killed by signal: Bus error"),
        patterns=(
            r"Unexpected bus error encountered in worker",
            r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Bus error",
        ),
        what="a DataLoader worker died of SIGBUS: /dev/shm had no room for its batch",
        why=_WHY,
        fixes=_FIXES,
        examples=(
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory "
            "(shm).",
            "RuntimeError: DataLoader worker (pid 402) is killed by signal: Bus error. It is possible that "
            "dataloader's "
            "workers are out of shared memory.",
        ),
        near_misses=(
            "RuntimeError: DataLoader worker (pid 33290) is killed by signal: Killed.",
            "RuntimeError: DataLoader worker (pid(s) 402) exited unexpectedly",
        ),
        log_unless=_OOM,
        priority=70,
        source="https://github.com/pytorch/pytorch/blob/main/torch/utils/data/_utils/signal_handling.py",
    ),
    Signature(
        code="shm-too-small",
        role="root",
        literals=("shared memory", "/dev/shm", "</torch_", "nccl-shm", "posix_fallocate", "to the right size"),
        patterns=(
            r"unable to allocate shared memory ?\(shm\) for file <(?P<file>[^>]*)>: No space left",
            r"unable to write to file <(?P<file>/?torch_[^>]*)>",
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
        fixes=_FIXES,
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
        priority=70,
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory",
    ),
    Signature(
        code="shm-too-small",
        role="root",
        literals=("_multiprocessing.SemLock(", "pandarallel", "_memmapping_reducer"),
        patterns=(
            r"_semlock = (?P<user>_multiprocessing\.SemLock)\(",
            r"(?P<user>pandarallel)[/\\]core\.py\", line \d+, in closure",
            r"joblib[/\\](?P<user>_memmapping_reducer)\.py\", line \d+, in (?:dump|__call__|reduce)",
        ),
        what="`{user}` could not place its data in /dev/shm",
        why="locks and buffers of multiprocessing libraries are files in /dev/shm; a full or missing one refuses them",
        fixes=_FIXES,
        examples=(
            "    sl = self._semlock = _multiprocessing.SemLock(",
            '  File "/opt/venv/lib/python3.9/site-packages/pandarallel/core.py", line 263, in closure',
            '  File "/opt/venv/lib/python3.9/site-packages/joblib/_memmapping_reducer.py", line 442, in __call__',
        ),
        near_misses=("INFO: Pandarallel will use Memory file system to transfer data", "import _multiprocessing"),
        log_unless=(r"PermissionError|Errno 13|RemoteTraceback|Function not implemented|KeyboardInterrupt",),
        priority=62,
        source="https://github.com/python/cpython/blob/main/Lib/multiprocessing/synchronize.py",
    ),
)
