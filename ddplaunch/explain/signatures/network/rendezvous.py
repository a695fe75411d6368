"""Nodes and ranks that do not find each other before training begins."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier

_WHY = (
    "All nodes meet at the store of the node with rank 0; a wrong address or port, a firewall, a node that was not "
    "started, or ranks that ended before joining keep the others waiting until the timeout."
)
_FIXES = (
    "Test the way from a waiting node: `nc -vz MASTER_ADDR MASTER_PORT`; open the port between the nodes if it hangs.",
    "Start every node with the same `--nnodes`, `--master-addr`, `--master-port`, and its own `--node-rank`.",
    "Look at the node that did not join: its own log says why (an import that fails there, a wrong command).",
)
_SHUTDOWN = r"failed to shutdown the rendezvous|keep-alive heartbeat|due to an error of type"

#: What a rank is told with that lost its connection in `init_process_group`; ranks that lose a peer print the same.
LOST_WHILE_JOINING = Signature(
    code="rendezvous-failed",
    tier=Tier.HINT,  # likely, and no more: only where nothing else failed
    patterns=(),
    what="lost its connection in `init_process_group`: {line}",
    why="no rank is seen to fail before: a proxy, a firewall or a foreign service answered in place of the store or "
    "a rank, or a rank of another log ended while all joined",
    fixes=(
        "look at the logs of the ranks that are not here, that of rank 0 first: one that ended while joining says why",
        "look at who answers at the address that all nodes meet at: `nc -vz MASTER_ADDR MASTER_PORT`; a sidecar proxy "
        "of a service mesh has to let it through",
        _FIXES[1],
    ),
    examples=(),
)

_FILE = r"DistStoreError: (?P<reason>No such file or directory|Permission denied|Read-only file system|Is a directory)"
_FILE_WHY = (
    "torch's FileStore makes this file in a folder that has to be there and that all ranks may write to; it tries "
    "for five minutes before it gives up"
)
_FILE_FIXES = (
    "leave `init_method` out: `init_process_group()` then meets through the address that the launcher sets (`env://`)",
    "make the folder, on a file system that all nodes share, and use another file for each run",
)


def _no_file(what: str, log_with: tuple[str, ...]) -> Signature:
    """Return the signature of a FileStore that cannot open its file."""
    return Signature(
        code="rendezvous-failed",
        tier=Tier.CAUSE,
        patterns=(_FILE,),
        log_with=log_with,
        what=what,
        why=_FILE_WHY,
        fixes=_FILE_FIXES,
        examples=("torch.distributed.DistStoreError: No such file or directory",),
        near_misses=("torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /a",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/FileStore.cpp",
    )


SIGNATURES: tuple[Signature, ...] = (
    _no_file("the ranks cannot meet at `{url}`: {reason}", (r"[\"'](?P<url>file://[^\"']+)[\"']",)),
    _no_file("the ranks cannot meet through a file: {reason}", ()),
    Signature(
        code="rendezvous-failed",
        tier=Tier.SYMPTOM,
        patterns=(
            r"client socket has timed out after \d+ ?m?s while trying to connect to \(?(?P<host>[^\s,()]+)(?:, "
            r"|:)(?P<port>\d+)",
            r"failed to connect to any network address of \((?P<host>[^,)]+), (?P<port>\d+)\)",
        ),
        what="nobody answered at {host}:{port}",
        why=_WHY,
        fixes=("test the way from a waiting node: `nc -vz {host} {port}`; open the port if it hangs", *_FIXES[1:]),
        examples=(
            "[E socket.cpp:1028] [c10d] The client socket has timed out after 10000ms while trying to connect to "
            "(10.0.0.1, 29558).",
            "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to "
            "192.0.0.1:1234",
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
            "(10.77.0.77, 29500). The client socket has failed to connect to 66.86.0.0:16472 (errno: 113 - No route "
            "to host).",
        ),
        near_misses=(
            "[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - "
            "Cannot assign requested address).",
        ),
        log_unless=(
            r"IPv4 network addresses of .* cannot be retrieved \(gai error",
            r"EADDRINUSE|Address already in use",
        ),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp",
    ),
    Signature(
        code="rendezvous-failed",
        tier=Tier.SYMPTOM,
        patterns=(
            r"Timed out after (?P<wait>\S+ seconds) waiting for clients\. (?P<joined>\d+)/(?P<expected>\d+) "
            r"clients joined",
            r"store based barrier on rank:? ?(?P<culprit>\d+).*\(world_size=(?P<expected>\d+), "
            r"(?:worker_count|num_workers_joined)=(?P<joined>\d+), timeout=(?P<wait>[\d:.]+)",
        ),
        what="only {joined} of {expected} joined the rendezvous within {wait}",
        why=_WHY,
        fixes=_FIXES,
        examples=(
            "torch.distributed.DistStoreError: Timed out after 21 seconds waiting for clients. 1/2 clients joined.",
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
            "store_based_barrier_key:1 (world_size=3, worker_count=1, timeout=0:01:00)",
            "DistStoreError: Timed out initializing process group in store based barrier on rank: 0, for key: "
            "store_based_barrier_key:1 (world_size=8, num_workers_joined=4, timeout=0:10:00 error=wait timeout)",
        ),
        near_misses=("Added key: store_based_barrier_key:1 to store for rank: 0",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/distributed_c10d.py",
    ),
    Signature(
        code="rendezvous-failed",
        tier=Tier.SYMPTOM,
        patterns=(r"DEADLINE_EXCEEDED: .*(?P<line>PjRT_Client_Connect|Wait_for_all_tasks_to_register)",),
        what="the processes of JAX did not all connect to their coordinator ({line})",
        why="`jax.distributed.initialize` waits for as many as it was told of; the message names who is missing",
        fixes=(
            "look at the log of each task that it names: it was not started, or ended before",
            "see whether that host reaches the coordinator: `nc -vz HOST PORT` with the address of process 0",
        ),
        examples=(
            "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task",
        ),
        near_misses=("XlaRuntimeError: DEADLINE_EXCEEDED: allocation of a buffer",),
        source="https://docs.jax.dev/en/latest/multi_process.html",
    ),
    Signature(
        code="rendezvous-failed",
        tier=Tier.SYMPTOM,
        patterns=(r"wait timeout after \d+ms, keys: (?P<key>/\S*(?:role_info|rank_info|num_members|rdzv_info)\S*)",),
        what="two nodes joined as the same one: the store waits for `{key}`, which nobody writes",
        why="static rendezvous tells nodes apart by their node rank; with the same number twice one entry stays empty",
        fixes=(
            "give every node its own number: `--node-rank 0` on the first, `--node-rank 1` on the second, and so on",
        ),
        examples=(
            "torch.distributed.DistStoreError: wait timeout after 60000ms, keys: /none/torchelastic/role_info/1",
            "DistStoreError: wait timeout after 300000ms, keys: /torch.rendezvous.none/torchelastic/role_info/1",
        ),
        near_misses=("wait timeout after 300000ms, keys: /default_pg/0//cpu//0/1",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/agent/server/api.py",
    ),
    Signature(
        code="rendezvous-failed",
        tier=Tier.SYMPTOM,
        patterns=(
            r"wait timeout after (?P<ms>\d+)ms, keys: /\S*//(?:cpu|cuda|gloo|nccl)//\d+/(?P<culprit>\d+)(?![\d/])",
        ),
        what="rank {culprit} did not join the process group within {ms} ms",
        why=_WHY,
        fixes=("look at the log of rank {culprit}: it ended or hung before `init_process_group`", *_FIXES),
        examples=("torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/1",),
        near_misses=("wait timeout after 60000ms, keys: /none/torchelastic/role_info/1",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/TCPStore.cpp",
    ),
    Signature(
        code="rendezvous-failed",
        tier=Tier.SYMPTOM,
        patterns=(
            r"connect\(\) timed out\.(?: Original timeout was \d+ ms)?",
            r"RendezvousTimeoutError",
            r"RendezvousConnectionError: The connection to the \S+ store has failed",
            r"RendezvousClosedError",
            r"EtcdConnectionFailed",
        ),
        what="the nodes did not find each other: `{line}`",
        why=_WHY,
        fixes=_FIXES,
        examples=(
            "RuntimeError: connect() timed out. Original timeout was 60000 ms.",
            "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
            "failed. See inner exception for details.",
            "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
            "etcd.EtcdConnectionFailed: Connection to etcd failed due to ReadTimeoutError",
        ),
        near_misses=(
            "W0309 dynamic_rendezvous.py:1341] The node 'gpu-b_88190_0' has failed to shutdown the rendezvous 'r77' "
            "due to an error of type RendezvousConnectionError.",
        ),
        unless=(_SHUTDOWN,),
        log_unless=(
            r"IPv4 network addresses of .* cannot be retrieved \(gai error",
            r"failed to (?:bind|listen).*Address already in use",
        ),
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/api.py",
    ),
    Signature(
        code="rendezvous-failed",
        tier=Tier.CAUSE,
        patterns=(
            r"^(?:[\w.-]+: )?ssh: (?P<line>connect to host (?P<host>\S+) port \d+: [A-Z].+)",
            r"(?P<line>Command 'ssh [^']*?(?P<host>[\w.-]+) hostname' returned non-zero exit status 255)",
            r"(?P<line>host=(?P<host>\S+) was not reachable via ssh)",
            r"^(?P<line>(?:(?P<host>[\w.-]+): )?(?:Host key verification failed|kex_exchange_identification: .{1,80}))",
        ),
        what="the launcher did not reach a node by ssh: {line}",
        why="it starts the ranks of other nodes by ssh, without a password and without a question, from the node that "
        "it runs on; DeepSpeed tries each host of its hostfile with `hostname`, its own one too",
        fixes=(
            "try it as the launcher does: `ssh -o BatchMode=yes {host} hostname`; `ssh-copy-id {host}` gives it your "
            "key, and one login by hand makes it known",
            "where a scheduler starts a task on each node, let it: `srun`, or `ddplaunch run` on every node",
        ),
        examples=(
            "gpu2: ssh: connect to host gpu2 port 22: Connection refused",
            "subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no gpu2 hostname' returned non-zero "
            "exit status 255.",
            "RuntimeError: Using hostfile at /job/hostfile but host=gpu2 was not reachable via ssh. If you are running "
            "with a single node please remove /job/hostfile or setup passwordless ssh.",
            "gpu2: Host key verification failed.",
            "kex_exchange_identification: Connection closed by remote host",
        ),
        near_misses=("pdsh@gpu1: gpu2: ssh exited with exit code 1", "Warning: Permanently added 'gpu2' (ED25519)"),
        source="https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/runner.py",
    ),
    Signature(
        code="rendezvous-failed",
        tier=Tier.CAUSE,
        patterns=(r"use_libuv was requested but PyTorch was bui(?:lt|ld) without libuv support",),
        what="the store of the rendezvous wants libuv, without which this torch was built",
        why="torch takes libuv for its store since 2.4, and its builds for Windows have none before 2.7",
        fixes=(
            "`USE_LIBUV=0` in the environment of the launch: `set USE_LIBUV=0`, in PowerShell `$env:USE_LIBUV = 0`",
        ),
        examples=(
            "torch.distributed.DistStoreError: use_libuv was requested but PyTorch was built without libuv support, "
            "run with USE_LIBUV=0 to disable it.",
        ),
        near_misses=("[I TCPStore.cpp:312] [c10d - debug] The server has started on port = 29500 (libuv)",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/TCPStore.cpp",
    ),
    Signature(
        code="rendezvous-failed",
        tier=Tier.SYMPTOM,
        patterns=(
            r"(?P<line>TCP client failed to connect/validate to host \S+ - timed out) \(try=",
            r"DistStoreError: (?P<line>wait timeout after \d+ms)",
            r"(?:RuntimeError|DistStoreError): (?P<line>Socket Timeout)",
            r"(?:RuntimeError|DistNetworkError): (?P<line>Connection refused)",
        ),
        what="the store of rank 0 did not answer in time: {line}",
        why=_WHY,
        fixes=_FIXES,
        examples=(
            "[E TCPStore.cpp:328] [c10d] TCP client failed to connect/validate to host 127.0.0.1:29558 - timed out "
            "(try=1).",
            "torch.distributed.DistStoreError: wait timeout after 60000ms, keys: /x",
            "RuntimeError: Socket Timeout",
            "RuntimeError: Connection refused",
        ),
        near_misses=(
            "[W TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 10.0.0.1:29500 - retrying "
            "(try=0).",
            "NCCL INFO Call to connect returned Connection refused, retrying",
        ),
        unless=(r"store->get|ncclUniqueId|NCCL",),
        log_unless=(
            r"IPv4 network addresses of .* cannot be retrieved \(gai error",
            r"failed to (?:bind|listen).*Address already in use",
        ),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/TCPStore.cpp",
    ),
    Signature(
        code="wrong-network-interface",
        tier=Tier.CAUSE,
        patterns=(r"ss1\.ss_family == ss2\.ss_family\. (?P<own>\d+) vs (?P<other>\d+)",),
        what="gloo has an IPv4 address of one rank and an IPv6 address of another one ({own} and {other}; 2 is IPv4)",
        why="gloo takes the first address of an interface, or of this host's own name, and both ends need one family",
        fixes=(
            "`--socket-ifname eth0`, an interface that has an IPv4 address on every node: `ip -4 -br addr`",
            "or let each node's own name resolve to IPv4: `getent ahosts $(hostname)`",
        ),
        examples=(
            "RuntimeError: [enforce fail at /gloo/transport/tcp/pair.cc:225] ss1.ss_family == ss2.ss_family. 2 vs 10",
        ),
        near_misses=("RuntimeError: [enforce fail at /gloo/transport/tcp/device.cc:83] ifa != nullptr",),
        source="https://github.com/facebookincubator/gloo/blob/main/gloo/transport/tcp/helpers.cc",
    ),
)
