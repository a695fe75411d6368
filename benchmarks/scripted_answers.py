"""What scripted hosts say: a healthy node's facts, its address, the record of its run; decides nothing."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddplaunch import __version__
from ddplaunch.machine.facts import HostFacts, Interface, PackageFacts
from ddplaunch.planning.hosts_plan import HostReport
from ddplaunch.values import codec
from tests.checks.healthy import healthy_facts, healthy_network

LINE = b"step 100 | loss 2.3456 | lr 3.0e-04 | 12345 tokens/s | 00:01:23 elapsed\n"
_PACKAGES = {f"package-{number}": "1.2.3" for number in range(250)}


def address_of(index: int) -> str:
    """Return the address of a host."""
    return f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}"


def facts_of(index: int, files: Sequence[str]) -> dict[str, Any]:
    """Return a host's answer; all have the same files."""
    network = healthy_network(interfaces=(Interface("eth0", True, False, (address_of(index),), 25_000),))
    host = HostFacts(f"h{index}", (address_of(index),), "6.8.0-45-generic", None, "ada")
    facts = replace(healthy_facts(), host=host, network=network, packages=PackageFacts(_PACKAGES), data_paths=())
    report = HostReport(
        name=f"h{index}",
        facts=replace(facts, output_paths=()),
        ddplaunch=__version__,
        plugin="/opt/env/entry_points.txt",
        sources=tuple((file, "alike") for file in files),
        machine=f"machine {index}",
    )
    return {"report": codec.plain(report)}


def record_of(node: int, status: int) -> bytes:
    """Return the archive of a host's record: eight ranks' last lines and the outcome."""
    data = io.BytesIO()
    below = f"node-{node}"
    outcome = {"schema": 1, "state": "failed", "exit_status": status, "attempts": [], "ended_s": time.time()}
    files = {f"{below}/attempt-0/rank-{node * 8 + rank}.out": LINE * 10 for rank in range(8)}
    files["outcome.json" if node == 0 else f"{below}/outcome.json"] = json.dumps(outcome).encode()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    return data.getvalue()
