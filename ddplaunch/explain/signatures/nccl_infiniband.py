"""How a failing InfiniBand or RoCE transport shows; refuses what only follows from a peer's death."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

_INFO = "see which network NCCL chose and why: `--nccl-debug INFO`"
_SOCKETS = "train over TCP until it is repaired: `--no-nccl-ib`"

SIGNATURES: tuple[Signature, ...] = (
    Signature(  # old: "error 12", new: "status=12"; 5 is a flushed request, always an echo
        code="infiniband-error",
        role="root",
        literals=("Got completion ",),
        patterns=(
            r"NET/IB\w* ?: ?Got completion (?:from peer (?P<peer>\S+) )?with (?:error |status=(?:IBV_\w+\()?)"
            r"(?P<status>(?!5\b)\d+)\)?,? opcode.*vendor[ _]err[ =](?P<vendor>\d+)",
        ),
        what="InfiniBand or RoCE: a transfer failed with status {status}, vendor error {vendor}",
        why="12 is no answer from the other side after all retries (cable, switch, GID or QoS, or the peer is "
        "gone), 4 and 10 "
        "memory that the adapter may not touch, 13 a receiver that was not ready",
        fixes=(
            "look at both ends: `ibstat`, `ibv_devinfo`, error counters with `perfquery -x`, and the peer's own log",
            "RoCE: the same `NCCL_IB_GID_INDEX` on all nodes (`show_gids`), and `NCCL_IB_HCA` without dead ports",
            "slow fabrics: `--env NCCL_IB_TIMEOUT=22 --env NCCL_IB_RETRY_CNT=7`",
            _SOCKETS,
            _INFO,
        ),
        examples=(
            "ib-02:412:880 [0] transport/net_ib.cc:832 NCCL WARN NET/IB : Got completion with error 12, opcode "
            "32601, len 0, "
            "vendor err 129",
            "kp-0:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer "
            "10.216.210.236<54862> with status=12 "
            "opcode=0 len=0 vendor err 129 (Recv) localGid fd00::22",
            "NCCL WARN NET/IBP:Got completion from peer 7.6.13.83<36315> with status=12 opcode=32698 len=32696 "
            "vendor err 129 (Send)",
            "NCCL WARN NET/IB: Got completion from peer 10.0.0.1<5> with status=IBV_WC_RETRY_EXC_ERR(12) "
            "opcode=IBV_WC_SEND(0) "
            "reqSize=0 vendor_err=129 req_type=Send localGid fe80::1 remoteGids fe80::2 hca mlx5_0",
        ),
        near_misses=("NCCL WARN NET/IB : Got completion with error 5, opcode 0, len 0, vendor err 249",),
        priority=48,  # below any failure of a rank itself: the adapter also complains when a peer has died
        source="https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib.cc",
    ),
    Signature(
        code="infiniband-error",
        role="root",
        literals=(
            "Call to ibv_",
            "ibv_",
            "tensorpipe/common/ibv.h",
            "No GID",
            "NET/IB",
            "NET/OFI Request",
            "mlx5: ",
            "UCX ",
        ),
        patterns=(
            r"NCCL WARN (?P<message>Call to ibv_\w+ failed.*)",
            r"(?P<message>tensorpipe/common/ibv\.h:\d+ .*)",
            r"NCCL WARN (?P<message>NET/IB\w* ?: .*(?:[Uu]nable to|[Nn]o GID|[Ff]ailed|timeout|not active).*)",
            r"(?:Error|error)\S*:? "
            r".*(?P<message>ibv_(?:reg_mr|create_qp|modify_qp|create_cq|alloc_pd|open_device)\w*\b.*fail\w*.*)",
            r"(?P<message>ibv_(?:reg_mr|create_qp|modify_qp|create_cq|alloc_pd|open_device)\w*\b.*?fail\w*.*)",
            r"NCCL WARN (?P<message>NET/OFI Request .*completed with error.*)",
            r"NCCL WARN (?P<message>NET/IB.*[Gg]ot async (?:error )?event ?: port error)",
            r"(?P<message>mlx5: \S+: got completion with error)",
            r"(?P<message>UCX +ERROR .*(?:[Rr]etry (?:count|limit) exceeded|Local (?:protection|QP)|Remote "
            r"(?:access|operation)).*)",
        ),
        unless=(
            r"Unable to open.*libibverbs|Failed to open libibverbs|No device found|collective mismatch|Got completion",
        ),
        what="InfiniBand or RoCE could not be used: `{message}`",
        why="the adapter refused a verbs call: locked memory too small (`ulimit -l`), a port that is down, GID "
        "or LID that the "
        "other side cannot reach, or an adapter that only looks like InfiniBand",
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
            "NCCL WARN NET/OFI Request 0x7f completed with error. RC: 21. Error: unknown error",
        ),
        near_misses=(
            "tessa:7002:7002 [1] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
            "NCCL INFO NET/IB : No device found.",
            "NCCL WARN NET/IB : mlx5_0:1 Got async error event: port active",
            "NCCL WARN NET/IB : req 0/1 tag 0 peer 10.10.23.6<58683> collective mismatch error, local size "
            "496640 remote size 65536",
        ),
        priority=48,  # below any failure of a rank itself: the adapter also complains when a peer has died
        source="https://github.com/NVIDIA/nccl/issues/925",
    ),
)
