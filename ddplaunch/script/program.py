"""The script together with the local files that it imports, directly or not."""

from __future__ import annotations

import ast
import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ddplaunch.script.names import ImportRecord, Roots, records_of, records_of_text
from ddplaunch.script.source import ParsedFile, SyntaxProblem, digest_of, parse, read_text

_FILE_LIMIT = 40
_DEPTH_LIMIT, _DEPTH_OF_PROMISING = 3, 5
# Characters of imported files to parse at every launch, in about 50 ms.
_PARSED_LIMIT = 150_000
_SMALL = 1000  # a file of fewer characters may only re-export what others define

# Files with these words are parsed, in this order. Words of the first group declare options, those of the second start
# processes or set up groups, and those of the third use the number of ranks, accumulate or load data, or are trainers.
_WORDS = (
    "add_argument|click.|import click|Fire(|HfArgumentParser|TrlParser|tyro|simple_parsing|jsonargparse"
    "|pyrallis|draccus|hydra|OmegaConf|parse_known_args|exec(|docopt|(Tap)|tapify|gen_parser_from_dataclass"
    "|HParams|CfgNode|merge_from_list|cfg_from_list|DictAction|LightningCLI|prefigure|1::2]"
    "|split('='|split(\"=\"|partition('='|partition(\"=\"",
    "init_process_group|init_device_mesh|spawn|start_processes|torchrun|environ|getenv|argv|runpy|import_module"
    "|__import__|torch.distributed.launch|torch.distributed.run",
    "world_size|ngpu|n_gpu|num_gpus|device_count|ddplaunch|accum|update_freq|DataLoader(|Trainer)|Accelerator(",
)
_WORTH = tuple(tuple(line.split("|")) for line in _WORDS)
# A script that adds the directory above its own to the module search path.
_ABOVE = re.compile(r"sys\.path\.(?:append|insert)\(.*__file__.*(?:\.\.|dirname.*dirname|\.parent\.parent)")
# Parts of the names of modules that rather lead to options and process groups than others.
_PROMISING = re.compile(r"(?i)arg|opt(?!im)|pars|conf|cfg|flag|param|cli\b|setup|dist|init|launch|train|main|run")


@dataclass
class LocalFile:
    """One file of the program. ``source`` is None until its tree is needed."""

    path: Path
    shown: str
    text: str
    records: list[ImportRecord]
    source: ParsedFile | None = None
    worth: int = len(_WORTH)

    @cached_property
    def definitions(self) -> frozenset[str]:
        """The names of its functions and classes, nested ones included."""
        return frozenset(re.findall(r"^[^\S\n]*(?:def|class)\s+(\w+)", self.text, re.MULTILINE))


@dataclass
class Program:
    """All files that were followed. ``complete`` is False if some had to be left out."""

    root: LocalFile
    roots: Roots
    files: dict[Path, LocalFile] = field(default_factory=dict)
    foreign: list[tuple[LocalFile, ImportRecord]] = field(default_factory=list)
    complete: bool = True

    def digests(self) -> tuple[tuple[str, str], ...]:
        """Return each file as users see it with a digest of its text, the script first."""
        return tuple((file.shown, digest_of(file.text)) for file in self.files.values())

    def tree_of(self, path: Path) -> ParsedFile | None:
        """Return the parsed file at ``path``, and parse it if ``follow`` did not; None if it cannot be."""
        file = self.files.get(path)
        if file is None:
            return None
        if file.source is None:
            parsed = parse(file.path, file.shown, file.text)
            file.source = parsed if isinstance(parsed, ParsedFile) else None
        return file.source

    def resolve(self, path: Path, name: str, depth: int = 8) -> tuple[Path, str] | None:
        """Return the file and the name there that ``name`` in ``path`` was imported from, through re-exports."""
        file = self.files.get(path)
        if file is None or depth == 0:
            return None
        for record in file.records:
            for original, bound in record.names:
                if bound != name and original != "*":
                    continue
                target = self.roots.file_of(path, record)
                if target is None or target == path:
                    continue
                found = self.resolve(target, name if original == "*" else original, depth - 1)
                if found is not None:
                    return found
                if original != "*" or name in getattr(self.files.get(target), "definitions", ()):
                    return target, name if original == "*" else original
        return None

    def modules_of(self, file: LocalFile) -> dict[str, Path]:
        """Map names of imported local modules to their files: ``import args``, ``from pkg import cli``."""
        found: dict[str, Path] = {}
        for record in file.records:
            module = record.bound if record.bound != record.package else record.module
            for name, bound in record.names or (("", module),):
                target = self.roots.file_of(file.path, record, name)
                if target is not None:
                    found[bound] = target
        return found


def show(path: Path, cwd: Path) -> str:
    """Return ``path`` as users see it: relative to ``cwd`` if it is below."""
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def follow(root: ParsedFile, cwd: Path, search: Sequence[Path]) -> Program:
    """Read the local files that ``root`` imports, directly or not, within the limits of this module.

    The files whose names promise options are read first, and of those read, the ones with words of options are parsed
    first.
    """
    start = LocalFile(root.path, root.shown, root.text, list(records_of(root.imports)), root)
    above = [root.path.parent.parent] if _ABOVE.search(root.text) else []
    program = Program(start, Roots(root.path, cwd, search, above), {root.path: start})
    waiting: list[tuple[int, int, int, Path]] = []
    _queue_imports(program, start, 0, waiting)
    tried: set[Path] = set()
    while waiting:
        _, depth, _, path = heapq.heappop(waiting)
        if path in program.files or path in tried:
            continue
        if len(tried) >= _FILE_LIMIT:
            program.complete = False
            break
        tried.add(path)
        imported = _read(path, cwd, program)
        if imported is not None:
            _queue_imports(program, imported, depth, waiting)
    _parse_within_limit(program)
    return program


def _queue_imports(program: Program, file: LocalFile, depth: int, waiting: list[tuple[int, int, int, Path]]) -> None:
    for record in file.records:
        targets = program.roots.files_of(file.path, record)
        if not targets:
            program.foreign.append((file, record))
        text = " ".join([record.module.rpartition(".")[2], *(name for name, _ in record.names)])
        promising = _PROMISING.search(text) is not None
        for target in targets:
            if target in program.files:
                continue
            if depth >= (_DEPTH_OF_PROMISING if promising else _DEPTH_LIMIT):
                program.complete = False
            else:
                heapq.heappush(waiting, (not promising, depth + 1, len(waiting), target))


def _read(path: Path, cwd: Path, program: Program) -> LocalFile | None:
    """Read an imported file into the program; one that cannot be read makes the program incomplete."""
    text = read_text(path)
    if text is None or text.problem is not None:
        program.complete = False
        return None
    ranks = (number for number, words in enumerate(_WORTH) if any(word in text.text for word in words))
    file = LocalFile(path, show(path, cwd), text.text, list(records_of_text(text.text)))
    file.worth = next(ranks, len(_WORTH) - (len(text.text) < _SMALL))
    program.files[path] = file
    return file


def _parse_within_limit(program: Program) -> None:
    """Parse the files that are worth it, in the order of their worth, until the limit is reached."""
    left = _PARSED_LIMIT
    for file in sorted(program.files.values(), key=lambda each: each.worth):
        if file.source is not None or file.worth == len(_WORTH):
            continue
        if len(file.text) > left:
            program.complete = program.complete and file.worth == len(_WORTH) - 1
            continue
        left -= len(file.text)
        parsed = parse(file.path, file.shown, file.text)
        if isinstance(parsed, SyntaxProblem):
            program.complete = False
            continue
        file.source = parsed
        file.records = list(records_of(parsed.imports))


def is_main_guard(node: ast.AST) -> bool:
    """Return whether ``node`` is ``if __name__ == "__main__":``."""
    test = ast.unparse(node.test) if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) else ""
    return "__name__" in test and "__main__" in test
