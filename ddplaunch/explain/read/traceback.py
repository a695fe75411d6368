"""Collects Python tracebacks from the lines of all speakers, and finds the root of each chain of exceptions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ddplaunch.explain.diagnosis import Frame, Raised, UserCall, own_frame, user_calls
from ddplaunch.explain.read.lines import Line, announced_in, names_exception
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.explain.signatures import patterns
from ddplaunch.values.frozen import dataclass

_HEADER, _FRAME, _RAISED, _GROUP, _GROUPED, _IMPORTS, _FROM_RAY, _SPAWNED = patterns("frames")
_DOES_WITHOUT, _SKIPS, _IGNORED, _THREAD, _LAUNCHER, _SPAWNER = patterns("tracebacks")
_CHAINED = {
    "During handling of the above exception, another exception occurred": "during",
    "The above exception was the direct cause of the following exception": "cause",
}
#: Exceptions of a lookup that a library tries first; the exception that follows is the one that counts.
_MISSES = frozenset(("KeyError", "AttributeError", "IndexError", "StopIteration", "LookupError", "Empty", "Full"))
_WORKER, _NAMELESS = "DataLoader worker (pid", ("", "timed out", "[Errno 111] Connection refused")
_EMPTY, _FOREIGN = 2, 12  # empty lines that may precede a message; lines of others inside a traceback


@dataclass(frozen=True)
class ChainedException:
    """One exception of a chain.

    ``link`` says how it follows the previous one: "", "during", "cause", or "original".
    """

    raised: Raised
    line: Line
    first: int
    link: str
    frames: tuple[Frame, ...]
    sources: tuple[str, ...] = ()

    @property
    def calls(self) -> tuple[UserCall, ...]:
        """The calls in the user's own code, outermost first."""
        return user_calls(self.frames, self.sources)

    @property
    def from_the_top(self) -> bool:
        """Whether, by its frames, nothing caught it: the frames of a caught exception begin where it is caught."""
        return any(frame.file[:1] != "<" and frame.function == "<module>" for frame in self.frames[:1])

    @property
    def ended_program(self) -> bool:
        """Whether, by its frames, it ended the program; never for failed imports, because programs try them."""
        return self.from_the_top and not _IMPORTS.search(self.raised.type)


@dataclass(frozen=True)
class Traceback:
    """A chain of exceptions of one speaker.

    ``handled``: ignored by the interpreter. ``logged``: right after a warning, or in evaluated code, whose errors are
    caught. ``side``: raised in a thread. ``launcher``: raised in torchrun or another launcher. ``bare``: only its last
    line was printed.
    """

    parts: tuple[ChainedException, ...]
    speaker: Speaker
    handled: bool = False
    logged: bool = False
    side: bool = False
    launcher: bool = False
    bare: bool = False

    @property
    def lost_worker(self) -> bool:
        """Whether a DataLoader reports that one of its workers is gone."""
        return self.root.raised.message.startswith(_WORKER)

    @property
    def root(self) -> ChainedException:
        """The exception that caused the others of the chain, not counting failed lookups.

        A DataLoader that lost a worker says so last: the exceptions before are how it noticed.
        """
        worker = next((part for part in self.parts if part.raised.message.startswith(_WORKER)), None)
        if worker is not None:
            return worker
        inner = [part for part in self.parts if part.link == "original"]
        if inner:
            return inner[-1]
        for part, following in pairwise(self.parts):
            nameless = following.link == "cause" and part.raised.message in _NAMELESS
            if nameless or part.raised.type.endswith("CancelledError"):
                continue  # the next one says who was not reached; asyncio cancels what took too long
            if following.link == "during" and part.raised.below(following.raised):
                continue  # `Path.mkdir(parents=True)` tries the parents of a missing folder
            if following.link == "cause" or part.raised.type.rpartition(".")[2] not in _MISSES:
                return part
        return self.parts[-1]

    @property
    def raised(self) -> Raised:
        """The root's exception; its frame is in the user's own code, if necessary from elsewhere in the chain.

        A note tells what was raised from it, in whose words the program may say what it means.
        """
        raised = self.root.raised
        later = [
            f"raised again as {part.raised.type}: {part.raised.message}"
            for part in self.parts
            if part.link == "cause" and part.raised.message != raised.message
        ]
        frames = (part.raised.frame for part in (self.root, *self.parts) if part.raised.frame is not None)
        return replace(raised, frame=next(frames, None), notes=tuple(later[-1:]))

    @property
    def calls(self) -> tuple[UserCall, ...]:
        """The user's calls that led to the root's exception, else to another one of the chain."""
        return next((part.calls for part in (self.root, *self.parts) if part.raised.frame is not None), ())


class _Open:
    """A traceback that a speaker has begun to print."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.sources: list[str] = []
        self.parts: list[ChainedException] = []
        self.first = self.seen = -1
        self.begun: Line | None = None
        self.header = False
        self.link = ""
        self.handled = self.logged = self.side = False
        self.wordless = False  # the message of the last exception goes on in the next line
        self.speaker: Speaker | None = None

    @property
    def waiting(self) -> bool:
        """Whether an exception is still to come."""
        return self.header or not self.parts or self.link == "original"

    def take_words(self, line: Line) -> None:
        """Use the line as the message of the last exception if that has none, and as a hint whether it was caught.

        A line that tells what happens without a module that could not be imported, or what is skipped, shows that it
        was caught.
        """
        if not (self.parts and line.text) or line.at > (last := self.parts[-1]).line.at + _EMPTY:
            return
        without = _IMPORTS.search(last.raised.type) and _DOES_WITHOUT.search(line.text)
        self.logged |= bool(without or _SKIPS.search(line.text))
        text, wordless, self.wordless = line.text.strip(), self.wordless, False
        if wordless and not _FRAME.match(text):
            message = f"{last.raised.message} {text}".strip()
            self.parts[-1] = replace(last, raised=replace(last.raised, message=message))

    def begin(self, line: Line, link: str) -> None:
        self.header, self.first, self.frames, self.sources, self.link, self.begun = True, line.at, [], [], link, line


class Tracebacks:
    """Collects tracebacks; fed with the lines of all speakers in order."""

    def __init__(self) -> None:
        self.done: list[Traceback] = []
        self.cut: list[Line] = []  # the first lines of tracebacks whose exception is missing
        self._open: dict[Speaker, _Open] = {}
        self._before: dict[Speaker, str] = {}

    def feed(self, line: Line) -> None:
        """Process the next line."""
        who, text = line.speaker, line.text
        state = self._open.get(who)
        if text[:1] == " " and (state is not None or "Group" in text):
            text = _GROUP.sub("", text)
        if "Traceback (most" in text and _HEADER.search(text):
            self._start(line, text)
        elif text.startswith((" ", "\t")) or _FRAME.match(text):
            self._indented(line, text, state)
        elif not text:
            return
        elif state is not None:
            self._flush_left(line, text, state)
        elif names_exception(text):
            self._bare(line, text)
        if text and not text.startswith(" "):
            self._before[who] = text

    def _start(self, line: Line, text: str) -> None:
        state = self._open.get(line.speaker)
        inner = text.startswith("Original ") or (state is not None and ": (RANK " in text)  # of torch's checkpoints
        if state is None or (state.parts and not (inner or state.link)):
            if state is not None:
                self._close(line.speaker, state)
            state = self._open[line.speaker] = _Open()
            line_before = self._before.get(line.speaker, "")
            state.logged = announced_in(line_before) or announced_in(text)
            state.side = bool(_THREAD.match(line_before))
            state.handled = bool(_IGNORED.match(line_before))
            if (match := _SPAWNED.match(line_before)) and line.speaker.rank is None:
                state.speaker = line.speaker._replace(rank=int(match[1]))
        state.begin(line, "original" if inner else state.link)
        state.seen = line.at

    def _indented(self, line: Line, text: str, state: _Open | None) -> None:
        match = _FRAME.match(text)
        if state is None:
            if match is None:
                return
            state = self._open[line.speaker] = _Open()  # the header was cut off
            state.first = line.at
        state.take_words(line)
        if match and state.waiting:
            state.frames.append(Frame(match[1], int(match[2]), match[3] or ""))
            state.sources.append("")
        elif state.sources and not state.sources[-1]:
            state.sources[-1] = text.strip()
        state.seen = line.at

    def _flush_left(self, line: Line, text: str, state: _Open) -> None:
        state.take_words(line)
        chained = [link for words, link in _CHAINED.items() if text.startswith(words)]
        if chained and state.parts:
            state.link, state.header, state.seen = chained[0], False, line.at
            return
        waiting = state.waiting
        match = _RAISED.match(text) if waiting else None
        if match and (state.frames or names_exception(text)):
            self._raised(line, match, state)
            return
        if line.at - state.seen > _FOREIGN or (state.parts and line.at - state.seen > 2 and not waiting):
            self._close(line.speaker, state)
            if names_exception(text):
                self._bare(line, text)

    def _raised(self, line: Line, match: re.Match[str], state: _Open) -> None:
        raised = Raised(match[1], (match[2] or "").strip(), own_frame(state.frames))
        state.parts.append(
            ChainedException(raised, line, state.first, state.link, tuple(state.frames), tuple(state.sources))
        )
        state.header, state.link, state.seen = False, "", line.at
        state.wordless = match[0].endswith(":")
        if _FROM_RAY.search(raised.type):  # the frames of the original task follow without a header
            state.link, state.first, state.frames, state.sources = "original", line.at + 1, [], []

    def _bare(self, line: Line, text: str) -> None:
        if (match := _RAISED.match(text)) is None or _IGNORED.match(self._before.get(line.speaker, "")):
            return
        part = ChainedException(Raised(match[1], (match[2] or "").strip()), line, line.at, "", ())
        self.done.append(Traceback((part,), line.speaker, bare=True))

    def _close(self, who: Speaker, state: _Open) -> None:
        del self._open[who]
        if state.header and state.begun is not None and not state.handled:
            self.cut.append(state.begun)
        if not state.parts or _GROUPED.search(state.parts[-1].raised.type):  # the exceptions of the group follow
            return
        ignored = state.handled or any(
            frame.function in ("__del__", "_run_finalizers") for frame in state.parts[0].frames[:1]
        )
        launcher = any(_LAUNCHER.search(frame.file) for part in state.parts for frame in part.frames)
        last = state.parts[-1].raised
        launcher |= last.type == "Exception" and bool(_SPAWNER.match(last.message))
        parts, speaker = tuple(state.parts), state.speaker or who
        files = [frame.file for frame in parts[-1].frames]
        evaluated = bool(files) and all(file[:1] == "<" and not file.startswith("<frozen") for file in files)
        logged = evaluated or (state.logged and not parts[-1].ended_program)
        self.done.append(Traceback(parts, speaker, ignored, logged, state.side, launcher))

    def finish(self) -> Sequence[Traceback]:
        """Return all tracebacks, in the order of their exceptions."""
        for who, state in list(self._open.items()):
            self._close(who, state)
        self.done.sort(key=lambda traceback: traceback.parts[0].line.at)
        return self.done
