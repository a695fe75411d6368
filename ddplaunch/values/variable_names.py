"""How ddplaunch starts its own processes, and the environment variables by which they find and inform each other."""

from __future__ import annotations

import sys

_CODE = "import runpy; runpy.run_module({!r}, None, '__main__', True)"
# `-c` prepends an empty entry to sys.path, `-m` the path of the working directory.
_FIRST = "import sys; sys.path[:] = filter(None, sys.path); "


def own_command(python: str, module: str, *arguments: str, version: tuple[int, ...] = ()) -> list[str]:
    """Return the command that starts a module of ddplaunch; ``version`` is that of the interpreter (default: this one).

    Unlike with a plain `-m`, a `json.py` or `signal.py` in the working directory is not imported.
    """
    if (version or sys.version_info) >= (3, 11):
        return [python, "-P", "-m", module, *arguments]
    return [python, "-c", _FIRST + _CODE.format(module), *arguments]


#: The run's name, in the environment of torchrun, its guard and its ranks.
RUN_ID = "DDPLAUNCH_RUN_ID"
#: A random token of one launch. Processes to end are recognized by it, because a name may be used twice.
LAUNCH = "DDPLAUNCH_LAUNCH"
#: The launch's ``Settings`` (``planning/settings.py``) for torchrun's plug-in, as JSON.
SETTINGS = "DDPLAUNCH_AGENT"
#: The numbers of the launch as JSON, for scripts and for comparison with them.
PLAN = "DDPLAUNCH_PLAN"
#: The file to which rank 0 writes what ``ddplaunch.log_metrics`` gets.
METRICS = "DDPLAUNCH_METRICS"
#: Group and name of a trial (``scale-x7k2q9/2``), for its ranks.
TRIAL = "DDPLAUNCH_TRIAL"
#: When the command was typed, in seconds since 1970, for the guard.
TYPED = "DDPLAUNCH_TYPED"
#: A secret that all nodes of a launch share (``hosts/roll_call/messages.py``).
JOIN_SECRET = "DDPLAUNCH_JOIN_SECRET"
#: The module that runs a function as a rank: ``python -m MODULE FOLDER NAME`` (``api/rank_call.py``).
RANK_CALL = "ddplaunch.api.rank_call"
#: How a script that execs ddplaunch calls its options (``ui/speech.py``, ``scripts/with_ddplaunch.sh``).
CALLED_AS = "DDPLAUNCH_CALLED_AS"
