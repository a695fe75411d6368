"""A launcher that starts a guard and ranks and then hangs, to be killed: ``python -m tests.agent.guarded_launcher``.

Arguments: a directory, "announced", "unannounced" or "speaks", and one program for each rank. One that speaks stops the
guard, says two messages, the last one among them, and is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from ddplaunch.agent.protocol import send
from tests.agent.guarded import Guarded

if __name__ == "__main__":
    guarded = Guarded(Path(sys.argv[1]), 1, 2)
    guarded.attempt(sys.argv[3:], announce=sys.argv[2] != "unannounced")
    pids = {"guard": guarded.guard.pid, "ranks": [rank.pid for rank in guarded.ranks.values()], "own": os.getpid()}
    print(json.dumps(pids), flush=True)
    if sys.argv[2] == "speaks":
        guarded.guard.send_signal(signal.SIGSTOP)
        guarded.signalled(signal.SIGTERM)
        send(
            guarded.channel, {"op": "end", "state": "failed", "signal": None, "failures": [], "error": "its own words"}
        )
        os._exit(0)
    time.sleep(300)
