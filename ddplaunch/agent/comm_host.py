"""``python -m ddplaunch.agent.comm_host FD``: one host's ranks of `doctor --comm`.

It imports torch once, then for every step that it reads from stdin forks the ranks, and kills what runs at the step's
deadline. Lines of JSON on stdout say what it and its ranks found. When stdin ends it ends, and the kernel ends its
ranks with it: prctl(2), PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import sys
import time
from typing import Any

from ddplaunch.agent.warm.kernel import die_with_parent
from ddplaunch.comm.rank import CommRank, run
from ddplaunch.hosts.session.answers import listen
from ddplaunch.machine.network import listening

_TICK_S = 0.05
_LONGEST = 500  # characters of an error; what ranks say has to fit PIPE_BUF, or lines would mix: pipe(7)


class CommHost:
    """The ranks of this host, a step at a time."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        """Read orders from ``incoming``, say what is found on ``outgoing``."""
        self._incoming, self._outgoing = incoming, outgoing
        self._read, self._pid = b"", os.getpid()
        self._selector = selectors.PollSelector()
        self._selector.register(incoming, selectors.EVENT_READ)
        nonce = secrets.token_hex(8)
        answer, self._door = listen({"nonce": nonce})
        if self._door is None:
            raise OSError(answer["port_problem"])
        self._selector.register(self._door, selectors.EVENT_READ)
        self._store = listening(0, backlog=256)
        self._where = {"addresses": answer["addresses"], "door": answer["port"], "nonce": nonce}
        self._ranks: set[int] = set()  # pids of those that run
        self._busy = False
        self._step: dict[str, Any] = {}
        self._kill_at = 0.0

    def serve(self) -> int:
        """Work until stdin ends."""
        self._say(hello=self._where, store=self._port)
        while True:
            for key, _ in self._selector.select(_TICK_S if self._busy else None):
                if key.fd != self._incoming:
                    self._door.greet()  # type: ignore[union-attr]
                elif not self._hear():
                    return 0
            if self._busy:
                self._look_after()

    @property
    def _port(self) -> int:
        return int(self._store.getsockname()[1])

    def _say(self, **values: Any) -> None:
        os.write(self._outgoing, json.dumps(values).encode() + b"\n")

    def _hear(self) -> bool:
        """Act on what arrived; return whether there can be more."""
        data = os.read(self._incoming, 1 << 16)
        *lines, self._read = (self._read + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "stop" not in order:
                self._begin(order)
            elif order["stop"] == self._step.get("step"):
                self._kill()
        return bool(data)

    def _begin(self, order: dict[str, Any]) -> None:
        self._kill()
        self._step, self._busy = order, True
        self._kill_at = time.monotonic() + float(order["deadline_s"])
        for local_rank in range(int(order["local"])):
            pid = os.fork()
            if pid == 0:
                self._become(local_rank)
            self._ranks.add(pid)

    def _become(self, local_rank: int) -> None:
        """Be a rank from here on; does not return."""
        die_with_parent(self._pid)
        os.close(self._incoming)
        order, rank = self._step, int(self._step["first"]) + local_rank
        mine = {"step": order["step"], "rank": rank}
        leader = order["leader"]
        told = {name: order[name] for name in ("world", "device", "deadline_s", "measure_s", "alone", "leader")}
        store = int(leader["store"]) if leader else self._port
        socket = self._store.fileno() if rank == 0 else None
        part = CommRank(rank=rank, local_rank=local_rank, store=store, listening=socket, **told)
        run(part, lambda **values: self._say(**mine, **values))

    def _look_after(self) -> None:
        """Note ranks that ended, kill them all at the deadline, and say when the last one is gone."""
        if time.monotonic() >= self._kill_at:
            self._kill()
        self._ranks -= {pid for pid in self._ranks if os.waitpid(pid, os.WNOHANG)[0]}
        if not self._ranks:
            self._busy = False
            self._store.close()  # the next step gets a port of its own: nothing of this one can come in late
            self._store = listening(0, backlog=256)
            self._say(step=self._step["step"], ended=True, store=self._port)

    def _kill(self) -> None:
        for pid in self._ranks:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._ranks.clear()


def main(descriptor: int) -> int:
    """Serve the orders on stdin. ``descriptor`` holds nothing for this program and is closed."""
    os.close(descriptor)
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what a library prints must not stand between the lines
    os.close(null)
    try:
        import torch.distributed  # noqa: F401 - for the ranks, which are copies of this process

        host = CommHost(incoming, outgoing)
    except Exception as problem:
        os.write(outgoing, json.dumps({"problem": f"{type(problem).__name__}: {problem}"[:_LONGEST]}).encode() + b"\n")
        return 1
    return host.serve()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
