"""Runs commands as `python -u …` and as forks, from one process, and prints how each ended as JSON.

Started as `python -u both_ways.py FOLDER [PRELOAD…]` in the folder of the programs, with a list of argument
lists on stdin. $PROBE is a folder of their own for each way. No torch is needed for that.
"""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any


def main() -> None:
    from ddplaunch.agent.warm.spares import Spares, import_all

    folder, commands = Path(sys.argv[1]), json.load(sys.stdin)
    os.close(0)
    os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
    notes = import_all(sys.argv[2:], None)
    spares = Spares(notes.append)
    notes += filter(None, [spares.fork(len(commands), None)])
    environ = {**os.environ, "ODD": "\udcff="}
    result: dict[str, list[Any]] = {"cold": [], "warm": [], "notes": notes}
    for way in ("cold", "warm"):
        running = []
        (folder / way).mkdir()
        for number, command in enumerate(commands):
            args = [sys.executable, "-u", *command]
            with (folder / f"{way}-{number}.out").open("w") as out, (folder / f"{way}-{number}.err").open("w") as err:
                environ["PROBE"], environ["RANK"] = str(folder / way), str(number)
                environ["UNFLUSHED"] = str(folder / f"{way}-{number}.txt")
                process: Any = None
                cold = partial(subprocess.Popen, args, env=environ, stdout=out, stderr=err, start_new_session=True)
                process = spares.start(args, dict(environ), (out, err), cold) if way == "warm" else cold()
                running.append(process)
        leads = [os.getpgid(process.pid) == process.pid == os.getsid(process.pid) for process in running]
        for number, process in enumerate(running):
            code = process.wait()
            files = {
                key: folder / f"{way}-{number}.{end}" for key, end in (("out", "out"), ("err", "err"), ("kept", "txt"))
            }
            texts = {key: path.read_text(errors="replace") if path.exists() else None for key, path in files.items()}
            result[way].append({"pid": process.pid, "code": code, "leads": leads[number], **texts})
    spares.close()
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
