"""Checks of what all hosts should have alike: versions, packages, GPUs, script, data; refuses to say which is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ddplaunch.checks.check import Check, declare
from ddplaunch.finding import Finding, error, warning
from ddplaunch.launch.hosts_plan import HostReport
from ddplaunch.probes.facts import Facts
from ddplaunch.values import Unavailable

Reports = tuple[HostReport, ...]


def hosts_differ_script(hosts: Reports) -> Iterator[Finding]:
    """The script differs between hosts.

    Ranks that run different code wait in different collectives: the job hangs until their timeout.
    Remedy: copy the script to all hosts, or keep it on a file system that they share.
    """

    def short(host: HostReport) -> str | None:
        return None if host.script in (None, "missing") else str(host.script)[:12]

    yield from _differ(
        hosts,
        "hosts-differ-script",
        f"`{hosts[0].script_name}`" if hosts else "the script",
        short,
        "ranks that run different code wait for each other in different collectives",
        fix="copy it from one host to all, as in `rsync -a ./ HOST:DIR/`",
        unit="SHA-256 ",
    )


def hosts_differ_ddplaunch(hosts: Reports) -> Iterator[Finding]:
    """Hosts have different versions of ddplaunch.

    Launcher and hosts speak a protocol of their own, and the plug-in comes from each host's installation.
    Remedy: install the same version on all hosts.
    """
    yield from _differ(
        hosts, "hosts-differ-ddplaunch", "ddplaunch", lambda host: host.ddplaunch, "launcher and hosts work together"
    )


def hosts_differ_python(hosts: Reports) -> Iterator[Finding]:
    """Hosts have different versions of Python.

    Objects that ranks send each other are pickled, and wheels are built for one minor version.
    Remedy: `--python` with an interpreter that all hosts have.
    """
    yield from _differ(hosts, "hosts-differ-python", "Python", _python, "what ranks send each other is pickled")


def hosts_differ_torch(hosts: Reports) -> Iterator[Finding]:
    """Hosts have different versions of torch.

    Ranks of different versions disagree about the wire format of collectives and about pickled objects: they hang, or
    fail with messages that name neither version (https://github.com/pytorch/pytorch/issues/122571).
    Remedy: the same environment everywhere, or `--python` with an interpreter that all hosts have.
    """
    yield from _differ(hosts, "hosts-differ-torch", "torch", _torch, "ranks of different versions hang or crash")


def hosts_differ_cuda(hosts: Reports) -> Iterator[Finding]:
    """Hosts have torch built for different CUDA or ROCm versions.

    A CPU build beside a CUDA build, or two CUDA versions, bring different NCCL libraries and kernels.
    Remedy: install the same wheel on all hosts.
    """
    why = "they bring different NCCL libraries, and a CPU build none at all"
    yield from _differ(hosts, "hosts-differ-cuda", "torch's CUDA", _cuda, why)


def hosts_differ_nccl(hosts: Reports) -> Iterator[Finding]:
    """Hosts have different versions of NCCL.

    NCCL checks the version of its peers while it bootstraps and refuses, or hangs where it cannot
    (https://github.com/NVIDIA/nccl/issues/286).
    Remedy: install the same wheel on all hosts.
    """
    yield from _differ(hosts, "hosts-differ-nccl", "NCCL", _nccl, "NCCL refuses peers of another version, or hangs")


def hosts_differ_driver(hosts: Reports) -> Iterator[Finding]:
    """Hosts have different versions of the NVIDIA driver.

    It works as long as each is new enough for torch's CUDA, but a job then runs on what the oldest can do.
    Remedy: the same driver on all hosts.
    """
    why = "it works while each is new enough, and NCCL uses what the oldest one can do"
    yield from _differ(hosts, "hosts-differ-driver", "the NVIDIA driver", _driver, why, warning)


def hosts_differ_gpu_count(hosts: Reports) -> Iterator[Finding]:
    """Hosts have different numbers of GPUs.

    Every node runs the same number of ranks, so `auto` has no answer, and a host with fewer would fail on its own.
    Remedy: `--include`, `--exclude`, or a number that all hosts have.
    """

    def count(host: HostReport) -> str | None:
        nvml = host.facts.nvml
        return None if isinstance(nvml, Unavailable) else str(len(nvml.gpus))

    yield from _differ(
        hosts,
        "hosts-differ-gpu-count",
        "the number of GPUs",
        lambda host: count(host) or "0",
        "every node runs the same number of ranks",
        fix="name a number that all have, as in `ddplaunch run {nodes}x{least} …`; or `--exclude` the hosts with fewer",
    )


def hosts_differ_gpu_model(hosts: Reports) -> Iterator[Finding]:
    """Hosts have different GPU models.

    All ranks wait for the slowest at each step, and the smallest memory limits the batch.
    Remedy: hosts of one kind.
    """

    def models(host: HostReport) -> str | None:
        nvml = host.facts.nvml
        if isinstance(nvml, Unavailable) or not nvml.gpus:
            return None
        return ", ".join(sorted({gpu.name for gpu in nvml.gpus}))

    why = "at each step all ranks wait for the slowest, and the smallest memory limits the batch"
    yield from _differ(hosts, "hosts-differ-gpu-model", "the GPU model", models, why, warning)


def hosts_differ_data(hosts: Reports) -> Iterator[Finding]:
    """A data path is there on some hosts only.

    The ranks of the others fail when they open it, and the rest of the job waits for them.
    Remedy: mount or copy it everywhere.
    """
    paths = {path.path for host in hosts for path in host.facts.data_paths}
    for name in sorted(paths):
        kinds = {host.name: next((p.kind for p in host.facts.data_paths if p.path == name), None) for host in hosts}
        there = [host for host, kind in kinds.items() if kind in ("file", "directory", "other")]
        lacking = [host for host, kind in kinds.items() if kind == "missing"]
        if there and lacking:
            yield error(
                "hosts-differ-data",
                f"`{name}` is on {', '.join(there)}, and missing on {', '.join(lacking)}",
                why="ranks there fail when they open it, and the others wait for them",
                fix=f"mount or copy it there too: `ssh {lacking[0]} ls -ld {name}`",
                where=tuple(lacking),
            )


def _differ(
    hosts: Sequence[HostReport],
    code: str,
    subject: str,
    of: Callable[[HostReport], str | None],
    why: str,
    kind: Callable[..., Finding] = error,
    fix: str = "",
    unit: str = "",
) -> Iterator[Finding]:
    """Yield one finding where the hosts do not agree; it names those that differ from what most have."""
    found = {host.name: value for host in hosts if (value := of(host)) is not None}
    counts = Counter(found.values())
    if len(counts) < 2:
        return
    most = counts.most_common(1)[0][0]
    others = {name: value for name, value in found.items() if value != most}
    named = [name for name, value in found.items() if value == most]
    rest = ", ".join(f"{unit}{value} on {name}" for name, value in list(others.items())[:4])
    more = f" and {len(others) - 4} more" if len(others) > 4 else ""
    common = named[0] if len(named) == 1 else f"{len(named)} hosts"
    least = min((value for value in counts if value.isdecimal() and value != "0"), key=int, default="1")
    yield kind(
        code,
        f"{subject} differs: {unit}{most} on {common}, {rest}{more}",
        why=why,
        fix=fix.format(nodes=len(hosts), least=least)
        or "bring the hosts to the same version, or name an interpreter that all have: `--python PATH`",
        where=tuple(others),
    )


def _torch(host: HostReport) -> str | None:
    return _field(host.facts, "torch", "version") or "none"


def _cuda(host: HostReport) -> str | None:
    torch = host.facts.torch
    if isinstance(torch, Unavailable):
        return None
    return f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "none (a CPU build)"


def _nccl(host: HostReport) -> str | None:
    return _field(host.facts, "torch", "nccl_version")


def _driver(host: HostReport) -> str | None:
    return _field(host.facts, "nvml", "driver_version")


def _python(host: HostReport) -> str | None:
    version = _field(host.facts, "python", "version")
    return None if version is None else ".".join(version.split(".")[:2])


def _field(facts: Facts, group: str, name: str) -> str | None:
    value = getattr(facts, group)
    found = None if isinstance(value, Unavailable) else getattr(value, name)
    return None if found is None else str(found)


CHECKS: tuple[Check, ...] = tuple(
    declare("hosts", check)
    for check in (
        hosts_differ_script,
        hosts_differ_ddplaunch,
        hosts_differ_python,
        hosts_differ_torch,
        hosts_differ_cuda,
        hosts_differ_nccl,
        hosts_differ_driver,
        hosts_differ_gpu_count,
        hosts_differ_gpu_model,
        hosts_differ_data,
    )
)
