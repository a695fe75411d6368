"""How ddplaunch's own processes are started, and the environment variables by which they find and tell each other."""

from __future__ import annotations

import sys

_CODE = "import runpy; runpy.run_module({!r}, None, '__main__', True)"
# `-c` puts an empty entry in front, which means the working directory, where `-m` names it.
_FIRST = "import sys; sys.path[:] = filter(None, sys.path); "


def own_command(python: str, module: str, *arguments: str, version: tuple[int, ...] = ()) -> list[str]:
    """Return the words that start a module for ddplaunch itself, in an interpreter of ``version`` (this one's).

    Unlike with a plain `-m`, a `json.py` or `signal.py` of the working directory is not imported.
    """
    if (version or sys.version_info) >= (3, 11):
        return [python, "-P", "-m", module, *arguments]
    return [python, "-c", _FIRST + _CODE.format(module), *arguments]


#: The name of the run, in the environment of torchrun, its guard and its ranks.
RUN_ID = "DDPLAUNCH_RUN_ID"
#: A random token of one launch. Whatever is ended is known by it: a name may be given twice.
LAUNCH = "DDPLAUNCH_LAUNCH"
#: With which a launch tells torchrun's plug-in its ``Settings`` (``planning/settings.py``), as JSON.
SETTINGS = "DDPLAUNCH_AGENT"
#: The numbers of the launch as JSON, for scripts and for what is compared with them.
PLAN = "DDPLAUNCH_PLAN"
#: Where rank 0 writes what ``ddplaunch.log_metrics`` is given.
METRICS = "DDPLAUNCH_METRICS"
#: Group and name of a trial (``scale-x7k2q9/2``), for the ranks of one.
TRIAL = "DDPLAUNCH_TRIAL"
#: Stands for ``--quiet``, or with 0 for ``--no-quiet``.
QUIET = "DDPLAUNCH_QUIET"
#: Tells the guard when the launch was typed, in seconds since 1970.
TYPED = "DDPLAUNCH_TYPED"
#: What all nodes of a launch know and strangers do not (``hosts/roll_call/messages.py``).
JOIN_SECRET = "DDPLAUNCH_JOIN_SECRET"
#: The module that is a rank of a function: ``python -m MODULE FOLDER NAME`` (``api/rank_call.py``).
RANK_CALL = "ddplaunch.api.rank_call"
#: What a script that became ddplaunch calls its options (``ui/speech.py``, ``scripts/with_ddplaunch.sh``).
CALLED_AS = "DDPLAUNCH_CALLED_AS"
