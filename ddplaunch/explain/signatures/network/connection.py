"""Ports that are taken, host names without an address, and interfaces that do not reach the other nodes."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier

_TAKEN_WHY = (
    "Another process listens on this port: an older run that was not stopped, a second job with the same "
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
_WHY = (
    "NCCL and gloo tell the other ranks the address of one interface of their own; if it is a bridge, loopback, "
    "link-local or otherwise private one, the others cannot connect to it."
)
_FIXES = (
    "Name the interface that connects the nodes: `--socket-ifname eth0` (find it: `ip -4 route get "
    "ADDRESS_OF_OTHER_NODE`).",
    "In containers use the host's network: `docker run --network=host`.",
    "See what was chosen: `--nccl-debug INFO`, then the line `Bootstrap : Using`.",
)
_UNREACHED = r"(?:No route to host|Network is unreachable|Connection timed out|Software caused connection abort)"
#: How NCCL, old and new, names the interface that it took: those here reach nobody else.
_TAKEN = (
    r"(?:Using|NET : Using interface) (?:interface )?(?:\[\d+\])?(?P<interface>{0})"
    r":(?P<own>[0-9a-f.:]+(?:%\w+)?)<"
)
_BRIDGES = r"(?:virbr|docker|veth|br-|cni|flannel|cali|vboxnet|vmnet|podman|lxc|lxd)[\w.-]*"

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="port-taken",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:Error|error): .*port: (?P<port>\d+),.*(?:code: -(?:98|48).*ddress already in use|EADDRINUSE)",
            r"(?:Error|error): .*:(?P<port>\d+) \(errno: (?:98|48) - Address already in use\)",
            r"on port `?(?P<port>\d+)`?, but another process is utilizing it",
            r"(?:Error|error|Exception): .*\bport (?P<port>\d+) is already (?:in use|taken|allocated)",
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
            "RuntimeError: Failed to start server: port 8000 is already in use",
            "E0101 server_chttp2.cc: bind address 0.0.0.0:6379 failed: Address already in use",
        ),
        near_misses=(
            "[W socket.cpp:436] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address "
            "family not supported by protocol).",
            "TensorBoard could not bind to port 6006, it was already in use",
        ),
        unless=(_NOT_TRAINING,),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp",
    ),
    Signature(
        code="port-taken",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:RuntimeError|OSError|socket\.error|error|DistNetworkError|RpcError): (?:\[Errno (?:98|48)\] )?"
            r"(?:(?:Failed to bind|The server socket has) .{1,180}: )?(?P<line>[Aa]ddress already in use)",
            r"OSError: \[WinError 10048\] (?P<line>.{1,80})",
            r"(?:NCCL WARN|Bootstrap).*[Bb]ind.*(?P<line>Address already in use)",
        ),
        what="the rendezvous port is taken: {line}",
        why=_TAKEN_WHY,
        fixes=_TAKEN_FIXES,
        examples=(
            "OSError: [Errno 98] Address already in use",
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use",
            "OSError: [WinError 10048] Only one usage of each socket address is normally permitted",
            "grpc.RpcError: Failed to bind to address 0.0.0.0:6006: Address already in use",
            "misc/socket.cc:317 NCCL WARN Bind to 10.0.0.3<29600> failed : Address already in use",
        ),
        near_misses=('log: "Address already in use" means that TensorBoard runs twice',),
        unless=(_NOT_TRAINING,),
        log_unless=(r"[Tt]ensor[Bb]oard could not bind",),
        source="https://github.com/pytorch/pytorch/issues/73320",
    ),
    Signature(
        code="port-taken",
        tier=Tier.HINT,
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
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp",
    ),
    Signature(
        code="host-name-unresolvable",
        tier=Tier.SYMPTOM,
        patterns=(
            r"(?<!IPv6 )network addresses of \((?P<host>[^,)]+), \d+\) cannot be retrieved \(gai error: -\d+",
            r"Could not resolve hostname (?P<host>[^\s:]+)",
            r"gethostbyname\(\"?(?P<host>[^\")]+)\"?\) failed",
            r"getaddrinfo ENOTFOUND (?P<host>\S+)",
            r"\blookup (?P<host>\S+)(?: on \S+)?: no such host",
            r"Unknown host:? (?P<host>[\w.-]+)",
            r"Unable to resolve \"(?P<host>[^\"]+)\": Unknown host",
            r"(?P<host>[\w.-]+): (?:[Hh]ost unknown|[Uu]nknown host)\b",
        ),
        what="the name `{host}` has no address on this node",
        why=_NAME_WHY,
        fixes=(_NAME_FIXES[0], "test it on the node that failed: `getent hosts {host}`; add it to /etc/hosts"),
        examples=(
            "dial tcp: lookup registry-1.docker.io on 10.0.0.2:53: no such host",
            "[W socket.cpp:601] [c10d] The IPv4 network addresses of (node-a, 29500) cannot be retrieved (gai error: "
            "-2 - Name or service not known).",
            "ssh: Could not resolve hostname gpu7: Name or service not known",
            'pdsh@head: gethostbyname("gpu7") failed',
            "Error: getaddrinfo ENOTFOUND gpu7",
            "Unknown host gpu7",
            'srun: error: Unable to resolve "gpu7": Unknown host',
            "ssh: gpu7: host unknown",
        ),
        near_misses=("[W socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3",),
        source="https://man7.org/linux/man-pages/man3/getaddrinfo.3.html",
    ),
    Signature(
        code="host-name-unresolvable",
        tier=Tier.SYMPTOM,
        patterns=(r"IPv6 network addresses of \((?P<host>[^,)]+), \d+\) cannot be retrieved \(gai error: -\d+",),
        what="the name `{host}` has no address on this node",
        why=_NAME_WHY,
        fixes=(_NAME_FIXES[0], "test it on the node that failed: `getent hosts {host}`; add it to /etc/hosts"),
        examples=(
            "[W socket.cpp:601] [c10d] The IPv6 network addresses of (ddp-0.ddp, 29500) cannot be retrieved (gai "
            "error: -2 - Name or service not known).",
        ),
        near_misses=(
            "TimeoutError: The IPv6 network addresses of (node0, 29500) cannot be retrieved (gai error: -2 - x). The "
            "client socket has failed to connect to node0:29500 (errno: 113 - No route to host).",
        ),
        unless=(r"errno: 1(?:10|11|13)\b",),
        log_unless=(r"errno: 1(?:10|11|13)\b",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp",
    ),
    Signature(
        code="host-name-unresolvable",
        tier=Tier.SYMPTOM,
        patterns=(
            r"socket\.gaierror: \[Errno -?\d+\] (?P<reason>.+)",
            r"RuntimeError: (?:.*: )?(?P<reason>Name or service not known|Temporary failure in name resolution)",
            r"NCCL WARN .*: (?P<reason>Name or service not known|Temporary failure in name resolution)",
            r"RuntimeError: (?P<reason>No address associated with hostname)",
            r"host not found: (?P<reason>.+)",
            r"hostname: (?P<reason>EAI_\w+)",
            r"error: get_addr\w*: (?P<reason>.*host unknown)",
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
            "srun: error: get_addr_info: host unknown",
        ),
        near_misses=(
            "NewConnectionError: Failed to establish a new connection: [Errno -2] Name or service not known",
            "WARNING: could not get host name of client: Name or service not known",
        ),
        unless=(_DOWNLOADS,),
        log_unless=(_DOWNLOADS,),
        source="https://docs.python.org/3/library/socket.html#socket.gaierror",
    ),
    Signature(
        code="wrong-network-interface",
        tier=Tier.CAUSE,
        patterns=(
            r"[Nn]o socket interface found",
            r"No interface found in the same subnet as remote address \S+",
            r"No usable listening interface found",
            r"WARN (?P<line>Socket creation failed : Address family not supported by protocol)",
        ),
        what="NCCL found no usable network interface: {line}",
        why=_WHY,
        fixes=("correct or unset NCCL_SOCKET_IFNAME: it names an interface that this node does not have", *_FIXES),
        examples=(
            "NCCL WARN Bootstrap : no socket interface found",
            "misc/socket.cc:238 NCCL WARN Net : No interface found in the same subnet as remote address "
            "192.168.20.14<29777>",
            "bootstrap.cc:43 NCCL WARN NET/Socket : No usable listening interface found",
            "node-1:3171:3171 [0] include/socket.h:311 WARN Socket creation failed : Address family not supported by "
            "protocol",
        ),
        near_misses=("NCCL INFO NET/IB : No device found.", "NCCL INFO Bootstrap : Using enp5s0:192.168.0.31<0>"),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname",
    ),
    Signature(
        code="wrong-network-interface",
        tier=Tier.CAUSE,
        patterns=(
            r"Unable to find (?:address|interface) for: ?\S+",
            r"(?:makeDeviceFor\w+\(\)|RuntimeError): unsupported gloo device|makeUVDevice\(\): interface or .*",
            r"ifa != nullptr",
        ),
        what="gloo found no address to listen on: {line}",
        why="gloo takes one interface from GLOO_SOCKET_IFNAME (no list, no `^`), or the address of this host's "
        "own name",
        fixes=(
            "set it to an interface of this node, spelled as `ip -br addr` does: `--socket-ifname eth0`",
            "without it, let the node's own name resolve to its address: `getent hosts $(hostname)`",
        ),
        examples=(
            "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address "
            "for: ib0",
            "RuntimeError: [enforce fail] ifa != nullptr. Unable to find interface for: [10.1.2.3]",
            "RuntimeError: makeDeviceForHostname(): unsupported gloo device",
            "RuntimeError: GlooDeviceFactory::makeUVDevice(): interface or hostname can't be empty",
            "RuntimeError: [enforce fail at ../gloo/transport/tcp/device.cc:83] ifa != nullptr. ",
        ),
        near_misses=("Unable to find hostfile, will proceed with training with local resources only.",),
        unless=(r"hostfile",),
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/device.cc",
    ),
    Signature(
        code="wrong-network-interface",
        tier=Tier.UNCERTAIN,
        patterns=(
            r"(?:Call to connect|[Cc]onnect to (?!127\.)[\w.:%]+<\d+>) (?:failed : |timeout : |returned (?:\d+\()?)"
            r"(?P<reason>[A-Z][a-z]+(?: [a-z]+)*)\b",
        ),
        unless=(r"retrying",),
        log_with=(_TAKEN.format(rf"{_BRIDGES}|lo"),),
        what="NCCL used {interface} ({own}), which other hosts do not reach: {reason}",
        why=_WHY,
        fixes=(
            "name the interface that connects the nodes, not {interface}: `--socket-ifname eth0` (find it: "
            "`ip -4 route get ADDRESS_OF_OTHER_NODE`)",
            _FIXES[1],
        ),
        examples=(
            "include/socket.h:360 WARN Call to connect failed : Connection timed out",
            "NCCL WARN socketPollConnect: Connect to 192.168.122.1<568> returned 113(No route to host) errno 115",
            "NCCL WARN Connect to 10.38.10.112<21724> failed : Connection refused",
        ),
        near_misses=(
            "socketStartConnect: Connect to 127.0.0.1<41123> failed : Connection refused",
            "NCCL INFO Call to connect returned Connection refused, retrying",
            "NCCL INFO Bootstrap : Using virbr0:192.168.122.1<0>",
        ),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname",
    ),
    Signature(
        code="wrong-network-interface",
        tier=Tier.UNCERTAIN,
        patterns=(
            r"[Cc]onnect to (?P<address>fe80:[^\s<]*|169\.254\.[\d.]+|192\.168\.122\.\d+"
            r"|172\.(?:1[7-9]|2\d|30)\.[\d.]+)<\d+> (?:failed|returned(?! Connection refused, retrying))",
            r"connectFullMesh failed.*remote=\[(?P<address>127\.0\.[1-9]\d*\.\d+|172\.(?:1[7-9]|2\d|30)\.[\d.]+)\]",
            r"pair\.cc:\d+\] connect \[(?P<address>127\.0\.[1-9]\d*\.\d+|fe80:[^\]]*)\]",
            r"(?:timed out connecting|failed to connect).*remote=\[(?P<address>127\.0\.[1-9]\d*\.\d+|fe80:[^\]]*)\]",
        ),
        what="a rank announced {address}, an address that only its own host or container knows",
        why=_WHY,
        fixes=_FIXES,
        examples=(
            "misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.18.0.3<40519> failed : Software caused "
            "connection abort",
            "NCCL WARN Connect to fe80::4c9d:8bff:fe01:77c2%3<51833> failed : Network is unreachable",
            "NCCL WARN socketPollConnect: Connect to 192.168.122.1<5684> returned 113(No route to host) errno 115",
            "RuntimeError: [gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:40411: Connection refused",
            "ERROR failed to connect, willRetry=0, local=[127.0.1.1]:11411, remote=[127.0.1.1]:6492, error=Connection "
            "refused",
            "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error, "
            "remote=[127.0.1.1]:4411",
        ),
        near_misses=(
            "socketStartConnect: Connect to 10.3.0.12<44181> failed : Software caused connection abort",
            "NCCL INFO socketPollConnect: connect to 172.18.0.3<4051> returned Connection refused, retrying (2/34)",
            "Gloo connectFullMesh failed with [pair.cc:152] timed out connecting: Connection refused, "
            "remote=[10.77.0.1]:6492",
        ),
        source="https://github.com/NVIDIA/nccl/blob/master/src/misc/socket.cc",
    ),
    Signature(
        code="wrong-network-interface",
        tier=Tier.SYMPTOM,
        patterns=(
            rf"Connect to [\d.]+<\d+> failed : {_UNREACHED}",
            rf"NCCL WARN (?P<line>(?:\w+: )?[Cc]onnect to [\d.]+<\d+> returned (?:\d+\()?{_UNREACHED})",
            rf"WARN (?P<line>Call to connect (?:timeout : [A-Z][a-z ]+|failed : {_UNREACHED}))",
            r"Connect timeout \[[^\]]*\]",
            r"connectFullMesh failed.*(?P<line>(?:No route to host|Network is unreachable).*remote=\[[^\]]+\])",
        ),
        what="a rank could not reach the address that another one announced: {line}",
        why=_WHY,
        fixes=(
            *_FIXES[:2],
            "if the interface is right, open all ports between the nodes: NCCL and gloo take random ones",
        ),
        examples=(
            "NCCL WARN socketStartConnect: Connect to 192.168.50.2<44181> failed : No route to host",
            "NCCL WARN Connect to 10.0.0.3<51833> failed : Network is unreachable",
            "include/socket.h:361 NCCL WARN Call to connect timeout : Connection refused",
            "include/socket.h:360 WARN Call to connect failed : Connection timed out",
            "NCCL WARN socketPollConnect: connect to 192.168.10.4<58211> returned No route to host, exceeded error",
            "socketStartConnect: Connect to 10.4.4.19<38571> failed : Software caused connection abort",
            "RuntimeError: [gloo/transport/tcp/pair.cc:799] connect [10.0.0.7]:3210: Connect timeout [none]",
            "Gloo connectFullMesh failed with timed out connecting: SO_ERROR: No route to host, "
            "remote=[10.8.0.1]:64920$2",
        ),
        near_misses=(
            "NCCL INFO Call to connect returned Connection refused, retrying",
            "NCCL INFO socketPollConnect: connect returned No route to host, retrying (27/34) after sleep for 9 msec",
        ),
        log_unless=(r"[Nn]ode failure|NODE FAILURE",),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#networking-issues",
    ),
    Signature(
        code="wrong-network-interface",
        tier=Tier.SYMPTOM,
        patterns=(r"[Cc]onnect to 127\.[\d.]+<\d+> (?:failed : |returned (?:\d+\()?)(?P<reason>Connection \w+)\b",),
        log_with=(_TAKEN.format("lo"),),
        what="NCCL used {interface} ({own}), the loopback interface, on which no other host answers: {reason}",
        why=_WHY,
        fixes=_FIXES,
        examples=("socketStartConnect: Connect to 127.0.0.1<41123> failed : Connection refused",),
        near_misses=("NCCL WARN Connect to 10.38.10.112<21724> failed : Connection refused",),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname",
    ),
    Signature(
        code="wrong-network-interface",
        tier=Tier.SYMPTOM,
        patterns=(r"connectFullMesh failed.*remote=\[(?P<address>127\.0\.0\.1|::1|localhost)\]",),
        what="a rank announced its loopback address {address} to the others",
        why="gloo binds to the interface in GLOO_SOCKET_IFNAME, else to what the host's own name resolves to, and "
        "falls back to loopback (`lo`) where it does not resolve",
        fixes=(
            _FIXES[0],
            "if all ranks are on one node, a rank that ended earlier is the cause: look at the first exit",
        ),
        examples=(
            "RuntimeError: Gloo connectFullMesh failed with [pair.cc:152] timed out connecting: SO_ERROR: Connection "
            "refused, remote=[127.0.0.1]:14215",
        ),
        near_misses=(
            "Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback.",
        ),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp",
    ),
    Signature(
        code="wrong-network-interface",
        tier=Tier.SYMPTOM,
        patterns=(
            r"connectFullMesh failed with .{0,160}",
            r"pair\.cc:\d+\] (?P<line>connect \[[^\]]+\]\S* (?:Connection refused|No route to host|Connection timed "
            r"out))",
        ),
        what="gloo could not connect the ranks with one another: {line}",
        why="each rank announces the address of one interface; a firewall, a wrong interface or a rank that is gone "
        "refuses it",
        fixes=(
            "Let TCP through between the nodes on all ports: ranks listen on ports that the kernel chooses.",
            *_FIXES,
        ),
        examples=(
            "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no "
            "error",
            "RuntimeError: [gloo/transport/tcp/pair.cc:799] connect [10.0.0.9]:40411: Connection refused",
        ),
        near_misses=("[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1",),
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc",
    ),
)
