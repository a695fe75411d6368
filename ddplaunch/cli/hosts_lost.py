"""What it means that the launcher heard nothing more of hosts; refuses to look at what ranks did."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.hosts.together import HostEnd
from ddplaunch.ui.ages import duration_text

_TOGETHER_S = 5.0
_AWAKE = (
    "launch from a machine that stays up, such as the login node, in `tmux` or `screen`",
    "`ddplaunch submit` where there is Slurm: nothing has to stay up for it",
)


def lost(end: HostEnd, ends: Sequence[HostEnd]) -> Diagnosis:
    """Return the diagnosis of ``end``, the first of the hosts that were lost. All at once points at this machine."""
    gone = [each for each in ends if each.lost is not None]
    if end.still_s:
        return Diagnosis(
            "launcher-stood-still",
            "observed",
            f"this launcher stood still for {duration_text(end.still_s)}, and the run ended meanwhile",
            "a machine that sleeps, or a process that is stopped, sends nothing; hosts that hear nothing of their "
            "launcher for 15 s end what it started there",
            _AWAKE,
            host=socket.gethostname(),
        )
    close = max(each.heard_s for each in gone) - min(each.heard_s for each in gone) < _TOGETHER_S
    if len(gone) == len(ends) > 1 and close:
        return Diagnosis(
            "launcher-cut-off",
            "likely",
            f"all {len(ends)} hosts were lost at once; of {end.name}: {end.lost}",
            "so many do not go at once, but this machine's own network may; what runs on the hosts ends itself when "
            "it hears nothing of the launcher",
            (f"`ssh {end.name} uptime` says whether they can be reached again", *_AWAKE),
            host=socket.gethostname(),
        )
    return Diagnosis(
        "host-lost",
        "observed",
        f"{end.name} was lost: {end.lost}",
        "its power, its network, its ssh or ddplaunch there went away while its ranks ran; what runs there ends itself "
        "when it hears nothing of the launcher, and all other hosts were ended",
        (
            f"`ssh {end.name} uptime` says whether it is back, `ddplaunch doctor --hosts {end.name}` what is wrong",
            "start again without it by `--exclude`",
        ),
        host=end.name,
    )
