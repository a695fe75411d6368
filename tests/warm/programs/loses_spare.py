"""Kills or stops one of two processes that wait to become ranks; says how each rank then started and ended.

Started as `python -u loses_spare.py SIGNAL FIRST_OR_SECOND`.
"""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from ddplaunch.agent.warm import spares
from tests.agent.guarded import PATIENCE_S, at_rest, until

spares.READY_S = 5.0  # else one that is stopped is waited for a minute
number, which = signal.Signals[sys.argv[1]], int(sys.argv[2])
command = [sys.executable, "-u", str(Path(__file__).with_name("forked.py"))]
lines: list[str] = []
waiting = spares.Spares(lines.append)
assert waiting.fork(2, None) is None
lost = waiting._waiting[which][0]
until(lambda: at_rest(lost), "it waits")
os.kill(lost, number)
ranks = []
for rank in range(2):
    environ = {**os.environ, "RANK": str(rank)}
    ranks.append(waiting.start(command, environ, (None, None), partial(subprocess.Popen, command, env=environ)))
print([rank.wait(PATIENCE_S) for rank in ranks], *lines)
waiting.close()
print(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
