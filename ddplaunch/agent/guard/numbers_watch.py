"""Compares the numbers that ranks noted at their first optimizer steps with the plan, and follows their losses."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddplaunch.agent.guard.loop import Guarding
    from ddplaunch.values.finding import Finding

_EVERY_S = 2.0  # between two checks for the files


class NumbersWatch:
    """Waits until all ranks of an attempt have noted their first optimizer steps, and reports differences to the plan;
    then until the losses that rank 0 prints are no numbers.

    It checks now and then whether the ranks' files exist; nothing is read or imported until all of them do.
    """

    def __init__(self, run: Guarding) -> None:
        """Wait for nothing yet. Only node 0 reports findings, because all nodes have the same numbers."""
        self._run = run
        self._findings: tuple[Finding, ...] = ()
        self.told: tuple[str, ...] = ()  # what `--prove` said, and the first lines of the findings that were shown
        self._folder = self._compared = ""  # of the attempt, once its notes were compared
        self._ranks: tuple[int, ...] = ()

    def begin(self, attempt: int, ranks: Iterable[int]) -> None:
        """Wait for the notes of an attempt that has just started."""
        if self._run.settings.observe and self._run.settings.node_directory is not None:
            self._folder, self._ranks = f"{self._run.settings.node_directory}/attempt-{attempt}", tuple(ranks)
            self._wait()

    def _wait(self) -> None:
        self._run.loop.at(time.monotonic() + _EVERY_S, self._look)

    def _look(self) -> None:
        if all(os.path.exists(f"{self._folder}/rank-{rank}.observed.json") for rank in self._ranks):  # noqa: PTH110
            self._run.aside(self._compare, "the ranks' notes could not be compared")
        else:
            self._wait()

    def _compare(self) -> None:
        from ddplaunch.agent.end.conclude import seen_in_run
        from ddplaunch.records.outcome import write_findings
        from ddplaunch.ui.speech import findings_text
        from ddplaunch.ui.terminal import Terminal
        from ddplaunch.watch.observed import Observed, losses

        folder, settings = self._folder, self._run.settings
        if compared := self._compared == folder:
            seen, proved = Observed((*losses(folder),), True), ""
        else:
            seen, proved = seen_in_run(folder, self._ranks, settings)
        if self._folder != folder:
            return  # a new attempt has begun
        self._compared = folder * seen.over
        if not (compared and seen.findings):
            self._wait()
        if seen.over and (proved or seen.findings) and not settings.node:
            self._findings += seen.findings  # for `ps` and the final report
            self.told += (proved, *(finding.what for finding in seen.findings))
            write_findings(settings.node_directory or "", self._findings)
            self._run.say(proved + findings_text(seen.findings, Terminal.of(sys.stderr)) + "\n" * bool(seen.findings))
