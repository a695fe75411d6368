"""Tracebacks of Python, collected from the lines of all speakers, and the root of each chain of exceptions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddplaunch.explain.diagnosis import Raised
from ddplaunch.explain.read.lines import Line, Speaker
from ddplaunch.values.frozen import dataclass

_HEADER = re.compile(r"(?:Original |Exception Group )?Traceback \(most recent call last\):?\s*$")
_SIDES = "│╭╰┃┏┗"
_BOXED_FRAME = re.compile(r"^ ?(\S+\.\w+):(\d+) in (\S+)")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)(?:, in (.+))?')
_RAISED = re.compile(r"^((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*|error|timeout|gaierror|herror)(?:\([A-Z]\w+\))?)(?:: ?(.*))?$")
_NAMED = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout)(?:\(\w+\))?(?::|$)")
_GROUP = re.compile(r"^\s+(?:\+-[-+]+ \d+ -+|[|+] ?)")
_SPAWNED = re.compile(r"^-- Process (\d+) terminated with the following error:")
_IGNORED = re.compile(r"^Exception ignored (?:in|while)|^Error in sys\.excepthook|^Error in atexit")
_THREAD = re.compile(r"^Exception in thread |^Exception in thread\b")
_LOGGED = re.compile(
    r"\b(?:WARNING|WARN|DEBUG)\b"
    r"|(?i:\b(?:skip(?:ping|ped)?|ignor(?:ing|ed)|retry(?:ing)?|fall(?:ing)? ?back|continuing)\b)"
)
_LIBRARY = re.compile(
    r"[\\/](?:site-packages|dist-packages)[\\/]|[\\/]lib(?:64)?[\\/]python\d|^<|[\\/]bin[\\/](?:torchrun|accelerate|deepspeed)$"
)
_LAUNCHER = re.compile(
    r"torch[\\/]distributed[\\/](?:run|launch|launcher[\\/]\w+)\.py|accelerate[\\/]commands|deepspeed[\\/]launcher"
)
_CHAINED = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
#: Exceptions of a lookup that a library tries first; the exception that follows is the one that counts.
_MISSES = frozenset(("KeyError", "AttributeError", "IndexError", "StopIteration", "LookupError", "Empty", "Full"))
_BEGUN = frozenset(("num_nodes_waiting", "_exit_barrier", "set_closed", "is_closed", "shutdown"))
_FOREIGN = 12  # lines of others that may stand inside a traceback


@dataclass(frozen=True)
class ChainedException:
    """One exception of a chain. ``link`` says how it follows the one before: "", "during", "cause" or "original"."""

    raised: Raised
    line: Line
    first: int
    link: str
    frames: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class Traceback:
    """A chain of exceptions of one speaker.

    ``handled``: ignored by the interpreter. ``logged``: right after a warning. ``side``: raised in a thread.
    ``launcher``: raised in torchrun or another launcher. ``bare``: only its last line was printed.
    """

    parts: tuple[ChainedException, ...]
    speaker: Speaker
    handled: bool
    logged: bool
    side: bool
    launcher: bool
    bare: bool

    @property
    def store_lost(self) -> bool:
        """Whether a launcher lost its store after the start: the node that held the store has ended, well or not."""
        functions = {frame[2] for part in self.parts for frame in part.frames}
        return self.launcher and not functions.isdisjoint(_BEGUN)

    @property
    def root(self) -> ChainedException:
        """The exception from which the others of the chain were raised, except for failed lookups."""
        inner = [part for part in self.parts if part.link == "original"]
        if inner:
            return inner[-1]
        for position, part in enumerate(self.parts[:-1]):
            following = self.parts[position + 1].link
            if following == "cause" or part.raised.type.rpartition(".")[2] not in _MISSES:
                return part
        return self.parts[-1]


class _Open:
    """The traceback that a speaker has begun to print."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, int, str]] = []
        self.parts: list[ChainedException] = []
        self.first = -1
        self.seen = -1
        self.header = False
        self.link = ""
        self.handled = self.logged = self.side = False
        self.speaker: Speaker | None = None

    def begin(self, line: Line, link: str) -> None:
        self.header, self.first, self.frames, self.link = True, line.at, [], link


class Tracebacks:
    """Collects tracebacks, fed with the lines of all speakers in their order."""

    def __init__(self) -> None:
        self.done: list[Traceback] = []
        self.inside: set[int] = set()
        self._open: dict[Speaker, _Open] = {}
        self._before: dict[Speaker, str] = {}

    def feed(self, line: Line) -> None:
        """Take the next line."""
        who, text = line.speaker, line.text
        state = self._open.get(who)
        if text.startswith(" ") and (match := _GROUP.match(text)) and (state is not None or "Group" in text):
            text = text[match.end() :]
        boxed = bool(text) and text.lstrip()[:1] in _SIDES
        if "Traceback (most" in text and (boxed or _HEADER.search(text)):
            self._start(line, text)
        elif boxed:
            self._boxed(line, text, state)
        elif text.startswith((" ", "\t")) or (text.startswith('File "') and _FRAME.match(text)):
            self._indented(line, text, state)
        elif not text:
            return
        elif state is not None:
            self._flush_left(line, text, state)
        elif _NAMED.match(text):
            self._bare(line, text)
        if text and not text.startswith(" "):
            self._before[who] = text

    def _boxed(self, line: Line, text: str, state: _Open | None) -> None:
        """Take a line of a traceback in a box, as rich prints it (typer, accelerate, Lightning)."""
        if state is None or not state.header:
            return
        if match := _BOXED_FRAME.match(text.strip().strip("│┃ ")):
            state.frames.append((match.group(1), int(match.group(2)), match.group(3).partition(":")[0]))
        state.seen = line.at
        self.inside.add(line.at)

    def _start(self, line: Line, text: str) -> None:
        state = self._open.get(line.speaker)
        inner = text.startswith("Original ")
        if state is None or (state.parts and not (inner or state.link)):
            if state is not None:
                self._close(line.speaker, state)
            state = self._open[line.speaker] = _Open()
            before = self._before.get(line.speaker, "")
            state.logged = bool(_LOGGED.search(before)) or bool(_LOGGED.search(text))
            state.side = bool(_THREAD.match(before))
            state.handled = bool(_IGNORED.match(before))
            if match := _SPAWNED.match(before):
                state.speaker = line.speaker._replace(rank=int(match.group(1)))
        state.begin(line, "original" if inner else state.link)
        state.seen = line.at
        self.inside.add(line.at)

    def _indented(self, line: Line, text: str, state: _Open | None) -> None:
        match = _FRAME.match(text)
        if state is None:
            if match is None:
                return
            state = self._open[line.speaker] = _Open()  # the head was cut off
            state.first = line.at
        if match and (state.header or not state.parts):
            state.frames.append((match.group(1), int(match.group(2)), match.group(3) or ""))
        state.seen = line.at
        self.inside.add(line.at)

    def _flush_left(self, line: Line, text: str, state: _Open) -> None:
        chained = [position for position, words in enumerate(_CHAINED) if text.startswith(words)]
        if chained and state.parts:
            state.link, state.header, state.seen = ("during", "cause")[chained[0]], False, line.at
            self.inside.add(line.at)
            return
        waiting = state.header or not state.parts
        match = _RAISED.match(text) if waiting else None
        if match and (state.frames or _NAMED.match(text)):
            self._raised(line, match, state)
            return
        if _SPAWNED.match(text):
            self._close(line.speaker, state)
        elif line.at - state.seen > _FOREIGN or (state.parts and line.at - state.seen > 2 and not waiting):
            self._close(line.speaker, state)
            if _NAMED.match(text):
                self._bare(line, text)

    def _raised(self, line: Line, match: re.Match[str], state: _Open) -> None:
        raised = Raised(match.group(1), (match.group(2) or "").strip(), own_frame(state.frames))
        state.parts.append(ChainedException(raised, line, state.first, state.link, tuple(state.frames)))
        state.header, state.link, state.seen = False, "", line.at
        self.inside.add(line.at)

    def _bare(self, line: Line, text: str) -> None:
        match = _RAISED.match(text)
        if match is None:
            return
        raised = Raised(match.group(1), (match.group(2) or "").strip())
        part = ChainedException(raised, line, line.at, "", ())
        self.done.append(Traceback((part,), line.speaker, False, False, False, False, True))

    def _close(self, who: Speaker, state: _Open) -> None:
        del self._open[who]
        if not state.parts:
            return
        frames = [frame for part in state.parts for frame in part.frames]
        launcher = any(_LAUNCHER.search(frame[0]) for frame in frames)
        speaker = state.speaker or who
        self.done.append(
            Traceback(tuple(state.parts), speaker, state.handled, state.logged, state.side, launcher, False)
        )

    def finish(self) -> Sequence[Traceback]:
        """Return all tracebacks in the order of their exceptions."""
        for who, state in list(self._open.items()):
            self._close(who, state)
        self.done.sort(key=lambda each: each.parts[0].line.at)
        return self.done


def own_frame(frames: Sequence[tuple[str, int, str]]) -> str | None:
    """Return the last frame of the user's own code, "train.py:31 in main", or None."""
    for file, number, function in reversed(frames):
        if not _LIBRARY.search(file):
            name = re.split(r"[\\/]", file)[-1]
            return f"{name}:{number} in {function}" if function and function != "<module>" else f"{name}:{number}"
    return None
