"""Options from the fields of a class or the parameters of a function: Hugging Face, tyro, fire and the like.

It reads the classes in the user's files, and knows those fields of Hugging Face's TrainingArguments that matter here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddplaunch.script.configuration.config_files import dict_items
from ddplaunch.script.known import text_of
from ddplaunch.script.names import Function, aliases_of, at, dotted, is_computed, keyword, last, literal
from ddplaunch.script.options.commands import Parameter, parameters
from ddplaunch.script.program import Program
from ddplaunch.script.reachable import ReachablePart
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption
from ddplaunch.script.source import ParsedFile

# Calls that turn their first argument into options, with the library whose spelling rules hold.
_CALLS = {
    "fire.Fire": "fire",
    "tyro.cli": "tyro",
    "jsonargparse.CLI": "jsonargparse",
    "jsonargparse.auto_cli": "jsonargparse",
}
_HF_PARSERS = ("HfArgumentParser", "TrlParser")
_MAKERS = (*_HF_PARSERS, "Fire", "cli", "CLI", "auto_cli")
# https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments
_TRAINING_ARGUMENTS = (
    ("per_device_train_batch_size", "8"),
    ("gradient_accumulation_steps", "1"),
    ("learning_rate", None),
    ("warmup_steps", "0"),
    ("lr_scheduler_type", "linear"),
    ("output_dir", None),
)
_OF_TRAINERS = re.compile(r"trl\.(?!(?:.*\.)?ModelConfig$).*Config|(?:sentence_)?transformers\..*TrainingArguments")
_SIMPLE = frozenset({"int", "float", "str", "bool", "Path", "Optional", "Union", "Literal", "List", "list", "None"})


def configured_options(program: Program, part: ReachablePart) -> Iterator[DeclaredOption | None]:
    """Yield the options of configuration classes and functions; None if their source is not in the program."""
    for call in part.calls_of(*_MAKERS):
        name = dotted(call.func, part.aliases)
        if last(call.func) in _HF_PARSERS:
            given = call.args[0] if call.args else keyword(call, "dataclass_types")
            for item in _each_of(given, part.source):
                yield from _of(program, part, item, "transformers", at(call, part.source))
        elif name in _CALLS:
            yield from _of(program, part, call.args[0] if call.args else None, _CALLS[name], at(call, part.source))


def _each_of(node: ast.AST | None, source: ParsedFile) -> list[ast.expr | None]:
    """Return the items of a list or tuple, also of one that was assigned to a name."""
    assigned = _assigned_to(node.id, source) if isinstance(node, ast.Name) else []
    for each in (node, *assigned):
        if isinstance(each, (ast.List, ast.Tuple)):
            return list(each.elts)
    return [node]  # type: ignore[list-item]  # an expression or None


def _assigned_to(name: str, source: ParsedFile) -> list[ast.expr]:
    statements = (node for node in source.nodes if isinstance(node, ast.Assign))
    return [each.value for each in statements if any(last(target) == name for target in each.targets)]


def _of(
    program: Program, part: ReachablePart, node: ast.AST | None, parser: str, called: DeclaredAt
) -> Iterator[DeclaredOption | None]:
    if is_training_arguments(dotted(node, part.aliases)):
        yield from _training_arguments(called)
        return
    found = find_definition(program, part.source, last(node)) if isinstance(node, ast.Name) else None
    if found is None:
        yield None
        return
    definition, source = found
    if isinstance(definition, ast.ClassDef):
        if parser == "fire":
            yield None
        else:
            yield from _fields(program, definition, source, parser, called)
    else:
        for parameter in parameters(definition):
            yield _option(parameter, source, parser)
        if definition.args.kwarg is not None:
            yield None


def is_training_arguments(name: str) -> bool:
    """Return whether a class is Hugging Face's TrainingArguments or one that is known to extend it."""
    return _OF_TRAINERS.fullmatch(name) is not None


def _training_arguments(called: DeclaredAt) -> Iterator[DeclaredOption]:
    for name, default in _TRAINING_ARGUMENTS:
        flags = (f"--{name}", f"--{name.replace('_', '-')}")
        yield DeclaredOption(flags, called, default=default, dest=name, kind="Trainer", parser="transformers")


def find_definition(
    program: Program, source: ParsedFile, name: str
) -> tuple[ast.ClassDef | Function, ParsedFile] | None:
    """Return the class or function ``name`` and its file, which may be the one that ``name`` was imported from."""
    here = source.definitions.get(name)
    if here is not None:
        return here, source
    target = program.resolve(source.path, name)
    other = program.tree_of(target[0]) if target is not None else None
    there = other.definitions.get(target[1]) if target is not None and other is not None else None
    return (there, other) if there is not None and other is not None else None


def _fields(
    program: Program,
    definition: ast.ClassDef,
    source: ParsedFile,
    parser: str,
    called: DeclaredAt,
    depth: int = 4,
) -> Iterator[DeclaredOption | None]:
    aliases = aliases_of(source)
    own = [item for item in definition.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
    for base in definition.bases:
        bases = [base, *(_assigned_to(base.id, source) if isinstance(base, ast.Name) else [])]
        if any(is_training_arguments(dotted(each, aliases)) for each in bases):
            overridden = {f"--{item.target.id}" for item in own if isinstance(item.target, ast.Name)}
            yield from (option for option in _training_arguments(called) if option.flags[0] not in overridden)
            continue
        found = find_definition(program, source, last(base)) if depth and isinstance(base, ast.Name) else None
        if found is not None and isinstance(found[0], ast.ClassDef):
            yield from _fields(program, found[0], found[1], parser, called, depth - 1)
        elif last(base) not in ("object", "ABC"):
            yield None
    for item in own:
        assert isinstance(item.target, ast.Name)
        default, metadata = item.value, None
        if isinstance(default, ast.Call) and last(default.func) == "field":
            metadata = keyword(default, "metadata")
            default = keyword(default, "default") or keyword(default, "default_factory")
        field = Parameter(item.target.id, item.annotation, default, item, _help_in(metadata))
        yield _option(field, source, parser)


def _help_in(metadata: ast.expr | None) -> str:
    """Return the text of ``field(metadata={"help": "…"})``."""
    items = dict_items(metadata) or ()
    return next((text_of(value) for key, value in items if key == "help"), "")


def _option(parameter: Parameter, source: ParsedFile, parser: str) -> DeclaredOption | None:
    """Return the option of a field with a plain type; None of one whose type is a class of more fields."""
    kind = parameter.annotation
    if parser != "fire" and kind is not None and not _is_plain(kind):
        return None
    name = parameter.name
    dashes, underscores = f"--{name.replace('_', '-')}", f"--{name}"
    by_parser = {"tyro": (dashes, underscores), "jsonargparse": (underscores,)}
    flags: tuple[str, ...] = by_parser.get(parser, (underscores, dashes))
    switch = parser == "tyro" and last(kind) == "bool"
    if switch:
        flags = (*flags, f"--no-{dashes[2:]}")
    return DeclaredOption(
        tuple(dict.fromkeys(flags)),
        at(parameter.node, source),
        takes_value=not switch,
        required=parameter.default is None,
        default=literal(parameter.default, source),
        computed=is_computed(parameter.default),
        kind=last(kind) or None,
        help=parameter.help,
        dest=parameter.name,
        parser=parser,
        comes_first=parser != "jsonargparse",
    )


def _is_plain(annotation: ast.expr) -> bool:
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    return bool(names & _SIMPLE) or isinstance(annotation, ast.Constant)
