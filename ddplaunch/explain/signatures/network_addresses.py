"""How a taken port and a name without address show; refuses peers that cannot be reached."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

_TAKEN_WHY = (
    "Another process listens on the rendezvous port: an older run that was not stopped, a second job with the same "
    "default port (29500), or two launchers of one job on the same node."
)
_TAKEN_FIXES = (
    "Leave the port out (on one node ddplaunch picks a free one) or choose another: `--master-port 29501` on every "
    "node.",
    "See who holds it on the node of rank 0: `ss -ltnp | grep 29500`, and end a left-over run of yours.",
)
_NOT_TRAINING = r"[Tt]ensor[Bb]oard|[Jj]upyter|[Pp]rometheus|[Gg]radio|visdom|trying \d+"
_NAME_WHY = "The resolver of this node (DNS, /etc/hosts) has no address for the name, so nothing can be connected."
_NAME_FIXES = (
    "Use an address that every node knows: `--master-addr 10.0.0.5` (`hostname -I` on the node of rank 0).",
    "Test it on the node that failed: `getent hosts NAME`; add it to /etc/hosts or use the full name.",
)
_DOWNLOADS = r"urllib3|requests[./]|huggingface|hf\.co|wandb|httpx|botocore|aiohttp|Max retries|<urlopen error"

ADDRESSES: tuple[Signature, ...] = (
    Signature(
        code="port-taken",
        role="root",
        literals=("EADDRINUSE", "ddress already in use", "another process is utilizing"),
        patterns=(
            r"(?:Error|error): .*port: (?P<port>\d+),.*(?:code: -(?:98|48)|EADDRINUSE)",
            r"(?:Error|error): .*:(?P<port>\d+) \(errno: (?:98|48) - Address already in use\)",
            r"on port `?(?P<port>\d+)`?, but another process is utilizing it",
            r"(?:bind|listen|address)\S*:? .*:(?P<port>\d+)[^\d:].*[Aa]ddress already in use",
        ),
        what="port {port} is already in use on the node of rank 0",
        why=_TAKEN_WHY,
        fixes=(
            _TAKEN_FIXES[0],
            "see who holds it: `ss -ltnp | grep :{port}` on that node; end a left-over run of yours",
        ),
        examples=(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            "RuntimeError: The server socket has failed to listen on any local network address. The server socket has "
            "failed to bind to [::]:29500 (errno: 98 - Address already in use).",
            "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is "
            "utilizing it.",
            "E0101 server_chttp2.cc: bind address 0.0.0.0:6379 failed: Address already in use",
        ),
        near_misses=(
            "[W socket.cpp:436] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address "
            "family "
            "not supported by protocol).",
            "TensorBoard could not bind to port 6006, it was already in use",
        ),
        unless=(_NOT_TRAINING,),
        priority=70,
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp",
    ),
    Signature(
        code="port-taken",
        role="root",
        literals=("ddress already in use",),
        patterns=(
            r"(?:RuntimeError|OSError|socket\.error|error|DistNetworkError): (?:\[Errno (?:98|48)\] )?"
            r"(?P<line>[Aa]ddress already in use)",
            r"(?:NCCL WARN|Bootstrap).*[Bb]ind.*(?P<line>Address already in use)",
        ),
        what="the rendezvous port is taken: {line}",
        why=_TAKEN_WHY,
        fixes=_TAKEN_FIXES,
        examples=(
            "RuntimeError: Address already in use",
            "OSError: [Errno 98] Address already in use",
            "misc/socket.cc:317 NCCL WARN Bind to 10.0.0.3<29600> failed : Address already in use",
        ),
        near_misses=('log: "Address already in use" means that TensorBoard runs twice',),
        unless=(_NOT_TRAINING,),
        log_unless=(r"[Tt]ensor[Bb]oard could not bind",),
        priority=65,
        source="https://github.com/pytorch/pytorch/issues/73320",
    ),
    Signature(
        code="port-taken",
        role="confirmation",
        literals=("Address already in use",),
        patterns=(
            r"server socket has failed to (?:bind|listen).*:(?P<port>\d+) \(errno: (?:98|48) - Address already in "
            r"use\)",
        ),
        what="port {port} could not be bound: it is in use",
        why=_TAKEN_WHY,
        fixes=_TAKEN_FIXES,
        examples=(
            "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address "
            "already in use).",
        ),
        near_misses=("[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 97 - x).",),
        priority=40,
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp",
    ),
    Signature(
        code="host-name-unresolvable",
        role="root",
        literals=("cannot be retrieved (gai error", "resolve hostname", "gethostbyname", "ENOTFOUND", "Unknown host"),
        patterns=(
            r"(?<!IPv6 )network addresses of \((?P<host>[^,)]+), \d+\) cannot be retrieved \(gai error: -\d+",
            r"Could not resolve hostname (?P<host>[^\s:]+)",
            r"gethostbyname\(\"?(?P<host>[^\")]+)\"?\) failed",
            r"getaddrinfo ENOTFOUND (?P<host>\S+)",
            r"(?:Unknown host|host unknown):? (?P<host>[\w.-]+)",
        ),
        what="the name `{host}` has no address on this node",
        why=_NAME_WHY,
        fixes=(_NAME_FIXES[0], "test it on the node that failed: `getent hosts {host}`; add it to /etc/hosts"),
        examples=(
            "[W socket.cpp:601] [c10d] The IPv4 network addresses of (node-a, 29500) cannot be retrieved (gai error: "
            "-2 - "
            "Name or service not known).",
            "ssh: Could not resolve hostname gpu7: Name or service not known",
            'pdsh@head: gethostbyname("gpu7") failed',
            "Error: getaddrinfo ENOTFOUND gpu7",
            "Unknown host gpu7",
        ),
        near_misses=("[W socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3",),
        priority=70,
        source="https://man7.org/linux/man-pages/man3/getaddrinfo.3.html",
    ),
    Signature(
        code="host-name-unresolvable",
        role="root",
        literals=("IPv6 network addresses of",),
        patterns=(r"IPv6 network addresses of \((?P<host>[^,)]+), \d+\) cannot be retrieved \(gai error: -\d+",),
        what="the name `{host}` has no address on this node",
        why=_NAME_WHY,
        fixes=(_NAME_FIXES[0], "test it on the node that failed: `getent hosts {host}`; add it to /etc/hosts"),
        examples=(
            "[W socket.cpp:601] [c10d] The IPv6 network addresses of (ddp-0.ddp, 29500) cannot be retrieved (gai "
            "error: -2 - "
            "Name or service not known).",
        ),
        near_misses=(
            "TimeoutError: The IPv6 network addresses of (node0, 29500) cannot be retrieved (gai error: -2 - x). The "
            "client "
            "socket has failed to connect to node0:29500 (errno: 113 - No route to host).",
        ),
        unless=(r"errno: 1(?:10|11|13)\b",),
        log_unless=(r"errno: 1(?:10|11|13)\b",),
        priority=62,
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp",
    ),
    Signature(
        code="host-name-unresolvable",
        role="root",
        literals=(
            "gaierror",
            "Name or service not known",
            "failure in name resolution",
            "No address associated",
            "EAI_",
            "host not found",
        ),
        patterns=(
            r"socket\.gaierror: \[Errno -?\d+\] (?P<reason>.+)",
            r"RuntimeError: (?:.*: )?(?P<reason>Name or service not known|Temporary failure in name resolution)",
            r"NCCL WARN .*: (?P<reason>Name or service not known|Temporary failure in name resolution)",
            r"RuntimeError: (?P<reason>No address associated with hostname)",
            r"host not found: (?P<reason>.+)",
            r"hostname: (?P<reason>EAI_\w+)",
        ),
        what="a host name could not be resolved: {reason}",
        why=_NAME_WHY,
        fixes=_NAME_FIXES,
        examples=(
            "socket.gaierror: [Errno -2] Name or service not known",
            "RuntimeError: Temporary failure in name resolution",
            "NCCL WARN ncclGetSocketAddrFromString : error encountered when getting address info : Name or service "
            "not known",
            "RuntimeError: In operator() at tensorpipe/common/ibv.h failed to look up the IP address for the "
            "hostname: EAI_NONAME",
            "RuntimeError: No address associated with hostname",
            "ValueError: host not found: Name or service not known",
        ),
        near_misses=(
            "NewConnectionError: Failed to establish a new connection: [Errno -2] Name or service not known",
            "WARNING: could not get host name of client: Name or service not known",
        ),
        unless=(_DOWNLOADS,),
        log_unless=(_DOWNLOADS,),
        priority=65,
        source="https://docs.python.org/3/library/socket.html#socket.gaierror",
    ),
)
