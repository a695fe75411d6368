"""Finds the launch lines of a shell script with a real parser of bash, and translates each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING

from ddplaunch.planning.convert.launch_words import (
    WRAPPERS,
    Word,
    assigns,
    find_launcher,
    known_words,
    variable_of,
)
from ddplaunch.planning.convert.launcher_line import translate
from ddplaunch.planning.convert.launcher_options import named_in
from ddplaunch.planning.convert.srun_line import sizes_of_job
from ddplaunch.planning.convert.translation import Note, Site, Translation
from ddplaunch.values.frozen import dataclass

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_SHELLS = ("bash", "sh", "zsh", "dash", "eval", "ssh")
_SKIPPED = ("heredoc_body", "file_redirect", "heredoc_redirect", "herestring_redirect")
_QUOTED = Note("it stands among quotes or redirections", "the command of ddplaunch does not fit in there")
_ESCAPED = Note("it stands in a quoted text with backslashes", "what the inner shell gets is not this text")
_NOT_COMPLETE = "no complete command for the grammar that scripts are read with; `bash -n` says whether it is one"
_QUOTES = "'\"\\`"


@cache
def _parser() -> Parser:
    import tree_sitter_bash  # loaded only for scripts: 50 ms
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def sites_of(data: bytes) -> list[Site]:
    """Return the launches of a script in the order of their lines.

    A launch that cannot be converted has no ``replacement``; ``said.unknown`` says why.
    """
    reader = _Script(data)
    sites = list(reader.sites())
    sites += _incomplete(reader.root, {site.line for site in sites if not site.aside})
    return sorted(sites, key=lambda site: (site.line, site.start))


def _stays(line: int, text: str, note: Note, launcher: str = "", *, aside: bool = False) -> Site:
    """Return the site of a line that stays as it is."""
    return Site(line, text, Translation(launcher, 0, unknown=(note,)), aside=aside)


def _incomplete(root: Node, read_lines: set[int]) -> Iterator[Site]:
    """Yield the parts that the grammar, which knows less than bash, cannot parse: those that name a launcher, or else
    the first one. ``read_lines`` are the lines of launches that were parsed.
    """
    text_length = len((root.text or b"").rstrip(b"\\ \t\r\n"))  # bash ignores a backslash at the end
    broken = (node for node in _walk(root) if node.is_missing or node.type == "ERROR") if root.has_error else ()
    sites = []
    for node in broken:
        if node.start_byte < text_length and not any(child.has_error for child in node.children):
            first, end = node.start_point[0] + 1, node.end_point[0] + 2
            launches = named_in(node.text or b"") and read_lines.isdisjoint(range(first, end))
            line = (node.text or b"").decode("utf-8", "replace").split("\n")[0] if launches else ""
            sites.append(
                _stays(first, line, Note(f"what stands from line {first} on means", _NOT_COMPLETE), aside=not launches)
            )
    yield from [site for site in sites if not site.aside] or sites[:1]


def _walk(root: Node) -> Iterator[Node]:
    """Yield all nodes in the order of the text, without recursion: scripts may nest to any depth."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending += reversed(node.children)


def _part(node: Node, field: str = "name") -> str:
    """Return the text of a node's ``field``, "" if the node has none."""
    part = node.child_by_field_name(field)
    return (part.text or b"").decode("utf-8", "surrogateescape") if part is not None else ""


def _plain_text(node: Node) -> str | None:
    """Return the value that a word without variables has in a shell, None for any other word."""
    kind, source = node.type, (node.text or b"").decode("utf-8", "surrogateescape")
    if kind in ("word", "number", "variable_assignment") and not set(source) & set("$`'\"*?[~"):
        return source.replace("\\\n", "").replace("\\", "")
    if kind == "raw_string" or (kind == "string" and not set(source[1:-1]) & set("$`\\")):
        return source[1:-1]
    if kind == "concatenation":
        parts = [_plain_text(child) for child in node.children]
        return None if None in parts else "".join(filter(None, parts))
    return None


def _runs_always(node: Node) -> bool:
    """Return whether a node is in no condition, loop or function."""
    parent = node.parent
    while parent is not None and parent.type in ("declaration_command", "list"):
        parent = parent.parent
    return parent is not None and parent.type == "program"


@dataclass(frozen=True)
class _Value:
    """The words into which an unquoted variable is split, and the variables that these words use."""

    words: tuple[Word, ...]
    uses: frozenset[str]
    is_array: bool


@dataclass(frozen=True)
class _Setting:
    """An assignment that ends at byte ``at``, ``always`` executed or under a condition; ``value`` reads its value."""

    at: int
    always: bool
    value: Callable[[], _Value | None]


class _Script:
    """Reads one text: a whole script, or an inner script that begins at byte ``offset`` and in line ``line``."""

    def __init__(
        self,
        data: bytes,
        offset: int = 0,
        line: int = 1,
        quote: str = "",
        job: Mapping[str, Word] | None = None,
    ) -> None:
        self.data, self.offset, self.line, self.quote = data, offset, line, quote
        self.job = sizes_of_job(data) if job is None else job
        self.root = _parser().parse(data).root_node
        self.settings: dict[str, list[_Setting]] = {}
        nodes: dict[str, list[Node]] = {}
        for node in _walk(self.root):
            nodes.setdefault(node.type, []).append(node)
        self.commands, self.texts = nodes.get("command", []), nodes.get("heredoc_body", [])
        self.assignments = nodes.get("variable_assignment", [])
        self.loops = {_part(node, "variable") for node in nodes.get("for_statement", ())}
        for node in self.assignments:
            setting = _Setting(node.end_byte, _runs_always(node), partial(self._value_of, node))
            self.settings.setdefault(_part(node), []).append(setting)
        # sourced files are not read; each may set any variable
        self.sources = [node.end_byte for node in self.commands if _part(node) in ("source", ".")]

    def text(self, node: Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")

    def _line_of(self, node: Node) -> int:
        return self.line + node.start_point[0]

    def _start_of(self, node: Node) -> str:
        return self.text(node).split("\n")[0].rstrip(" \\")

    def sites(self) -> Iterator[Site]:
        """Yield the launches, in no particular order."""
        launches = dict(self._held_launches())
        yield from launches.values()
        for node in self.commands:
            text = self.data[node.start_byte : node.end_byte]
            if named_in(text) and not (launches and any(name in launches for name in self._variables_in(node))):
                yield from self._in_command(node)
        for node in self.texts:
            yield from self._inside(node.start_byte, node.end_byte, "")

    def _variables_in(self, node: Node) -> frozenset[str]:
        return frozenset(self.text(inner) for inner in _walk(node) if inner.type == "variable_name")

    def _held_launches(self) -> Iterator[tuple[str, Site]]:
        """Yield the variables that hold a launch or a launcher that is run: they and the lines with them stay."""
        run = {variable_of(_part(node)) for node in self.commands}
        run |= {variable_of(_part(node, "argument")) for node in self.commands if _part(node) in WRAPPERS}
        for node in self.assignments:
            value = _part(node, "value")
            if not named_in(value.encode("utf-8", "surrogateescape")):
                continue
            words = known_words(value.replace("\\\n", " ").strip("\"'()").split())
            translation = translate(words, self.job)
            if translation is not None and (len(words) > 1 or _part(node) in run):
                why = f"put the whole command in the place of `${_part(node)}`, then convert again"
                note = Note("a launch in a variable", why)
                yield _part(node), _stays(self._line_of(node), self._start_of(node), note, translation.launcher)

    def _in_command(self, node: Node) -> Iterator[Site]:
        children = [child for child in node.children if child.type not in _SKIPPED and child.is_named]
        words = [self.word(child) for child in children]
        bare = [word for word in words if not assigns(word)]
        if not bare:
            return
        shell = bare[0].name in _SHELLS
        if any(word.name in _SHELLS for word in bare) and (bare[0].name in WRAPPERS or find_launcher(bare) is not None):
            inner = [child for child in children if child.type in ("string", "raw_string")]
            within = [(child.start_byte + 1, child.end_byte - 1, self.text(child)[0]) for child in inner]
            sites = [site for place in within for site in self._inside(*place)]
            yield from sites
            if sites or (shell and (inner or bare[0].name != "eval")):
                return
        translation = translate(words, self.job)
        if translation is not None:
            yield self._site(node, words, translation)

    def _inside(self, start: int, end: int, quote: str) -> Iterator[Site]:
        """Yield the launches in the inner script between bytes ``start`` and ``end``, which stands in ``quote``."""
        text = self.data[start:end]
        if not named_in(text):
            return
        line = self.line + self.data.count(b"\n", 0, start)
        if quote == '"' and b"\\" in text.replace(b"\\\n", b"").replace(b"\\$", b""):
            yield _stays(line, text.decode("utf-8", "replace").strip(), _ESCAPED)
            return
        yield from _Script(text, self.offset + start, line, quote or self.quote, self.job).sites()

    def _site(self, node: Node, words: list[Word], translation: Translation) -> Site:
        """Return the site of a launch, whose replacement covers only the words that differ."""
        line, text = self._line_of(node), self._start_of(node)
        begin = words[translation.start].span if translation.words else None
        if begin is None:
            return Site(line, text, translation)
        same_words, following = len(translation.words), len(words)
        while same_words and following and translation.words[same_words - 1] is words[following - 1]:
            same_words, following = same_words - 1, following - 1
        tail = translation.words[same_words].span if same_words < len(translation.words) else None
        end = tail[0] if tail is not None else (words[-1].span or begin)[1]
        new = " ".join(word.source for word in translation.words[:same_words]) + (" " if tail is not None else "")
        hidden = any(begin[0] <= child.start_byte < end for child in node.children if child.type in _SKIPPED)
        expands_early = self.quote == '"' and ("$((" in new or "${local_rank}" in new)
        unquoted = _part(node) == "eval" and set(new) & set(_QUOTES)
        if hidden or expands_early or unquoted or (self.quote and self.quote in new):
            return _stays(line, text, _QUOTED, translation.launcher)
        place = (self.offset + begin[0], self.offset + end)
        return Site(line, text, translation, *place, new.encode("utf-8", "surrogateescape"))

    def word(self, node: Node) -> Word:
        """Return a word as typed, with its value if the script tells it."""
        inner = node.children[0] if node.type == "command_name" and node.children else node
        source, span = self.text(node), (node.start_byte, node.end_byte)
        text = _plain_text(inner)
        name = "" if text is not None else variable_of(source)
        value = self.value_at(name, node.start_byte) if name else None
        if value is None:
            return Word(source, text, span=span)
        if len(value.words) == 1 and not value.is_array and value.words[0].text is not None:
            return Word(source, None, value.words[0].text, span=span)
        several = not source.startswith('"') or source.endswith('[@]}"')
        return Word(source, None, parts=value.words if several else (), span=span)

    def value_at(self, name: str, use: int) -> _Value | None:
        """Return the value of a variable that the script sets once, before ``use`` and unconditionally; else None."""
        settings = self.settings.get(name, [])
        if len(settings) != 1 or name in self.loops or not settings[0].always or settings[0].at > use:
            return None
        value, at = settings[0].value(), settings[0].at
        settings_at = [
            position.at for used in (value.uses if value else ()) for position in self.settings.get(used, ())
        ]
        return None if any(at < position < use for position in (*settings_at, *self.sources)) else value

    def _value_of(self, node: Node) -> _Value | None:
        """Return the value of an assignment, None if it is not known."""
        value = node.child_by_field_name("value")
        if value is None or "+=" in self.text(node)[: len(_part(node)) + 2]:
            return None
        if value.type == "array":
            elements = [self.word(child) for child in value.children if child.is_named and child.type != "comment"]
            words = [Word(word.source, word.text, word.constant, word.parts) for word in elements]
        elif value.type in ("string", "raw_string"):
            source = self.text(value)[1:-1].replace("\\\n", "  ")
            if set(source) & set(_QUOTES) or "$(" in source:
                return None
            words = [Word(word, None if value.type == "string" and "$" in word else word) for word in source.split()]
        else:
            text = _plain_text(value)
            if text is None:
                return None
            words = known_words(text.split())
        return _Value(tuple(words), self._variables_in(value), value.type == "array")
