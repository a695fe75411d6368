"""The parts of a program that can run when the script starts, found by following names.

Functions that nothing refers to, and main guards of imported files, are left out: the script has none of their options.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from ddplaunch.script.names import FunctionNodes, aliases_of, dotted, environment_variable, last, string
from ddplaunch.script.program import LocalFile, Program, is_main_guard
from ddplaunch.script.source import ParsedFile
from ddplaunch.values.frozen import dataclass

# Three of four nodes are of these kinds, which are seldom asked for.
_SMALL: frozenset[type[ast.AST]] = frozenset({ast.Name, ast.Constant, ast.Attribute, ast.keyword, ast.arg})
_ENVIRONMENT = re.compile("environ|getenv")
_Definition = (*FunctionNodes, ast.ClassDef)
_Node = TypeVar("_Node", bound=ast.AST)


@dataclass(frozen=True)
class ReachablePart:
    """The nodes of one file that can run."""

    source: ParsedFile
    nodes: tuple[ast.AST, ...]

    @cached_property
    def aliases(self) -> dict[str, str]:
        """The full names of the file's imported names."""
        return aliases_of(self.source)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return what holds ``node``."""
        return self.source.parents.get(node)

    def around(self, node: ast.AST | None, *kinds: type[_Node]) -> _Node | None:
        """Return the innermost node of some kinds around ``node``, within its function."""
        while node is not None and not isinstance(node := self.parent(node), (*kinds, *FunctionNodes)):
            pass
        return node if isinstance(node, kinds) else None

    def calls_of(self, *names: str) -> list[ast.Call]:
        """Return the calls of anything with one of these names, here or where it was imported from, in source order."""
        found = [each for name in names for each in self._calls_by_name.get(name, ())]
        return [call for _, call in (sorted(dict(found).items()) if len(names) > 1 else found)]

    @cached_property
    def _calls_by_name(self) -> dict[str, list[tuple[int, ast.Call]]]:
        found: dict[str, list[tuple[int, ast.Call]]] = {}
        aliases = self.aliases
        for position, call in enumerate(self.of(ast.Call)):
            function = call.func
            name = last(function)
            found.setdefault(name, []).append((position, call))
            original = aliases[name].rpartition(".")[2] if name in aliases and isinstance(function, ast.Name) else name
            if original != name:
                found.setdefault(original, []).append((position, call))
        return found

    def of(self, *kinds: type[_Node]) -> tuple[_Node, ...]:
        """Return the nodes of some kinds in their order."""
        found = self._of_kinds.get(kinds)
        if found is None:
            nodes = self.nodes if _SMALL.intersection(kinds) else self._larger
            found = tuple([node for node in nodes if type(node) in kinds])
            self._of_kinds[kinds] = found
        return found  # type: ignore[return-value]  # of these kinds

    @cached_property
    def _larger(self) -> tuple[ast.AST, ...]:
        return tuple([node for node in self.nodes if type(node) not in _SMALL])

    @cached_property
    def _of_kinds(self) -> dict[tuple[type[ast.AST], ...], tuple[ast.AST, ...]]:
        return {}


def calls_in(parts: Iterable[ReachablePart], *names: str) -> Iterator[tuple[ast.Call, ReachablePart]]:
    """Yield the calls of anything with one of these names in all ``parts``."""
    return ((call, part) for part in parts for call in part.calls_of(*names))


def environment_names(part: ReachablePart) -> Iterator[str]:
    """Yield the literal names of environment variables that the part reads."""
    for node in part.of(ast.Subscript, ast.Call, ast.Compare) if _ENVIRONMENT.search(part.source.text) else ():
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and is_environ(node.value, part):
            name = string(node.slice)
        elif isinstance(node, ast.Call):
            name = environment_variable(node, part.aliases)
        elif isinstance(node, ast.Compare) and any(is_environ(item, part) for item in node.comparators):
            name = string(node.left)
        else:
            continue
        if name is not None:
            yield name


def is_environ(node: ast.AST, part: ReachablePart) -> bool:
    """Return whether this is ``os.environ``."""
    return dotted(node, part.aliases) == "os.environ"


def reachable_parts(program: Program) -> list[ReachablePart]:
    """Return the parts of all parsed files that can run, the script's own first."""
    return _Walk(program).parts()


class _Walk:
    """Follows names from the statements that run on import to the definitions that they refer to.

    A unit is a top-level statement with its nodes, known by file and index.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.units: dict[Path, dict[int, tuple[ast.AST, ...]]] = {}
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
            unit, modules = self.units[path][index], self.modules[path]
            for name in {node.id for node in unit if isinstance(node, ast.Name)}:
                self._follow(path, name)
            for node in [each for each in unit if isinstance(each, ast.Attribute)] if modules else ():
                module = modules.get(dotted(node.value, {}))
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
        ends = [*source.starts[1:], len(source.nodes)]
        pieces = (source.nodes[start:end] for start, end in zip(source.starts, ends, strict=False))
        self.units[file.path] = dict(enumerate(pieces))
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
