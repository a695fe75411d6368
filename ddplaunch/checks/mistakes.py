"""Checks of the script's source for mistakes; each finding names the line and how to correct it.

The mistakes break a run of several ranks, or spoil its training. ``ddplaunch/script/mistake_rules.py`` reads the script
and is silent where it cannot be sure.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplaunch.checks.check import Check, Findings, checks_in
from ddplaunch.planning.launch import Launch
from ddplaunch.script.script_report import Mistake, ScriptReport
from ddplaunch.values.finding import warning


def _of(code: str, script: ScriptReport, launch: Launch) -> Iterator[Mistake]:
    """Yield the mistakes of ``code`` if several ranks are launched, or if their number was not given."""
    if launch.topology.world_size > 1 or launch.options.nproc is None:
        yield from (mistake for mistake in script.mistakes if mistake.code == code)


def _warn(mistake: Mistake, what: str, why: str, fix: str = "`{}`") -> Findings:
    """Yield the warning about a line; ``{}`` in ``fix`` stands for the corrected line."""
    yield warning(mistake.code, what, why=why, fix=fix.replace("{}", mistake.corrected), where=str(mistake.at))


def rendezvous_in_script(script: ScriptReport, launch: Launch) -> Findings:
    """The script sets its own address or port, where nothing listens.

    torchrun itself starts the store at MASTER_ADDR:MASTER_PORT and tells the ranks so (TORCHELASTIC_USE_AGENT_STORE).
    With another port, or `init_method="tcp://…"`, all ranks connect to a port that is not open, and fail after the
    timeout. Remedy: `init_process_group()` without address and port; `os.environ.setdefault` for runs without a
    launcher.
    """
    port = launch.topology.master_port
    for mistake in _of("rendezvous-in-script", script, launch):
        if port is None or not mistake.detail.endswith((f"={port.value}", f":{port.value}")):
            what = f"the script meets at its own {mistake.detail}, not at torchrun's address"
            why = "torchrun holds the store at a port that it chose, and ranks would wait at another one until the "
            why += "time-out"
            yield from _warn(mistake, what, why)


CHECKS: tuple[Check, ...] = checks_in(globals(), "mistakes")
