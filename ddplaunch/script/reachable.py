"""The parts of a program that can run when the script starts, found by following names.

Functions that nothing refers to, and the `main` of an imported module, may declare options that the script lacks.
"""

from __future__ import annotations

import ast
from functools import cached_property
from pathlib import Path

from ddplaunch.script.names import aliases_of
from ddplaunch.script.program import LocalFile, Program, is_main_guard
from ddplaunch.script.source import ParsedFile
from ddplaunch.values.frozen import dataclass

_Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class ReachablePart:
    """The nodes of one file that can run."""

    source: ParsedFile
    nodes: tuple[ast.AST, ...]

    @cached_property
    def aliases(self) -> dict[str, str]:
        """The full names of the file's imported names."""
        return aliases_of(self.source)

    @cached_property
    def calls(self) -> tuple[ast.Call, ...]:
        """All calls that can run."""
        return tuple(node for node in self.nodes if isinstance(node, ast.Call))


def reachable_parts(program: Program) -> list[ReachablePart]:
    """Return the parts of all parsed files that can run, the script's own first."""
    return _Walk(program).parts()


class _Walk:
    """Follows names from the statements that run on import to the definitions that they refer to.

    A unit is a top-level statement with its nodes, known by file and index.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.units: dict[Path, dict[int, list[ast.AST]]] = {}
        self.definitions: dict[Path, dict[str, list[int]]] = {}
        self.modules: dict[Path, dict[str, Path]] = {}
        self.reached: set[tuple[Path, int]] = set()
        self.waiting: list[tuple[Path, int]] = []
        self.followed: set[tuple[Path, str]] = set()
        for file in list(program.files.values()):
            if file.source is not None:
                self._divide(file, file.source)

    def parts(self) -> list[ReachablePart]:
        while self.waiting:
            path, index = self.waiting.pop()
            for node in self.units[path][index]:
                if isinstance(node, ast.Name):
                    self._follow(path, node.id)
                elif isinstance(node, ast.Attribute) and _is_chain(node.value):
                    module = self.modules[path].get(ast.unparse(node.value))
                    if module is not None:
                        self._follow(module, node.attr)
        return [
            ReachablePart(
                source, tuple(node for index, nodes in units.items() if (path, index) in self.reached for node in nodes)
            )
            for path, units in self.units.items()
            if (source := self.program.files[path].source) is not None
        ]

    def _divide(self, file: LocalFile, source: ParsedFile) -> None:
        """Split a file at its top-level statements; reach all but definitions and the main of an imported file."""
        bounds = {id(statement): index for index, statement in enumerate(source.tree.body)}
        units: dict[int, list[ast.AST]] = {index: [] for index in bounds.values()}
        current = -1
        for node in source.nodes[1:]:  # in depth-first order: the nodes of a statement follow it
            current = bounds.get(id(node), current)
            if current >= 0:
                units[current].append(node)
        self.units[file.path] = units
        self.modules[file.path] = self.program.modules_of(file)
        definitions = self.definitions.setdefault(file.path, {})
        for index, statement in enumerate(source.tree.body):
            if isinstance(statement, _Definition):
                definitions.setdefault(statement.name, []).append(index)
                if statement.decorator_list:
                    self._reach(file.path, index)
            elif file is self.program.root or not is_main_guard(statement):
                self._reach(file.path, index)

    def _reach(self, path: Path, index: int) -> None:
        if (path, index) not in self.reached:
            self.reached.add((path, index))
            self.waiting.append((path, index))

    def _follow(self, path: Path, name: str) -> None:
        """Reach the definitions of ``name`` in ``path``, or in the file that it was imported from."""
        if (path, name) in self.followed:
            return
        self.followed.add((path, name))
        if name not in self.definitions.get(path, {}):
            path, name = self.program.resolve(path, name) or (path, name)
        for index in self.definitions.get(path, {}).get(name, ()):
            self._reach(path, index)


def _is_chain(node: ast.AST) -> bool:
    depth = 0
    while isinstance(node, ast.Attribute) and depth < 10:
        node, depth = node.value, depth + 1
    return isinstance(node, ast.Name)
