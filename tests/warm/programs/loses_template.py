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

warm_process.FORK_S = 5.0  # else one that is stopped is waited for a minute
who, number, moment = sys.argv[1], signal.Signals[sys.argv[2]], sys.argv[3]
command = [sys.executable, "-u", str(Path(__file__).with_name("forked.py"))]
said: list[str] = []
template = Template(said.append, None)
template.fork(())
assert template._process is not None
first = template._process.pid


def cold(environ: dict[str, str]) -> "subprocess.Popen[Any]":
    return subprocess.Popen(command, env=environ, start_new_session=True)


def members(pid: int) -> list[int]:
    """Return ``pid`` and what descends from it."""
    found = [pid]
    for each in found:  # grows meanwhile
        found += [int(word) for word in Path(f"/proc/{each}/task/{each}/children").read_text().split()]
    return found


def strike() -> None:
    deadline = time.monotonic() + 30
    while len(found := members(first)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    struck = found[who == "forker"]
    while ") S " not in Path(f"/proc/{struck}/stat").read_text():  # it waits for a request, and ends with its parent
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(struck, number)
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
try:
    start()
except OSError as exception:  # between two ranks of one start
    said.append(str(exception))
if moment == "again":
    strike()
    for _ in range(2):  # one forker more may have been made already
        start()
template.end()
deadline = time.monotonic() + 30
while left := [pid for pid in members(os.getpid())[1:] if not Path(f"/proc/{pid}/stat").read_text().count(") Z ")]:
    if time.monotonic() > deadline:
        break
    time.sleep(0.02)
print(len(said), *said, left)
