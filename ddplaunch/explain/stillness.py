"""Why a rank may be where it is, from its state, the kernel's and its place; refuses to look at other ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddplaunch.explain.places import Group, place_of, ranks_text
from ddplaunch.explain.stacks import RankStack
from ddplaunch.frozen import dataclass

_READS = re.compile(r"wait_woken|pipe_read|fifo_open|wait_for_partner|tty_read|read_chan|splice_from_pipe")
_FILES = re.compile(r"nfs|rpc_|fuse|ceph|lustre|gpfs|cifs|smb|p9_|io_schedule|folio_wait|wait_on_page|jbd2|xfs_|ext4_")
_SOCKET = re.compile(r"unix_stream|skb_wait|sk_wait|inet_csk|tcp_")


@dataclass(frozen=True)
class Condition:
    """The mechanism, empty where nothing tells, and what to do about it."""

    why: str = ""
    fixes: tuple[str, ...] = ()


def condition(group: Group, busy: Mapping[int, float]) -> Condition:
    """Return what keeps the ranks of ``group`` at their place; ``busy`` is how much of a core a rank used."""
    stack = group.stacks[0]
    who, place = ranks_text(group.ranks[:1]), group.place
    if stack.state in ("T", "t"):
        why = f"{who} is stopped, by SIGSTOP, Ctrl-Z or a debugger (state {stack.state})"
        return Condition(why, (f"`kill -CONT {stack.pid}` lets it go on",))
    if stack.state == "D" or _FILES.search(stack.kernel):
        why = f"{who} waits in the kernel{_function(stack.kernel)} for a disk or a file server"
        return Condition(why, ("`findmnt` and `dmesg | tail` show mounts that do not answer",))
    if (share := busy.get(stack.rank)) is not None or stack.state == "R":
        used = "" if share is None else f" ({min(share, 1.0):.0%} of a core)"
        why = f"{who} computes{used} without coming to an end"
        return Condition(why, (f"look for a loop at `{place.path}:{place.line}` that never ends",))
    if place.kind == "loader":
        fixes = ("`--workers 0` if the script takes it, or `num_workers=0`, shows the error that a worker hides",)
        return Condition(f"{who} waits for its DataLoader workers, which send nothing{_workers(stack)}", fixes)
    if stack.reads and not stack.reads.startswith("socket:"):
        why = f"{who} reads from `{stack.reads}`, from which nothing comes{_function(stack.kernel)}"
        return Condition(why, (f"look at what writes to `{stack.reads}`; ranks have no input to wait for",))
    if not stack.reads and _READS.search(stack.kernel):
        why = f"{who} waits for input: into its terminal, pipe or FIFO nobody writes{_function(stack.kernel)}"
        return Condition(why, (f"look at what `{place.path}:{place.line}` reads; ranks have no input to wait for",))
    if "nanosleep" in stack.kernel:
        return Condition(f"{who} sleeps", (f"look at what `{place.path}:{place.line}` sleeps for",))
    if stack.reads or _SOCKET.search(stack.kernel):
        why = f"{who} waits for an answer over the network{_function(stack.kernel)}"
        return Condition(why, (f"give what `{place.path}:{place.line}` asks a time-out",))
    return Condition()


def _workers(stack: RankStack) -> str:
    """Say where the workers are that are not idle: those that wait for the next index are."""
    places = [place_of(each) for each in stack.workers if each.threads]
    busy = dict.fromkeys(place.text for place in places if place.kind == "own" and "worker.py" not in place.path)
    return f": one is at {next(iter(busy))}" if busy else ""


def _function(kernel: str) -> str:
    return f" (`{kernel}`)" if kernel else ""
