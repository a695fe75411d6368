"""Reads a training script and the local modules that it imports into a report; refuses to import or run them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.script.commands import click_options, typer_options
from ddplaunch.script.configured import configured_options
from ddplaunch.script.declared import absl_options, argparse_options, sees_everything
from ddplaunch.script.names import records_of
from ddplaunch.script.process_groups import environment_names, framework, initialisation, spawning
from ddplaunch.script.program import Program, follow, show
from ddplaunch.script.reachable import Part, live_parts
from ddplaunch.script.report import DeclaredAt, DeclaredOption, Import, ScriptReport
from ddplaunch.script.source import Source, SyntaxProblem, parse, read_text

_LOCAL_RANK = frozenset({"--local-rank", "--local_rank"})


def read_script(path: Path, cwd: Path, search: Sequence[Path] = ()) -> ScriptReport:
    """Return what the source at ``path`` says of itself; never raises, whatever the file holds.

    ``search`` are the entries of ``sys.path``; only those below ``cwd`` are followed. What cannot be read leaves
    ``complete`` False.
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


def _report(program: Program, script: Source) -> ScriptReport:
    parts = live_parts(program)
    found = [option for part in parts for option in _declared(program, part)]
    options = tuple(dict.fromkeys(option for option in found if option is not None))
    local_rank = [option for option in options if _LOCAL_RANK & set(option.flags)]
    demanding = [option for option in local_rank if option.required and option.default is None]
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
        accepts_local_rank=local_rank[0].at if local_rank else None,
        reads_env=tuple(dict.fromkeys(name for part in parts for name in environment_names(part))),
        complete=None not in found and sees_everything(program, parts),
    )


def _declared(program: Program, part: Part) -> Iterator[DeclaredOption | None]:
    yield from argparse_options(part)
    yield from absl_options(part)
    yield from click_options(part)
    yield from typer_options(part)
    yield from configured_options(program, part)


def _unambiguous(options: tuple[DeclaredOption, ...]) -> tuple[DeclaredOption, ...]:
    """Return the options with a meaning that only one of them has: two candidates would make us guess."""
    candidates: dict[str | None, set[tuple[str, ...]]] = {}
    for option in options:
        candidates.setdefault(option.meaning, set()).add(option.flags)
    return tuple(
        option if len(candidates[option.meaning]) == 1 else replace(option, meaning=None) for option in options
    )


def _imports(program: Program, script: Source) -> Iterator[Import]:
    """Yield the packages without which the script cannot start: imports that nothing guards."""
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
