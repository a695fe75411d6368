"""Whether torchrun would find ddplaunch's plug-in among the installed entry points; refuses to read other packages.

torchrun asks ``importlib.metadata`` for the group ``torchrun.logs_specs``, which reads every distribution there is.
Here only ddplaunch's own is looked for, in a fraction of a millisecond.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from ddplaunch import __version__
from ddplaunch.probes import files
from ddplaunch.values import Unavailable

_GROUP = "[torchrun.logs_specs]"


def probe_plugin(search: Iterable[str] | None = None) -> str | Unavailable:
    """Return the file that declares the entry point, or why torchrun would not find one.

    ``search`` are the directories of ``sys.path``; the working directory is none of them, since torchrun is started
    with ``-P`` where Python has it.
    """
    places = [place for place in (sys.path if search is None else search) if place]
    stale = None
    for place in places:  # the usual case, without listing thousands of names
        found = _declared(f"{place}/ddplaunch-{__version__}.dist-info")
        if found:
            return found
    for place in places:
        for name in files.names(place):
            if name.startswith("ddplaunch") and name.endswith((".dist-info", ".egg-info")):
                found = _declared(os.path.join(place, name))  # noqa: PTH118
                if found:
                    return found
                stale = Path(place, name)
    if stale is not None:
        return Unavailable(f"{stale} was installed before ddplaunch had a plug-in for torchrun; `pip install` it again")
    return Unavailable(f"ddplaunch is not installed in {sys.executable}, so torchrun cannot find its plug-in")


def _declared(directory: str) -> str | None:
    path = f"{directory}/entry_points.txt"
    _, found, rest = (files.read(path) or "").partition(_GROUP)
    names = [line.partition("=")[0].strip() for line in rest.partition("\n[")[0].splitlines()]
    return path if found and "ddplaunch" in names else None
