"""torch as its installed files describe it, in about a millisecond; refuses to import it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from ddplaunch.probes import files
from ddplaunch.probes.facts import TorchFacts
from ddplaunch.values import Unavailable

_ASSIGNED = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*=\s*(?:None|'([^'\n]*)'|\"([^\"\n]*)\")", re.MULTILINE)
_LONG_OPTION = re.compile(r"""["']--([a-z0-9][a-z0-9_-]*)["']""")
_NCCL = re.compile(r"^nvidia_nccl_cu\d+-([0-9][^-]*)\.dist-info$")


def probe_torch() -> TorchFacts | Unavailable:
    """Return what the torch that this interpreter would import says of itself.

    The import system finds it (so editable installs and .pth files count) but does not run it.
    """
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # ValueError: a half-imported or faked torch in sys.modules
        spec = None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if spec is None or not folders:
        return Unavailable(f"torch is not installed in {sys.executable}")
    folder = folders[0]
    text = files.read(f"{folder}/version.py")
    values = {match[1]: match[2] or match[3] or None for match in _ASSIGNED.finditer(text or "")}
    version = values.get("__version__")
    if version is None:
        return Unavailable(f"`import torch` in {sys.executable} would load {folder}, which has no version.py of torch")
    return TorchFacts(
        version=version,
        path=folder,
        cuda=values.get("cuda"),
        hip=values.get("hip"),
        torchrun_flags=torchrun_flags(files.read(f"{folder}/distributed/run.py") or ""),
        nccl_version=_nccl_beside(folder),
    )


def torchrun_flags(source: str) -> frozenset[str]:
    """Return the long options that the source of ``torch/distributed/run.py`` declares, with dashes."""
    _, found, parser = source.partition("def get_args_parser")  # around it are examples that declare nothing
    parser = parser.partition("\ndef ")[0]
    return frozenset("--" + name.replace("_", "-") for name in _LONG_OPTION.findall(parser if found else source))


def _nccl_beside(folder: str) -> str | None:
    """Return the version of the nvidia-nccl-cu* wheel in torch's site-packages; None if NCCL came another way."""
    for name in files.names(str(Path(folder).parent)):
        match = _NCCL.match(name)
        if match:
            return match[1]
    return None
