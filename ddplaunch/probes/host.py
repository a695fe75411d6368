"""Who this host is: name, kernel, container, user; refuses to ask anybody but its own files and environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ddplaunch.probes import files
from ddplaunch.probes.facts import HostFacts
from ddplaunch.values import Unavailable

# a path such as /system.slice/docker.service is Docker's daemon on a plain host, not a container: ask for an id
_CGROUP_MARKS = (
    ("kubernetes", re.compile(r"/kubepods[./-]|/kubepods$", re.MULTILINE)),
    ("podman", re.compile(r"libpod-[0-9a-f]{12,}")),
    ("docker", re.compile(r"/docker[/-][0-9a-f]{12,}")),
    ("lxc", re.compile(r"/lxc(\.payload)?[./]")),
)


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
        user=files.user_name(os.geteuid(), str(root), environ),
    )


def container(environ: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Return the kind of container around this process, or None.

    The environment is asked first: it names the outermost manager (Kubernetes runs Docker, not the other way
    round). ``container=`` is the convention of https://systemd.io/CONTAINER_INTERFACE.
    """
    if any(name.startswith(("PYXIS_", "ENROOT_")) for name in environ):
        return "slurm-pyxis" if "SLURM_JOB_ID" in environ else "enroot"
    if "APPTAINER_CONTAINER" in environ:
        return "apptainer"
    if "SINGULARITY_CONTAINER" in environ or "SINGULARITY_NAME" in environ:
        return "singularity"
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    return _by_files(root) or environ.get("container") or None


def _by_files(root: Path) -> str | None:
    if (root / "run/.containerenv").exists():
        return "podman"
    memberships = "\n".join(files.read(f"{root}/proc/{pid}/cgroup") or "" for pid in ("self", "1"))
    for kind, mark in _CGROUP_MARKS:
        if mark.search(memberships):
            return kind
    return "docker" if (root / ".dockerenv").exists() else None
