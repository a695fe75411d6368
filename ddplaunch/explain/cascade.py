"""What followed from the root cause, one entry for each kind of line; refuses to list every line."""

from __future__ import annotations

from ddplaunch.explain.candidates import NOISE
from ddplaunch.explain.decide import Decision
from ddplaunch.explain.diagnosis import Echo, Evidence
from ddplaunch.explain.wording import filled

_MOST = 12


def cascade(decision: Decision) -> tuple[Echo, ...]:
    """Return the kinds of consequences in the order of their first lines."""
    groups: dict[tuple[str, int | None, str | None], list[Evidence]] = {}
    entries = [
        (hit.line.at, filled(hit.signature.what, hit.groups), hit.line.speaker, hit.line)
        for hit in decision.echoes
        if hit.signature.code not in NOISE
    ]
    for loser in decision.losers:
        if loser.code == decision.code:
            continue
        what = loser.code
        if loser.signature is not None:
            what = filled(loser.signature.what, dict(loser.groups))
        elif loser.raised is not None:
            what = f"{loser.raised.type}: {loser.raised.message}"[:160]
        entries.append((loser.line.at, what, loser.speaker, loser.line))
    for _, what, speaker, line in sorted(entries, key=lambda entry: entry[0]):
        evidence = Evidence(line.file, line.number, line.text.strip()[:300])
        groups.setdefault((what, speaker.rank, speaker.host), []).append(evidence)
    return tuple(
        Echo(what, rank, host, found[0], len(found)) for (what, rank, host), found in list(groups.items())[:_MOST]
    )
