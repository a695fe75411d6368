"""Launch lines of a shell script, by a real parser of bash: where they stand, and what each becomes."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from ddplaunch.planning.convert.launch_words import (
    WRAPPERS,
    Definition,
    Word,
    assigns,
    find_launcher,
    known,
    option_of,
    split,
    variable_of,
)
from ddplaunch.planning.convert.launcher_line import ReadConfig, translate
from ddplaunch.planning.convert.launcher_options import named_in
from ddplaunch.planning.convert.translation import (
    Note,
    ReadSourced,
    Site,
    Sourcing,
    Translation,
    incomplete,
    lines_naming,
    named,
    of_interpreter,
    plain_text,
    sizes_of_job,
    walk,
)

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_SHELLS = ("bash", "sh", "zsh", "dash", "eval", "ssh")
_SKIPPED = ("heredoc_body", "file_redirect", "heredoc_redirect", "herestring_redirect")
CARRIAGE_RETURNS = Note("lines that end in CR LF", "bash takes the carriage return for a part of the last word")
_UNPARSED = Note("the shell's grammar does not take it", "the lines around it are not a complete command")
_ELSEWHERE = Note("a launch in the text of another program", "only what a shell runs is read")
_BLANK = re.compile(r"<[\w -]+>")
_ALL = ('"$@"', "$@", '"$*"', "$*")
_VARIABLE = "it stands in a variable"
_QUOTED_TWICE = Note("`eval` of a variable", "the command of ddplaunch needs quotes there, which `eval` takes away")
_QUOTES = "'\"\\`"


@cache
def _parser() -> Parser:
    import tree_sitter_bash  # loaded for scripts alone: 50 ms
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def sites_of(
    data: bytes, config: ReadConfig | None = None, read: ReadSourced | None = None, name: str = ""
) -> list[Site]:
    """Return the launches of a script in the order of their lines.

    One that cannot be converted has no ``replacement``; ``said.unknown`` says why. ``read`` reads the files that
    the script ``name`` sources: their variables count, their launches do not.
    """
    ends = [Site(1, "", Translation("", 0, unknown=(CARRIAGE_RETURNS,)), aside=True)] if b"\r\n" in data else []
    reader = _Reader(data, config, 0, 1, sourcing=Sourcing(read, (posixpath.normpath(name),)))
    found = [*ends, *incomplete(reader.root), *reader.sites()]
    lines = {site.line for site in found if site.replacement}  # a line of what the grammar does not take may be whole
    kept = []
    for site in sorted(found, key=lambda site: (site.line, site.start)):
        if site.replacement or site.said.launcher or site.aside or site.line not in lines:
            kept.append(site)
            lines |= set() if site.replacement or site.said.launcher else {site.line}
    return kept


class _Reader:
    """Reads one text: a script, or one inside of it, at ``offset`` bytes and from ``line`` on."""

    def __init__(
        self,
        data: bytes,
        config: ReadConfig | None,
        offset: int,
        line: int,
        quote: str = "",
        sourcing: Sourcing = Sourcing(),  # noqa: B008 - it is frozen
        job: Mapping[str, Word] | None = None,
    ) -> None:
        self.data, self.config, self.offset, self.line, self.quote = data, config, offset, line, quote
        self.sourcing, self.job = sourcing, sizes_of_job(data) if job is None else job
        self.root = _parser().parse(data).root_node
        self.assigned: dict[str, list[Node]] = {}
        self.commands: list[Node] = []
        self.others: list[Node] = []
        for node in walk(self.root):
            if node.type == "variable_assignment" and (name := named(node)):
                self.assigned.setdefault(name, []).append(node)
            elif node.type == "command":
                self.commands.append(node)
            elif node.type in ("for_statement", "heredoc_body", "ERROR"):
                self.others.append(node)
        self.loops = {named(node, "variable") for node in self.others}
        self.sourced: dict[str, list[tuple[int, _Reader]]] = {}
        self.asides: list[Site] = []
        self.put_in: set[str] = set()  # variables whose uses become what they hold
        for node in self.commands if sourcing.read is not None else ():
            self._source(node, sourcing.read)

    def _source(self, node: Node, read: ReadSourced | None) -> None:
        """Take the variables of a file that ``source FILE`` or ``. FILE`` reads."""
        path = node.child_by_field_name("argument")
        if path is None or named(node) not in ("source", ".") or read is None:
            return
        literal = plain_text(path)
        data = None if literal is None else read(literal)
        if literal is None or data is None or b"\0" in data:
            return
        file = posixpath.normpath(literal)
        if file in self.sourcing.within:
            self._note(node, "it is read within itself, again and again: what it sets is not followed")
            return
        inner = _Reader(data, self.config, 0, 1, sourcing=Sourcing(read, (*self.sourcing.within, file)))
        at = node.start_byte if node.parent is not None and node.parent.type in ("program", "list") else -1
        for variable in {*inner.assigned, *inner.sourced}:
            self.sourced.setdefault(variable, []).append((at, inner))
        for aside in inner.asides:
            self._note(node, f"{literal}:{aside.line}: {aside.said.unknown[0].why}")
        if named_in(data) and any(not site.aside for site in inner.sites()):
            self._note(node, f"launches stand in it: `ddplaunch convert {shlex.quote(literal)}` converts them")

    def _note(self, node: Node, why: str) -> None:
        note = Note(f"`{self.text(node)}`", why)
        line = self.line + node.start_point[0]
        self.asides.append(Site(line, self.text(node), Translation("", 0, unknown=(note,)), aside=True))

    def text(self, node: Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")

    def sites(self) -> Iterator[Site]:
        yield from self.asides
        taken: set[int] = set()
        left: list[tuple[str, Site]] = []
        for name, nodes in self.assigned.items():
            for node in nodes:
                site = self._in_definition(node)
                if site is not None and site.replacement:
                    yield site
                    taken.add(node.start_byte)
                elif site is not None:
                    left.append((name, site))
        values = (self.data[node.start_byte : node.end_byte] for nodes in self.assigned.values() for node in nodes)
        held = bool(self.sourced) or any(map(named_in, values))  # a variable may be, or hold, a launcher
        for node in self.commands:
            text = self.data[node.start_byte : node.end_byte]
            if named_in(text) or (held and b"$" in text):
                yield from self._in_command(node, taken)
        yield from (site for name, site in left if name not in self.put_in)
        for node in self.others:
            if node.type == "heredoc_body":
                inside = list(self._inside(node.start_byte, node.end_byte, ""))
                yield from inside or (self._lines_naming(node, _ELSEWHERE) if of_interpreter(node) else ())
            elif node.type == "ERROR":
                yield from self._lines_naming(node, _UNPARSED)

    def _lines_naming(self, node: Node, note: Note) -> Iterator[Site]:
        """Yield the lines of a text that name a launcher, which stay."""
        for number, text in lines_naming(self.data[node.start_byte : node.end_byte]):
            at = self.line + node.start_point[0] + number
            yield Site(at, text, Translation("", 0, unknown=(note,)), aside=note is _ELSEWHERE)

    def _in_command(self, node: Node, taken: set[int]) -> Iterator[Site]:
        children = [child for child in node.children if child.type not in _SKIPPED and child.is_named]
        words = [self.word(child) for child in children]
        if not words:
            return
        bare = [word for word in words if not assigns(word)]
        shells = [i for i, word in enumerate(bare) if word.name in _SHELLS]
        if shells and (bare[0].name in WRAPPERS or find_launcher(bare) is not None):
            inner = [child for child in children if child.type in ("string", "raw_string")]
            within = [(child.start_byte + 1, child.end_byte - 1, self.text(child)[0]) for child in inner]
            sites = [site for place in within for site in self._inside(*place)]
            yield from sites
            if sites or (bare[0].name in _SHELLS and (inner or bare[0].name != "eval")):
                return
        evaluated, held = bool(shells) and bare[0].name == "eval", ""
        if evaluated:
            words = words[words.index(bare[0]) + 1 :]
            bare = bare[1:]
        places = self.assigned.get(variable_of(bare[0].source), ()) if bare else ()
        if bare and bare[0].parts and not taken.intersection(each.start_byte for each in places):
            first, held = words.index(bare[0]), variable_of(bare[0].source)
            words[first : first + 1] = bare[0].parts
        said = translate(words, self.config, self.job)
        if said is None:
            return
        redirected = node.parent is not None and node.parent.type == "redirected_statement"
        around = node.parent if redirected and node.parent is not None else node
        blank = _BLANK.search(self.text(around)) if not said.words else None
        if blank is not None:
            note = Note(f"`{blank[0]}`", "a shell reads and writes files there: put what is meant in its place first")
            said = Translation(said.launcher, said.start, unknown=(note,))
        site = self._site(node, words, self._as_called(node, said))
        if site.replacement and held:
            if evaluated and set(site.replacement.decode("utf-8", "replace")) & set(_QUOTES):
                site = Site(site.line, site.text, Translation(said.launcher, 0, unknown=(_QUOTED_TWICE,)))
            self.put_in.add(held)
        yield site

    def _as_called(self, node: Node, said: Translation) -> Translation:
        """Look at the calls of the function around a launch of ``"$@"``: they tell whether options are in it."""
        around = node.parent
        while around is not None and around.type != "function_definition":
            around = around.parent
        unsure = [note for note in said.unknown if note.what.strip("`").removeprefix("what `").startswith(_ALL)]
        if around is None or not unsure:
            return said
        name = named(around)
        calls = [each for each in self.commands if named(each) == name]
        firsts = [self.word(first) for each in calls if (first := each.child_by_field_name("argument")) is not None]
        options = [word for word in firsts if option_of(word)[0]]
        if options or any(word.value is None or not word.value.endswith(".py") for word in firsts) or not calls:
            if not options:
                return said
            why = f"`{name}` is called with options of the launcher, `{options[0].source}`"
            return Translation(
                said.launcher, said.start, unknown=(Note(unsure[0].what.removeprefix("what ").partition(" ")[0], why),)
            )
        kept = tuple(note for note in said.unknown if note not in unsure)
        return Translation(said.launcher, said.start, said.words, said.dropped, kept)

    def _inside(self, start: int, end: int, quote: str) -> Iterator[Site]:
        """Yield the launches of a text within this one."""
        text = self.data[start:end]
        if not named_in(text):
            return
        line = self.line + self.data.count(b"\n", 0, start)
        if quote == '"' and b"\\" in text.replace(b"\\\n", b"").replace(b"\\$", b""):
            note = Note("it stands in a quoted text with backslashes", "what the inner shell gets is not this text")
            yield Site(line, text.decode("utf-8", "replace").strip(), Translation("", 0, unknown=(note,)))
            return
        yield from _Reader(text, self.config, self.offset + start, line, quote or self.quote, job=self.job).sites()

    def _in_definition(self, node: Node) -> Site | None:
        """``CMD="torchrun …"`` and ``CMD=(torchrun …)``: the definition changes, its uses stay."""
        value = node.child_by_field_name("value")
        if value is None or not named_in(self.data[value.start_byte : value.end_byte]):
            return None
        words = self._words_of(value)
        if words is None:
            return self._in_quotes(node, value)
        place = find_launcher(words)
        if place is None or words[place.start].span is None:
            return None
        added = None
        said = translate(words, self.config)
        if said is not None and not said.words and said.unknown[0].what.endswith("without a script"):
            name = named(node)
            if self._options_follow(name):
                note = Note("the launcher alone, in a variable", "options follow where the variable is used")
                return Site(self.line + node.start_point[0], self.text(node), Translation("", 0, unknown=(note,)))
            added = known("train.py")  # whatever follows the variable
            words.append(added)
            said = translate(words, self.config)
        if said is None:
            return None
        if added is not None and said.words:
            if said.words[-1] is not added or said.words[-2].source != "--":
                return None
            said = Translation(said.launcher, said.start, said.words[:-1], said.dropped, said.unknown)
            words.pop()
        site = self._site(node, words, said, within=value)
        quotes = set(site.replacement.decode("utf-8", "replace")) & set(_QUOTES) if value.type != "array" else set()
        if quotes:
            note = Note(_VARIABLE, "the command of ddplaunch needs quotes there, which a variable keeps")
            return Site(site.line, site.text, Translation("", 0, unknown=(note,)))
        return site

    def _in_quotes(self, node: Node, value: Node) -> Site | None:
        """A launch with quotes or commands in it, in a variable that is run: it stays, and is said to."""
        text = self.text(value).replace('"', "").encode("utf-8", "surrogateescape")
        if not self._runs(named(node)) or all(site.aside for site in _Reader(text, self.config, 0, 1).sites()):
            return None
        note = Note(_VARIABLE, "quotes or commands are in its value, which is not taken apart")
        return Site(self.line + node.start_point[0], self.text(node), Translation("", 0, unknown=(note,)))

    def _runs(self, name: str) -> bool:
        """Return whether a command of the script is the variable, or a shell that is given it."""
        firsts = ([self.word(each) for each in node.named_children[:3]] for node in self.commands)
        return any(
            name in (variable_of(word.source) for word in words)
            and (words[0].name in _SHELLS or variable_of(words[0].source) == name)
            for words in firsts
        )

    def _options_follow(self, name: str) -> bool:
        text, spellings = self.data.decode("utf-8", "replace"), (f"${name}", f"${{{name}}}", f"${{{name}[@]}}")
        behind = (part.lstrip('" \t\\\n') for spelled in spellings for part in text.split(spelled)[1:])
        return any(each.startswith("-") for each in behind)

    def _site(self, node: Node, words: list[Word], said: Translation, within: Node | None = None) -> Site:
        line = self.line + (within or node).start_point[0]
        text = self.text(node).split("\n")[0].rstrip(" \\")
        if not said.words:
            return Site(line, text, said)
        begin = words[said.start].span
        last = next((word.span for word in reversed(words) if word.span is not None), None)
        if begin is None:  # the launcher came out of a variable
            first = next(child for child in node.named_children if self.word(child).parts)
            begin = (first.start_byte, first.end_byte)
        kept = len(said.words)
        following = len(words)
        while (
            kept
            and following
            and said.words[kept - 1] is words[following - 1]
            and words[following - 1].span is not None
        ):
            kept, following = kept - 1, following - 1
        tail = said.words[kept].span if kept < len(said.words) else None
        end = tail[0] if tail is not None else (last or begin)[1]
        new = " ".join(word.source for word in said.words[:kept]) + (" " if tail is not None else "")
        hidden = any(begin[0] <= child.start_byte < end for child in node.children if child.type in _SKIPPED)
        if (
            hidden
            or (self.quote and self.quote in new)
            or (self.quote == '"' and ("$((" in new or "${local_rank}" in new))
        ):
            note = Note("it stands among quotes or redirections", "the command of ddplaunch does not fit in there")
            return Site(line, text, Translation(said.launcher, 0, unknown=(note,)))
        place = (self.offset + begin[0], self.offset + end)
        return Site(line, text, said, *place, new.encode("utf-8", "surrogateescape"))

    def word(self, node: Node) -> Word:
        """Return a word as it is typed, with what it is as far as the script says."""
        inner = node.children[0] if node.type == "command_name" and node.children else node
        source, span = self.text(node), (node.start_byte, node.end_byte)
        text = plain_text(inner)
        if text is not None:
            return Word(source, text, span=span)
        name = variable_of(source)
        defined = self._definition(name, node.start_byte) if name else None
        if defined is None:
            return Word(source, span=span)
        single = defined.words[0].text if len(defined.words) == 1 and defined.plain else None
        several = not source.startswith('"') or source.endswith('[@]}"')
        parts = tuple(Word(each.source, each.text, each.constant, each.parts) for each in defined.words)
        return Word(source, None, single, parts if several and single is None else (), span)

    def _definition(self, name: str, use: int) -> Definition | None:
        """Return the value of a variable that the script sets once, before ``use``, without any condition."""
        nodes, others = self.assigned.get(name, []), [each for each in self.sourced.get(name, ()) if each[0] < use]
        if len(nodes) + len(others) != 1 or name in self.loops:
            return None
        if others:
            at, inner = others[0]
            found = inner._definition(name, len(inner.data)) if 0 <= at < use else None
            changed_here = found is not None and any(
                at < each.start_byte < use for used in found.uses for each in self.assigned.get(used, [])
            )
            return None if changed_here else found
        if nodes[0].start_byte > use:
            return None
        node = nodes[0]
        parent = node.parent
        if parent is None or parent.type not in ("program", "declaration_command", "list"):
            return None
        if parent.type != "program" and (parent.parent is None or parent.parent.type != "program"):
            return None
        value = node.child_by_field_name("value")
        words = self._words_of(value) if value is not None and "+=" not in self.text(node)[: len(name) + 2] else None
        if words is None or value is None:
            return None
        uses = tuple(self.text(each) for each in walk(value) if each.type == "variable_name")
        for used in uses:
            if any(node.start_byte < each.start_byte < use for each in self.assigned.get(used, [])):
                return None
        return Definition(tuple(words), uses, node.start_byte, value.type != "array")

    def _words_of(self, value: Node) -> list[Word] | None:
        """Return the words that a value is split into where it is used without quotes."""
        if value.type == "array":
            return [self.word(child) for child in value.children if child.is_named and child.type != "comment"]
        if value.type not in ("string", "raw_string"):
            text = plain_text(value)
            if text is None or len(text.split()) > 1:  # of several, the use changes
                return None if text is None else [known(each) for each in text.split()]
            return [Word(self.text(value), text, span=(value.start_byte, value.end_byte))]
        source = self.text(value)[1:-1]
        if set(source.replace("\\\n", "  ")) & set(_QUOTES) or "$(" in source:
            return None
        return list(split(source, value.start_byte + 1, value.type == "string"))
