"""The environment variables by which ddplaunch's own processes find and tell each other."""

from __future__ import annotations

#: The name of the run, in the environment of torchrun, its guard and its ranks.
RUN_ID = "DDPLAUNCH_RUN_ID"
#: With which a launch tells torchrun's plug-in its ``Settings`` (``launch/settings.py``), as JSON.
SETTINGS = "DDPLAUNCH_AGENT"
#: Tells the plug-in when ddplaunch became torchrun, in seconds since 1970, for ``--trace``.
EXECUTED = "DDPLAUNCH_EXECUTED"
