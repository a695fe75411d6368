"""Finds options that override keys of a script's configuration: Hydra, OmegaConf, yacs, mmengine, nanoGPT.

The keys come from the YAML and JSON files that the arguments or the script name, or from how the script makes its
configuration.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.script.configuration import config_files
from ddplaunch.script.configuration.config_files import Entry
from ddplaunch.script.configuration.override_ways import Way, Ways
from ddplaunch.script.flow import Flow
from ddplaunch.script.known import UNKNOWN, known_value
from ddplaunch.script.meaning import candidate
from ddplaunch.script.names import last, last_word, string
from ddplaunch.script.program import Program, show
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption
from ddplaunch.values.frozen import dataclass

_LARGEST_BYTES = 64_000
_FILES = 12
# Parsers that take the values of a file as defaults of their options.
_FILE_DEFAULTS = frozenset({"set_defaults", "TrlParser", "CLI", "auto_cli", "ArgParser"})
_FILE_PARSERS = frozenset({"configargparse", "jsonargparse", "yamlargparse"})
_OTHER_SECTION = re.compile(
    r"(?i)(?:^|[._-])(?:val|valid|validation|eval\w*|test\w*|infer\w*|predict\w*|sampl(?!es_per_)\w*|demo|ema|profil\w*)(?:[._-]|$)"
)
_OWN_SECTION = re.compile(
    r"(?i)(?:^|[._])(?:train\w*|data\w*|loader|optim\w*|solver|lr_?sched\w*|sched\w*|hparams|hyp\w*)(?:[._]|$)"
)
# A program without any of these words in its files has no configuration.
_WORTH_READING = re.compile(
    r"hydra|omegaconf|merge_from_list|cfg_from_list|DictAction|exec\(|parse_(?:json|yaml)_file|set_defaults\([^)]*\*\*|TrlParser|auto_cli|(?:config|json|yaml)argparse"
)


def configuration(
    flow: Flow, program: Program, declared: Sequence[DeclaredOption], args: Sequence[str], cwd: Path
) -> Configured:
    """Return what the script's configuration adds to the ``declared`` options, with ``args`` as its arguments."""
    if not any(_WORTH_READING.search(file.text) for file in program.files.values()):
        return Configured()
    return _Overrides(Ways(program, flow.parts, args, cwd), declared).read()


@dataclass(frozen=True)
class Configured:
    """What the script's configuration adds.

    ``options`` stand for its keys, ``files`` were read. ``unknown`` are the declared options, if a file gives defaults.
    ``facts`` are switches with their values, ``switches`` the options for them. ``settled`` are the lines of keys.
    """

    options: tuple[DeclaredOption, ...] = ()
    files: tuple[str, ...] = ()
    unknown: tuple[DeclaredOption, ...] = ()
    facts: tuple[tuple[str, object], ...] = ()
    switches: tuple[DeclaredOption, ...] = ()
    settled: frozenset[DeclaredAt] = frozenset()


class _Overrides:
    def __init__(self, ways: Ways, declared: Sequence[DeclaredOption]) -> None:
        self.ways, self.declared = ways, declared
        self.parts, self.args, self.cwd = ways.parts, ways.args, ways.cwd

    def read(self) -> Configured:
        """Return what the configuration adds to the declared options."""
        ways = list(self.ways.found())
        way = next((each for each in ways if each.entries), next(iter(ways), None))
        if way is None:
            return Configured(unknown=tuple(self._with_defaults_of_files()))
        files = [] if way.parser == "hydra" else self._files()
        entries = [*way.entries, *(entry for _, found in files for entry in found)]
        if any(config_files.names_class(entry) for entry in entries):
            return Configured(files=tuple(name for name, _ in files))
        if way.parser == "globals" and any(arg.endswith(".py") for arg in self.args):
            entries = [replace(entry, text=None, computed=True) for entry in entries]  # a file assigns other values
        options = {way.prefix + entry.key: self._option(entry, way) for entry in entries}
        for key in way.known:
            section = key.rpartition(".")[0]
            if not entries or way.parser == "yacs" or (section and any(name.startswith(section) for name in options)):
                options.setdefault(way.prefix + key, self._option(Entry(key, None, way.at), way))
        return Configured(
            tuple(_chosen(options.values(), self.declared)),
            tuple(name for name, _ in files),
            (),
            tuple(_facts(entries, self.args)),
            tuple(self._option(entry, way) for entry in entries if (entry.text or "").lower() in _SWITCHED),
            frozenset(entry.at for entry in way.entries),
        )

    def _option(self, entry: Entry, way: Way) -> DeclaredOption:
        """Return the option for a key."""
        return DeclaredOption(
            (way.prefix + entry.key,),
            entry.at,
            default=entry.text,
            computed=entry.computed,
            dest=entry.key.rpartition(".")[2],
            parser=way.parser,
            spelling=way.spelling,
            after_flag=way.after_flag,
            comes_first=way.comes_first,
        )

    def _with_defaults_of_files(self) -> Iterator[DeclaredOption]:
        """Yield the declared options, without their defaults where existing files may give others."""
        names = {last(call.func) for part in self.parts for call in part.of(ast.Call)}
        files = self._files() if names & _FILE_DEFAULTS or self.ways.packages & _FILE_PARSERS else []
        keys = {last_word(entry.key) for _, entries in files for entry in entries}
        read = all(entries for _, entries in files)
        for option in self.declared if files else ():
            # jsonargparse overwrites with its file what stands before it
            behind = replace(option, comes_first=False)
            named = not read or last_word(option.dest) in keys
            yield replace(behind, default=None, computed=True) if named else behind

    def _files(self) -> list[tuple[str, list[Entry]]]:
        """Return the entries of the files that the script names, and then of those that its arguments name."""
        texts = [
            text
            for part in self.parts
            for node in part.of(ast.Constant)
            if (text := string(node) or "").endswith(config_files.ENDINGS)
        ]
        found: dict[str, list[Entry]] = {}
        beside = self.ways.program.root.path.parent
        named = (arg.rpartition("=")[2] for arg in self.args if arg.endswith(config_files.ENDINGS))
        for word in dict.fromkeys([*texts, *named]):
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


_SWITCHED = {"true": True, "false": False}


def _facts(entries: Iterable[Entry], args: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield the switches of the configuration by their last name, where only one has it, as ``args`` override them."""
    texts = {entry.key: entry.text or "" for entry in entries}
    for position, word in enumerate(args):
        key, equals, value = word.lstrip("-+").partition("=")
        if key in texts:
            texts[key] = value if equals else next(iter(args[position + 1 : position + 2]), "")
    found: dict[str, set[object]] = {}
    for key, text in texts.items():
        found.setdefault(key.rpartition(".")[2], set()).add(_SWITCHED.get(text.lower(), UNKNOWN))
    for name, values in found.items():
        if len(values) == 1 and UNKNOWN not in values:
            yield name, next(iter(values))


def _chosen(options: Iterable[DeclaredOption], declared: Sequence[DeclaredOption]) -> Iterator[DeclaredOption]:
    """Yield the keys that can stand for a number of the plan; of several, the likeliest, as in a section for training.

    A number that an option of the command line takes is not looked for in the configuration.
    """
    taken = {_family(candidate(option)) for option in declared}
    groups: dict[str, list[DeclaredOption]] = {}
    for option in options:
        meaning = candidate(option)
        key = option.flags[0].lstrip("-+")
        value = None if option.default is None else known_value(option.default, (), True)
        if (
            meaning is not None
            and _family(meaning) not in taken
            and not _OTHER_SECTION.search(key)
            and (value in (None, "auto") or type(value) in (int, float))
        ):
            groups.setdefault(meaning, []).append(option)
    for group in groups.values():
        ranks = [
            (option.computed, not _OWN_SECTION.search(option.flags[0]), option.flags[0].count(".")) for option in group
        ]
        yield from (option for option, rank in zip(group, ranks, strict=True) if rank == min(ranks))


def _family(meaning: str | None) -> str | None:
    return "warmup" if meaning and meaning.startswith("warmup") else (meaning or "").removeprefix("global_") or None
