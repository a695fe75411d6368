"""Checks that compare hosts: directory, script, versions, packages, GPUs, data and clocks."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ddplaunch import __version__
from ddplaunch.checks.check import Check, declare
from ddplaunch.launch.hosts_plan import HostReport
from ddplaunch.machine.facts import Gpu
from ddplaunch.values.finding import Finding, error, warning
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import count, listed

_SKEW_WARNING_S = 5.0


def same_host_twice(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """Two names are one machine.

    Two node ranks on it would take the same GPUs, and each would end the other's processes as its own orphans.
    Remedy: name the machine once, with all its processes.
    """
    seen: dict[str, HostReport] = {}
    for host in hosts:
        other = seen.setdefault(host.machine, host) if host.machine else host
        if other is not host:
            yield error(
                "same-host-twice",
                f"{other.name} and {host.name} are the same machine",
                why="each of them would get a node rank and take the same GPUs",
                fix=f"leave `{host.name}` out",
                where=(other.name, host.name),
            )


def host_directory_missing(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """The working directory does not exist on a host.

    Every host starts in the directory of this launch, because the script and relative paths are there.
    Remedy: a shared file system, a copy, or `--chdir` with a directory that all hosts have.
    """
    for host in hosts:
        if host.cwd_problem is not None:
            yield error(
                "host-directory-missing",
                f"`{host.cwd}` cannot be entered on {host.name}: {host.cwd_problem}",
                why="every host starts in the directory of this launch",
                fix="put the project there too, or name a directory that all hosts have: `--chdir DIR`",
                where=host.name,
            )


def host_script_missing(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """The script does not exist on a host.

    ddplaunch copies no scripts: each host reads its own file under the same path.
    Remedy: a shared file system, or `rsync` before the launch.
    """
    for host in hosts:
        if host.script == "missing" and host.cwd_problem is None:
            yield error(
                "host-script-missing",
                f"there is no `{host.script_name}` in `{host.cwd}` on {host.name}",
                why="each host reads its own file; ddplaunch copies none",
                fix=f"`rsync -a ./ {host.name}:{host.cwd}/`, or use a directory that all hosts share: `--chdir DIR`",
                where=host.name,
            )


def hosts_differ_script(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """The script differs between hosts.

    Ranks that run different code wait in different collectives, and the job hangs until these time out.
    Remedy: copy the script to all hosts, or keep it on a file system that they share.
    """

    def short(host: HostReport) -> str | None:
        return None if host.script in (None, "missing") else f"SHA-256 {str(host.script)[:12]}"

    yield from _compare(
        hosts,
        "hosts-differ-script",
        f"`{hosts[0].script_name}`" if hosts else "the script",
        short,
        "ranks that run different code wait for each other in different collectives",
        fix="copy it from one host to all, as in `rsync -a ./ HOST:DIR/`",
    )


def hosts_differ_ddplaunch(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """Hosts have different versions of ddplaunch.

    The protocol between launcher and hosts may differ, and each host uses the plug-in of its own installation.
    Remedy: install the same version on all hosts.
    """
    why = "launcher and hosts may speak different protocols"
    yield from _compare(hosts, "hosts-differ-ddplaunch", "ddplaunch", lambda host: host.ddplaunch, why)
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


def hosts_differ_python(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """Hosts have different versions of Python.

    Ranks send each other pickled objects, and wheels are built for one minor version.
    Remedy: `--python` with an interpreter that all hosts have.
    """

    def minor(host: HostReport) -> str | None:
        version = _fact("python", "version")(host)
        return None if version is None else ".".join(version.split(".")[:2])

    yield from _compare(hosts, "hosts-differ-python", "Python", minor, "ranks send each other pickled objects")


def hosts_differ_torch(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """Hosts have different versions of torch.

    Ranks of different versions disagree about the wire format of collectives and about pickled objects: they hang, or
    fail with messages that name neither version (https://github.com/pytorch/pytorch/issues/122571).
    Remedy: the same environment everywhere, or `--python` with an interpreter that all hosts have.
    """
    version = _fact("torch", "version", otherwise="none")
    yield from _compare(hosts, "hosts-differ-torch", "torch", version, "ranks of different versions hang or crash")


def hosts_differ_cuda(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
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
    yield from _compare(hosts, "hosts-differ-cuda", "torch's CUDA", build, why)


def hosts_differ_nccl(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """Hosts have different versions of NCCL.

    While NCCL bootstraps, it checks the version of its peers and refuses another one, or hangs
    (https://github.com/NVIDIA/nccl/issues/286).
    Remedy: install the same wheel on all hosts.
    """
    why = "NCCL refuses peers of another version, or hangs"
    yield from _compare(hosts, "hosts-differ-nccl", "NCCL", _fact("torch", "nccl_version"), why)


def hosts_differ_driver(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """Hosts have different versions of the NVIDIA driver.

    It works as long as each is new enough for torch's CUDA, but NCCL only uses features of the oldest one.
    Remedy: the same driver on all hosts.
    """
    version = _fact("nvml", "driver_version")
    why = "it works while each is new enough, but NCCL only uses features of the oldest one"
    yield from _compare(hosts, "hosts-differ-driver", "the NVIDIA driver", version, why, warning)


def hosts_differ_gpu_count(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """Hosts have different numbers of GPUs.

    Every node runs the same number of ranks, so `auto` has no answer, and ranks on a host with fewer GPUs would fail.
    Remedy: `--include`, `--exclude`, or a number that all hosts have.
    """
    least = min((len(_gpus(host)) for host in hosts if _gpus(host)), default=1)
    yield from _compare(
        hosts,
        "hosts-differ-gpu-count",
        "the number of GPUs",
        lambda host: str(len(_gpus(host))),
        "every node runs the same number of ranks",
        fix=f"name a number that all have, as in `ddplaunch run {len(hosts)}x{least} …`; or `--exclude` the hosts with "
        "fewer",
    )


def hosts_differ_gpu_model(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """Hosts have different GPU models.

    All ranks wait for the slowest one at each step, and the smallest memory limits the batch.
    Remedy: hosts with the same GPUs.
    """

    def models(host: HostReport) -> str | None:
        return ", ".join(sorted({gpu.name for gpu in _gpus(host)})) or None

    why = "at each step all ranks wait for the slowest, and the smallest memory limits the batch"
    yield from _compare(hosts, "hosts-differ-gpu-model", "the GPU model", models, why, warning)


def hosts_differ_data(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
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


def _compare(
    hosts: Sequence[HostReport],
    code: str,
    subject: str,
    of: Callable[[HostReport], str | None],
    why: str,
    kind: Callable[..., Finding] = error,
    fix: str = "bring the hosts to the same version, or name an interpreter that all have: `--python PATH`",
) -> Iterator[Finding]:
    """Yield a finding if ``of`` differs between hosts; it names the hosts that differ from the majority."""
    found = {host.name: value for host in hosts if (value := of(host)) is not None}
    counts = Counter(found.values())
    if len(counts) < 2:
        return
    most = counts.most_common(1)[0][0]
    others = {name: value for name, value in found.items() if value != most}
    named = [name for name, value in found.items() if value == most]
    rest = listed(f"{value} on {name}" for name, value in others.items())
    common = named[0] if len(named) == 1 else f"{len(named)} hosts"
    yield kind(
        code,
        f"{subject} differs: {most} on {common}, {rest}",
        why=why,
        fix=fix,
        where=tuple(others),
    )


def _fact(group: str, name: str, otherwise: str | None = None) -> Callable[[HostReport], str | None]:
    """Return the reader of one field of a host's facts; it gives ``otherwise`` if the host does not have it."""

    def read(host: HostReport) -> str | None:
        facts = getattr(host.facts, group)
        value = None if isinstance(facts, Unavailable) else getattr(facts, name)
        return otherwise if value is None else str(value)

    return read


def _gpus(host: HostReport) -> tuple[Gpu, ...]:
    return () if isinstance(host.facts.nvml, Unavailable) else host.facts.nvml.gpus


# Packages that matter most to a training are named first.
_TRAINING = """
    numpy transformers accelerate datasets tokenizers safetensors huggingface-hub peft trl deepspeed lightning
    pytorch-lightning torchvision torchaudio triton flash-attn xformers bitsandbytes timm einops sentencepiece pillow
    pyarrow webdataset hydra-core omegaconf
"""
_NAMED_FIRST = {name: number for number, name in enumerate(_TRAINING.split())}
_COMPARED_ELSEWHERE = re.compile(r"torch|ddplaunch|nvidia-nccl-cu\d+")
_WITH_TORCH = re.compile(r"nvidia-.*|triton|pytorch-triton.*|sympy|networkx|mpmath|filelock|fsspec")
# Tools for people and installers, which no rank imports.
_TOOLS = re.compile(
    r"pip|setuptools|wheel|distlib|virtualenv|uv|build|twine|pytest.*|coverage|hypothesis|tox|nox|ruff|black|isort|flake8.*"
    r"|pylint|mypy.*|pre-commit|ipython.*|ipykernel|jupyter.*|notebook.*|nbconvert|nbformat|debugpy|py-spy|nvitop|gpustat"
)
_NAMED = 3
_INSTALLED = 8  # packages that one pip command names


@dataclass(frozen=True)
class _Difference:
    """A package, the version of most hosts, and the versions of the other hosts (None: not installed)."""

    package: str
    most: str
    others: Mapping[str, str | None]


def hosts_differ_packages(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """Hosts have different versions of installed packages, or lack some that most have.

    Ranks that run different code silently shuffle, tokenize or compute differently; or one rank fails at an import and
    the others wait for it. The versions come from the names of `.dist-info` folders. Tools that no training imports do
    not count, nor do packages that only a few hosts have.
    Remedy: one environment for all hosts, from one lock file or image, or on a file system that they share.
    """
    installed = {
        host.name: host.facts.packages.versions for host in hosts if not isinstance(host.facts.packages, Unavailable)
    }
    names = {name for versions in installed.values() for name in versions}
    same_torch = len({versions.get("torch") for versions in installed.values()}) == 1
    found = [
        difference
        for package in sorted(names, key=lambda name: (_NAMED_FIRST.get(name, len(_NAMED_FIRST)), name))
        if not _COMPARED_ELSEWHERE.fullmatch(package)
        and not _TOOLS.fullmatch(package)
        and (same_torch or not _WITH_TORCH.fullmatch(package))
        and (difference := _difference(package, installed)) is not None
    ]
    if found:
        affected = tuple(name for name in installed if any(name in each.others for each in found))
        beyond = len(found) - _NAMED
        more = f"; {beyond} more package{'s differ' if beyond > 1 else ' differs'}" if beyond > 0 else ""
        yield warning(
            "hosts-differ-packages",
            "; ".join(_difference_text(each, installed) for each in found[:_NAMED]) + more,
            why="the ranks run different code: they fail at an import, or silently compute and shuffle differently",
            fix=_install_command(hosts, affected, found),
            where=affected,
        )


def _difference(package: str, installed: Mapping[str, Mapping[str, str]]) -> _Difference | None:
    """Return how ``package`` differs, None if it does not; of two equally frequent versions, the first one counts."""
    have = {host: versions.get(package) for host, versions in installed.items()}
    most = Counter(have.values()).most_common(1)[0][0]
    others = {host: version for host, version in have.items() if version != most}
    return _Difference(package, most, others) if most is not None and others else None


def _difference_text(difference: _Difference, hosts: Iterable[str]) -> str:
    by_version: dict[str | None, list[str]] = {}
    for host, version in difference.others.items():
        by_version.setdefault(version, []).append(host)
    said = [f"{version or 'missing'} on {listed(names, 2)}" for version, names in by_version.items()]
    common = [host for host in hosts if host not in difference.others]
    where = common[0] if len(common) == 1 else "the others"
    return f"{difference.package} is {', '.join(said)}, {difference.most} on {where}"


def _install_command(hosts: tuple[HostReport, ...], affected: tuple[str, ...], found: list[_Difference]) -> str:
    """Return a command that installs what the first affected host lacks; for many packages, a copy of a good host's."""
    bad = next(host for host in hosts if host.name == affected[0])
    python = "python" if isinstance(bad.facts.python, Unavailable) else shlex.quote(bad.facts.python.executable)
    login = shlex.quote(bad.name)
    wanted = [f"{each.package}=={each.most}" for each in found if bad.name in each.others]
    good = next((host.name for host in hosts if host.name not in affected), None)
    if len(wanted) <= _INSTALLED or good is None:
        command = f"`ssh {login} {python} -m pip install {' '.join(wanted[:_INSTALLED])}`"
    else:
        copy = f"{python} -m pip freeze | ssh {login} {python} -m pip install -r /dev/stdin"
        command = f"`ssh {shlex.quote(good)} {copy}`"
    return command + (f", and so on for {listed(affected[1:], 2)}" if len(affected) > 1 else "")


def login_node_as_rank_0(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """The first host has no GPU, but the others have.

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


def clock_skew(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """The clocks of hosts differ.

    Log lines of different hosts no longer sort by time, files seem to come from the future, and tokens and certificates
    fail. Remedy: NTP on all hosts (`timedatectl set-ntp true`).
    """
    if len(hosts) < 2:
        return
    ahead = sorted(hosts, key=lambda host: host.clock_ahead_s)
    middle = ahead[len(ahead) // 2] if len(hosts) > 2 else ahead[0]
    for host in hosts:
        skew_s = host.clock_ahead_s - middle.clock_ahead_s
        if abs(skew_s) - host.clock_unsure_s - middle.clock_unsure_s > _SKEW_WARNING_S:
            yield warning(
                "clock-skew",
                f"the clock of {host.name} is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} "
                f"that of {middle.name}",
                why="logs of different hosts no longer sort by time; files and tokens look too new or too old",
                fix=f"`ssh {host.name} sudo timedatectl set-ntp true`",
                where=host.name,
            )


CHECKS: tuple[Check, ...] = (
    declare("hosts", same_host_twice),
    declare("hosts", host_directory_missing),
    declare("hosts", host_script_missing),
    declare("hosts", hosts_differ_script),
    declare("hosts", hosts_differ_ddplaunch),
    declare("hosts", hosts_differ_python),
    declare("hosts", hosts_differ_torch),
    declare("hosts", hosts_differ_cuda),
    declare("hosts", hosts_differ_nccl),
    declare("hosts", hosts_differ_driver),
    declare("hosts", hosts_differ_gpu_count),
    declare("hosts", hosts_differ_gpu_model),
    declare("hosts", hosts_differ_data),
    declare("hosts", hosts_differ_packages),
    declare("hosts", login_node_as_rank_0),
    declare("hosts", clock_skew),
)
