"""Ends the template, or what it has made ahead, before the ranks start; says what then happens to them."""

import os
import signal
import sys
from pathlib import Path

from ddplaunch.agent.warm.template import Template

said: list[str] = []
template = Template(said.append, None)
template.fork(())
assert template.pid is not None
children = Path(f"/proc/{template.pid}/task/{template.pid}/children")
while not children.read_text().split():
    pass
os.kill(template.pid if sys.argv[1] == "template" else int(children.read_text().split()[0]), signal.SIGKILL)
if sys.argv[1] == "template":
    os.waitid(os.P_PID, template.pid, os.WEXITED | os.WNOWAIT)
environ = {**os.environ, "LOCAL_WORLD_SIZE": "2"}
command = [sys.executable, "-u", str(Path(__file__).with_name("ends.py")), "falls_off"]
for _ in range(2):
    try:
        print(template.start(command, environ, (None, None)))
    except OSError as exception:
        print(type(exception).__name__)
print(*said)
