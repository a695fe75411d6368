"""What is installed here (Python, torch, packages, ddplaunch's plug-in), facts of the host, and its environment.

Files are read; nothing is imported or run. torchrun looks up the group ``torchrun.logs_specs`` with
``importlib.metadata``, which reads every distribution; looking only for ddplaunch's takes a fraction of a millisecond.
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


# name-version.dist-info; the name part has no dash, and .egg-info (Debian, conda) may append Python's version:
# https://packaging.python.org/en/latest/specifications/recording-installed-packages/
_FOLDER = re.compile(r"^([A-Za-z0-9][\w.]*?)-([^-]+)(?:-py\d[\d.]*)?\.(?:dist|egg)-info$")
_SEPARATORS = re.compile(r"[-_.]+")


def probe_packages(search: Iterable[str] | None = None) -> PackageFacts:
    """Return the distributions installed in ``search``, by default ``sys.path``.

    Of several with one name the first counts, as for an import. An egg-info folder without a version in its name, as in
    a source tree, is ignored.
    """
    versions: dict[str, str] = {}
    for place in dict.fromkeys(sys.path if search is None else search):
        matches = [match for name in files.names(place) if (match := _FOLDER.match(name))] if place else []
        for match in matches:
            versions.setdefault(normalised(match[1]), match[2])
    return PackageFacts(versions)


def normalised(name: str) -> str:
    """Return a distribution's name in the form that pip compares: `huggingface-hub` for `huggingface_hub`.

    https://packaging.python.org/en/latest/specifications/name-normalization/
    """
    return _SEPARATORS.sub("-", name).lower()


_GROUP = "[torchrun.logs_specs]"


def probe_plugin(search: Iterable[str] | None = None) -> str | Unavailable:
    """Return the file that declares the plug-in's entry point, or why torchrun would not find one.

    ``search`` defaults to ``sys.path``. The working directory is skipped, because torchrun is started with ``-P`` where
    Python has it.
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


#: Packages that `import torch.distributed.run` imports, some of them only if installed.
_OF_TORCH = {
    *("cuda", "dill", "monkeytype", "opt_einsum", "pydot", "torchcomms"),
    *("filelock", "fsspec", "functorch", "jinja2", "markupsafe", "mpmath", "networkx", "numpy", "packaging", "psutil"),
    *("pynvml", "setuptools", "sympy", "torch", "torchgen", "tqdm", "triton", "typing_extensions", "yaml"),
}
#: In the standard library, but not imported by libraries; many directories contain a `test.py`.
_HARMLESS = {"antigravity", "idlelib", "test", "this", "turtle", "turtledemo"}
_SUFFIXES = (".py", ".pyc", ".so")


def shadowing_file(directory: str) -> str | None:
    """Return the first file or package in ``directory`` whose name hides a module that torchrun imports, or None."""
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
    """Return the version and options of the torch that this interpreter would import.

    The import system locates it (so editable installs and .pth files count) but does not run it.
    """
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # ValueError: a half-imported or fake torch in sys.modules
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
        nccl_version=next(nccl, None),  # None if NCCL was not installed as a wheel
    )


def torchrun_flags(source: str) -> frozenset[str]:
    """Return the long options that the source of ``torch/distributed/run.py`` declares, with dashes."""
    _, _, parser = source.partition("def get_args_parser")  # the rest of the file has examples only
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
    """Return the host's facts; ``addresses`` is what its own name resolves to (``network.look_up``)."""
    system = os.uname()
    return HostFacts(
        name=system.nodename,
        name_addresses=addresses,
        kernel=system.release,
        container=container(environ, root),
        user=files.user_name(own_id(), str(root), environ),
        machine=system.machine,
        slurm_task=os.path.exists(f"{root}/proc/{environ.get('SLURM_TASK_PID', 'self')}"),  # noqa: PTH110
    )


def container(environ: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Return the kind of container around this process, or None.

    The environment is checked first: it names the outermost manager (Kubernetes runs Docker, not the other way round).
    ``container=`` is the convention of https://systemd.io/CONTAINER_INTERFACE.
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
    """Return the variables that matter to a launch, sorted by name, with secrets replaced by "***"."""
    return {name: hide_value(name, environ[name]) for name in filter(is_recorded, sorted(environ))}
