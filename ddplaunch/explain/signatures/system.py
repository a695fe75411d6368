"""Resources that the operating system refused: open files, threads, disk space, permissions."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier

_FULL_WHY = (
    "The file system of the checkpoint, log or cache has no free block, inode or quota left; the other ranks then wait "
    "in the next collective until it times out."
)
_FULL_FIXES = (
    "Find what fills it: `df -h . && df -i . && du -xsh * | sort -h | tail` on the node that failed, and `quota -s`.",
    "Keep fewer checkpoints, write them to a larger file system, and let ddplaunch check it before: `--output PATH`.",
    "Remove the incomplete checkpoint of this run before resuming.",
)
_SHARED = r"/dev/shm|<?/torch_|nccl-|shared memory"
_DENIED_WHY = "The operating system refused access to this user: mode bits, owner, or a read-only mount."
_DENIED_FIXES = (
    "Look at it as this user on the node that failed: `namei -l PATH` shows every directory's owner and mode.",
    "Write somewhere that belongs to you; `--output PATH` lets ddplaunch check it before a launch.",
    "If several ranks write one file, put the rank into its name or write on rank 0 only.",
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="port-taken",
        tier=Tier.CAUSE,
        patterns=(r"attempting to bind on address \('[^']*', (?P<port>\d+)[^)]*\): .*[Aa]ddress already in use",),
        what="port {port} is already in use, and the server that was to listen there ended",
        why="a server of an earlier run, or of somebody else on this machine, still has it",
        fixes=(
            "see who holds it: `ss -ltnp | grep :{port}`; end a left-over of yours",
            "give the server another port, and those who ask it",
        ),
        examples=(
            "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
            "OSError: [Errno 98] error while attempting to bind on address ('::1', 8265, 0, 0): [errno 98] address "
            "already in use",
        ),
        near_misses=(
            "ERROR: [Errno 99] error while attempting to bind on address ('10.1.2.3', 8000): cannot assign requested "
            "address",
        ),
        source="https://github.com/python/cpython/blob/main/Lib/asyncio/base_events.py",
    ),
    Signature(
        code="too-many-open-files",
        tier=Tier.CAUSE,
        patterns=(
            r"\[Errno 24\] Too many open files",
            r"(?P<line>Too many open files)(?!\")",
            r"received \d+ items of ancdata",
            r"(?P<line>unable to open shared memory object <[^>]*>(?: in read-write mode)?)\s*(?:at /|$)",
            r"filedescriptor out of range in select\(\)",
            r"unable to open file.*errno = 24",
        ),
        what="the process ran out of file descriptors: `{line}`",
        why=(
            "every tensor that a DataLoader worker hands over holds a descriptor with the default sharing strategy, "
            "and sockets, index files and memory maps count too; `ulimit -n` is often 1024"
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
        source="https://pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor",
    ),
    Signature(
        code="process-limit",
        tier=Tier.CAUSE,
        patterns=(
            r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable",
            r"(?:RuntimeError|what\(\)|OSError|thread constructor failed):? +(?:\[Errno 11\] )?"
            r"Resource temporarily unavailable",
            r"can't start new thread",
            r"pthread_create(?:\(\))? ?(?:failed|:|error)[^:]*(?:: Resource temporarily unavailable)?",
            r"[Tt]hread creation failed: Resource temporarily unavailable",
            r"fork: (?:retry: )?Resource temporarily unavailable",
            r"fork rejected by pids controller",
            r"OMP: Error #34",
            r"RLIMIT_NPROC \d+ current",
        ),
        what="no further thread or process could be created: `{line}`",
        why=(
            "each rank starts threads for OpenMP, autograd, NCCL and its DataLoader workers; the user's process limit "
            "or the cgroup's pids limit is reached and the kernel answers EAGAIN"
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
        source="https://man7.org/linux/man-pages/man2/fork.2.html",
    ),
    Signature(
        code="disk-full",
        tier=Tier.CAUSE,
        patterns=(r"(?P<reason>No space left on device|Disk quota exceeded(?=: ')): ['\"](?P<path>[^'\"]+)['\"]",),
        what="{reason}: `{path}` could not be written",
        why=_FULL_WHY,
        fixes=_FULL_FIXES,
        examples=(
            "OSError: [Errno 28] No space left on device: '/scratch/ana/ckpt/step_500.pt'",
            "OSError: [Errno 122] Disk quota exceeded: '/home/ana/.cache/huggingface/x'",
            'OSError: [Errno 28] No space left on device: "/data/it\'s/x"',
        ),
        near_misses=("OSError: [Errno 28] No space left on device: '/dev/shm/x'",),
        unless=(_SHARED,),
        source="https://man7.org/linux/man-pages/man2/write.2.html",
    ),
    Signature(
        code="storage-failed",
        tier=Tier.CAUSE,
        patterns=(
            r"Error: \[Errno (?:5|107|116|121)\] (?P<line>(?:Input/output error|Stale (?:NFS )?file handle|Transport "
            r"endpoint is not connected|Remote I/O error): ['\"][^'\"]+['\"])",
            r"Error: \[Errno (?:116|121)\] (?P<line>Stale (?:NFS )?file handle|Remote I/O error)",
        ),
        what="a disk or file server failed: {line}",
        why="the kernel could not read or write what is there: a disk or its cable, a file server or FUSE mount that "
        "went away, or a file that another host replaced while this one had it open (stale)",
        fixes=(
            "`dmesg -T | tail -50` on the node that failed names the disk; `findmnt -T PATH` the server or mount",
            "stale: write new files under new names, and let nobody replace them while ranks read",
        ),
        examples=(
            "OSError: [Errno 5] Input/output error: '/data/shard-3.bin'",
            "OSError: [Errno 116] Stale file handle: '/mnt/nfs/train.bin'",
            "OSError: [Errno 116] Stale file handle",
            "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/gcs/train'",
        ),
        near_misses=(
            "[checkpoint] write of step_5000.tmp failed: [Errno 116] Stale file handle, retry 1/3",
            "OSError: [Errno 107] Transport endpoint is not connected",
        ),
        source="https://man7.org/linux/man-pages/man3/errno.3.html",
    ),
    Signature(
        code="storage-failed",
        tier=Tier.UNCERTAIN,
        patterns=(r"Error: \[Errno 5\] (?P<line>Input/output error)$",),
        what="a read or write failed in the kernel: {line}",
        why="a disk or file server failed; a terminal that was closed gives the same to what prints",
        fixes=(
            "`dmesg -T | tail -50` on the node that failed tells of a disk; `findmnt -T PATH` of a server or mount",
            "if the line that failed prints: the terminal was gone; `ddplaunch run --detach`, or nohup, outlives it",
        ),
        examples=("OSError: [Errno 5] Input/output error",),
        near_misses=("kernel: nvme0n1: I/O error, retrying",),
        source="https://man7.org/linux/man-pages/man3/errno.3.html",
    ),
    Signature(
        code="disk-full",
        tier=Tier.CAUSE,
        patterns=(r"Error: \[Errno 27\] File too large",),
        what="a write failed, because the file may not grow larger",
        why="a process has a largest size of file (`ulimit -f`), and so have some file systems: 4 GiB on FAT",
        fixes=(
            "`ulimit -f` in the shell of the launch shows the limit in KiB; `ulimit -f unlimited` in front of it",
            "`df -T .` names the file system; write smaller files (shards), or to another one",
        ),
        examples=("OSError: [Errno 27] File too large",),
        near_misses=("ValueError: File too large to be read at once",),
        source="https://man7.org/linux/man-pages/man2/getrlimit.2.html",
    ),
    Signature(
        code="disk-full",
        tier=Tier.CAUSE,
        patterns=(
            r"(?<!\")No space left on device",
            r"(?<!\")Disk quota exceeded",
            r"database or disk is full",
            r"StorageFull|FilesystemQuotaExceeded",
        ),
        what="a write failed: {line}",
        why=_FULL_WHY,
        fixes=_FULL_FIXES,
        examples=(
            "OSError: [Errno 28] No space left on device",
            "RuntimeError: write(): fd 31 failed with No space left on device",
            "OSError: [Errno 122] Disk quota exceeded",
            "sqlite3.OperationalError: database or disk is full",
            "SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull })",
            'IoError(Os { code: 122, kind: FilesystemQuotaExceeded, message: "Disk quota exceeded" })',
        ),
        near_misses=(
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device (28)",
            'sample: "No space left on device" -> label: incident',
        ),
        unless=(_SHARED,),
        log_unless=(
            r"_multiprocessing\.SemLock\(",
            r"[Pp]andarallel will use Memory file system",
            r"joblib[/\\]_memmapping_reducer",
            r"/dev/shm/nccl-|shared memory segment nccl",
            r"shared memory ?\(shm\) for file",
        ),
        source="https://man7.org/linux/man-pages/man2/write.2.html",
    ),
    Signature(
        code="disk-full",
        tier=Tier.CAUSE,
        patterns=(
            r"node was low on resource: (?P<line>ephemeral-storage|nodefs|imagefs)",
            r"(?P<line>ephemeral local storage) usage exceeds the total limit of containers \S+",
        ),
        what="Kubernetes evicted the pod, because the disk of its node ran out: {line}",
        why="what a container writes outside of its volumes lies on the node's own disk, which all pods share and a "
        "limit bounds; an evicted pod loses it",
        fixes=(
            "write checkpoints, caches and `/tmp` to a volume (a PersistentVolumeClaim; HF_HOME and TORCH_HOME too)",
            "or ask for more: `resources.requests.ephemeral-storage` and the limit of the same name",
            "`kubectl describe pod POD` says how much it had used",
        ),
        examples=(
            "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi.",
            "Pod ephemeral local storage usage exceeds the total limit of containers 20Gi.",
        ),
        near_misses=("The node was low on resource: memory. Threshold quantity: 100Mi", "ephemeral-storage: 10Gi"),
        source="https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/",
    ),
    Signature(
        code="disk-full",
        tier=Tier.GENERAL,
        patterns=(
            r"PytorchStreamWriter failed writing file [^:]*",
            r"basic_ios::clear: iostream error",
            r"unexpected pos \d+ vs \d+",
            r"write\(\): fd \d+ failed with (?:Input/output error|Bad address)",
        ),
        what="torch.save could not write the whole checkpoint (`{line}`): most often the disk or the quota is full",
        why="torch's zip writer reports a short write without the reason; the file on disk is incomplete",
        fixes=_FULL_FIXES,
        examples=(
            "RuntimeError: [enforce fail at inline_container.cc:471] . PytorchStreamWriter failed writing file "
            "data/211: file write failed",
            "RuntimeError: basic_ios::clear: iostream error",
            "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 320 vs 214",
            "RuntimeError: write(): fd 31 failed with Input/output error",
        ),
        near_misses=("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",),
        log_unless=(r"Permission denied|Read-only file system|Parent directory .* does not exist",),
        source="https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.cc",
    ),
    Signature(
        code="permission-denied",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:PermissionError|OSError): \[Errno (?:1|13|30)\] (?P<reason>Permission denied|Operation not permitted|"
            r"Read-only file system): '(?P<path>[^']*/\.(?:cache|triton|config|local|nv|netrc|keras|torch)\b[^']*|"
            r"/tmp/(?:triton|torchinductor|hf|matplotlib)[^']*)'",
        ),
        what="{reason}: `{path}`, where a library keeps its cache",
        why="A library writes below the home directory, which this user does not have or may not write into (a "
        "container with another user), or into a folder of /tmp that belongs to someone else.",
        fixes=(
            "give it a folder of your own: `--env XDG_CACHE_HOME=/tmp/$USER/cache`, for some `--env HF_HOME=…`, `--env "
            "TRITON_CACHE_DIR=…`, `--env TORCHINDUCTOR_CACHE_DIR=…`, or `--env HOME=…`",
            "see whose it is, as this user on the node that failed: `namei -l {path}`",
        ),
        examples=(
            "PermissionError: [Errno 13] Permission denied: '/.cache'",
            "PermissionError: [Errno 13] Permission denied: '/app/.triton/cache'",
            "PermissionError: [Errno 13] Permission denied: '/tmp/triton/4f.lock'",
        ),
        near_misses=("PermissionError: [Errno 13] Permission denied: '/gpfs/weather/out/ens_0007.nc'",),
        source="https://specifications.freedesktop.org/basedir-spec/latest/",
    ),
    Signature(
        code="permission-denied",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:OSError|IOError): \[Errno 30\] (?P<reason>(?P<mount>Read-only) file system): '(?P<path>[^']+)'",
            r"(?:PermissionError|OSError|IOError): \[Errno (?:1|13)\] "
            r"(?P<reason>Permission denied|Operation not permitted): '(?P<path>[^']+)'",
            r"\bopen\((?P<path>[^)]*)\): (?P<reason>Permission denied|Read-only file system)",
            r"\bmkdir (?P<path>/\S+): (?P<reason>[Pp]ermission denied|[Rr]ead-only file system)",
            r"(?P<reason>[Pp]ermission denied) while trying to connect to the .{1,40} socket at \w+://(?P<path>[^\s:]+)",
            r"(?:n't|able to) open (?:file ')?(?P<path>[^' ]+)(?:': \[Errno 13\]| \S+:) (?P<reason>Permission denied)",
            r"(?:bash|sh|line \d+|mkdir: [^:]*|touch: [^:]*|cp: [^:]*): \W?(?P<path>[\w./~-]+)\W?: "
            r"(?P<reason>Permission denied)",
            r"name = '(?P<path>[^']+)', errno = 13, error message = '(?P<reason>Permission denied)'",
        ),
        what="{reason}: `{path}`",
        why=_DENIED_WHY,
        fixes=(
            "write elsewhere: `findmnt -T {path}` shows the mount ({mount}), `dmesg | tail` if a disk's error made it",
            "look at it as this user on the node that failed: `namei -l {path}`",
            "if it is the program to run: `chmod +x {path}`",
            *_DENIED_FIXES[1:],
        ),
        examples=(
            "PermissionError: [Errno 13] Permission denied: '/gpfs/weather/out/ens_0007.nc'",
            "OSError: [Errno 30] Read-only file system: '/data/cache'",
            "RuntimeError: open(/pg_lock): Permission denied",
            "error while creating mount source path '/data/x': mkdir /data/x: read-only file system",
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: Get",
            "bash: ./rank.sh: Permission denied",
            "python: can't open file '/root/train.py': [Errno 13] Permission denied",
            "PermissionError: [Errno 1] Operation not permitted: '/data/x'",
            "Unable to open /dev/kfd read-write: Permission denied",
            "OSError: Unable to open file (name = 'a.h5', errno = 13, error message = 'Permission denied')",
        ),
        near_misses=("fopen(/tmp/x): ok", "Permission denied is a label of class 3"),
        source="https://docs.python.org/3/library/exceptions.html#PermissionError",
    ),
    Signature(
        code="permission-denied",
        tier=Tier.CAUSE,
        patterns=(r".*errno: 13 - Permission denied", r".*code: -13, name: EACCES"),
        what="the port of the rendezvous was refused: `{line}`",
        why="Ports below 1024 belong to root.",
        fixes=("use `--master-port 29501`, or leave the port out: on one node ddplaunch picks a free one",),
        examples=(
            "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:711 (errno: 13 - Permission "
            "denied).",
            "DistNetworkError: The server socket has failed to bind. port: 80, useIpv6: false, code: -13, name: EACCES",
        ),
        near_misses=("PermissionError: [Errno 13] Permission denied: '/data'",),
        source="https://man7.org/linux/man-pages/man7/ip.7.html",
    ),
    Signature(  # PyTorchFileWriter says no more than that the file could not be opened
        code="permission-denied",
        tier=Tier.GENERAL,
        patterns=(r"RuntimeError: File (?P<path>\S+) cannot be opened\.",),
        what="`{path}` could not be opened for writing",
        why="torch.save does not say the reason: nearly always a folder that this user may not write into",
        fixes=(
            "look at it as this user on the node that failed: `namei -l {path}`, `touch {path}`",
            *_DENIED_FIXES[1:],
        ),
        examples=("RuntimeError: File /results/shared/epoch3.pt cannot be opened.",),
        near_misses=("RuntimeError: Parent directory /ckpt does not exist.",),
        source="https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.cc",
    ),
    Signature(
        code="permission-denied",
        tier=Tier.CAUSE,
        patterns=(
            r"RuntimeError: Permission denied",
            r"open file failed(?: because of errno \d+ on fopen:| with strerror:)? ?"
            r"(?:Permission denied|Read-only file system)",
            r"(?:PermissionError|OSError): \[Errno (?:1|13|30)\] "
            r"(?:Permission denied|Operation not permitted|Read-only file system)[\w -]*",
            r"Permission denied \((?:publickey|password|gssapi)[^)]*\)",
            r"unable to lock file, errno = \d+",
            r"shared memory object <[^>]*>[^:]*: Permission denied",
        ),
        what="access was refused: `{line}`",
        why=_DENIED_WHY,
        fixes=_DENIED_FIXES,
        examples=(
            "RuntimeError: Permission denied",
            '    "message": "RuntimeError: Permission denied",',
            "RuntimeError: [enforce fail at inline_container.cc:1] . open file failed with strerror: Read-only file "
            "system",
            "PermissionError: [Errno 1] Operation not permitted",
            "RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode: Permission denied (13)",
            "ana@node2: Permission denied (publickey).",
            "BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11)",
        ),
        near_misses=("NCCL INFO NET/IB : No device found, permission to open denied",),
        source="https://man7.org/linux/man-pages/man2/open.2.html",
    ),
)
