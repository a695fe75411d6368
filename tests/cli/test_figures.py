"""Figures that the documentation promises are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddplaunch.agent.end import conclude
from ddplaunch.agent.guard.record_file import LAST_BYTES
from ddplaunch.agent.rank_site import ddplaunch_timeline
from ddplaunch.cli.commands.afterwards import clean
from ddplaunch.cli.commands.launch import doctor
from ddplaunch.cli.hosts import meet_nodes, plan_hosts
from ddplaunch.comm import checks
from ddplaunch.machine import scratch_tree
from ddplaunch.planning.settings import Settings
from ddplaunch.ui import logs_view
from ddplaunch.values.words import duration_text, size_text
from ddplaunch.watch import phases, size_verdicts

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("runs", f"Of each rank's output {size_text(Settings().log_max_bytes)} are kept"),
        ("runs", f"The last {size_text(LAST_BYTES)} of such a stream stay in memory"),
        ("runs", f"SIGKILL after `--grace` ({Settings().grace_s:.0f} s)"),
        ("runs", f"`last_lines` ({conclude._LINES} at most)"),
        ("runs", f"After {ddplaunch_timeline._SINGLY} lines each is a sum"),
        ("looking-after", f"records beyond the newest {clean._KEEP}."),
        ("looking-after", f"shows every {['four', 'five', 'six'][round(logs_view._BAR_S) - 4]} seconds how far"),
        ("by-hand", f"(`--join-timeout`, {meet_nodes.TIMEOUT_S:.0f} s; 0 skips it)"),
        ("nodes", f"`--join-timeout` ({plan_hosts.JOIN_S:.0f} s)"),
        ("nodes", f"`--host-timeout` ({duration_text(plan_hosts._HOST_TIMEOUT_S)})"),
        (
            "nodes",
            f"with NCCL {doctor._TIMEOUT_S:.0f} (`--comm-timeout`); a host that is silent for {doctor._SILENT_S:.0f} s",
        ),
        ("nodes", f"slow below {checks._SLOW:.0%} of the median".replace("%", " %")),
        ("scaling", f"one rank works {phases._LATER - 1:.0%} longer".replace("%", " %")),
        ("scaling", f"less than {size_verdicts._AS_IT_SHOULD:.0%} of the ideal".replace("%", " %")),
        ("scaling", f"files of more than {size_text(scratch_tree._COPIED_BYTES)} and folders of"),
        ("scaling", f"folders of more than {scratch_tree._COPIED_ENTRIES:,} entries"),
    ],
)
def test_a_figure_of_the_documentation_is_that_of_the_code(page: str, sentence: str) -> None:
    assert sentence in " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())
