"""ddplaunch's own part in launching a failed run again: order for the plug-in, pause, agreement of all nodes.

``planning/relaunch.py`` decides whether a run is worth it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.cli.streams import say, tell, tell_findings
from ddplaunch.hosts.roll_call.messages import Hello
from ddplaunch.machine.paths import newest_below
from ddplaunch.planning.launch import Launch
from ddplaunch.planning.relaunch import (
    NOT_GIVEN,
    NOT_RELAUNCHED,
    RELAUNCHED,
    Relaunched,
    RelaunchOrder,
    RelaunchPolicy,
    RunProgress,
    decide,
    pause_s,
    read_relaunched,
)
from ddplaunch.planning.settings import Settings
from ddplaunch.ui.outcome_view import asking_text, because, line_text, relaunching_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values import codec
from ddplaunch.values.finding import ExitStatus, Finding, RefusedError, error
from ddplaunch.values.variable_names import EXECUTED, LAUNCH, RUN_ID, SETTINGS, TYPED


@contextmanager
def ending_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind what waits; 128 + signal is the exit status.

    Others can be told then, and the first process of a container, to which signals do nothing by default, ends at all.
    """

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_OF_TORCHRUN = "TORCHELASTIC_SIGNALS_TO_HANDLE"  # it puts that into its own environment


def claimed(environ: MutableMapping[str, str]) -> Relaunched | None:
    """Return what the plug-in left for this process if it is a relaunch, and take it away; None if it is none."""
    back = read_relaunched(environ.pop(RELAUNCHED, None), os.getpid())
    for name in (RUN_ID, LAUNCH, SETTINGS) if back is not None else ():
        environ.pop(name, None)  # they say whose relaunch this process is, and stay in /proc
    return back


def pause(back: Relaunched, asked: RelaunchPolicy | None) -> None:
    """Say that all of it is launched again and why, and wait. Ctrl-C ends it, as everywhere."""
    policy = asked or RelaunchPolicy(back.number)
    decision = decide([back.progress], policy, back.number)
    if decision.again:
        tell(relaunching_text(decision, policy, back.number, Terminal.of(sys.stderr).width))
    else:
        tell(asking_text(back.progress, policy, back.number, Terminal.of(sys.stderr).width))
    with ending_by_signals():
        time.sleep(pause_s(policy, back.number))
    with contextlib.suppress(ChildProcessError):  # the guard of the run before, which became a child of this program
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def or_status_before(back: Relaunched, launch: Callable[[], int]) -> int:
    """Return what ``launch`` does; where it is refused, the exit status of the run before it, which was the last."""
    try:
        status = launch()
    except RefusedError as refused:
        if refused.findings[0].code == NOT_RELAUNCHED:
            tell(line_text(refused.findings[0].what, Terminal.of(sys.stderr).width))
        else:
            tell_findings(refused.findings)
            say("nothing was launched")
        return back.status
    except SystemExit as ended:  # node 0 says it, to the same reader
        if ended.code != ExitStatus.REFUSED:
            raise
        return back.status
    return back.status if status == ExitStatus.REFUSED else status


def with_order(
    environment: Mapping[str, str], launch: Launch, back: Relaunched | None, command: tuple[str, ...], alone: bool
) -> dict[str, str]:
    """Return torchrun's environment with an order for the plug-in, if relaunches were asked for and there is one.

    ``command`` is what to become, ``alone`` whether no other nodes have to agree.
    """
    policy = launch.options.relaunch_policy
    if policy is None or SETTINGS not in environment:
        return dict(environment)
    outputs = [item.value for item in launch.options.output]
    changed = [*(variable.name for variable in launch.environment), EXECUTED, TYPED, LAUNCH, _OF_TORCHRUN]
    order = RelaunchOrder(
        run_id=launch.run_id,
        number=back.number if back else 0,
        policy=policy,
        command=command,
        restore={name: os.environ.get(name) for name in changed},
        outputs=tuple(zip(outputs, newest_below(outputs), strict=True)),
        alone=alone,
    )
    settings = Settings.from_json(environment[SETTINGS])._replace(relaunch=codec.plain(order))
    return {**environment, SETTINGS: settings.to_json()}


def relaunch_refused(joined: Mapping[int, Hello], policy: RelaunchPolicy | None) -> Finding | None:
    """Return why no node launches again; None if all do, or if some node was not a part of the run that failed."""
    known = [_heard(hello.failed) for hello in joined.values() if hello.failed is not None]
    if policy is None or len(known) < len(joined):
        return None
    decision = decide(known, policy, 1)  # how many are left, every node has looked at
    if decision.again:
        return None
    reason = because(decision, policy)
    return error(
        NOT_RELAUNCHED, f"not relaunched: {reason}", why="what fails at once fails again", fix="`ddplaunch explain`"
    )


def _heard(failed: Mapping[str, Any]) -> RunProgress:
    """Return what another node says of its run; nothing is known where another version says it."""
    try:
        return codec.from_plain(failed, RunProgress)
    except ValueError:
        return RunProgress()


def told(failed: RunProgress) -> dict[str, Any]:
    """Return what this node says of its run to the others."""
    name = None if failed.advanced is None else Path(failed.advanced).name  # a path may say more than others need
    unseen = failed.unseen if failed.unseen in (None, NOT_GIVEN) else "did not answer on a node"
    return dict(codec.plain(replace(failed, advanced=name, unseen=unseen)))
