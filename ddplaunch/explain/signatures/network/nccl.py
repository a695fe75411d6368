"""NCCL's own failures: InfiniBand and RoCE transport, and a missing or mismatched NCCL or network plug-in."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier

_INFO = "see which network NCCL chose and why: `--nccl-debug INFO`"
_SOCKETS = "train over TCP until it is repaired: `--no-nccl-ib`"

SIGNATURES: tuple[Signature, ...] = (
    Signature(  # old: "error 12", new: "status=12"; 5 is a flushed request, always an echo
        code="infiniband-error",
        tier=Tier.SYMPTOM,
        patterns=(
            r"NET/IB\w* ?: ?Got completion (?:from peer \S+ )?with (?:error |status=(?:IBV_\w+\()?)"
            r"(?P<status>(?!5\b)\d+)\)?,? opcode.*vendor[ _]err[ =](?P<vendor>\d+)",
        ),
        what="InfiniBand or RoCE: a transfer failed with status {status}, vendor error {vendor}",
        why="12 is no answer from the other side after all retries (cable, switch, GID or QoS, or the peer is gone), 4 "
        "and 10 memory that the adapter may not touch, 13 a receiver that was not ready",
        fixes=(
            "look at both ends: `ibstat`, `ibv_devinfo`, error counters with `perfquery -x`, and the peer's own log",
            "RoCE: the same `NCCL_IB_GID_INDEX` on all nodes (`show_gids`), and `NCCL_IB_HCA` without dead ports",
            "slow fabrics: `--env NCCL_IB_TIMEOUT=22 --env NCCL_IB_RETRY_CNT=7`",
            _SOCKETS,
            _INFO,
        ),
        examples=(
            "ib-02:412:880 [0] transport/net_ib.cc:832 NCCL WARN NET/IB : Got completion with error 12, opcode 32601, "
            "len 0, vendor err 129",
            "kp-0:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.216.210.236<54862> "
            "with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fd00::22",
            "NCCL WARN NET/IBP:Got completion from peer 7.6.13.83<36315> with status=12 opcode=32698 len=32696 "
            "vendor err 129 (Send)",
            "NCCL WARN NET/IB: Got completion from peer 10.0.0.1<5> with status=IBV_WC_RETRY_EXC_ERR(12) "
            "opcode=IBV_WC_SEND(0) "
            "reqSize=0 vendor_err=129 req_type=Send localGid fe80::1 remoteGids fe80::2 hca mlx5_0",
        ),
        near_misses=("NCCL WARN NET/IB : Got completion with error 5, opcode 0, len 0, vendor err 249",),
        source="https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib.cc",
    ),
    Signature(
        code="collective-timeout",
        tier=Tier.UNCERTAIN,
        patterns=(
            r"\[(?P<culprit>\d+(?:, ?\d+)*)\] finished collective #(?P<last>\d+), but didn't join collective "
            r"#(?P<next>\d+)",
        ),
        what="rank {culprit} finished collective {last} and did not come to the next one, {next}",
        why="torch compares how far each rank has come after a time-out; the others wait for the one that is behind",
        fixes=(
            "look at what that rank did then: its own output, `py-spy dump --pid PID` the next time, a branch or a "
            "longer batch that the others do not have",
        ),
        examples=("   - [5] finished collective #146901, but didn't join collective #146902 (count from 1)",),
        near_misses=("   #146902 started ranks: [0,1,2,3] started _REDUCE_SCATTER_BASE",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/TraceUtils.h",
    ),
    Signature(
        code="infiniband-error",
        tier=Tier.UNCERTAIN,
        patterns=(r"\bib_mlx5_log\.c:\d+ +(?P<line>.*? on (?P<adapter>\S+?)(?::\d+)?/(?:RoCE|IB)\b)",),
        what="InfiniBand or RoCE: UCX says of {adapter}: {line}",
        why="a transfer did not end well after all retries: a cable, switch, GID or QoS, or the peer is gone",
        fixes=(
            "look at both ends: `ibstat`, `ibv_devinfo`, error counters with `perfquery -x`, and the peer's own log",
            "RoCE: the same GID index on all nodes: `show_gids`, `--env UCX_IB_GID_INDEX=N`; `ucx_info -d` lists them",
        ),
        examples=(
            "[n03:61120:0:61120] ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_bond_0:1/RoCE (synd 0x15",
        ),
        near_misses=("[n03:61120:0:61120] ib_mlx5_log.c:177  RC QP 0x1f33 wqe[18204]: SEND s-e",),
        source="https://openucx.readthedocs.io/en/master/faq.html",
    ),
    Signature(
        code="infiniband-error",
        tier=Tier.SYMPTOM,
        patterns=(
            r"NCCL WARN (?P<line>Call to ibv_\w+ failed.*)",
            r"tensorpipe/common/ibv\.h:\d+ .*",
            r"NCCL WARN (?P<line>NET/IB\w* ?: .*(?:[Uu]nable to|[Nn]o GID|[Ff]ailed|timeout|not active).*)",
            r"(?:Error|error)\S*:? "
            r".*(?P<line>ibv_(?:reg_mr|create_qp|modify_qp|create_cq|alloc_pd|open_device)\w*\b.*fail\w*.*)",
            r"ibv_(?:reg_mr|create_qp|modify_qp|create_cq|alloc_pd|open_device)\w*\b.*?fail\w*.*",
            r"NCCL WARN (?P<line>NET/IB.*[Gg]ot async (?:error )?event ?: port error)",
            r"mlx5: \S+: got completion with error",
            r"UCX +ERROR .*(?:[Rr]etry (?:count|limit) exceeded|Local (?:protection|QP)|Remote (?:access|operation)).*",
        ),
        unless=(
            r"Unable to open.*libibverbs|Failed to open libibverbs|No device found|collective mismatch|Got completion",
        ),
        what="InfiniBand or RoCE could not be used: `{line}`",
        why="the adapter refused a verbs call: locked memory too small (`ulimit -l`), a port that is down, GID or LID "
        "that the other side cannot reach, or an adapter that only looks like InfiniBand",
        fixes=(
            "check `ibstat` (State: Active), `show_gids`, and `ulimit -l` (must be unlimited, also in the "
            "container and in Slurm)",
            "name the adapters: `--env NCCL_IB_HCA=mlx5_0,mlx5_1`; RoCE: the right `NCCL_IB_GID_INDEX`",
            _SOCKETS,
            "TensorPipe (RPC): `TensorPipeRpcBackendOptions(_transports=['uv'])`",
            _INFO,
        ),
        examples=(
            "misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable",
            'RuntimeError: In operator() at tensorpipe/common/ibv.h:172 "": Invalid argument',
            "gpu1:1:2 [0] transport/net_ib.cc:400 NCCL WARN NET/IB : Unable to open device mlx5_0",
            "NCCL WARN NET/IB : No GID of type RoCE v2 found",
            "OSError: error: ibv_reg_mr_iova2 failed with error Cannot allocate memory",
            "gpu1:1:2 [0] transport/net_ib.cc:97 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
            "mlx5: gpu-12: got completion with error:",
            "[1712.4] [n1:41:0] ib_mlx5_log.c:177 UCX  ERROR Transport retry count exceeded on mlx5_0:1/IB",
            "ibv_create_qp failed: Cannot allocate memory",
            "NCCL WARN NET/IB : mlx5_0:1 port is down, link failed",
        ),
        near_misses=(
            "tessa:7002:7002 [1] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
            "NCCL INFO NET/IB : No device found.",
            "NCCL WARN NET/IB : mlx5_0:1 Got async error event: port active",
            "NCCL WARN NET/IB : req 0/1 tag 0 peer 10.10.23.6<58683> collective mismatch error, local size "
            "496640 remote size 65536",
        ),
        source="https://github.com/NVIDIA/nccl/issues/925",
    ),
    Signature(
        code="nccl-version-mismatch",
        tier=Tier.CAUSE,
        patterns=(r"(?:undefined symbol: (?=p?nccl)|Symbol not found: (?=_nccl))(?P<symbol>\w+)",),
        what="the libnccl that was loaded has no `{symbol}`: it is another version than this torch was built with",
        why="an older libnccl is found first: on LD_LIBRARY_PATH, in a system or conda directory, or a second "
        "nvidia-nccl wheel",
        fixes=(
            "clean the path: `unset LD_LIBRARY_PATH`, or remove the directory with the older `libnccl.so.2` from it",
            "look for two wheels: `pip list | grep -i nccl`; then `pip install --force-reinstall torch`",
            "see which one is loaded: `ldd FOLDER/lib/libtorch_cuda.so | grep nccl`, where FOLDER is what "
            "`python -c 'import torch; print(*torch.__path__)'` prints",
        ),
        examples=(
            "ImportError: /opt/v/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: "
            "ncclCommRegister",
            "OSError: /usr/lib/libfoo.so: undefined symbol: pncclGetVersion",
            "ImportError: dlopen(libtorch.dylib): Symbol not found: _ncclAllReduce",
        ),
        near_misses=("/usr/bin/modulecmd: symbol lookup error: /lib64/libtinfo.so.6: undefined symbol: tputs_sp",),
        source="https://github.com/pytorch/pytorch/issues/119072",
    ),
    Signature(
        code="nccl-version-mismatch",
        tier=Tier.CAUSE,
        patterns=(
            r"Mismatched NCCL version detected.*",
            r"NCCL version mismatch.*",
            r"(?:different|inconsistent) NCCL versions.*",
        ),
        what="ranks run different versions of NCCL: {line}",
        why="NCCL's wire format changes between versions; all ranks of a communicator need the same one",
        fixes=(
            "install the same torch on every node: compare `python -c 'import torch; "
            "print(torch.cuda.nccl.version())'`",
            "`ddplaunch doctor --hosts A,B` compares the nodes",
        ),
        examples=(
            "init.cc:911 NCCL WARN Mismatched NCCL version detected : rank 8 version 21805 rank 0 version 22005",
            "RuntimeError: NCCL version mismatch between ranks: 2.18.5 and 2.20.5",
            "RuntimeError: nodes use different NCCL versions (2.18.5 and 2.20.5)",
        ),
        near_misses=("NCCL version 2.20.5+cuda12.4",),
    ),
    Signature(
        code="nccl-version-mismatch",
        tier=Tier.UNCERTAIN,
        patterns=(r"NCCL WARN .*(?P<line>Message truncated : received \d+ bytes instead of \d+)",),
        what="ranks do not understand each other as NCCL connects them: {line}",
        why="these messages have fixed sizes in each version of NCCL: another version sent it, or another job that "
        "came to the same address",
        fixes=(
            "install the same torch on every node: compare `python -c 'import torch; "
            "print(torch.cuda.nccl.version())'`; `ddplaunch doctor --hosts A,B` does",
            "if they are equal: another `--master-port`, and `ddplaunch ps` on each node for a job that is left over",
        ),
        examples=("n1:7:9 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 256 bytes instead of 4",),
        near_misses=(
            "NCCL WARN NET/Socket : peer 10.1.2.3<47> message truncated : receiving 524288 bytes instead of 65536",
        ),
        source="https://github.com/NVIDIA/nccl/blob/master/src/bootstrap.cc",
    ),
    Signature(
        code="nccl-unavailable",
        tier=Tier.CAUSE,
        patterns=(
            r"ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            r"Distributed package doesn't have NCCL built in",
            r"NCCL is not available",
            r"PyTorch (?:is|was) not compiled with NCCL support",
            r"module 'torch\._C' has no attribute '_nccl\w*'",
        ),
        unless=(r"UserWarning|WARNING",),
        what="backend `nccl` was asked for where there is none: `{line}`",
        why="NCCL needs a CUDA build of torch, on Linux, and at least one visible GPU per process",
        fixes=(
            "without GPUs: `--device cpu` and `init_process_group(backend='gloo')`, best chosen by "
            "`'nccl' if torch.cuda.is_available() else 'gloo'`",
            "with GPUs: `ddplaunch doctor` shows why they are not visible (CPU wheel, driver, container, "
            "CUDA_VISIBLE_DEVICES)",
        ),
        examples=(
            "RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "RuntimeError: Distributed package doesn't have NCCL built in",
            "RuntimeError: NCCL is not available",
            "RuntimeError: PyTorch is not compiled with NCCL support",
            "AttributeError: module 'torch._C' has no attribute '_nccl_all_reduce'",
        ),
        near_misses=(
            "UserWarning: PyTorch is not compiled with NCCL support",
            "ProcessGroupNCCL is only supported with CUDA tensors",
        ),
    ),
    Signature(
        code="nccl-net-plugin",
        tier=Tier.CAUSE,
        patterns=(
            r"Failed to initialize any NET plugin",
            r"Error: network \S.*? not found",
            r"Failed to initialize NET plugin \S+",
            r"NCCL WARN (?P<line>NET/OFI (?!Request ).*(?:fail|unable|[Cc]ould ?n[o']t|[Nn]o \w+ provider|not "
            r"|Error).*)",
            r"(?:Error|WARN)\b.*(?P<line>NET/Plugin: .*(?:dlerror|failed to load|incompatible).*)",
        ),
        unless=(r"NET/Plugin: (?:Could not find|Failed to find)",),
        what="NCCL's network plug-in does not work: `{line}`",
        why="NCCL_NET, NCCL_NET_PLUGIN or the library path ask for a network that this build or machine does not have, "
        "or the plug-in found no usable adapter",
        fixes=(
            "take NCCL's own networks: `env -u NCCL_NET -u NCCL_NET_PLUGIN ddplaunch run …`",
            "if the plug-in is wanted: install it (aws-ofi-nccl, HPC-X) where LD_LIBRARY_PATH finds it; see "
            "`fi_info -p efa`",
            _INFO,
            "over TCP: `--env NCCL_NET=Socket`",
        ),
        examples=(
            "[2026-04-04 04:40:40] gpu014:55244:55244 [1] plugin/net.cc:379 NCCL WARN Failed to initialize any "
            "NET plugin",
            "ip-10-1-2-3:8101:8130 [0] net.cc:526 NCCL WARN Error: network AWS Libfabric not found.",
            "Error: network IB not found.",
            "n1:1:2 [0] net.cc:10 NCCL WARN Failed to initialize NET plugin IBext",
            "NCCL WARN NET/OFI Couldn't open a fabric access domain. RC: -38, ERROR: Function not implemented",
            "NCCL WARN NET/OFI Creating new endpoint for domain 0x7f9befa99380 failed: Invalid argument",
            "NCCL WARN NET/Plugin: failed to load libnccl-net.so (NCCL_NET_PLUGIN)",
        ),
        near_misses=(
            "ip-10-1-2-3:8101:8101 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal "
            "network plugin.",
            "NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
            "NCCL WARN NET/OFI Request 0x7f completed with error. RC: 21. Error: unknown error",
            "NCCL INFO NCCL_NET set by environment to AWS Libfabric.",
        ),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net",
    ),
    Signature(
        code="nccl-net-plugin",
        tier=Tier.SYMPTOM,
        patterns=(r"NCCL WARN (?P<line>NET/OFI Request .*?completed with error\. RC: \d+)",),
        what="NCCL's plug-in for libfabric (EFA) could not transfer: `{line}`",
        why="the provider gave up: the security group does not let all traffic of its own members through in both "
        "directions, plug-in and libfabric do not fit, or the other side had ended",
        fixes=(
            "let the security group allow all traffic from and to itself, in both directions",
            "`fi_info -p efa` on each node shows the adapters; the same versions of aws-ofi-nccl and libfabric there",
            "over TCP meanwhile: `--env NCCL_NET=Socket`",
            _INFO,
        ),
        examples=(
            "NCCL WARN NET/OFI Request 0x7f completed with error. RC: 21. Error: unknown error. Completed length: 0",
        ),
        near_misses=("NCCL WARN NET/OFI Couldn't open a fabric access domain. RC: -38, ERROR: Function not found",),
        source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html",
    ),
    Signature(  # NCCL tries 34 times; healthy nodes that come late are there after a few
        code="wrong-network-interface",
        tier=Tier.HINT,
        patterns=(
            r"socket\w+: connect (?:to \S+ )?returned (?P<line>(?:No route to host|Network is unreachable|Connection "
            r"timed out)), retrying \((?P<times>[1-9]\d+)/\d+\)",
        ),
        what="NCCL tried {times} times in vain to reach the address that another rank announced: {line}",
        why="NCCL tells the other ranks the address of one interface of each host; this one has no way to it",
        fixes=(
            "name the interface that connects the nodes: `--socket-ifname eth0` (find it: `ip -4 route get "
            "ADDRESS_OF_OTHER_NODE`)",
            "see what was chosen: `--nccl-debug INFO`, then the line `Bootstrap : Using`",
        ),
        examples=(
            "NCCL INFO socketPollConnect: connect returned No route to host, retrying (34/34) after sleep for 9 msec",
            "NCCL INFO socketPollConnect: connect to 10.1.0.4<39211> returned Network is unreachable, retrying (12/34)",
        ),
        near_misses=(
            "NCCL INFO socketPollConnect: connect returned No route to host, retrying (2/34) after sleep for 9 msec",
            "NCCL INFO socketPollConnect: connect returned Connection refused, retrying (27/34) after sleep for 9 msec",
        ),
        log_unless=(r"Init COMPLETE",),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-retry-cnt",
    ),
    Signature(  # Ascend's library; 107020 and 507046 are its time-outs as CANN counts them
        code="collective-timeout",
        tier=Tier.SYMPTOM,
        patterns=(
            r"EI0002: .*?(?P<line>The wait execution of the Notify register times out)",
            r"EI0006: .*?(?P<line>Getting socket times out\. Reason: .{1,80})",
            r"EE1002: .*?(?P<line>Stream synchronize timeout)",
        ),
        what="a collective of HCCL timed out: {line}",
        why="another rank did not take part in time: it was late, stood still, or had failed before",
        fixes=(
            "`ddplaunch explain` with the logs of all ranks: the first one that reports anything else is the cause",
            "a longer wait, if the ranks are only slow: `--env HCCL_EXEC_TIMEOUT=3600 --env HCCL_CONNECT_TIMEOUT=600`",
        ),
        examples=(
            "EI0002: The wait execution of the Notify register times out. Reason: The Notify register has not received",
            "EI0006: [PID: 12] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank did not send",
            "EE1002: 2024-09-03-16:50:00.041.231 Stream synchronize timeout. rtDeviceSynchronize execute failed",
        ),
        near_misses=("export HCCL_EXEC_TIMEOUT=17340",),
        source="https://www.hiascend.com/document/detail/en/canncommercial/80RC2/maintenref/troubleshooting",
    ),
    Signature(
        code="wrong-network-interface",
        tier=Tier.HINT,
        patterns=(r"[Cc]onnect to (?P<address>[\w.:%-]+)<\d+> (?:failed : |returned (?:\d+\()?)Connection refused",),
        unless=(r"retrying",),
        log_with=(r"bootstrap\.cc:\d+ -> [1-9]",),
        what="nobody listens for NCCL at {address}, which the rank that begins had announced as its own",
        why="NCCL's ranks first meet at the address of one of them: it is that of another interface or host, or that "
        "rank had ended before",
        fixes=(
            "see whose address it is: `ip -br addr` on each node; name the interface between them: `--socket-ifname "
            "eth0`",
            "if it is right, the rank there ended before: look at what that node printed",
        ),
        examples=("socketStartConnect: Connect to 10.38.10.112<21724> failed : Connection refused",),
        near_misses=("NCCL INFO Call to connect returned Connection refused, retrying",),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#networking-issues",
    ),
)
