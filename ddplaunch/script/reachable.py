"""Which parts of a program can run when the script is started; refuses to follow values, only names.

A local module's own `main` and the functions that nobody refers to declare options that the script does not have.
"""

from __future__ import annotations

import ast
from functools import cached_property
from pathlib import Path

from ddplaunch.script.names import aliases_of
from ddplaunch.script.program import LocalFile, Program, is_main_guard
from ddplaunch.script.source import Source
from ddplaunch.values.frozen import dataclass

_Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Part:
    """The nodes of one file that can run."""

    source: Source
    nodes: tuple[ast.AST, ...]

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What the imported names of the file stand for."""
        return aliases_of(self.source)

    @cached_property
    def calls(self) -> tuple[ast.Call, ...]:
        """All calls that can run."""
        return tuple(node for node in self.nodes if isinstance(node, ast.Call))


def live_parts(program: Program) -> list[Part]:
    """Return the parts of all parsed files that can run, the script's own first."""
    return _Walk(program).parts()


class _Walk:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.units: dict[Path, dict[int, tuple[ast.AST, ...]]] = {}
        self.names: dict[Path, dict[str, list[int]]] = {}
        self.modules: dict[Path, dict[str, Path]] = {}
        self.live: set[tuple[Path, int]] = set()
        self.waiting: list[tuple[Path, int]] = []
        self.referred: set[tuple[Path, str]] = set()
        for file in list(program.files.values()):
            if file.source is not None:
                self._divide(file, file.source)

    def parts(self) -> list[Part]:
        while self.waiting:
            path, index = self.waiting.pop()
            for node in self.units[path][index]:
                if isinstance(node, ast.Name):
                    self._refer(path, node.id)
                elif isinstance(node, ast.Attribute):
                    self._refer_through_module(path, node)
        return [
            Part(source, tuple(node for index in sorted(units) if (path, index) in self.live for node in units[index]))
            for path, units in self.units.items()
            if (source := self.program.files[path].source) is not None
        ]

    def _divide(self, file: LocalFile, source: Source) -> None:
        """Split a file at its top-level definitions; all else runs on import, except an imported file's main."""
        bounds = {id(statement): index for index, statement in enumerate(source.tree.body)}
        groups: dict[int, list[ast.AST]] = {index: [] for index in bounds.values()}
        current = -1
        for node in source.nodes[1:]:  # in depth-first order, so that a statement's nodes follow it
            current = bounds.get(id(node), current)
            if current >= 0:
                groups[current].append(node)
        self.units[file.path] = {index: tuple(nodes) for index, nodes in groups.items()}
        names = self.names.setdefault(file.path, {})
        self.modules[file.path] = self.program.modules_of(file)
        for index, statement in enumerate(source.tree.body):
            if isinstance(statement, _Definition):
                names.setdefault(statement.name, []).append(index)
                if statement.decorator_list:
                    self._enliven(file.path, index)
            elif file is self.program.root or not is_main_guard(statement):
                self._enliven(file.path, index)

    def _enliven(self, path: Path, index: int) -> None:
        if (path, index) not in self.live:
            self.live.add((path, index))
            self.waiting.append((path, index))

    def _refer(self, path: Path, name: str) -> None:
        if (path, name) in self.referred:
            return
        self.referred.add((path, name))
        for index in self.names.get(path, {}).get(name, ()):
            self._enliven(path, index)
        if name not in self.names.get(path, {}):
            target = self.program.resolve(path, name)
            if target is not None:
                for index in self.names.get(target[0], {}).get(target[1], ()):
                    self._enliven(target[0], index)

    def _refer_through_module(self, path: Path, node: ast.Attribute) -> None:
        owner = ast.unparse(node.value) if _is_chain(node.value) else ""
        target = self.modules.get(path, {}).get(owner)
        if target is None:
            return
        if node.attr in self.names.get(target, {}):
            for index in self.names[target][node.attr]:
                self._enliven(target, index)
        else:
            self._refer(target, node.attr)


def _is_chain(node: ast.AST) -> bool:
    depth = 0
    while isinstance(node, ast.Attribute) and depth < 10:
        node, depth = node.value, depth + 1
    return isinstance(node, ast.Name)
