"""Checks that compare hosts: directory, script, versions, packages, GPUs, data and clocks."""

from __future__ import annotations

from collections.abc import Callable

from ddplaunch import __version__
from ddplaunch.checks.across_code import TO_EACH, TO_HOST
from ddplaunch.checks.check import Findings, checks_in, compare
from ddplaunch.machine.facts import Gpu
from ddplaunch.planning.hosts_plan import HostReport
from ddplaunch.values.finding import error, warning
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import count


def same_host_twice(hosts: tuple[HostReport, ...]) -> Findings:
    """Two host names belong to one machine.

    Two node ranks on it would take the same GPUs, and each would end the other's processes, taking them for its own
    orphans.
    Remedy: name the machine once, with all its processes.
    """
    host_by_machine: dict[str, HostReport] = {}
    for host in hosts:
        earlier = host_by_machine.setdefault(host.machine, host) if host.machine else host
        if earlier is not host:
            yield error(
                "same-host-twice",
                f"{earlier.name} and {host.name} are the same machine",
                why="each of them would get a node rank and take the same GPUs",
                fix=f"leave `{host.name}` out",
                where=(earlier.name, host.name),
            )


def host_directory_missing(hosts: tuple[HostReport, ...]) -> Findings:
    """The working directory does not exist on a host.

    Every host starts in the directory of this launch, because the script and relative paths are there.
    Remedy: a shared file system, a copy, or `--chdir` with a directory that all hosts have.
    """
    for host in hosts:
        if host.cwd_problem is not None:
            yield error(
                "host-directory-missing",
                f"{host.name}: `{host.cwd}` cannot be entered: {host.cwd_problem}",
                why="every host starts in the directory of this launch",
                fix="put the project there too, or name a directory that all hosts have: `--chdir DIR`",
                where=host.name,
            )


def host_script_missing(hosts: tuple[HostReport, ...]) -> Findings:
    """The script does not exist on a host.

    Each host reads its own file under the same path.
    Remedy: a shared file system, or a copy before the launch, by the command in the finding.
    """
    for host in hosts:
        if host.script == "missing" and host.cwd_problem is None:
            yield error(
                "host-script-missing",
                f"{host.name}: there is no `{host.script_name}` in `{host.cwd}`",
                why="each host reads its own file",
                fix=f"{TO_HOST.format(host.name, host.cwd)}, or a directory that all hosts share: `--chdir DIR`",
                where=host.name,
            )


def hosts_differ_script(hosts: tuple[HostReport, ...]) -> Findings:
    """The script differs between hosts.

    Ranks that run different code wait in different collectives, and the job hangs until these time out.
    Remedy: copy it by the command in the finding, or keep it on a file system that all hosts share.
    """

    def short(host: HostReport) -> str | None:
        return None if host.script in (None, "missing") else f"digest {str(host.script)[:12]}"

    yield from compare(
        hosts,
        "hosts-differ-script",
        f"`{hosts[0].script_name}`" if hosts else "the script",
        short,
        "ranks that run different code wait for each other in different collectives",
        fix=TO_EACH,
    )


def hosts_differ_ddplaunch(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different versions of ddplaunch.

    The protocol between launcher and hosts may differ, and each host uses the plug-in of its own installation.
    Remedy: install the same version on all hosts.
    """
    why = "launcher and hosts may speak different protocols"
    yield from compare(hosts, "hosts-differ-ddplaunch", "ddplaunch", lambda host: host.ddplaunch, why)
    versions = {host.ddplaunch for host in hosts}
    if len(versions) == 1 and (version := versions.pop()) != __version__:
        yield error(
            "hosts-differ-ddplaunch",
            f"ddplaunch differs: {__version__} here, {version} on {count(len(hosts), 'host')}",
            why=why,
            fix=f"`pip install ddplaunch=={version}` here, or {__version__} on the hosts; `--python PATH` names "
            "another interpreter there",
            where=tuple(host.name for host in hosts),
        )


def hosts_differ_python(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different versions of Python.

    Ranks send each other pickled objects, and wheels are built for one minor version.
    Remedy: `--python` with an interpreter that all hosts have.
    """

    def minor(host: HostReport) -> str | None:
        version = _fact("python", "version")(host)
        return None if version is None else ".".join(version.split(".")[:2])

    yield from compare(hosts, "hosts-differ-python", "Python", minor, "ranks send each other pickled objects")


def hosts_differ_torch(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different versions of torch.

    Ranks of different versions disagree about the wire format of collectives and about pickled objects: they hang, or
    fail with messages that name neither version (https://github.com/pytorch/pytorch/issues/122571).
    Remedy: the same environment everywhere, or `--python` with an interpreter that all hosts have.
    """
    version = _fact("torch", "version", otherwise="none")
    yield from compare(hosts, "hosts-differ-torch", "torch", version, "ranks of different versions hang or crash")


def hosts_differ_cuda(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have torch built for different CUDA or ROCm versions.

    Builds for different CUDA versions bring different NCCL libraries and kernels, and a CPU build has neither.
    Remedy: install the same wheel on all hosts.
    """

    def build(host: HostReport) -> str | None:
        torch = host.facts.torch
        if isinstance(torch, Unavailable):
            return None
        return f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "none (a CPU build)"

    why = "they bring different NCCL libraries, and a CPU build brings none"
    yield from compare(hosts, "hosts-differ-cuda", "torch's CUDA", build, why)


def hosts_differ_nccl(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different versions of NCCL.

    When NCCL starts, it checks the version of its peers and refuses a different one, or hangs
    (https://github.com/NVIDIA/nccl/issues/286).
    Remedy: install the same wheel on all hosts.
    """
    why = "NCCL refuses peers of another version, or hangs"
    yield from compare(hosts, "hosts-differ-nccl", "NCCL", _fact("torch", "nccl_version"), why)


def hosts_differ_driver(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different versions of the NVIDIA driver.

    This works if every driver is new enough for torch's CUDA, but NCCL only uses features of the oldest one.
    Remedy: the same driver on all hosts.
    """
    version = _fact("nvml", "driver_version")
    why = "it works while each is new enough, but NCCL only uses features of the oldest one"
    yield from compare(hosts, "hosts-differ-driver", "the NVIDIA driver", version, why, warning)


def hosts_differ_gpu_count(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different numbers of GPUs.

    By default every node runs the same number of ranks, so `auto` cannot choose one, and ranks on a host with fewer
    GPUs would fail.
    Remedy: the number of each node, as in `ddplaunch run 8+4`; `--exclude`; or a number that all hosts
    have.
    """
    counts = "+".join(str(len(_gpus(host))) for host in hosts)
    least = min((len(_gpus(host)) for host in hosts if _gpus(host)), default=1)
    yield from compare(
        hosts,
        "hosts-differ-gpu-count",
        "the number of GPUs",
        lambda host: str(len(_gpus(host))),
        "unless the ranks of each node are said, every node runs the same number",
        fix=f"`ddplaunch run {counts} …` uses all of them"
        if "0" not in counts.split("+")
        else f"name a number that all have: `ddplaunch run {len(hosts)}x{least} …`; or `--exclude` those with fewer",
    )


def hosts_differ_gpu_model(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different GPU models.

    All ranks wait for the slowest one at each step, and the smallest memory limits the batch.
    Remedy: hosts with the same GPUs.
    """

    def models(host: HostReport) -> str | None:
        return ", ".join(sorted({gpu.name for gpu in _gpus(host)})) or None

    why = "at each step all ranks wait for the slowest, and the smallest memory limits the batch"
    yield from compare(hosts, "hosts-differ-gpu-model", "the GPU model", models, why, warning)


def hosts_differ_data(hosts: tuple[HostReport, ...]) -> Findings:
    """A data path exists on some hosts only.

    The ranks on the others fail when they open it, and the rest of the job waits for them.
    Remedy: mount or copy it everywhere.
    """
    paths = {path.path for host in hosts for path in host.facts.data_paths}
    for name in sorted(paths):
        kinds = {host.name: next((p.kind for p in host.facts.data_paths if p.path == name), None) for host in hosts}
        present = [host for host, kind in kinds.items() if kind in ("file", "directory", "other")]
        lacking = [host for host, kind in kinds.items() if kind == "missing"]
        if present and lacking:
            yield error(
                "hosts-differ-data",
                f"`{name}` is on {', '.join(present)}, and missing on {', '.join(lacking)}",
                why="ranks there fail when they open it, and the others wait for them",
                fix=f"mount or copy it there too: `ssh {lacking[0]} ls -ld {name}`",
                where=tuple(lacking),
            )


def _fact(group: str, name: str, otherwise: str | None = None) -> Callable[[HostReport], str | None]:
    """Return a function that reads one field of a host's facts, or gives ``otherwise`` if the host does not have it."""

    def read(host: HostReport) -> str | None:
        facts = getattr(host.facts, group)
        value = None if isinstance(facts, Unavailable) else getattr(facts, name)
        return otherwise if value is None else str(value)

    return read


def _gpus(host: HostReport) -> tuple[Gpu, ...]:
    return () if isinstance(host.facts.nvml, Unavailable) else host.facts.nvml.gpus


def login_node_as_rank_0(hosts: tuple[HostReport, ...]) -> Findings:
    """The first host has no GPU, but the others do.

    The first host of the list gets node rank 0 and trains like all others, so it should not be a login node.
    Remedy: leave it out; you can still start the launch from it.
    """
    counts = [len(_gpus(host)) for host in hosts]
    if len(hosts) > 1 and counts[0] == 0 and all(counts[1:]):
        yield error(
            "login-node-as-rank-0",
            f"{hosts[0].name} has no GPU, but the other hosts have",
            why="the first host gets node rank 0 and trains like the others",
            fix=f"leave `{hosts[0].name}` out of the hosts; you can still start the launch from it",
            where=hosts[0].name,
        )


CHECKS = checks_in(globals(), "hosts")
