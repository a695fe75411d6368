"""What stands near a line of the same speaker, and what its other lines say against it; refuses to weigh either."""

from __future__ import annotations

import bisect

from ddplaunch.explain.diagnosis import Raised
from ddplaunch.explain.lines import Speaker
from ddplaunch.explain.matching import Hit, spoken_against
from ddplaunch.explain.scan import Scanned
from ddplaunch.explain.traceback import Traceback

_NEAR = 12  # lines that an exception's message may go on for


class Context:
    """Looks things up by speaker, so that asking for every hit of a long log stays cheap."""

    def __init__(self, scanned: Scanned) -> None:
        echoes = {hit.line.at for hit in scanned.hits if hit.signature.role == "cascade"}  # they say nothing
        self._texts: dict[Speaker, list[str]] = {
            hit.line.speaker: [] for hit in scanned.hits if hit.signature.log_unless
        }
        for line in scanned.lines:
            if line.speaker in self._texts and line.at not in echoes:
                self._texts[line.speaker].append(line.text)
        self._against: dict[tuple[int, Speaker], bool] = {}
        self._raised: dict[Speaker, list[tuple[int, Traceback]]] = {}
        for traceback in scanned.tracebacks:
            last = traceback.parts[-1].line
            self._raised.setdefault(last.speaker, []).append((last.at, traceback))
        for entries in self._raised.values():
            entries.sort(key=lambda entry: entry[0])

    def against(self, hit: Hit) -> bool:
        """Return whether another line of the same speaker speaks against what ``hit`` shows."""
        if not hit.signature.log_unless:
            return False
        key = (id(hit.signature), hit.line.speaker)
        if key not in self._against:
            self._against[key] = spoken_against(hit.signature, self._texts[hit.line.speaker])
        return self._against[key]

    def raised_before(self, hit: Hit) -> Raised | None:
        """Return the exception whose message ``hit`` belongs to: the telling line may be a later one of it."""
        entries = self._raised.get(hit.line.speaker, [])
        place = bisect.bisect_left(entries, hit.line.at, key=lambda entry: entry[0]) - 1
        if place < 0 or hit.line.at - entries[place][0] > _NEAR:
            return None
        traceback = entries[place][1]
        return None if traceback.handled else traceback.parts[-1].raised
