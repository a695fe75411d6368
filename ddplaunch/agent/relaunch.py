"""The end of a failed run whose user asked for relaunches: what this node knows, then ddplaunch in torchrun's place.

The process stays the same, so that Slurm's step, a container or a shell sees one program that goes on. It refuses to
launch anything where a signal or a time limit ended the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ddplaunch.agent.protocol import SETTINGS, Settings
from ddplaunch.agent.signals import Signals
from ddplaunch.errors import ExitStatus
from ddplaunch.launch.relaunch import NOT_GIVEN, RETURN, Evidence, decide, evidence_json, lived_s
from ddplaunch.launch.relaunch_order import Order, Return, order_from_json, return_text
from ddplaunch.probes.newest import advanced, newest_below
from ddplaunch.records.outcome import outcome_path
from ddplaunch.ui.relaunch_words import not_relaunched_text
from ddplaunch.ui.streams import speak, width


def relaunch(
    settings: Settings, status: int, about_s: float, signals: Signals, give_stderr_back: Callable[[], None]
) -> None:
    """Become ddplaunch again where that is to be; return where this process ends as it would have.

    ``status`` is the exit status of the run, which did not succeed; ``about_s`` is how long it took, which counts where
    there is no record that knows better. Raises OSError where ddplaunch cannot be executed,
    KeyError or TypeError for an order that is none.
    """
    order = order_from_json(settings["relaunch"])
    outcome = _outcome(settings)
    evidence = evidence_of(order, outcome or {"attempts": [{"started_s": 0.0, "ended_s": about_s}]})
    _note(settings, evidence)
    if not order.command or _stopped(settings, status, outcome, signals):
        return
    give_stderr_back()
    number = order.number + 1
    decision = decide([evidence], order.policy, number)
    if decision.reason == "spent" or (order.alone and not decision.again):
        speak(not_relaunched_text(decision, order.policy, width(sys.stderr)))
        return
    back = Return(number, order.run_id, status, evidence)
    environment = restored(os.environ, order) | {
        RETURN: return_text(back, os.getpid()),
        "DDPLAUNCH_RUN_ID": order.run_id,  # by these two `ps` and `stop` find what waits to launch again
        SETTINGS: json.dumps({"directory": settings.get("directory")}),
    }
    signals.give_back()
    _let_go()
    os.execve(order.command[0], list(order.command), environment)


def _let_go() -> None:
    """Let the new program inherit stdin, stdout and stderr alone: not what torch's C++ opened, nor locks of GPUs."""
    for path in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            if int(path.name) > 2:
                os.set_inheritable(int(path.name), False)


def _stopped(settings: Settings, status: int, outcome: Mapping[str, Any], signals: Signals) -> bool:
    """Whether a signal or `--timeout` ended the run. A hang that `--on-hang stop` ended is a failure like another."""
    state = outcome.get("state")
    timed_out = status == ExitStatus.TIMED_OUT and "timeout_s" in settings and state is None
    hung = status == ExitStatus.TIMED_OUT and settings.get("on_hang") == "stop" and state == "failed"
    told = signals.first is not None and not hung  # the guard tells torchrun to end a hang by the same signal
    return told or timed_out or signals.late is not None or state == "terminated"


def evidence_of(order: Order, outcome: Mapping[str, Any]) -> Evidence:
    """Return what this node knows of the run: how long it lived, and whether its output advanced."""
    found, unseen = None, None if order.outputs else NOT_GIVEN
    now = newest_below([path for path, _ in order.outputs])
    for (path, before), after in zip(order.outputs, now, strict=True):
        problem = before.problem or after.problem
        unseen = unseen or (f"{path} {problem}" if problem else None)
        if found is None and advanced(before, after):
            found = after.path
    return Evidence(lived_s(outcome), found, unseen)


def restored(environ: Mapping[str, str], order: Order) -> dict[str, str]:
    """Return the environment that ddplaunch was started in."""
    environment = {name: value for name, value in environ.items() if name != SETTINGS}
    for name, value in order.restore.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    return environment


def _outcome(settings: Settings) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(outcome_path(Path(settings.get("directory") or ""), settings.get("node", 0)).read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


def _note(settings: Settings, evidence: Evidence) -> None:
    """Leave it in the record: over ssh the launcher decides, and this node's output may be on its own disk."""
    path = Path(settings.get("directory") or "") / f"node-{settings.get('node', 0)}" / "relaunch.json"
    with contextlib.suppress(OSError):
        path.write_text(json.dumps({"schema": 1, **evidence_json(evidence)}) + "\n")
