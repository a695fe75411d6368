"""What gloo and the store print on the ranks that are left when another one died; refuses to call it a cause."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

_PEER = "the other end of the connection went away; its own failure comes first"
_STORE = "the process that hosts the TCPStore (rank 0 or the launcher) has ended"

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="peer-lost",
        role="cascade",
        priority=10,
        literals=(
            "Connection closed by peer",
            "Read error [",
            "Write error [",
            "Broken pipe",
            "Connection reset by peer",
        ),
        patterns=(
            r"gloo/transport/\w+/.*(?:Connection closed by peer|(?:Read|Write) error) \[(?P<peer>[^\]]*)\]",
            r"^\[?\S*(?:pair|buffer)\.cc:\d+\] (?:Connection closed by peer|(?:Read|Write) error) \[(?P<peer>[^\]]*)\]",
            r"gloo/transport/.*(?:writev|recv|read|write)\b.*?\[?(?P<peer>[\d.]+)\]?:\d+.*(?:Broken "
            r"pipe|Connection reset by peer)",
            r"^(?:RuntimeError: |what\(\): +)*(?P<peer>Connection (?:closed|reset) by peer)",
        ),
        what="gloo lost its connection to {peer}",
        why=_PEER,
        fixes=(),
        examples=(
            "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection "
            "closed by peer "
            "[10.77.0.5]:3981. This is typically caused by a remote worker crashing.",
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Read error [10.1.0.3]:4411: "
            "Connection reset by peer",
            "[pair.cc:598] Connection closed by peer [127.0.0.1]:1024",
            "RuntimeError: [/opt/gloo/transport/tcp/pair.cc:133] Write error [10.1.0.3]:4411: Broken pipe",
            "RuntimeError: [/opt/gloo/transport/tcp/pair.cc:575] writev [10.1.0.3]:4411: Broken pipe",
            "RuntimeError: Connection reset by peer",
        ),
        near_misses=(
            'sample: "Connection reset by peer, NCCL error" -> label: incident',
            "client_loop: send disconnect: Broken pipe",
        ),
    ),
    Signature(
        code="peer-lost",
        role="cascade",
        priority=10,
        literals=("successfully reached monitoredBarrier, but received errors",),
        patterns=(r"Rank (?P<rank>\d+) successfully reached monitoredBarrier, but received errors",),
        what="rank {rank} reached the barrier, but rank 0 gave up",
        why="monitored_barrier ends on all ranks when rank 0 misses one of them",
        fixes=(),
        examples=(
            "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for "
            "send/recv from rank 0.",
        ),
        near_misses=("Rank 1 failed to pass monitoredBarrier in 8000 ms",),
    ),
    Signature(
        code="store-lost",
        role="cascade",
        priority=10,
        literals=(
            "recvValue",
            "recvVector",
            "recvBytes",
            "sendBytes",
            "sendValue",
            "Failed to recv, got 0 bytes",
            "should dump",
            "waitForInput",
            "TCPStore server has shut down",
        ),
        patterns=(
            r"(?P<call>(?:recv|send)(?:Value|Vector|Bytes)\w*) failed on",
            r"(?P<call>Failed to recv, got 0 bytes)",
            r"Failed to check the \"?(?P<call>should dump)\"? flag on (?:TCPStore|PrefixStore)",
            r"(?P<call>waitForInput): poll for socket .* returned",
        ),
        what="lost the store ({call})",
        why=_STORE,
        fixes=(),
        examples=(
            "[c10d] recvValue failed on SocketImpl(fd=64, addr=[localhost]:35122, remote=[localhost]:45120): "
            "Failed to recv, got 0",
            "[c10d] recvVector failed on SocketImpl(fd=4): Failed to recv, got 0 bytes.",
            "[c10d] sendBytes failed on SocketImpl(fd=4, addr=[node1]:1, remote=[node2]:2): Broken pipe",
            "[c10d] sendValue failed on SocketImpl(fd=4): Broken pipe",
            "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
            "[c10d] recvBytes failed on SocketImpl(fd=4)",
            'Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early)',
            "[c10d] waitForInput: poll for socket SocketImpl(fd=10) returned 0, likely a timeout",
        ),
        near_misses=(
            "Exception raised from sendBytes at ../torch/csrc/distributed/c10d/Utils.hpp:643 (most recent call first):",
        ),
    ),
    Signature(
        code="stale-rendezvous",
        role="cascade",
        priority=10,
        literals=("connectFullMesh failed", "timed out connecting: SO_ERROR", "failed to connect, willRetry"),
        patterns=(
            r"(?P<event>connectFullMesh failed) with .*Connection refused",
            r"(?P<event>failed to connect, willRetry)=\d",
        ),
        what="gloo could not reach an address from the store ({event})",
        why="the process that wrote the address has ended: a peer that failed first, or the attempt before this one",
        fixes=(),
        examples=(
            "RuntimeError: Gloo connectFullMesh failed with [/pytorch/gloo/transport/tcp/pair.cc:144] timed out "
            "connecting: SO_ERROR: "
            "Connection refused, remote=[10.77.0.5]:34111",
            "[/pytorch/gloo/transport/tcp/debug_logger.cc:9] ERROR failed to connect, willRetry=1, retry=0, "
            "retryLimit=3, rank=1",
        ),
        near_misses=(
            "Gloo connectFullMesh failed with [/pytorch/gloo/pair.cc:144] no route to host, remote=[127.0.1.1]:34111",
        ),
    ),
)
