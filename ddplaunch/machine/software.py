"""What is installed on this host, read from files: Python, torch, packages, ddplaunch's plug-in; the host itself,
and the environment variables that decide a launch.

Nothing is imported or run. torchrun asks ``importlib.metadata`` for the group ``torchrun.logs_specs``, which reads
every distribution there is; looking for ddplaunch's own takes a fraction of a millisecond.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ddplaunch.machine import files
from ddplaunch.machine.facts import HostFacts, PackageFacts, PythonFacts, TorchFacts
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.secrets import hide_value, is_recorded
from ddplaunch.values.words import own_id


def probe_python() -> PythonFacts:
    """Return the interpreter's path and version."""
    return PythonFacts(executable=sys.executable, version=".".join(map(str, sys.version_info[:3])))


# name-version.dist-info; names hold no dash there, and .egg-info (Debian, conda) may add Python's version:
# https://packaging.python.org/en/latest/specifications/recording-installed-packages/
_FOLDER = re.compile(r"^([A-Za-z0-9][\w.]*?)-([^-]+)(?:-py\d[\d.]*)?\.(?:dist|egg)-info$")
_SEPARATORS = re.compile(r"[-_.]+")


def probe_packages(search: Iterable[str] | None = None) -> PackageFacts:
    """Return what is installed in ``search``, the directories of ``sys.path`` by default; the first one of a name wins,
    as it does for an import. An egg-info folder without a version in its name, as a source tree has, does not count.
    """
    versions: dict[str, str] = {}
    for place in dict.fromkeys(sys.path if search is None else search):
        matches = [match for name in files.names(place) if (match := _FOLDER.match(name))] if place else []
        for match in matches:
            versions.setdefault(normalised(match[1]), match[2])
    return PackageFacts(versions)


def normalised(name: str) -> str:
    """Return a distribution's name as pip compares it, `huggingface-hub` for `huggingface_hub`.

    https://packaging.python.org/en/latest/specifications/name-normalization/
    """
    return _SEPARATORS.sub("-", name).lower()


_GROUP = "[torchrun.logs_specs]"


def probe_plugin(search: Iterable[str] | None = None) -> str | Unavailable:
    """Return the file that declares the entry point, or why torchrun would not find one.

    ``search`` are the directories of ``sys.path``; the working directory is none of them, since torchrun is started
    with ``-P`` where Python has it.
    """
    places = [place for place in (sys.path if search is None else search) if place]
    folders = (
        f"{place}/{name}"
        for place in places
        for name in files.names(place)
        if name.startswith("ddplaunch") and name.endswith((".dist-info", ".egg-info"))
    )
    missing = Unavailable(f"ddplaunch is not installed in {sys.executable}, so torchrun cannot find its plug-in")
    return next(filter(None, map(_declared, folders)), missing)


def _declared(directory: str) -> str | None:
    path = f"{directory}/entry_points.txt"
    section = (files.read(path) or "").partition(_GROUP)[2].partition("\n[")[0]
    return path if re.search(r"^ddplaunch\s*=", section, re.MULTILINE) else None


#: Packages that `import torch.distributed.run` imports, some of them only where they are installed.
_OF_TORCH = {
    *("filelock", "fsspec", "functorch", "jinja2", "markupsafe", "mpmath", "networkx", "numpy", "packaging", "psutil"),
    *("pynvml", "setuptools", "sympy", "torch", "torchgen", "tqdm", "triton", "typing_extensions", "yaml"),
}
#: Of the standard library, but nothing that a library imports; a `test.py` is in many directories.
_HARMLESS = {"antigravity", "idlelib", "test", "this", "turtle", "turtledemo"}
_SUFFIXES = (".py", ".pyc", ".so")


def shadowing_file(directory: str) -> str | None:
    """Return the name of the first file or package in ``directory`` that is named like what torchrun imports."""
    libraries = (sys.stdlib_module_names | _OF_TORCH) - _HARMLESS
    for name in sorted(files.names(directory)):
        stem, dot, _ = name.partition(".")
        if stem not in libraries:
            continue
        if name.endswith(_SUFFIXES) if dot else Path(directory, name, "__init__.py").exists():
            return name
    return None


_ASSIGNED = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*=\s*(?:None|'([^'\n]*)'|\"([^\"\n]*)\")", re.MULTILINE)
_LONG_OPTION = re.compile(r"""["']--([a-z0-9][a-z0-9_-]*)["']""")


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
    packages = probe_packages([str(Path(folder).parent)]).versions
    nccl = (version for name, version in packages.items() if name.startswith("nvidia-nccl-cu"))
    return TorchFacts(
        version=version,
        path=folder,
        cuda=values.get("cuda"),
        hip=values.get("hip"),
        torchrun_flags=torchrun_flags(files.read(f"{folder}/distributed/run.py") or ""),
        nccl_version=next(nccl, None),  # None if NCCL came another way than as a wheel
    )


def torchrun_flags(source: str) -> frozenset[str]:
    """Return the long options that the source of ``torch/distributed/run.py`` declares, with dashes."""
    _, _, parser = source.partition("def get_args_parser")  # around it are examples that declare nothing
    parser = parser.partition("\ndef ")[0]
    return frozenset("--" + name.replace("_", "-") for name in _LONG_OPTION.findall(parser or source))


_CONTAINER_VARIABLES = {
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "singularity",
    "SINGULARITY_NAME": "singularity",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
}
_CONTAINER_FILES = (("run/.containerenv", "podman"), (".dockerenv", "docker"))


def probe_host(
    addresses: tuple[str, ...] | Unavailable, environ: Mapping[str, str], root: Path = Path("/")
) -> HostFacts:
    """Return the host's facts; ``addresses`` is what its own name resolves to (see `names`)."""
    system = os.uname()
    return HostFacts(
        name=system.nodename,
        name_addresses=addresses,
        kernel=system.release,
        container=container(environ, root),
        user=files.user_name(own_id(), str(root), environ),
        machine=system.machine,
    )


def container(environ: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Return the kind of container around this process, or None.

    The environment is asked first: it names the outermost manager (Kubernetes runs Docker, not the other way
    round). ``container=`` is the convention of https://systemd.io/CONTAINER_INTERFACE.
    """
    if any(name.startswith(("PYXIS_", "ENROOT_")) for name in environ):
        return "slurm-pyxis" if "SLURM_JOB_ID" in environ else "enroot"
    for name, kind in _CONTAINER_VARIABLES.items():
        if name in environ:
            return kind
    if "/kubepods" in (files.read(f"{root}/proc/1/cgroup") or ""):
        return "kubernetes"
    by_file = (kind for path, kind in _CONTAINER_FILES if os.access(f"{root}/{path}", os.F_OK))
    return next(by_file, environ.get("container")) or None


def probe_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter to a launch, in order of name, secrets replaced by "***"."""
    return {name: hide_value(name, environ[name]) for name in filter(is_recorded, sorted(environ))}
