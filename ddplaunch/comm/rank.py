"""One rank of one step of `doctor --comm`: joins its group, measures latency and bandwidth, and says what it found.

It is forked by ``comm_host``, which has torch imported already and kills it at its deadline. Bandwidth is nccl-tests'
bus bandwidth, https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md: between two ranks it is what a link
carries in each direction. The kernel counts TCP segments for each socket: https://man7.org/linux/man-pages/man7/tcp.7.html
(TCP_INFO), https://github.com/torvalds/linux/blob/master/include/uapi/linux/tcp.h (struct tcp_info).
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from ddplaunch.hosts.session.answers import reached
from ddplaunch.machine.network import probe_interfaces
from ddplaunch.values.frozen import dataclass

_TOTAL_RETRANS = 100  # offsets in struct tcp_info, which only ever grows at its end
_SEGS_OUT = 136
_WANTED = 256
_SYN_SENT = "02"


def resent() -> tuple[int, int]:
    """Return (segments sent, segments sent again) over all TCP sockets that this process has open."""
    sent = again = 0
    for path in Path("/proc/self/fd").iterdir():
        counts = _counts(path)
        if counts is not None:
            sent, again = sent + counts[0], again + counts[1]
    return sent, again


def _counts(path: Path) -> tuple[int, int] | None:
    """Return the counts of one descriptor, None where it is no TCP socket."""
    try:
        if not str(path.readlink()).startswith("socket:"):
            return None
        with socket.socket(fileno=os.dup(int(path.name))) as handle:
            if handle.type != socket.SOCK_STREAM or handle.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _WANTED)
    except OSError:
        return None
    if len(info) < _SEGS_OUT + 4:  # a kernel before 4.2
        return None
    return struct.unpack_from("=I", info, _SEGS_OUT)[0], struct.unpack_from("=I", info, _TOTAL_RETRANS)[0]


def unanswered() -> str | None:
    """Return the ends of a TCP connection that this process has asked for without an answer; None where there is none.

    https://www.kernel.org/doc/html/latest/networking/proc_net_tcp.html: addresses are words of the host's byte order.
    """
    own = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(path.readlink()))
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError, ValueError):
            for row in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
                _, local, remote, state, *_, inode = row.split()[:10]
                if state == _SYN_SENT and f"socket:[{inode}]" in own:
                    (here, _), (there, port) = _end(local, family), _end(remote, family)
                    return f"{here} got no answer from {there} port {port}"
    return None


def _end(text: str, family: socket.AddressFamily) -> tuple[str, int]:
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    shown = socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
    return shown.removeprefix("::ffff:"), int(port, 16)  # of IPv4 over a socket of IPv6


_LAST_WORDS_S = 0.5  # before the deadline at which this process is killed
_LATENCY_S = 1.0
_LATENCY_COUNT = (20, 200)
_FIRST_BYTES = 16 << 10
_LARGEST_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}
_GROWTH = 4
_REPEATED_S = 1.0

Say = Callable[..., None]


@dataclass(frozen=True)
class CommRank:
    """What one rank of a step has to know. ``leader`` None: rank 0 is on this host, and so is the store.

    ``listening`` is the store's socket, in rank 0 only; ``store`` is its port. All times are seconds from now.
    """

    rank: int
    local_rank: int
    world: int
    device: str
    store: int
    deadline_s: float
    measure_s: float
    alone: bool  # all ranks are on this host
    leader: dict[str, Any] | None = None
    listening: int | None = None


def run(part: CommRank, say: Say) -> NoReturn:
    """Take part in one step and end this process: status 0 after the last measurement."""
    until = time.monotonic() + part.deadline_s - _LAST_WORDS_S
    last = threading.Timer(until - time.monotonic(), _late, (say,))
    last.daemon = True
    last.start()
    try:
        _step(part, say, until)
        status = 0
    except Exception as problem:
        if time.monotonic() > until - _LAST_WORDS_S:  # another rank was a little earlier, and took the store along
            _late(say)
        say(problem=f"{type(problem).__name__}: {_first_line(str(problem))}", **_resent_so_far())
        status = 1
    os._exit(status)  # torch may abort an interpreter that ends while gloo's threads live


def _late(say: Say) -> None:
    say(late=True, unanswered=unanswered(), **_resent_so_far())
    os._exit(1)


def _resent_so_far() -> dict[str, int]:
    segments, again = resent()
    return {"all_segments": segments, "all_resent": again}


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:500]


def _step(part: CommRank, say: Say, until: float) -> None:
    import torch
    import torch.distributed as dist

    store = _store(part, say, until)
    if part.device == "cuda":
        torch.cuda.set_device(part.local_rank)
    dist.init_process_group(
        "nccl" if part.device == "cuda" else "gloo",
        store=store,
        rank=part.rank,
        world_size=part.world,
        timeout=_patience(until),
    )
    bench = _Bench(part, dist, torch)
    bench.once(bench.ones(4))
    if part.rank == 0:
        say(joined=True)
    before = resent()
    latencies = bench.latencies()
    after = resent()
    say(
        latency_us=[round(1e6 * each, 1) for each in (statistics.median(latencies), max(latencies))],
        segments=after[0] - before[0],
        resent=after[1] - before[1],
    )
    factor = 2 * (part.world - 1) / part.world
    for size, seconds in bench.sizes():  # what was measured counts even if the next one does not end
        say(bandwidth=round(factor * size / seconds), size=size)
    with contextlib.suppress(Exception):  # nobody leaves before the others have measured; then all is said
        bench.agreed(0.0)


def _patience(until: float) -> timedelta:
    """Return torch's own time-out: later than ours, which says more."""
    return timedelta(seconds=until - time.monotonic() + _LAST_WORDS_S + 60)


def _store(part: CommRank, say: Say, until: float) -> Any:
    """Return the store of this step: rank 0's, at whichever address of its host is reached from here."""
    import torch.distributed

    make: Any = torch.distributed.TCPStore  # type: ignore[attr-defined]
    wait = _patience(until)
    if part.leader is None:
        store = make(
            "localhost",
            part.store,
            None,
            part.rank == 0,
            wait,
            wait_for_workers=False,
            master_listen_fd=part.listening,
            use_libuv=False,  # older versions of it take no listening socket
        )
        if not part.alone:
            address = store.get("address").decode()
            _bind(address)
            say(address=address)
        return store
    address, own = _reached(part.leader, until)
    _bind(own)
    store = make(address, part.store, None, False, wait, wait_for_workers=False, use_libuv=False)
    store.set("address", address)
    return store


def _reached(leader: dict[str, Any], until: float) -> tuple[str, str]:
    """Return the first of the leader's addresses that answers, and this host's own on the way there.

    Half of the time is for this, so that what does not connect is told from what connects and then stands still.
    """
    give_up = time.monotonic() + (until - time.monotonic()) / 2
    while time.monotonic() < give_up:
        for address, own, _ in reached(leader["addresses"], int(leader["door"]), str(leader["nonce"])):
            return address, own
        time.sleep(0.1)
    shown = " or ".join(leader["addresses"]) or "any address"
    raise ConnectionError(f"no TCP connection to {shown} port {leader['door']}")


def _bind(own: str) -> None:
    """Keep gloo and NCCL on the interface of the address ``own``, unless the user named one."""
    name = next((each.name for each in probe_interfaces() if own in each.addresses), None)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


class _Bench:
    """All-reduces that are timed alike by all ranks: what decides how long to go on is the slowest one's time."""

    def __init__(self, part: CommRank, dist: Any, torch: Any) -> None:
        self._part, self._dist, self._torch = part, dist, torch

    def ones(self, size: int) -> Any:
        return self._torch.ones(size // 4, dtype=self._torch.float32, device=self._part.device)

    def once(self, tensor: Any) -> float:
        """Return the seconds of one all-reduce."""
        begun = time.perf_counter()
        self._dist.all_reduce(tensor)
        if self._part.device == "cuda":
            self._torch.cuda.synchronize()
        return time.perf_counter() - begun

    def agreed(self, value: float) -> float:
        """Return the largest of all ranks' values."""
        tensor = self._torch.tensor([value], dtype=self._torch.float64, device=self._part.device)
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX)
        return float(tensor.item())

    def latencies(self) -> list[float]:
        """Return the seconds of all-reduces of four bytes, one after the other."""
        tensor = self.ones(4).zero_()
        first = self.agreed(statistics.mean(self.once(tensor) for _ in range(5)))
        least, most = _LATENCY_COUNT
        return [self.once(tensor) for _ in range(min(most, max(least, int(_LATENCY_S / max(first, 1e-6)))))]

    def sizes(self) -> Iterator[tuple[int, float]]:
        """Yield sizes in bytes, growing as long as there is time, each with the seconds of its quickest all-reduce.

        Raises ValueError where a sum is wrong.
        """
        begun, size = time.perf_counter(), _FIRST_BYTES
        largest = _LARGEST_BYTES[self._part.device]
        while True:
            tensor = self.ones(size)
            self.once(tensor)
            low, high = float(tensor.min()), float(tensor.max())
            if not low == high == self._part.world:
                raise ValueError(f"the sum of {self._part.world} ones is {low} to {high}")
            tensor.zero_()
            best = self.agreed(self.once(tensor))
            yield size, best
            spent = self.agreed(time.perf_counter() - begun)
            if size >= largest or spent + 2 * _GROWTH * best > self._part.measure_s:
                break
            size = min(size * _GROWTH, largest)
        begun, mine = time.perf_counter(), best
        while self.agreed(time.perf_counter() - begun) < _REPEATED_S:  # what else runs here comes and goes
            mine = min(mine, self.once(tensor))
        yield size, self.agreed(mine)
