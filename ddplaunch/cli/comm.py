"""`doctor --comm`: which ranks take part on which hosts, and the test; refuses to run without a deadline."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from ddplaunch.checks.comm_groups import Comm
from ddplaunch.cli.configuration import variables
from ddplaunch.cli.say import tell
from ddplaunch.errors import usage
from ddplaunch.frozen import dataclass
from ddplaunch.hosts.comm import DEADLINE_S, CommTest, Member
from ddplaunch.hosts.links import Link, Links
from ddplaunch.launch.durations import duration_s
from ddplaunch.launch.options import Options
from ddplaunch.launch.topology import split_nproc
from ddplaunch.probes.facts import Facts, TorchImport
from ddplaunch.records.run_id import new_run_id
from ddplaunch.ui.speech import count

_ON_CPU = 2  # ranks of a host alone, where neither NPROC nor GPUs say how many
_LEAST_S = 2.0


@dataclass(frozen=True)
class Asked:
    """That `--comm` was given; ``deadline_s`` is None where the backend decides it."""

    deadline_s: float | None = None

    def within(self, device: str) -> float:
        """Return the seconds for each step."""
        return self.deadline_s or DEADLINE_S[device]


def asked_for(comm: bool, timeout: str | None) -> Asked | None:
    """Return what `--comm` and `--comm-timeout` say. Raises UsageError for a time that is too short, or alone."""
    if timeout is None:
        return Asked() if comm else None
    deadline_s = duration_s("--comm-timeout", timeout)
    if comm and deadline_s >= _LEAST_S:
        return Asked(deadline_s)
    raise usage(
        f"`--comm-timeout {timeout}` is too short" if comm else "`--comm-timeout` without `--comm`",
        why="it is the time in which ranks connect and measure; what takes longer counts as broken",
        fix=f"`--comm --comm-timeout {DEADLINE_S['cpu']:.0f}`, or more for a slow network",
        where="flag: --comm-timeout",
    )


def between(
    links: Links, opened: Sequence[Link], facts: Sequence[Facts], options: Options, python: str, asked: Asked
) -> Comm:
    """Test all hosts alone and in pairs. ``opened`` are their sessions, ``facts`` theirs, in the same order."""
    device = device_of(options, facts)
    members = [Member(link, python, *counts(options, device, each)) for link, each in zip(opened, facts, strict=True)]
    deadline_s = asked.within(device)
    tell(f"testing collectives on {count(len(members), 'host')}, each step for {deadline_s:.0f} s at most\n")
    return CommTest(links, members, device, _run_id(), deadline_s, _environment(options)).run()


def here(facts: Facts, options: Options, asked: Asked) -> Comm:
    """Test the ranks of this machine among themselves."""
    device = device_of(options, [facts])
    with Links() as links:
        link = links.open(socket.gethostname(), [sys.executable, "-m", "ddplaunch.hosts.remote"])
        member = Member(link, sys.executable, *counts(options, device, facts))
        return CommTest(links, [member], device, _run_id(), asked.within(device), _environment(options)).run()


def _run_id() -> str:
    return f"comm-{new_run_id()}"


def _environment(options: Options) -> dict[str, str]:
    """Return what `--env`, `--env-file` and `--socket-ifname` say, which a launch would hand its ranks too."""
    given = {name: value for name, value, _ in variables(options)}
    if options.socket_ifname is not None:
        given["GLOO_SOCKET_IFNAME"] = given["NCCL_SOCKET_IFNAME"] = options.socket_ifname.value
    return given


def device_of(options: Options, facts: Sequence[Facts]) -> str:
    """Return ``cuda`` where torch sees a GPU on every host, unless `--device cpu` says otherwise."""
    if options.device is not None and options.device.value == "cpu":
        return "cpu"
    return "cuda" if all(_gpus(each) for each in facts) else "cpu"


def counts(options: Options, device: str, facts: Facts) -> tuple[int, int]:
    """Return the ranks of a host alone and in a pair: one for each GPU that torch sees, at most NPROC.

    On CPUs NPROC or two alone, and one in a pair: more of them measure processors.
    """
    text = split_nproc(options)[1]
    if device == "cuda":
        ranks = _gpus(facts) if text == "auto" else min(int(text), _gpus(facts))
        return ranks, ranks
    return (_ON_CPU if text == "auto" else int(text)), 1


def _gpus(facts: Facts) -> int:
    torch = facts.torch_import
    return torch.device_count if isinstance(torch, TorchImport) and torch.cuda_available and torch.nccl_available else 0
