"""Where the trials of `scale` run: on this machine, on hosts over ssh, or on the nodes of a Slurm allocation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ddplaunch.cli.hosts.plan_hosts import AskedHosts, answering, asked_for, facts_of, hosts_of, plan, refuse_own_place
from ddplaunch.cli.parsing.typed_words import spelled
from ddplaunch.cli.prepare import Prepared, errors
from ddplaunch.cli.streams import tell_findings
from ddplaunch.cli.trials.trial_series import TrialSeries
from ddplaunch.hosts.hostlist import Host
from ddplaunch.hosts.session.links import Links, allow_many
from ddplaunch.machine.facts import Facts, NvmlFacts
from ddplaunch.planning.flag import NodeRange
from ddplaunch.planning.gpus import exported, shown
from ddplaunch.planning.hosts_plan import sized
from ddplaunch.planning.inside.slurm import Slurm, read_slurm, repeated_counts
from ddplaunch.planning.options import Options
from ddplaunch.records.directory import runs_directory
from ddplaunch.values.finding import RefusedError
from ddplaunch.values.resolved import Resolved, Source, Unavailable, value_of

_SIZES = Source("flag", "SIZES")


class Size(NamedTuple):
    """One size: ``nodes`` machines with ``each`` processes."""

    nodes: int
    each: int

    @property
    def processes(self) -> int:
        """All of them."""
        return self.nodes * self.each

    def __str__(self) -> str:
        return str(self.each) if self.nodes == 1 else f"{self.nodes}x{self.each}"

    def of(self, options: Options) -> Options:
        """Return the options of a launch of this size."""
        nodes = Resolved(NodeRange(self.nodes, self.nodes), _SIZES)
        return replace(options, nproc=Resolved(self.each, _SIZES), nnodes=nodes, gpus=None)


class TrialMachines:
    """The machines that there are. ``first`` is a launch of one process that was decided and allowed there.

    ``nodes`` counts them, ``most`` is for how many processes each has a place: GPUs, or CPUs without one.
    """

    first: Prepared
    nodes = 1
    most: int

    def __init__(self, series: TrialSeries, flags: Mapping[str, Any]) -> None:
        """``flags`` are those of hosts. Raises UsageError and RefusedError, for hosts that do not answer too."""
        self._asked = asked_for(flags)
        self._hosts: tuple[Host, ...] = ()
        slurm = None if self._asked is not None else read_slurm(os.environ)
        self._slurm = slurm if slurm is not None and slurm.step is None else None
        if self._asked is not None:
            self._reach(series, self._asked)
            return
        one = Size(1, 1).of(series.options)
        self.first = series.allowed(one)
        if self.first.launch.device.value == "cpu" and series.options.gpus is not None:
            series.prepared(replace(one, gpus=series.options.gpus))  # of no use, and told now
        self.most = self._places(series.options, self.first.facts, os.environ)
        if self._slurm is not None:
            self.nodes = self._slurm.nodes
            self.most = self.most if self._slurm.on_node else _granted(self._slurm, os.environ)

    def _reach(self, series: TrialSeries, asked: AskedHosts) -> None:
        self._hosts, options = hosts_of(asked), Size(1, 1).of(series.options)
        refuse_own_place(options)
        allow_many(len(self._hosts))
        options = sized(replace(options, nnodes=None), [each.name for each in self._hosts], [None] * len(self._hosts))
        with Links() as links:
            gathered = facts_of(links, self._hosts, asked, options, series.target)
            answering(self._hosts, gathered, len(self._hosts))
            planned = plan(links, self._hosts, gathered, options, series.target, asked)
        tell_findings(planned.findings)
        if refusing := errors(planned.findings):
            raise RefusedError(*refusing)
        base = runs_directory(os.environ, value_of(options.run_dir, None), Path.cwd())
        self.first = Prepared(planned.launches[0], gathered.reports[0].facts, (), base)
        self.nodes = len(self._hosts)
        reports = zip(self._hosts, gathered.reports, strict=True)
        self.most = min(
            len(host.devices) if host.devices else self._places(series.options, each.facts, each.facts.environment)
            for host, each in reports
        )

    def _places(self, options: Options, facts: Facts, environ: Mapping[str, str]) -> int:
        if self.first.launch.device.value == "cpu":
            return 1 if isinstance(facts.cpu, Unavailable) else facts.cpu.usable
        listed = value_of(options.gpus, "")
        if listed and not listed.startswith("free"):
            return len(listed.split(","))
        if not isinstance(facts.nvml, NvmlFacts):
            return 1
        return len(shown(facts.nvml, exported(environ, (), facts.nvml)).entries)

    @property
    def here(self) -> bool:
        """Whether this process starts the ranks itself."""
        return not self._hosts and (self._slurm is None or (self._slurm.on_node and self._slurm.nodes == 1))

    def typed(self, size: Size) -> str:
        """Return NPROC of a trial. In an allocation one node has to be said, which is all of them else."""
        return f"{size.nodes}x{size.each}" if not self.here else str(size)

    def words(self, size: Size) -> Sequence[str]:
        """Return the flags by which a trial takes as many machines, the first of all that there are."""
        if self._asked is None:
            return ()
        chosen = self._hosts[: size.nodes]
        found = list(spelled("--hosts", ",".join(host.name for host in chosen)))
        for host in chosen:
            if host.devices is not None:
                found += spelled("--include", f"{host.name}:{','.join(map(str, host.devices))}")
        for name, value in (("--chdir", self._asked.chdir), ("--python", self._asked.python)):
            found += [] if value is None else spelled(name, value)
        timeout = self._asked.join_timeout
        return found if timeout is None else [*found, *spelled("--join-timeout", f"{timeout:g}")]

    def why_not(self) -> str:
        """Return why there are not more machines."""
        if self._asked is not None:
            return "each node of a size is one of the hosts that are named"
        if self._slurm is not None:
            return f"Slurm job {self._slurm.label} has {self.nodes}"
        return "other machines take part where they are named: `--hosts a,b`, or in a Slurm allocation"


def _granted(slurm: Slurm, environ: Mapping[str, str]) -> int:
    """Return for how many processes each node of an allocation has a place, seen from a login node."""
    if slurm.gpus_on_node:
        return slurm.gpus_on_node
    cpus = repeated_counts(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return min(cpus) if cpus else 1
