"""Reads this process's place in a job of systems other than Slurm, whose variables are rows of ``systems.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ddplaunch.planning.flag import read_nodes
from ddplaunch.planning.inside.place_in_job import PlaceInJob, first_number
from ddplaunch.values.codec import toml_beside
from ddplaunch.values.resolved import Resolved, Source, SourceKind

_NODES = re.compile(r"[0-9]{1,9}(?::[0-9]{1,9})?\Z")


def systems() -> list[dict[str, Any]]:
    """Return the rows of ``systems.toml``."""
    rows: list[dict[str, Any]] = toml_beside(__file__, "systems.toml")["systems"]
    return rows


def find_system(environ: Mapping[str, str]) -> PlaceInJob | None:
    """Return the place that the first system gives whose variables are set; None where none gives a usable one."""
    row = next((row for row in systems() if all(name in environ for name in row["signs"])), None)
    if row is None:
        return None

    def text(key: str) -> str:
        return next(filter(None, (environ.get(name, "").strip() for name in row.get(key, ()))), "")

    words = re.findall(r"[^\s,\"\[\]]+", text("hosts"))
    hosts = tuple(dict.fromkeys(word for word in words if not word.isdecimal()))
    nodes = text("nnodes") or str(len(hosts) or "")
    if nodes and not _NODES.match(nodes):
        return None
    rank = first_number(environ, *row.get("node_rank", ()))
    if rank is None and (pod := re.search(row.get("worker_rank", "(?!)"), text("pod"))):
        rank = int(pod[1])
    if text("current") in hosts:
        rank = hosts.index(text("current"))
    host, _, port = text("endpoint").rpartition(":")
    by: SourceKind = "Kubeflow" if row["by"] == "Kubeflow" else "environment"
    said = {
        "nnodes": read_nodes(None, Resolved(nodes, Source(by))) if nodes else None,
        "nproc": first_number(environ, *row.get("nproc", ())) or None,
        "node_rank": rank,
        "master_addr": text("master_addr") or host or next(iter(hosts), None),
        "master_port": first_number({**environ, "": port}, *row.get("master_port", ()), ""),
    }
    note = f"{row['by']}: node {'?' if rank is None else rank} of {nodes}" if nodes else row.get("hint", "")
    alone_of = hosts if row.get("first_alone") and len(hosts) > 1 else ()
    values = {
        key: Resolved(value, Source(by, *row.get(key, ())[:1])) for key, value in said.items() if value is not None
    }
    return PlaceInJob(by, note, values, alone_of=alone_of)
