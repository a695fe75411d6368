"""A launcher that starts a guard and ranks and then hangs, to be killed: ``python -m tests.agent.guarded_launcher``.

Arguments: a directory, "announced" or "unannounced", and one program for each rank.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tests.agent.guarded import Guarded

if __name__ == "__main__":
    guarded = Guarded(Path(sys.argv[1]), 1, 2)
    guarded.attempt(sys.argv[3:], announce=sys.argv[2] == "announced")
    pids = {"guard": guarded.guard.pid, "ranks": [rank.pid for rank in guarded.ranks.values()], "own": os.getpid()}
    print(json.dumps(pids), flush=True)
    time.sleep(300)
