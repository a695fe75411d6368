"""The script together with the local files that it imports, directly or not."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddplaunch.script.names import ImportRecord, Roots, records_of, records_of_text
from ddplaunch.script.source import ParsedFile, SyntaxProblem, parse, read_text

_FILE_LIMIT = 40
_DEPTH_LIMIT = 3
# Characters of imported files to parse: every launch does it, and these take about 50 ms.
_PARSED_LIMIT = 150_000

# An imported file without any of these words can neither declare options nor set up processes.
_WORTH_PARSING = re.compile(
    r"add_argument|click\.|import click|typer|DEFINE_|Fire\(|HfArgumentParser|TrlParser|tyro|simple_parsing"
    r"|jsonargparse|pyrallis|draccus|init_process_group|init_device_mesh|spawn|start_processes|torchrun|environ|getenv"
    r"|argv|hydra|OmegaConf|parse_known_args|\bexec\(|runpy|import_module|__import__|docopt"
    r"|torch\.distributed\.(?:launch|run)"
)


@dataclass
class LocalFile:
    """One file of the program. ``source`` is None until its tree is needed."""

    path: Path
    shown: str
    text: str
    records: list[ImportRecord]
    source: ParsedFile | None = None


@dataclass
class Program:
    """All files that were followed. ``complete`` is False if some had to be left out."""

    root: LocalFile
    roots: Roots
    files: dict[Path, LocalFile] = field(default_factory=dict)
    foreign: list[tuple[LocalFile, ImportRecord]] = field(default_factory=list)
    complete: bool = True
    parsed_characters: int = 0

    @property
    def sources(self) -> list[ParsedFile]:
        """The files that were parsed, the script first."""
        return [file.source for file in self.files.values() if file.source is not None]

    def tree_of(self, path: Path) -> ParsedFile | None:
        """Return the parsed file at ``path``; parse it now if it was not parsed for its words."""
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
                if original != "*" or self._defines(target, name):
                    return target, name if original == "*" else original
        return None

    def _defines(self, path: Path, name: str) -> bool:
        file = self.files.get(path)
        return file is not None and re.search(rf"^\s*(?:def|class)\s+{re.escape(name)}\b", file.text, re.M) is not None

    def modules_of(self, file: LocalFile) -> dict[str, Path]:
        """Return the local files behind names that are modules: ``import args``, ``from pkg import cli``."""
        found: dict[str, Path] = {}
        for record in file.records:
            if not record.names:
                target = self.roots.file_of(file.path, record)
                if target is not None:
                    found[record.bound if record.bound != record.package else record.module] = target
            for name, bound in record.names:
                target = self.roots.file_of(file.path, record, name)
                if target is not None:
                    found[bound] = target
        return found


def show(path: Path, cwd: Path) -> str:
    """Return ``path`` as users see it: relative to ``cwd`` if it is below."""
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def follow(root: ParsedFile, cwd: Path, search: Sequence[Path]) -> Program:
    """Read the local files that ``root`` imports, directly or not, within the limits of this module."""
    start = LocalFile(root.path, root.shown, root.text, list(records_of(root.nodes)), root)
    program = Program(start, Roots(root.path, cwd, search), {root.path: start})
    queue = deque([(start, 0)])
    while queue:
        file, depth = queue.popleft()
        for record in file.records:
            targets = program.roots.files_of(file.path, record)
            if not targets:
                program.foreign.append((file, record))
            for target in targets:
                if target in program.files:
                    continue
                if depth == _DEPTH_LIMIT or len(program.files) >= _FILE_LIMIT:
                    program.complete = False
                    continue
                imported = _read(target, cwd, program)
                if imported is not None:
                    queue.append((imported, depth + 1))
    return program


def _read(path: Path, cwd: Path, program: Program) -> LocalFile | None:
    """Read an imported file into the program; one that cannot be read makes the program incomplete."""
    text = read_text(path)
    if text is None or text.problem is not None:
        program.complete = False
        return None
    file = LocalFile(path, show(path, cwd), text.text, [])
    if _WORTH_PARSING.search(text.text):
        program.parsed_characters += len(text.text)
        if program.parsed_characters > _PARSED_LIMIT:
            program.complete = False
            return None
        parsed = parse(path, file.shown, text.text)
        if isinstance(parsed, SyntaxProblem):
            program.complete = False
            return None
        file.source = parsed
        file.records = list(records_of(parsed.nodes))
    else:
        file.records = list(records_of_text(text.text))
    program.files[path] = file
    return file


def is_main_guard(node: ast.AST) -> bool:
    """Return whether ``node`` is ``if __name__ == "__main__":``."""
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    sides = [node.test.left, *node.test.comparators]
    names = {side.id for side in sides if isinstance(side, ast.Name)}
    texts = {side.value for side in sides if isinstance(side, ast.Constant) and isinstance(side.value, str)}
    return "__name__" in names and "__main__" in texts
