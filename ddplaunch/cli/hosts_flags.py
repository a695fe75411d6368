"""The flags that say which hosts, and how to reach them, as values; refuses to reach any."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddplaunch.errors import usage
from ddplaunch.frozen import dataclass
from ddplaunch.hosts.hostlist import Host, chosen, from_file, from_words
from ddplaunch.launch.durations import duration_s
from ddplaunch.launch.options import Options


@dataclass(frozen=True)
class Asked:
    """The flags that say which hosts, and how to reach them; None or empty where not given."""

    hosts: str | None = None
    hostfile: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    chdir: str | None = None
    python: str | None = None
    join_timeout: float | None = None

    @property
    def given(self) -> bool:
        """Whether several hosts were asked for at all."""
        return self.hosts is not None or self.hostfile is not None


def asked_for(flags: Mapping[str, Any]) -> Asked:
    """Return what the flags say. Raises UsageError for a number that is none, and for flags without any host."""
    text = flags.get("join_timeout")
    timeout_s = None if text is None else duration_s("--join-timeout", text)
    asked = Asked(
        flags.get("hosts"),
        flags.get("hostfile"),
        tuple(flags.get("include") or ()),
        tuple(flags.get("exclude") or ()),
        flags.get("chdir"),
        flags.get("python"),
        timeout_s,
    )
    if not asked.given:
        name = next(name for name, value in flags.items() if value not in (None, [])).replace("_", "-")
        raise usage(
            f"`--{name}` without hosts",
            why="it is for a launch over several hosts",
            fix=f"add `--hosts gpu-a,gpu-b`, or leave `--{name}` out",
            where=f"flag: --{name}",
        )
    return asked


def hosts_of(asked: Asked) -> tuple[Host, ...]:
    """Return the hosts that were named and chosen. Raises UsageError for a list that is none."""
    if asked.hosts is not None and asked.hostfile is not None:
        raise usage("`--hosts` and `--hostfile` together", why="both name the hosts", fix="give one of them")
    if asked.hostfile is not None:
        try:
            text = Path(asked.hostfile).read_text(encoding="utf-8", errors="replace")
        except OSError as exception:
            raise usage(
                f"`{asked.hostfile}` cannot be read: {exception.strerror}",
                why="it was named by `--hostfile`",
                fix="correct the path, or name the hosts by `--hosts gpu-a,gpu-b`",
                where="flag: --hostfile",
            ) from exception
        hosts = from_file(text, asked.hostfile)
    else:
        hosts = from_words(asked.hosts or "")
    return chosen(hosts, asked.include, asked.exclude)


def refuse_own_place(options: Options) -> None:
    """Raise UsageError for a node rank: the list of hosts decides it."""
    if options.node_rank is not None:
        raise usage(
            "`--node-rank` and `--hosts` together",
            why="the hosts get their node ranks in the order of the list",
            fix="leave `--node-rank` out",
            where=str(options.node_rank.source),
        )
