"""Kills or stops what ranks are forked from, at one of three moments; says what then becomes of the ranks.

Started as `python -u loses_template.py template|forker SIGNAL first|between|again`.
"""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ddplaunch.agent.warm import template as warm_process
from ddplaunch.agent.warm.template import Template

warm_process.STOPPED_S, warm_process._LOOK_S = 0.2, 0.02
who, number, moment = sys.argv[1], signal.Signals[sys.argv[2]], sys.argv[3]
command = [sys.executable, "-u", str(Path(__file__).with_name("forked.py"))]
said: list[str] = []
template = Template(said.append, None)
template.fork(())
first = template.pid
assert first is not None


def cold(environ: dict[str, str]) -> "subprocess.Popen[Any]":
    return subprocess.Popen(command, env=environ, start_new_session=True)


def strike() -> None:
    assert first is not None
    deadline = time.monotonic() + 30
    while len(found := warm_process.members(first)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(found[who == "forker"], number)
    if number == signal.SIGKILL and who == "template":
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)


def start() -> None:
    ranks = []
    for rank in range(2):
        environ = {**os.environ, "LOCAL_WORLD_SIZE": "2", "RANK": str(rank)}
        ranks.append(template.start(command, environ, (None, None), functools.partial(cold, environ)))
        if (moment, rank) == ("between", 0):
            strike()
    print([rank.wait(60) for rank in ranks], "cold" if template.reason else "warm")


if moment == "first":
    strike()
start()
if moment == "again":
    strike()
    for _ in range(2):  # one forker more may have been made already
        start()
template.end()
left = [pid for pid in warm_process.members(os.getpid())[1:] if not Path(f"/proc/{pid}/stat").read_text().count(") Z ")]
print(len(said), *said, left)
