"""Options from the fields of a class or the parameters of a function: Hugging Face, tyro, fire and the like.

It reads the classes in the user's files, and knows those fields of Hugging Face's TrainingArguments that matter here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddplaunch.script.commands import Function, Parameter, parameters
from ddplaunch.script.names import aliases_of, at, dotted, keyword, last, literal
from ddplaunch.script.program import Program
from ddplaunch.script.reachable import ReachablePart
from ddplaunch.script.report import DeclaredAt, DeclaredOption, meaning_of
from ddplaunch.script.source import ParsedFile

# Calls that turn their first argument into options, with the library whose spelling rules hold.
_CALLS = {
    "fire.Fire": "fire",
    "tyro.cli": "tyro",
    "simple_parsing.parse": "simple_parsing",
    "jsonargparse.CLI": "jsonargparse",
    "jsonargparse.auto_cli": "jsonargparse",
    "pyrallis.parse": "pyrallis",
    "draccus.parse": "pyrallis",
}
_HF_PARSERS = ("HfArgumentParser", "TrlParser")
# https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments
_TRAINING_ARGUMENTS = (
    ("per_device_train_batch_size", "8"),
    ("gradient_accumulation_steps", "1"),
    ("learning_rate", None),
    ("warmup_steps", "0"),
)
_SIMPLE = frozenset({"int", "float", "str", "bool", "Path", "Optional", "Union", "Literal", "List", "list", "None"})


def configured_options(program: Program, part: ReachablePart) -> Iterator[DeclaredOption | None]:
    """Yield the options of configuration classes and functions; None if their source is not in the program."""
    for call in part.calls:
        name = dotted(call.func, part.aliases)
        if last(call.func) in _HF_PARSERS:
            given = call.args[0] if call.args else keyword(call, "dataclass_types")
            for item in given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given]:
                yield from _of(program, part, item, "transformers", at(call, part.source))
        elif name in _CALLS:
            target = call.args[0] if call.args else keyword(call, "config_class")
            yield from _of(program, part, target, _CALLS[name], at(call, part.source))
        elif last(call.func) == "add_arguments" and call.args and "simple_parsing" in str(part.aliases.values()):
            yield from _of(program, part, call.args[0], "simple_parsing", at(call, part.source))


def _of(
    program: Program, part: ReachablePart, node: ast.AST | None, parser: str, called: DeclaredAt
) -> Iterator[DeclaredOption | None]:
    if is_training_arguments(dotted(node, part.aliases)):
        yield from _training_arguments(called)
        return
    found = _definition(program, part.source, last(node)) if isinstance(node, ast.Name) else None
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
    package, _, rest = name.partition(".")
    if package == "trl":
        return rest.endswith("Config") and rest.rpartition(".")[2] != "ModelConfig"
    return package in ("transformers", "sentence_transformers") and rest.endswith("TrainingArguments")


def _training_arguments(called: DeclaredAt) -> Iterator[DeclaredOption]:
    for name, default in _TRAINING_ARGUMENTS:
        flags = (f"--{name}", f"--{name.replace('_', '-')}")
        yield DeclaredOption(
            flags, called, default=default, meaning=meaning_of(flags, None, None), parser="transformers"
        )


def _definition(program: Program, source: ParsedFile, name: str) -> tuple[ast.ClassDef | Function, ParsedFile] | None:
    """Return the class or function ``name`` and its file, which may be the one that ``name`` was imported from."""
    here = _top_level(source, name)
    if here is not None:
        return here, source
    target = program.resolve(source.path, name)
    other = program.tree_of(target[0]) if target is not None else None
    there = _top_level(other, target[1]) if target is not None and other is not None else None
    return (there, other) if there is not None and other is not None else None


def _top_level(source: ParsedFile, name: str) -> ast.ClassDef | Function | None:
    definitions = (each for each in source.tree.body if isinstance(each, (ast.ClassDef, Function)))
    return next((each for each in definitions if each.name == name), None)


def _fields(
    program: Program, definition: ast.ClassDef, source: ParsedFile, parser: str, called: DeclaredAt, depth: int = 4
) -> Iterator[DeclaredOption | None]:
    aliases = aliases_of(source)
    own = [item for item in definition.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
    for base in definition.bases:
        if is_training_arguments(dotted(base, aliases)):
            overridden = {f"--{item.target.id}" for item in own if isinstance(item.target, ast.Name)}
            yield from (option for option in _training_arguments(called) if option.flags[0] not in overridden)
            continue
        found = _definition(program, source, last(base)) if depth and isinstance(base, ast.Name) else None
        if found is not None and isinstance(found[0], ast.ClassDef):
            yield from _fields(program, found[0], found[1], parser, called, depth - 1)
        elif last(base) not in ("object", "ABC"):
            yield None
    for item in own:
        assert isinstance(item.target, ast.Name)
        default = item.value
        if isinstance(default, ast.Call) and last(default.func) == "field":
            default = keyword(default, "default") or keyword(default, "default_factory")
        yield _option(Parameter(item.target.id, item.annotation, default, item), source, parser)


def _option(parameter: Parameter, source: ParsedFile, parser: str) -> DeclaredOption | None:
    """Return the option of a field with a plain type; None for a nested configuration, whose options are not read."""
    kind = parameter.annotation
    if parser != "fire" and kind is not None and not _is_plain(kind):
        return None
    dashes = f"--{parameter.name.replace('_', '-')}"
    underscores = f"--{parameter.name}"
    flags = {
        "tyro": (dashes, underscores),
        "transformers": (underscores, dashes),
        "fire": (underscores, dashes),
    }.get(parser, (underscores,))
    default = literal(parameter.default, source)
    meaning = meaning_of(flags, last(kind) or None, default)
    switch = parser == "tyro" and last(kind) == "bool"
    if switch:
        flags = (*flags, f"--no-{dashes[2:]}")
    return DeclaredOption(
        tuple(dict.fromkeys(flags)),
        at(parameter.node, source),
        takes_value=not switch,
        required=parameter.default is None,
        default=default,
        meaning=None if switch else meaning,
        parser=parser,
    )


def _is_plain(annotation: ast.expr) -> bool:
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    return bool(names & _SIMPLE) or isinstance(annotation, ast.Constant)
