"""The check that compares what hosts have installed; refuses to judge packages that other checks compare."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ddplaunch.checks.check import Check, declare
from ddplaunch.finding import Finding, warning
from ddplaunch.frozen import dataclass
from ddplaunch.launch.hosts_plan import HostReport
from ddplaunch.values import Unavailable

#: What a training has most to do with is said first.
_FIRST = (
    *("numpy", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "huggingface-hub", "peft", "trl"),
    *("deepspeed", "lightning", "pytorch-lightning", "torchvision", "torchaudio", "triton", "flash-attn", "xformers"),
    *("bitsandbytes", "timm", "einops", "sentencepiece", "pillow", "pyarrow", "webdataset", "hydra-core", "omegaconf"),
)
_OTHER_CHECKS = re.compile(r"torch|ddplaunch|nvidia-nccl-cu\d+")
_WITH_TORCH = re.compile(r"nvidia-.*|triton|pytorch-triton.*|sympy|networkx|mpmath|filelock|fsspec")
#: Tools of people and of installers, which no rank imports.
_TOOLS = re.compile(
    r"pip|setuptools|wheel|distlib|virtualenv|uv|build|twine|pytest.*|coverage|hypothesis|tox|nox|ruff|black|isort|flake8.*"
    r"|pylint|mypy.*|pre-commit|ipython.*|ipykernel|jupyter.*|notebook.*|nbconvert|nbformat|debugpy|py-spy|nvitop|gpustat"
)
_NAMED = 3
_INSTALLED = 8  # packages that one pip command names


@dataclass(frozen=True)
class _Difference:
    """A package, what most hosts have, and the hosts that have something else (None: nothing)."""

    package: str
    most: str
    others: Mapping[str, str | None]


def hosts_differ_packages(hosts: tuple[HostReport, ...]) -> Iterator[Finding]:
    """Hosts have different versions of installed packages, or lack some that most have.

    Ranks of one job that run different code shuffle, tokenize or compute differently, and nobody says so; or one rank
    fails at an import and the others wait for it. What is installed is read from the names of `.dist-info` folders.
    Tools that no training imports do not count, nor does what only a few hosts have.
    Remedy: one environment for all hosts, from one lock file or image, or on a file system that they share.
    """
    installed = {
        host.name: host.facts.packages.versions for host in hosts if not isinstance(host.facts.packages, Unavailable)
    }
    same_torch = len({versions.get("torch") for versions in installed.values()}) == 1
    found = [
        difference
        for package in _ordered({name for versions in installed.values() for name in versions})
        if not _OTHER_CHECKS.fullmatch(package)
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
            "; ".join(_phrase(each, installed) for each in found[:_NAMED]) + more,
            why="ranks of one job then run different code: they fail at an import, or compute and shuffle differently "
            "without a word",
            fix=_fix(hosts, affected, found),
            where=affected,
        )


def _ordered(packages: set[str]) -> list[str]:
    rank = {name: number for number, name in enumerate(_FIRST)}
    return sorted(packages, key=lambda name: (rank.get(name, len(rank)), name))


def _difference(package: str, installed: Mapping[str, Mapping[str, str]]) -> _Difference | None:
    """Where hosts are divided evenly, the first one is taken to be right."""
    have = {host: versions.get(package) for host, versions in installed.items()}
    most = Counter(have.values()).most_common(1)[0][0]
    others = {host: version for host, version in have.items() if version != most}
    return _Difference(package, most, others) if most is not None and others else None


def _phrase(difference: _Difference, hosts: Iterable[str]) -> str:
    by_version: dict[str | None, list[str]] = {}
    for host, version in difference.others.items():
        by_version.setdefault(version, []).append(host)
    said = [f"{version or 'missing'} on {_few(names)}" for version, names in by_version.items()]
    common = [host for host in hosts if host not in difference.others]
    where = common[0] if len(common) == 1 else "the others"
    return f"{difference.package} is {', '.join(said)}, {difference.most} on {where}"


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= _NAMED else f"{', '.join(names[: _NAMED - 1])} and {len(names) - 2} more"


def _fix(hosts: tuple[HostReport, ...], affected: tuple[str, ...], found: list[_Difference]) -> str:
    """Return a command for the first affected host; where much differs, one that copies all of a good host's."""
    bad = next(host for host in hosts if host.name == affected[0])
    python = "python" if isinstance(bad.facts.python, Unavailable) else shlex.quote(bad.facts.python.executable)
    login = shlex.quote(bad.name)
    wanted = [f"{each.package}=={each.most}" for each in found if bad.name in each.others]
    good = next((host.name for host in hosts if host.name not in affected), None)
    if len(wanted) <= _INSTALLED or good is None:
        command = f"`ssh {login} {python} -m pip install {' '.join(wanted[:_INSTALLED])}`"
    else:
        command = (
            f"`ssh {shlex.quote(good)} {python} -m pip freeze | ssh {login} {python} -m pip install -r /dev/stdin`"
        )
    return command + (f", and so on for {_few(list(affected[1:]))}" if len(affected) > 1 else "")


CHECKS: tuple[Check, ...] = (declare("hosts", hosts_differ_packages),)
