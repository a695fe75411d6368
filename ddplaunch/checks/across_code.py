"""Checks that compare what hosts run: files that the script imports, commits, installed packages."""

from __future__ import annotations

import re
import shlex

from ddplaunch.checks.check import Findings, alone, checks_in, majority
from ddplaunch.planning.hosts_plan import HostReport
from ddplaunch.values.finding import error, warning
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import count, listed

_NAMED = 3
#: How to copy the files that git tracks here, with their changes, to one host and directory; and to each host.
TO_HOST = "`git ls-files -z | rsync -a0 --files-from=- ./ {}:{}/`"
TO_EACH = f"for each host, {TO_HOST.format('HOST', 'DIR')}"


def hosts_differ_sources(hosts: tuple[HostReport, ...]) -> Findings:
    """Files that the script imports from its own directory differ between hosts, or are missing on some.

    Without running anything, ddplaunch finds the files of the working directory that the script imports, and compares a
    digest of each. Ranks that run different code train without an error message, or wait in different collectives.
    Remedy: copy the files to every host before the start, or use a file system that all hosts share.
    """
    problems: dict[str, list[str]] = {}  # the differing files, by host
    for path in dict.fromkeys(path for host in hosts for path, _ in host.sources):
        if path == hosts[0].script_name:
            continue  # hosts-differ-script reports it
        most, odd_hosts = majority({host.name: each for host in hosts if (each := dict(host.sources).get(path))})
        if most == "missing":
            missing = [name for name, each in odd_hosts.items() if each != "missing"]
            odd_hosts = {host.name: "missing" for host in hosts if host.name not in missing} if missing else {}
        for name, digest in odd_hosts.items():
            problems.setdefault(name, []).append(f"`{path}`{' (missing)' if digest == 'missing' else ''}")
    if problems:
        problem_texts = "; ".join(f"{listed(paths, 3)} on {name}" for name, paths in list(problems.items())[:_NAMED])
        more = f"; and on {count(len(problems) - _NAMED, 'more host')}" if len(problems) > _NAMED else ""
        yield error(
            "hosts-differ-sources",
            f"what the script imports differs: {problem_texts}{more}",
            why="ranks that run different code train something else, or wait for each other in different collectives",
            fix=TO_EACH,
            where=tuple(problems),
        )


def hosts_differ_from_here(hosts: tuple[HostReport, ...]) -> Findings:
    """All hosts have the same sources, but these differ from the launcher's working directory.

    If a change was made here but not copied, every host trains the earlier version.
    Remedy: `rsync`, or a file system that all share.
    """
    if not hosts or len({host.sources for host in hosts}) != 1:
        return
    sources_there = dict(hosts[0].sources)
    differing = [path for path, digest in hosts[0].sources_here if sources_there.get(path, digest) != digest]
    if differing:
        yield warning(
            "hosts-differ-from-here",
            f"the hosts do not have this directory's {listed((f'`{path}`' for path in differing), 3)}",
            why="what was changed here was not copied there, and they train the version that they have",
            fix=TO_EACH,
            where=tuple(host.name for host in hosts),
        )


# Packages that matter most to a training are named first.
_TRAINING = """
    numpy transformers accelerate datasets tokenizers safetensors huggingface-hub peft trl deepspeed lightning
    pytorch-lightning torchvision torchaudio flash-attn xformers bitsandbytes timm einops sentencepiece pillow
    pyarrow webdataset hydra-core omegaconf
"""
_NAMED_FIRST = {name: number for number, name in enumerate(_TRAINING.split())}
# Compared by other checks, part of torch, or a tool that no rank imports.
_NOT_COMPARED = re.compile(
    r"torch|ddplaunch|nvidia-.*|triton|pytorch-triton.*|sympy|networkx|mpmath|filelock|fsspec"
    r"|pip|setuptools|wheel|distlib|virtualenv|uv|build|twine|pytest.*|coverage|hypothesis|tox|nox|ruff|black|isort|flake8.*"
    r"|pylint|mypy.*|pre-commit|ipython.*|ipykernel|jupyter.*|notebook.*|nbconvert|nbformat|debugpy|py-spy|nvitop|gpustat"
)


def hosts_differ_packages(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different versions of installed packages, or lack some that most have.

    Ranks that run different code silently shuffle, tokenize or compute differently; or one rank fails at an import and
    the others wait for it. The versions come from the names of `.dist-info` folders. Tools that no training imports,
    packages that come with torch, and packages that only a few hosts have are not compared.
    Remedy: one environment for all hosts, from one lock file or image, or on a shared file system.
    """
    installed = {
        host.name: host.facts.packages.versions for host in hosts if not isinstance(host.facts.packages, Unavailable)
    }
    names = sorted({name for versions in installed.values() for name in versions if not _NOT_COMPARED.fullmatch(name)})
    problems: list[str] = []
    affected: dict[str, None] = {}
    for package in sorted(names, key=lambda name: _NAMED_FIRST.get(name, len(_NAMED_FIRST))):
        most, odd_hosts = majority({host: versions.get(package) for host, versions in installed.items()})
        if most is not None and odd_hosts:
            affected |= dict.fromkeys(odd_hosts)
            version_texts = listed(f"{version or 'missing'} on {host}" for host, version in odd_hosts.items())
            problems.append(f"{package} is {version_texts}, {most} on {alone(installed, odd_hosts) or 'the others'}")
    if problems:
        more = f"; and {count(len(problems) - _NAMED, 'more package')}" if len(problems) > _NAMED else ""
        good = next((host for host in installed if host not in affected), None)
        bad = next(host for host in hosts if host.name in affected)
        python = "python" if isinstance(bad.facts.python, Unavailable) else bad.facts.python.executable
        pip = f"{shlex.quote(python)} -m pip"
        yield warning(
            "hosts-differ-packages",
            f"{'; '.join(problems[:_NAMED])}{more}",
            why="the ranks run different code: they fail at an import, or silently compute and shuffle differently",
            fix="install one lock file on all hosts"
            if good is None
            else f"`ssh {shlex.quote(good)} {pip} freeze | ssh {shlex.quote(bad.name)} {pip} install -r /dev/stdin`",
            where=tuple(affected),
        )


CHECKS = checks_in(globals(), "hosts")
