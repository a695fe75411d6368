"""The launcher with scripted hosts behind it: ``python -m benchmarks.scripted_ssh FD ddplaunch-words…``.

Everything is ddplaunch's own, but for the programs that it starts as ssh: each is a shell that waits for its exit
status, and the other ends of its pipes go to the process at the other end of the socket FD. Refuses to judge anything.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ddplaunch.cli.main import main
from ddplaunch.hosts.session import links

_WAIT = "read status </dev/fd/{}; exit $status"  # dash takes no number above 9 after `<&`


def client(control: socket.socket) -> type[subprocess.Popen[bytes]]:
    """Return what stands for ``subprocess.Popen`` where sessions are started."""

    class Client(subprocess.Popen[bytes]):
        def __init__(self, argv: Sequence[str], **_: Any) -> None:
            (there_in, here_in), (here_out, there_out), (here_err, there_err) = os.pipe(), os.pipe(), os.pipe()
            status, tells = os.pipe()
            super().__init__(
                ["sh", "-c", _WAIT.format(status)],
                stdin=there_in,
                stdout=there_out,
                stderr=there_err,
                pass_fds=(status,),
                start_new_session=True,
            )
            host = argv[argv.index("--") + 1]
            sent = (there_in, there_out, there_err, tells)
            socket.send_fds(control, [host.removeprefix("h").encode()], sent)
            for descriptor in (*sent, status):
                os.close(descriptor)
            self.stdin, self.stdout = os.fdopen(here_in, "wb"), os.fdopen(here_out, "rb")
            self.stderr = os.fdopen(here_err, "rb")

    return Client


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        ours = SimpleNamespace(Popen=client(connection), PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
        links.subprocess = ours  # type: ignore[attr-defined, assignment]
        main(sys.argv[2:])
