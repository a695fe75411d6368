"""One rank of a measured launch: has torch, does one all-reduce over gloo, and waits to be looked at.

`launches.py` gives the path of the socket as the last argument. Answers are seconds of the machine's monotonic clock.
"""

import json
import os
import socket
import sys
import time

started = time.monotonic()

import torch  # noqa: E402
import torch.distributed as distributed  # noqa: E402

has_torch = time.monotonic()


def main() -> None:
    """Meet the other ranks once, say when, and end when told to."""
    distributed.init_process_group("gloo")
    tensor = torch.ones(1)
    distributed.all_reduce(tensor)
    ready = time.monotonic()
    assert tensor.item() == distributed.get_world_size()
    answer = {"pid": os.getpid(), "started": started, "has_torch": has_torch, "ready": ready}
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(sys.argv[-1])
        channel.sendall(json.dumps(answer).encode() + b"\n")
        channel.recv(1)
    distributed.destroy_process_group()


main()
