"""Whether a program may take arguments that its source does not spell out; refuses to say which."""

from __future__ import annotations

import ast
import sys

from ddplaunch.script.expressions import dotted, last, string
from ddplaunch.script.live import Part
from ddplaunch.script.packages import FRAMEWORKS, HARMLESS, OWN_WAYS
from ddplaunch.script.program import Program

_DYNAMIC_CALLS = frozenset({"exec", "runpy.run_path", "runpy.run_module", "hydra.main"})
_DYNAMIC_CALLS |= {"deepspeed.add_config_arguments", "pyrallis.wrap", "draccus.wrap"}
_DYNAMIC_METHODS = frozenset({"parse_known_args", "parse_known_intermixed_args", "from_cli", "LightningCLI"})
_PARSING_METHODS = frozenset({"parse_args", "parse_args_into_dataclasses", "run", "cli", "main"})


def sees_everything(program: Program, parts: list[Part]) -> bool:
    """Return False where options, or the set-up of a process group, may lie out of sight."""
    return program.complete and not _hidden_imports(program) and not any(_is_dynamic(part) for part in parts)


def _hidden_imports(program: Program) -> bool:
    """Say whether something is imported that is neither followed nor known to be harmless."""
    for _, record in program.foreign:
        package = record.package
        if record.level:
            return True
        if package in OWN_WAYS or package not in HARMLESS | FRAMEWORKS | sys.stdlib_module_names:
            return True
        if "cli" in record.module.split(".") and package in ("lightning", "pytorch_lightning"):
            return True
    return False


def _is_dynamic(part: Part) -> bool:
    return any(_is_dynamic_node(node, part) for node in part.nodes)


def _is_dynamic_node(node: ast.AST, part: Part) -> bool:
    if isinstance(node, ast.Call):
        name = dotted(node.func, part.aliases)
        if name in _DYNAMIC_CALLS or last(node.func) in _DYNAMIC_METHODS:
            return True
        return name in ("importlib.import_module", "__import__") and not (node.args and string(node.args[0]))
    if isinstance(node, (ast.Attribute, ast.Name)):
        return dotted(node, part.aliases) == "sys.argv" and not _is_handed_to_parser(node, part)
    return False


def _is_handed_to_parser(node: ast.AST, part: Part) -> bool:
    """Say whether this is the ``sys.argv[1:]`` of ``parser.parse_args(sys.argv[1:])``, which changes nothing."""
    parents = part.source.parents
    piece = parents.get(node)
    if isinstance(piece, ast.Subscript) and not isinstance(piece.slice, ast.Slice):
        return isinstance(piece.slice, ast.Constant) and piece.slice.value == 0
    call = parents.get(piece) if piece is not None else None
    if isinstance(call, ast.keyword):
        call = parents.get(call)
    return isinstance(call, ast.Call) and last(call.func) in _PARSING_METHODS
