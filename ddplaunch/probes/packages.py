"""Which versions of which packages are installed, by the names of folders; refuses to import or read a package."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from ddplaunch.probes import files
from ddplaunch.probes.facts import PackageFacts

# name-version.dist-info; names hold no dash there, and .egg-info (Debian, conda) may add Python's version:
# https://packaging.python.org/en/latest/specifications/recording-installed-packages/
_FOLDER = re.compile(r"^([A-Za-z0-9][\w.]*?)-([^-]+)(?:-py\d[\d.]*)?\.(?:dist|egg)-info$")
_SEPARATORS = re.compile(r"[-_.]+")


def probe_packages(search: Iterable[str] | None = None) -> PackageFacts:
    """Return what is installed in ``search``, the directories of ``sys.path`` by default; the first one of a name wins,
    as it does for an import. An egg-info folder without a version in its name, as a source tree has, does not count.
    """
    versions: dict[str, str] = {}
    places = []
    for place in dict.fromkeys(sys.path if search is None else search):
        found = [match for name in files.names(place) if (match := _FOLDER.match(name))] if place else []
        if found:
            places.append(place)
        for match in found:
            versions.setdefault(normalised(match[1]), match[2])
    return PackageFacts(versions, tuple(places))


def normalised(name: str) -> str:
    """Return a distribution's name as pip compares it, `huggingface-hub` for `huggingface_hub`.

    https://packaging.python.org/en/latest/specifications/name-normalization/
    """
    return _SEPARATORS.sub("-", name).lower()
