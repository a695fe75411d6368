"""A launcher that starts a guard and ranks and then hangs, to be killed: ``python -m tests.agent.guarded_launcher``.

Arguments: a directory, a mode, and one program for each rank. Of "unannounced" ranks the guard knows nothing, and a
fork holds the socket open. "speaks" stops the guard, says a signal and the last message, and is gone; "hurries" says
two interrupts instead, and stays. "limited" and "deaf" have a time limit, and "deaf" hears no SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ddplaunch.agent.protocol import send
from tests.agent.guarded import SLOWNESS, Guarded

LAST: dict[str, Any] = {"op": "end", "state": "failed", "signal": None, "failures": [], "error": "its own words"}

if __name__ == "__main__":
    folder, mode, *programs = sys.argv[1:]
    if mode != "limited":
        signal.signal(signal.SIGTERM, lambda *_: None)
    limits = {"timeout_s": 2 * SLOWNESS, "grace_s": SLOWNESS / 2} if mode in ("deaf", "limited") else {}
    guarded = Guarded(Path(folder), 1, 2, **limits)
    guarded.attempt(programs, announce=mode != "unannounced")
    if mode in ("speaks", "hurries"):
        guarded.guard.send_signal(signal.SIGSTOP)
        for number in (signal.SIGTERM,) if mode == "speaks" else (signal.SIGINT, signal.SIGINT):
            guarded.signalled(number)
        send(guarded.channel, LAST)
    holder = os.fork() if mode == "unannounced" else None
    if holder == 0:
        os.close(1)
        time.sleep(300)
    ranks = [rank.pid for rank in guarded.ranks.values()]
    print(json.dumps({"guard": guarded.guard.pid, "ranks": ranks, "holder": holder}), flush=True)
    if mode == "speaks":
        os._exit(0)
    time.sleep(300)
