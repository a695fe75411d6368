"""``ddplaunch top``: what the ranks of a run use and how fast they step, live or as recorded; changes nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ddplaunch.errors import UsageError, usage
from ddplaunch.frozen import dataclass
from ddplaunch.launch.durations import duration_s

_LEAST_S = 0.2


@dataclass(frozen=True)
class Wish:
    """The flags, understood. ``count`` None is until the run ends; ``interval_s`` None is the usual."""

    run: str | None
    run_dir: str | None
    interval_s: float | None
    count: int | None
    metric: str | None
    json: bool
    screen: bool


def top(
    run: str | None,
    interval: str | None,
    count: str | None,
    metric: str | None,
    replay: bool | None,
    plot: str | None,
    json: bool | None,
    run_dir: str | None,
) -> int:
    """Watch a run that runs here; with ``replay`` or ``plot`` show what was recorded of one."""
    wish = Wish(
        run=run,
        run_dir=run_dir,
        interval_s=None if interval is None else _interval_s(interval),
        count=None if count is None else _count(count),
        metric=metric,
        json=bool(json),
        screen=not json and _is_screen(),
    )
    if replay or plot is not None:
        _refuse_live_only(wish, plot)
        from ddplaunch.cli.top_recorded import draw, show

        return show(wish) if plot is None else draw(wish, Path(plot))
    from ddplaunch.cli.top_live import watch

    return watch(wish)


def _is_screen() -> bool:
    try:
        return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except ValueError:  # closed
        return False


def _interval_s(text: str) -> float:
    seconds = duration_s("--interval", text)
    if seconds < _LEAST_S:
        raise usage(
            f"`--interval {text}` is less than {_LEAST_S:g} s",
            why="the kernel counts CPU time in hundredths of a second: shorter samples would be noise",
            fix=f"`--interval {_LEAST_S:g}`",
            where="flag: --interval",
        )
    return seconds


def _count(text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text)
    raise usage(
        f"`--count {text}` is no number of samples",
        why="it is how many to show before ending",
        fix="`--count 10`",
        where="flag: --count",
    )


def _refuse_live_only(wish: Wish, plot: str | None) -> None:
    if wish.metric is not None:
        raise usage(
            f"`--metric` and `{'--replay' if plot is None else '--plot'}`",
            why="step rates are read from the output while a run is watched; a recording has what it has",
            fix="leave `--metric` out",
            where="flag: --metric",
        )
    if plot is not None and plot != "-" and not plot.endswith(".svg"):
        raise _no_svg(plot)


def _no_svg(plot: str) -> UsageError:
    stem = plot.rpartition(".")[0] or plot
    return usage(
        f"`--plot {plot}` is not the name of an SVG file",
        why="plots are written as SVG, which every browser shows and scales",
        fix=f"`--plot {stem}.svg`, or `--plot -` for stdout",
        where="flag: --plot",
    )
