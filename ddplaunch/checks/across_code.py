"""Checks that compare what hosts run: files that the script imports, commits, installed packages."""

from __future__ import annotations

from functools import partial

from ddplaunch.checks.check import Findings, checks_in, compare, majority
from ddplaunch.planning.hosts_plan import HostReport
from ddplaunch.values.finding import error, warning
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import count, listed

_NAMED = 3
#: How to copy the files here that git does not ignore, new ones too, to one host and directory; and to each host. Hosts
#: may lack rsync, not tar.
TO_HOST = (
    "`git ls-files -zco --exclude-standard | tar c --null -T - | ssh {0} tar x -C {1}` (without git "
    "`find . -not -path '*/.*' -type f -size -9M -print0 | tar c --null -T - | ssh {0} tar x -C {1}`)"
)
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
    Remedy: copy the files by the command in the finding, or use a file system that all share.
    """
    if len({host.sources for host in hosts}) != 1:
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


def hosts_differ_packages(hosts: tuple[HostReport, ...]) -> Findings:
    """Hosts have different versions of packages that trainings use, or lack one that most have.

    Ranks that run different code silently shuffle, tokenize or compute differently; or one rank fails at an import and
    the others wait for it. The versions come from the names of `.dist-info` folders.
    Remedy: one environment for all hosts, from one lock file or image, or on a shared file system.
    """
    why = "the ranks run different code: they fail at an import, or silently compute and shuffle differently"
    fix = "install one lock file on all hosts: `pip freeze` on one, `pip install -r` on the others"
    for package in _TRAINING.split():
        yield from compare(hosts, "hosts-differ-packages", package, partial(_version, package), why, warning, fix)


def _version(package: str, host: HostReport) -> str | None:
    packages = host.facts.packages
    return None if isinstance(packages, Unavailable) else packages.versions.get(package, "missing")


CHECKS = checks_in(globals(), "hosts")
