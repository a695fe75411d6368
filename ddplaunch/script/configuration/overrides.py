"""Options that a script takes for the keys of its configuration: hydra, OmegaConf, yacs, mmengine, nanoGPT and others.

The keys come from the files that the arguments or the script name, from configuration classes, or from how the script
reads its configuration. A file that no argument overrides gives options too, which are compared instead of passed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.script.configuration import config_files
from ddplaunch.script.configuration.config_files import Composed, Entry
from ddplaunch.script.configuration.override_ways import Way, Ways
from ddplaunch.script.constants import UNIT_NAME
from ddplaunch.script.flow import Flow
from ddplaunch.script.known import UNKNOWN, known_value
from ddplaunch.script.meaning import candidate
from ddplaunch.script.names import dotted, last
from ddplaunch.script.program import Program, show
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption
from ddplaunch.values.frozen import dataclass

_LARGEST_BYTES = 64_000
_FILES = 12
_LOADS = re.compile(r"(?:yaml|json|omegaconf\.OmegaConf|ruamel.*)\.(?:\w*_)?loads?")
_READERS = frozenset({"fromfile", "parse_json_file", "parse_yaml_file", "load_config", "merge_from_file", "YAML"})
# Parsers that take a file's values for defaults of their options.
_FILE_DEFAULTS = frozenset({"set_defaults", "TrlParser", "LightningCLI", "CLI", "auto_cli", "ArgParser"})
_OTHER_SECTION = re.compile(
    r"(?i)(?:^|[._-])(?:val|valid|validation|eval\w*|test\w*|infer\w*|predict\w*|sampl(?!es_per_)\w*|demo|ema|profil\w*)(?:[._-]|$)"
)
_OWN_SECTION = re.compile(
    r"(?i)(?:^|[._])(?:train\w*|data\w*|loader|optim\w*|solver|lr_?sched\w*|sched\w*|hparams|hyp\w*)(?:[._]|$)"
)
# Without one of these words no file of a program has a configuration.
_WORTH_READING = re.compile(
    r"hydra|omegaconf|merge_from_list|cfg_from_list|DictAction|exec\(|LightningCLI|yaml|json|fromfile|merge_from_file|set_defaults|TrlParser|auto_cli|configargparse|add_argument\(\s*f?.--(?:\{|.\s*\+)"
)


def configuration(
    flow: Flow, program: Program, declared: Sequence[DeclaredOption], args: Sequence[str], cwd: Path
) -> Configured:
    """Return what the script's configuration adds to the ``declared`` options, with ``args`` as its arguments."""
    if not any(_WORTH_READING.search(file.text) for file in program.files.values()):
        return Configured()
    return _Overrides(Ways(program, flow.parts, declared, args, cwd)).read()


@dataclass(frozen=True)
class Configured:
    """What the script's configuration adds.

    ``options`` stand for its keys, ``files`` were read, ``targets`` are classes that it names, ``facts`` are values of
    ``switches``, which arguments can override, ``defaults`` entries that are defaults of the options with these names.
    ``settled`` are lines whose values are among the entries, as they stand or overruled.
    """

    options: tuple[DeclaredOption, ...] = ()
    files: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    facts: tuple[tuple[str, object], ...] = ()
    switches: tuple[DeclaredOption, ...] = ()
    defaults: tuple[Entry, ...] = ()
    settled: frozenset[DeclaredAt] = frozenset()

    def added_to(self, declared: Sequence[DeclaredOption]) -> tuple[DeclaredOption, ...]:
        """Return the declared options with the defaults of the files, and those of the configuration."""
        own = {entry.key: entry for entry in self.defaults}
        replaced = {option.dest for option in self.options if option.parser == "transformers"}
        kept = []
        for option in declared:
            names = (option.dest, *(flag.lstrip("-").replace("-", "_") for flag in option.flags))
            entry = next((own[name] for name in names if name in own), None)
            if entry is not None:
                option = replace(option, default=entry.text, computed=entry.computed, default_at=entry.at)
            if not (replaced and option.dest in replaced):
                kept.append(option)
        return (*kept, *self.options)


class _Overrides:
    def __init__(self, ways: Ways) -> None:
        self.ways, self.declared = ways, ways.declared
        self.parts, self.args, self.cwd = ways.parts, ways.args, ways.cwd

    def read(self) -> Configured:
        """Return what the configuration adds to the declared options."""
        ways = list(self.ways.found())
        way = next((each for each in ways if each.composed or each.entries or each.classes), next(iter(ways), None))
        if way is None:
            return self._compared()
        files = [] if way.composed else self._files(way.parser in ("mmengine", "globals"))
        composed = way.composed or Composed((), ())
        entries = [*way.entries, *composed.entries, *(entry for _, found in files for entry in found)]
        options = {option.flags[0]: option for option in way.classes}
        for entry in entries:
            options[way.prefix + entry.key] = self._option(entry, way, options.get(way.prefix + entry.key))
        for key in way.known:
            section = key.rpartition(".")[0]
            if not entries or way.parser == "yacs" or (section and any(name.startswith(section) for name in options)):
                options.setdefault(way.prefix + key, self._option(Entry(key, None, way.at), way, None))
        switches = (self._option(entry, way, None) for entry in entries if _is_switch(entry))
        return Configured(
            tuple(_chosen(options.values(), self.declared)),
            (*composed.files, *(name for name, _ in files)),
            tuple(config_files.classes_in(entries)),
            tuple(_facts(entries, self.args)),
            switches=tuple(switches),
            settled=frozenset(entry.at for entry in way.entries),
        )

    def _option(self, entry: Entry, way: Way, before: DeclaredOption | None) -> DeclaredOption:
        """Return the option for a key; ``before`` is that of a class whose default the entry replaces."""
        if before is not None:
            return replace(before, at=entry.at, default=entry.text, computed=entry.computed, default_at=entry.at)
        return DeclaredOption(
            (way.prefix + entry.key,),
            entry.at,
            default=entry.text,
            computed=entry.computed,
            help=entry.comment,
            dest=entry.key.rpartition(".")[2],
            parser=way.parser,
            spelling=way.spelling,
            behind=way.behind,
            front=way.front,
            default_at=entry.at,
        )

    def _compared(self) -> Configured:
        """Return the options of files that nothing overrides, and the entries that are defaults of options."""
        calls = [(call, part) for part in self.parts for call in part.calls]
        names = {last(call.func) for call, _ in calls}
        defaults = names & _FILE_DEFAULTS or any("configargparse" in part.aliases.values() for part in self.parts)
        loads = names & _READERS or any(_LOADS.fullmatch(dotted(call.func, part.aliases)) for call, part in calls)
        if not defaults and not loads:
            return Configured()
        files = self._files("fromfile" in names)
        entries = [entry for _, found in files for entry in found]
        if defaults:
            return Configured(files=tuple(name for name, _ in files), defaults=tuple(entries))
        way = Way("file", DeclaredAt(self.ways.program.root.shown, 1), "file")
        options = {entry.key: self._option(entry, way, None) for entry in entries}
        alone = len(self.args) == 1 and names & {"parse_json_file", "parse_yaml_file"}
        if alone and self.args[0].endswith((".json", ".yaml", ".yml")):
            own = {entry.key: entry for entry in entries}
            options = {
                option.dest: _in_file(option, own.get(option.dest))
                for option in self.declared
                if option.parser == "transformers"
            }
            return Configured(tuple(options.values()), tuple(name for name, _ in files))
        chosen = tuple(_chosen(options.values(), self.declared))
        names_read = tuple(name for name, _ in files) if chosen else ()
        return Configured(chosen, names_read, (), tuple(_facts(entries, self.args)) if chosen else ())

    def _files(self, python: bool) -> list[tuple[str, list[Entry]]]:
        """Return the entries of the files that the script names, and then of those that its arguments name."""
        endings = config_files.ENDINGS if python else tuple(each for each in config_files.ENDINGS if each != ".py")
        texts = [
            node.value
            for part in self.parts
            for node in part.of(ast.Constant)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(endings[:-1])
        ]
        found: dict[str, list[Entry]] = {}
        beside = self.ways.program.root.path.parent
        for word in dict.fromkeys([*texts, *(arg.rpartition("=")[2] for arg in self.args if arg.endswith(endings))]):
            path = next((each for each in (self.cwd / word, beside / word) if _is_small_file(each)), None)
            if path is not None:
                shown = show(path, self.cwd)
                found[shown] = found.pop(shown, []) or config_files.read_entries(path, shown)
        return list(found.items())[-_FILES:]


def _is_small_file(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= _LARGEST_BYTES
    except (OSError, ValueError):
        return False


def _in_file(option: DeclaredOption, entry: Entry | None) -> DeclaredOption:
    """Return an option of Hugging Face's parser as what a file says in its place."""
    if entry is None:
        return replace(option, flags=(option.dest,), spelling="file")
    return replace(option, flags=(option.dest,), spelling="file", default=entry.text, at=entry.at, default_at=entry.at)


_SWITCHED = {"true": True, "false": False}


def _is_switch(entry: Entry) -> bool:
    return (entry.text or "").lower() in _SWITCHED


def _facts(entries: Iterable[Entry], args: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield the switches of the configuration by their last name, where only one has it, as ``args`` override them.

    What batches are counted in is among them.
    """
    texts = {entry.key: entry.text or "" for entry in entries}
    for position, word in enumerate(args):
        key, equals, value = word.lstrip("-+").partition("=")
        if key in texts:
            texts[key] = value if equals else next(iter(args[position + 1 : position + 2]), "")
    found: dict[str, set[object]] = {}
    for key, text in texts.items():
        name = key.rpartition(".")[2]
        other = text if text and UNIT_NAME.fullmatch(name) else UNKNOWN
        found.setdefault(name, set()).add(_SWITCHED.get(text.lower(), other))
    for name, values in found.items():
        if len(values) == 1 and UNKNOWN not in values:
            yield name, next(iter(values))


def _chosen(options: Iterable[DeclaredOption], declared: Sequence[DeclaredOption]) -> Iterator[DeclaredOption]:
    """Yield the keys that a number of the plan can mean, of several one in a section for training.

    A number that an option of the command line takes is none of the configuration.
    """
    taken = {_family(candidate(option)) for option in declared}
    groups: dict[str, list[DeclaredOption]] = {}
    for option in options:
        meaning = candidate(option)
        key = option.flags[0].lstrip("-+")
        if (
            meaning is not None
            and _family(meaning) not in taken
            and not _OTHER_SECTION.search(key)
            and _is_number(option)
        ):
            groups.setdefault(meaning, []).append(option)
    for group in groups.values():
        ranks = [
            (option.computed, not _OWN_SECTION.search(option.flags[0]), option.flags[0].count(".")) for option in group
        ]
        yield from (option for option, rank in zip(group, ranks, strict=True) if rank == min(ranks))


def _family(meaning: str | None) -> str | None:
    return "warmup" if meaning and meaning.startswith("warmup") else (meaning or "").removeprefix("global_") or None


def _is_number(option: DeclaredOption) -> bool:
    """Return whether the value is a number, or not yet said."""
    value = None if option.default is None else known_value(option.default, (), True)
    return value is None or value == "auto" or (isinstance(value, (int, float)) and not isinstance(value, bool))
