"""Measure all-reduces among all ranks, the ranks of each host, and pairs of hosts, with nothing but torch.

It is an ordinary torchrun script that does not know ddplaunch. All of these run it:

    torchrun --nproc_per_node 4 comm_test.py
    ddplaunch run 4 -- -m ddplaunch.examples.comm_test
    ddplaunch doctor 4 --comm

For each group of ranks rank 0 prints a line of JSON. Each rank of a group is a forked process that SIGALRM ends at the
time-out. So whatever hangs, in C++ too, the next group is measured.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import signal
import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

TIMEOUT_S = {"gloo": 20.0, "nccl": 60.0}  # CUDA and NCCL take seconds to start
LARGEST_BYTES = {"gloo": 16 << 20, "nccl": 256 << 20}
FIRST_BYTES = 64 << 10
GROWTH = 4
REPEATED = (3, 20)
PARTNERS = 3  # most other hosts that each host is paired with, one after the other
DOUBTFUL = 2.0  # a pair this many times slower or later than the median is measured again at the end
STORE_S = 60.0  # for a group's results to arrive, after its time-out


@dataclass(frozen=True)
class Group:
    """Ranks that are tested together: all of them (``test`` is "all"), those of a host, or of a pair of hosts."""

    test: str
    hosts: tuple[str, ...]
    ranks: tuple[int, ...]


def rounds_of(ranks_of: dict[str, list[int]], backend: str) -> Iterator[list[Group]]:
    """Yield the groups that are tested at the same time: no rank is in two of them."""
    yield [Group("all", tuple(ranks_of), tuple(rank for ranks in ranks_of.values() for rank in ranks))]
    if len(ranks_of) == 1:
        return
    yield [Group("host", (host,), tuple(ranks)) for host, ranks in ranks_of.items() if len(ranks) > 1]
    used = {host: ranks if backend == "nccl" else ranks[:1] for host, ranks in ranks_of.items()}
    for pairs in rounds_of_pairs(list(ranks_of)):
        yield [Group("pair", (one, two), (*used[one], *used[two])) for one, two in pairs]


def rounds_of_pairs(hosts: list[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield pairs by the circle method: https://en.wikipedia.org/wiki/Round-robin_tournament#Circle_method."""
    circle = [*hosts, ""] if len(hosts) % 2 else hosts
    rounds = PARTNERS + len(hosts) % 2  # with an odd number of hosts, one host has no partner in each round
    for _ in range(min(rounds, len(circle) - 1)):
        half = len(circle) // 2
        yield [pair for pair in zip(circle[:half], reversed(circle[half:]), strict=True) if all(pair)]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def forked(group: Group, rank: int, backend: str, key: str, timeout_s: float, results: Connection) -> None:
    """Be a rank of ``group`` until its time is over, and send what is known so far after each size."""
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the child dies with the rank that forked it
    try:
        measure(group, rank, backend, key, timedelta(seconds=0.9 * timeout_s), results)  # torch says more than SIGALRM
    except Exception as problem:
        words = f"{type(problem).__name__}: {problem}".splitlines()[0].partition(". ")[0]
        results.send({"problem": words[:300]})
        raise
    results.send({"ended": True})


def measure(group: Group, rank: int, backend: str, key: str, patience: timedelta, results: Connection) -> None:
    """Form the process group and send what each size measures. Raises what torch raises, and ValueError."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = PrefixStore(key, TCPStore(address, port, is_master=False, timeout=patience))
    device = torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = torch.device("cuda")
    size, place = len(group.ranks), group.ranks.index(rank)
    dist.init_process_group(backend, store=store, rank=place, world_size=size, timeout=patience)
    for size_bytes, seconds in timed_sizes(device, backend, patience.total_seconds()):
        rate = 2 * (size - 1) / size * size_bytes / seconds
        results.send({"latency_us": 1e6 * seconds} if size_bytes == 4 else {"bandwidth_bytes_per_s": rate})
    agreed(0.0, device)  # no rank leaves before the others have measured


def timed_sizes(device: torch.device, backend: str, timeout_s: float) -> Iterator[tuple[int, float]]:
    """Yield growing sizes with the seconds of an all-reduce, as long as there is time. Raises ValueError for a sum.

    Of the smallest size it is the median; of the others the quickest, because what else runs here comes and goes.
    """
    began, size = time.perf_counter(), 4
    while True:
        tensor = torch.ones(size // 4, device=device)
        seconds = agreed(timed(tensor), device)
        low, high = float(tensor.min()), float(tensor.max())
        if not low == high == dist.get_world_size():
            raise ValueError(f"the sum of {dist.get_world_size()} ones is {low:g} to {high:g}")
        tensor.zero_()
        least, most = REPEATED
        count = max(least, min(most, int(0.05 * timeout_s / seconds)))
        typical = statistics.median if size == 4 else min
        seconds = agreed(typical([timed(tensor) for _ in range(count)]), device)
        yield size, seconds
        spent = agreed(time.perf_counter() - began, device)
        size = size * GROWTH if size > 4 else FIRST_BYTES
        if size > LARGEST_BYTES[backend] or spent + (least + 1) * GROWTH * seconds > timeout_s / 4:
            return


def timed(tensor: torch.Tensor) -> float:
    """Return the seconds of one all-reduce."""
    began = time.perf_counter()
    dist.all_reduce(tensor)
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def agreed(seconds: float, device: torch.device) -> float:
    """Return the largest of all ranks' values, so that all of them go on equally long."""
    tensor = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor.item())


def measured(group: Group, rank: int, backend: str, key: str, timeout_s: float) -> dict[str, Any]:
    """Run ``forked`` to its end; return what it sent, with a ``problem`` where it did not end well."""
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)
    child = context.Process(target=forked, args=(group, rank, backend, key, timeout_s, writing))
    child.start()
    writing.close()
    result: dict[str, Any] = {}
    while True:
        try:
            result.update(reading.recv())
        except EOFError:
            break
    child.join()
    if "ended" not in result and "problem" not in result:
        stage = "all-reduces did not end" if "latency_us" in result else "the ranks did not form a group"
        timed_out = child.exitcode == -signal.SIGALRM
        result["problem"] = f"{stage} within {timeout_s:g} s" if timed_out else f"{stage}: exit code {child.exitcode}"
    return result


def summed_up(group: Group, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the line of JSON of a group: what its first rank measured, or the first problem."""
    line: dict[str, Any] = {"test": group.test, "hosts": group.hosts, "ranks": len(group.ranks)}
    problems = [result["problem"] for result in results if "problem" in result]
    line["problem"] = min(problems, key=lambda problem: " within " in problem, default=None)
    return line | {name: results[0].get(name) for name in ("latency_us", "bandwidth_bytes_per_s")}


def measured_round(
    number: int, groups: list[Group], backend: str, timeout_s: float, store: Store, lines: list[dict[str, Any]]
) -> str | None:
    """Measure the groups that this rank is in; rank 0 prints their lines, and adds them to ``lines``.

    Returns the problem that this rank met.
    """
    rank, problem = int(os.environ["RANK"]), None
    for group in (group for group in groups if rank in group.ranks):
        result = measured(group, rank, backend, f"comm/{number}/{group.ranks[0]}", timeout_s)
        store.set(f"{number}/{rank}", json.dumps(result))
        problem = result.get("problem")
    if rank == 0:
        for group in groups:
            lines.append(summed_up(group, [json.loads(store.get(f"{number}/{member}")) for member in group.ranks]))
            say(lines[-1])
        store.set(f"{number}/over", "")
    store.get(f"{number}/over")
    return problem


def doubtful(lines: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the hosts of each pair that is far from the median: it may be slow, or something else ran meanwhile."""
    pairs = [line for line in lines if line["test"] == "pair" and line["problem"] is None]
    if len(pairs) < 3:
        return []
    rate = statistics.median(pair["bandwidth_bytes_per_s"] for pair in pairs) / DOUBTFUL
    late = statistics.median(pair["latency_us"] for pair in pairs) * DOUBTFUL
    return [pair["hosts"] for pair in pairs if pair["bandwidth_bytes_per_s"] < rate or pair["latency_us"] > late]


def say(line: dict[str, Any]) -> None:
    """Print what rank 0 has to say."""
    print(json.dumps(line), flush=True)


def ranks_by_host(store: Store, rank: int, world: int, cuda: bool) -> tuple[dict[str, list[int]], bool]:
    """Return the ranks of each host, and whether all of them have a GPU. Two nodes of one name are told apart."""
    node = os.environ.get("GROUP_RANK", "0")
    store.set(f"rank/{rank}", json.dumps([node, socket.gethostname(), cuda]))
    ranks: dict[tuple[str, str], list[int]] = {}
    everywhere = True
    for peer in range(world):
        node, name, has_cuda = json.loads(store.get(f"rank/{peer}"))
        ranks.setdefault((node, name), []).append(peer)
        everywhere = everywhere and has_cuda
    names = [name for _, name in ranks]
    return {
        name if names.count(name) == 1 else f"{name}#{node}": members for (node, name), members in ranks.items()
    }, everywhere


def main() -> None:
    """Measure round by round; a rank of a group that failed ends with status 1 when all is measured."""
    parser = argparse.ArgumentParser(description="Measure all-reduces among ranks and between hosts.")
    parser.add_argument("--timeout", type=float, help="seconds for each group [20; with GPUs 60]")
    timeout_s = parser.parse_args().timeout
    if "RANK" not in os.environ:
        raise SystemExit("comm_test: start it by `torchrun --nproc_per_node 2 comm_test.py`")
    # is_available() then asks NVML: after a fork, CUDA does not work if the parent process has initialized it
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    longest = timedelta(seconds=(timeout_s or max(TIMEOUT_S.values())) + STORE_S)
    store, rank, world = next(rendezvous("env://", timeout=longest))
    ranks_of, cuda = ranks_by_host(store, rank, world, torch.cuda.is_available() and dist.is_nccl_available())
    backend = "nccl" if cuda else "gloo"
    timeout_s = timeout_s or TIMEOUT_S[backend]
    if rank == 0:
        counts = {host: len(ranks) for host, ranks in ranks_of.items()}
        say({"test": "begin", "backend": backend, "timeout_s": timeout_s, "hosts": counts})
    rounds = list(rounds_of(ranks_of, backend)) if world > 1 else []
    lines: list[dict[str, Any]] = []
    problem = None
    for number, groups in enumerate(rounds):
        problem = measured_round(number, groups, backend, timeout_s, store, lines) or problem
    if rank == 0:
        store.set("again", json.dumps(doubtful(lines)))
    again = json.loads(store.get("again"))
    for number, groups in enumerate(rounds, len(rounds)):
        groups = [group for group in groups if group.test == "pair" and list(group.hosts) in again]
        problem = measured_round(number, groups, backend, timeout_s, store, lines) or problem
    store.set(f"left/{rank}", "")
    if rank == 0:
        for peer in range(world):
            store.get(f"left/{peer}")
        say({"test": "end"})
    if problem is not None:
        raise SystemExit(f"comm_test: rank {rank}: {problem}")


if __name__ == "__main__":
    main()
