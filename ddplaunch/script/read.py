"""Reads a training script and the local modules that it imports into a report, without importing or running them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.script.commands import click_options, typer_options
from ddplaunch.script.configured import configured_options
from ddplaunch.script.declared import absl_options, argparse_options
from ddplaunch.script.names import dotted, last, records_of, string
from ddplaunch.script.process_groups import environment_names, framework, initialisation, spawning
from ddplaunch.script.program import Program, follow, show
from ddplaunch.script.reachable import ReachablePart, reachable_parts
from ddplaunch.script.report import FRAMEWORKS, HARMLESS, OWN_WAYS, DeclaredAt, DeclaredOption, Import, ScriptReport
from ddplaunch.script.source import ParsedFile, SyntaxProblem, parse, read_text

_LOCAL_RANK = frozenset({"--local-rank", "--local_rank"})
# Calls that declare options, or set up a process group, in ways that the source does not show.
_DYNAMIC_CALLS = frozenset({"exec", "runpy.run_path", "runpy.run_module", "hydra.main"})
_DYNAMIC_CALLS |= {"deepspeed.add_config_arguments", "pyrallis.wrap", "draccus.wrap"}
_DYNAMIC_METHODS = frozenset({"parse_known_args", "parse_known_intermixed_args", "from_cli", "LightningCLI"})
_PARSING_METHODS = frozenset({"parse_args", "parse_args_into_dataclasses", "run", "cli", "main"})


def read_script(path: Path, cwd: Path, search: Sequence[Path] = ()) -> ScriptReport:
    """Return the report about the script at ``path``; never raises.

    ``search`` are the entries of ``sys.path``, of which only those below ``cwd`` are followed. ``complete`` is False if
    some part cannot be read.
    """
    shown = show(path, cwd)
    text = read_text(path)
    if text is None:
        return ScriptReport(shown, complete=False)
    parsed = parse(path, shown, text.text)
    if text.problem is not None and path.suffix == ".py":
        line = parsed.line if isinstance(parsed, SyntaxProblem) else 1
        return ScriptReport(shown, syntax_error=f"{shown}:{line}: {text.problem}", complete=False)
    if isinstance(parsed, SyntaxProblem):
        refused = parsed.refused and text.problem is None
        message = f"{shown}:{parsed.line}: {parsed.message}" if refused else None
        return ScriptReport(shown, syntax_error=message, complete=False)
    try:
        return _report(follow(parsed, cwd, search), parsed)
    except (RecursionError, OSError):  # names nested too deep to follow, a directory that may not be entered
        return ScriptReport(shown, complete=False)


def _report(program: Program, script: ParsedFile) -> ScriptReport:
    parts = reachable_parts(program)
    found = [option for part in parts for option in _declared(program, part)]
    options = tuple(dict.fromkeys(option for option in found if option is not None))
    required = [option for option in options if option.required and option.default is None]
    demanding = [option for option in required if _LOCAL_RANK & set(option.flags)]
    used = framework(program)
    initialised = initialisation(program)
    if initialised is None and used is not None:
        initialised = used[1]
    return ScriptReport(
        path=script.shown,
        options=_unambiguous(options),
        imports=tuple(_imports(program, script)),
        initialises=initialised,
        framework=used[0] if used is not None else None,
        spawns=spawning(parts),
        demands_local_rank=demanding[0].at if demanding else None,
        reads_env=tuple(dict.fromkeys(name for part in parts for name in environment_names(part))),
        complete=None not in found and _sees_everything(program, parts),
    )


def _declared(program: Program, part: ReachablePart) -> Iterator[DeclaredOption | None]:
    yield from argparse_options(part)
    yield from absl_options(part)
    yield from click_options(part)
    yield from typer_options(part)
    yield from configured_options(program, part)


def _unambiguous(options: tuple[DeclaredOption, ...]) -> tuple[DeclaredOption, ...]:
    """Return the options without the meanings that several of them share: choosing one would be a guess."""
    candidates: dict[str | None, set[tuple[str, ...]]] = {}
    for option in options:
        candidates.setdefault(option.meaning, set()).add(option.flags)
    return tuple(
        option if len(candidates[option.meaning]) == 1 else replace(option, meaning=None) for option in options
    )


def _imports(program: Program, script: ParsedFile) -> Iterator[Import]:
    """Yield the packages that the script needs in order to start: imports outside of any ``try … except``."""
    seen: set[str] = set()
    for node in _unguarded(script.tree.body):
        for record in records_of([node]):
            package = record.package
            if package and package not in seen and package != "__future__" and not program.roots.is_local(package):
                seen.add(package)
                yield Import(package, DeclaredAt(script.shown, record.line))


def _unguarded(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.Try) and not statement.handlers:
            yield from _unguarded(statement.body)
        else:
            yield statement


def _sees_everything(program: Program, parts: list[ReachablePart]) -> bool:
    """Return False if there may be options, or a set-up of a process group, that this reader does not see."""
    if not program.complete or _hidden_imports(program):
        return False
    return not any(_is_dynamic(node, part) for part in parts for node in part.nodes)


def _hidden_imports(program: Program) -> bool:
    """Return whether the program imports a package that is neither followed nor known."""
    for _, record in program.foreign:
        package = record.package
        if record.level:
            return True
        if package in OWN_WAYS or package not in HARMLESS | FRAMEWORKS | sys.stdlib_module_names:
            return True
        if "cli" in record.module.split(".") and package in ("lightning", "pytorch_lightning"):
            return True
    return False


def _is_dynamic(node: ast.AST, part: ReachablePart) -> bool:
    if isinstance(node, ast.Call):
        name = dotted(node.func, part.aliases)
        if name in _DYNAMIC_CALLS or last(node.func) in _DYNAMIC_METHODS:
            return True
        return name in ("importlib.import_module", "__import__") and not (node.args and string(node.args[0]))
    if isinstance(node, (ast.Attribute, ast.Name)):
        return dotted(node, part.aliases) == "sys.argv" and not _is_handed_to_parser(node, part)
    return False


def _is_handed_to_parser(node: ast.AST, part: ReachablePart) -> bool:
    """Return whether this is the ``sys.argv[1:]`` of ``parser.parse_args(sys.argv[1:])``, which changes nothing."""
    parents = part.source.parents
    piece = parents.get(node)
    if isinstance(piece, ast.Subscript) and not isinstance(piece.slice, ast.Slice):
        return isinstance(piece.slice, ast.Constant) and piece.slice.value == 0
    call = parents.get(piece) if piece is not None else None
    if isinstance(call, ast.keyword):
        call = parents.get(call)
    return isinstance(call, ast.Call) and last(call.func) in _PARSING_METHODS
