"""Checks that compare hosts: directory, script, versions, packages, GPUs, data and clocks."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ddplaunch import __version__
from ddplaunch.checks.check import Findings, checks_in
from ddplaunch.machine.facts import Gpu
from ddplaunch.planning.hosts_plan import HostReport
from ddplaunch.values.finding import Finding, error, warning
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import count, listed

_SKEW_WARNING_S = 5.0


def same_host_twice(hosts: tuple[HostReport, ...]) -> Findings:
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


def host_directory_missing(hosts: tuple[HostReport, ...]) -> Findings:
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


def host_script_missing(hosts: tuple[HostReport, ...]) -> Findings:
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


def hosts_differ_script(hosts: tuple[HostReport, ...]) -> Findings:
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


def hosts_differ_ddplaunch(hosts: tuple[HostReport, ...]) -> Findings:
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


def hosts_differ_python(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different versions of Python.

    Ranks send each other pickled objects, and wheels are built for one minor version.
    Remedy: `--python` with an interpreter that all hosts have.
    """

    def minor(host: HostReport) -> str | None:
        version = _fact("python", "version")(host)
        return None if version is None else ".".join(version.split(".")[:2])

    yield from _compare(hosts, "hosts-differ-python", "Python", minor, "ranks send each other pickled objects")


def hosts_differ_torch(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different versions of torch.

    Ranks of different versions disagree about the wire format of collectives and about pickled objects: they hang, or
    fail with messages that name neither version (https://github.com/pytorch/pytorch/issues/122571).
    Remedy: the same environment everywhere, or `--python` with an interpreter that all hosts have.
    """
    version = _fact("torch", "version", otherwise="none")
    yield from _compare(hosts, "hosts-differ-torch", "torch", version, "ranks of different versions hang or crash")


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
    yield from _compare(hosts, "hosts-differ-cuda", "torch's CUDA", build, why)


def hosts_differ_nccl(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different versions of NCCL.

    While NCCL bootstraps, it checks the version of its peers and refuses another one, or hangs
    (https://github.com/NVIDIA/nccl/issues/286).
    Remedy: install the same wheel on all hosts.
    """
    why = "NCCL refuses peers of another version, or hangs"
    yield from _compare(hosts, "hosts-differ-nccl", "NCCL", _fact("torch", "nccl_version"), why)


def hosts_differ_driver(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different versions of the NVIDIA driver.

    It works as long as each is new enough for torch's CUDA, but NCCL only uses features of the oldest one.
    Remedy: the same driver on all hosts.
    """
    version = _fact("nvml", "driver_version")
    why = "it works while each is new enough, but NCCL only uses features of the oldest one"
    yield from _compare(hosts, "hosts-differ-driver", "the NVIDIA driver", version, why, warning)


def hosts_differ_gpu_count(hosts: tuple[HostReport, ...]) -> Findings:
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


def hosts_differ_gpu_model(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different GPU models.

    All ranks wait for the slowest one at each step, and the smallest memory limits the batch.
    Remedy: hosts with the same GPUs.
    """

    def models(host: HostReport) -> str | None:
        return ", ".join(sorted({gpu.name for gpu in _gpus(host)})) or None

    why = "at each step all ranks wait for the slowest, and the smallest memory limits the batch"
    yield from _compare(hosts, "hosts-differ-gpu-model", "the GPU model", models, why, warning)


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


def _compare(
    hosts: Sequence[HostReport],
    code: str,
    subject: str,
    of: Callable[[HostReport], str | None],
    why: str,
    kind: Callable[..., Finding] = error,
    fix: str = "bring the hosts to the same version, or name an interpreter that all have: `--python PATH`",
) -> Findings:
    """Yield a finding if ``of`` differs between hosts; it names the hosts that differ from the majority."""
    found = {host.name: value for host in hosts if (value := of(host)) is not None}
    most, others = _majority(found)
    if others:
        rest = listed(f"{value} on {name}" for name, value in others.items())
        common = _alone(found, others) or f"{len(found) - len(others)} hosts"
        yield kind(code, f"{subject} differs: {most} on {common}, {rest}", why=why, fix=fix, where=tuple(others))


def _majority(found: Mapping[str, str | None]) -> tuple[str | None, dict[str, str | None]]:
    """Return what most hosts have, and what the others have; of two equally frequent values, the first one counts."""
    most = Counter(found.values()).most_common(1)[0][0] if found else None
    return most, {host: value for host, value in found.items() if value != most}


def _alone(hosts: Iterable[str], others: Mapping[str, str | None]) -> str | None:
    """Return the only one of ``hosts`` that is none of the others, None if several are."""
    alike = [host for host in hosts if host not in others]
    return alike[0] if len(alike) == 1 else None


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


def hosts_differ_packages(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different versions of installed packages, or lack some that most have.

    Ranks that run different code silently shuffle, tokenize or compute differently; or one rank fails at an import and
    the others wait for it. The versions come from the names of `.dist-info` folders. Tools that no training imports do
    not count, nor do packages that only a few hosts have.
    Remedy: one environment for all hosts, from one lock file or image, or on a file system that they share.
    """
    installed = {
        host.name: host.facts.packages.versions for host in hosts if not isinstance(host.facts.packages, Unavailable)
    }
    wanted: dict[str, str] = {}  # by package, the version of most hosts
    others: dict[str, dict[str, str | None]] = {}  # by package, the hosts that have another version, or None
    for package in _compared(installed):
        most, differing = _majority({host: versions.get(package) for host, versions in installed.items()})
        if most is not None and differing:
            wanted[package], others[package] = most, differing
    if not wanted:
        return
    affected = [name for name in installed if any(name in differing for differing in others.values())]
    texts = [_package_text(name, wanted[name], others[name], installed) for name in list(wanted)[:_NAMED]]
    beyond = len(wanted) - len(texts)
    more = f"{count(beyond, 'more package')} {'differ' if beyond > 1 else 'differs'}"
    bad = next(host for host in hosts if host.name == affected[0])
    good = next((host.name for host in hosts if host.name not in affected), None)
    lacking = [f"{package}=={version}" for package, version in wanted.items() if bad.name in others[package]]
    yield warning(
        "hosts-differ-packages",
        "; ".join([*texts, more] if beyond else texts),
        why="the ranks run different code: they fail at an import, or silently compute and shuffle differently",
        fix=_install_command(bad, lacking, good)
        + (f", and so on for {listed(affected[1:], 2)}" if len(affected) > 1 else ""),
        where=tuple(affected),
    )


def _compared(installed: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the packages to compare, in order of weight; those that come with torch only if all have the same one."""
    same_torch = len({versions.get("torch") for versions in installed.values()}) == 1
    ignored = [_COMPARED_ELSEWHERE, _TOOLS, *([] if same_torch else [_WITH_TORCH])]
    names = {name for versions in installed.values() for name in versions}
    left = [name for name in names if not any(pattern.fullmatch(name) for pattern in ignored)]
    return sorted(left, key=lambda name: (_NAMED_FIRST.get(name, len(_NAMED_FIRST)), name))


def _package_text(package: str, most: str, others: Mapping[str, str | None], hosts: Iterable[str]) -> str:
    by_version: dict[str | None, list[str]] = {}
    for host, version in others.items():
        by_version.setdefault(version, []).append(host)
    said = [f"{version or 'missing'} on {listed(names, 2)}" for version, names in by_version.items()]
    return f"{package} is {', '.join(said)}, {most} on {_alone(hosts, others) or 'the others'}"


def _install_command(bad: HostReport, lacking: list[str], good: str | None) -> str:
    """Return a command that installs what the host ``bad`` lacks; for many packages, a copy of what ``good`` has."""
    python = "python" if isinstance(bad.facts.python, Unavailable) else shlex.quote(bad.facts.python.executable)
    install = f"ssh {shlex.quote(bad.name)} {python} -m pip install"
    if len(lacking) <= _INSTALLED or good is None:
        return f"`{install} {' '.join(lacking[:_INSTALLED])}`"
    return f"`ssh {shlex.quote(good)} {python} -m pip freeze | {install} -r /dev/stdin`"


def login_node_as_rank_0(hosts: tuple[HostReport, ...]) -> Findings:
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


def clock_skew(hosts: tuple[HostReport, ...]) -> Findings:
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


CHECKS = checks_in(globals(), "hosts")
