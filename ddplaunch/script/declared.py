"""Options as a parser library declares them by calls: argparse and absl; refuses to evaluate anything but literals.

Finds what the user already passed for a declared option; refuses to judge whether the value is right.

Whether a program may take arguments that its source does not spell out; refuses to say which.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence

from ddplaunch.script.names import at, dotted, is_true, keyword, last, literal, string, strings
from ddplaunch.script.program import Program
from ddplaunch.script.reachable import Part
from ddplaunch.script.report import FRAMEWORKS, HARMLESS, OWN_WAYS, DeclaredOption, meaning_of

_NO_VALUE = frozenset({"store_true", "store_false", "store_const", "append_const", "count", "help", "version"})


def argparse_options(part: Part) -> Iterator[DeclaredOption | None]:
    """Yield what ``add_argument`` calls declare, on any object; None where the flags are computed.

    Options of a subcommand mean nothing to us, since they may only stand behind its name.
    """
    subparsers = _subparser_names(part)
    for call in part.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
            continue
        flags = strings(call.args)
        if flags is None or (not flags and any(item.arg is None for item in call.keywords)):
            yield None
        elif flags and flags[0].startswith("-"):
            yield _argparse_option(part, call, flags, dotted(call.func.value, {}) in subparsers)


def _argparse_option(part: Part, call: ast.Call, flags: list[str], subcommand: bool) -> DeclaredOption:
    action = string(keyword(call, "action")) or last(keyword(call, "action"))
    if action == "BooleanOptionalAction":
        flags = flags + [f"--no-{flag[2:]}" for flag in flags if flag.startswith("--")]
    nargs = keyword(call, "nargs")
    takes_value = action not in _NO_VALUE and action != "BooleanOptionalAction" and not _is_zero(nargs)
    default = literal(keyword(call, "default"), part.source)
    kind = last(keyword(call, "type")) or None
    several = nargs is not None and string(nargs) != "?"
    known = takes_value and not several and not subcommand
    return DeclaredOption(
        tuple(flags),
        at(call, part.source),
        takes_value,
        is_true(keyword(call, "required")),
        default,
        meaning_of(flags, kind, default) if known else None,
    )


def _is_zero(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _subparser_names(part: Part) -> set[str]:
    """Return the variables that hold the result of ``add_parser``."""
    return {
        dotted(target, {})
        for node in part.nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and last(node.value.func) == "add_parser"
        for target in node.targets
    }


def absl_options(part: Part) -> Iterator[DeclaredOption | None]:
    """Yield the flags of ``absl.flags.DEFINE_…`` calls."""
    required = {
        name
        for call in part.calls
        if last(call.func) in ("mark_flag_as_required", "mark_flags_as_required")
        for name in _texts(call)
    }
    for call in part.calls:
        function = dotted(call.func, part.aliases)
        if not function.startswith("absl.flags.DEFINE_"):
            continue
        name = string(call.args[0] if call.args else keyword(call, "name"))
        if name is None:
            yield None
            continue
        kind = {"integer": "int", "float": "float", "string": "str"}.get(function.rpartition("_")[2])
        switch = function.endswith(("_bool", "_boolean"))
        short = string(keyword(call, "short_name"))
        flags = (f"--{name}", *((f"-{short}",) if short else ()), *((f"--no{name}",) if switch else ()))
        default = literal(call.args[1] if len(call.args) > 1 else keyword(call, "default"), part.source)
        meaning = None if switch else meaning_of(flags, kind, default)
        needed = name in required or is_true(keyword(call, "required"))
        yield DeclaredOption(flags, at(call, part.source), not switch, needed, default, meaning, "absl")


def _texts(call: ast.Call) -> Iterator[str]:
    for argument in call.args:
        for node in argument.elts if isinstance(argument, (ast.List, ast.Tuple)) else [argument]:
            text = string(node)
            if text is not None:
                yield text


# Parsers that take `--batch-size` for `--batch_size`: absl's FlagValues, fire's and tyro's argument matching.
_DASH_BLIND = frozenset({"absl", "fire", "tyro"})
_ABBREVIATING = frozenset({"argparse", "transformers", "simple_parsing"})
_NUMBER = re.compile(r"-\.?\d")


def given(args: Sequence[str], option: DeclaredOption, declared: Sequence[DeclaredOption] = ()) -> tuple[str, ...]:
    """Return the values that ``args`` pass for ``option``, in order, in any spelling its parser accepts.

    A switch gives ``"True"`` or, spelled ``--no-…``, ``"False"``. ``declared`` are all options of the script; with
    them argparse's unambiguous abbreviations count too
    (https://docs.python.org/3/library/argparse.html#argument-abbreviations-prefix-matching).
    Nothing behind ``--`` counts, and an option whose value is missing gives none.
    """
    return tuple(_values(list(args), option, declared))


def _values(args: list[str], option: DeclaredOption, declared: Sequence[DeclaredOption]) -> Iterator[str]:
    if "--" in args:
        del args[args.index("--") :]
    for position, token in enumerate(args):
        if not token.startswith("-") or _NUMBER.match(token):
            continue
        name, equals, attached = token.partition("=")
        if _names(name, option, declared):
            if not option.takes_value:
                yield "False" if _is_negation(name, option) else "True"
            elif equals:
                yield attached
            elif position + 1 < len(args) and _is_value(args[position + 1]):
                yield args[position + 1]
        else:
            yield from _attached_to_short(token, option, declared)


def _names(name: str, option: DeclaredOption, declared: Sequence[DeclaredOption]) -> bool:
    """Say whether ``name``, the token up to ``=``, is this option, spelled out or abbreviated."""
    if name in option.flags:
        return True
    if option.parser in _DASH_BLIND:
        wanted = {_bare(flag) for flag in option.flags}
        return _bare(name) in wanted and (name.startswith("--") or len(name) > 2)
    if option.parser not in _ABBREVIATING or not name.startswith("--") or len(name) < 3:
        return False
    if not declared or any(name in other.flags for other in declared):
        return False
    matching = [other for other in declared if any(flag.startswith(name) for flag in other.flags)]
    return len(matching) == 1 and matching[0] == option


def _bare(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-")


def _is_negation(name: str, option: DeclaredOption) -> bool:
    return name.startswith("--no") and len(option.flags) > 1 and name != option.flags[0]


def _is_value(token: str) -> bool:
    return not token.startswith("-") or token == "-" or _NUMBER.match(token) is not None


def _attached_to_short(token: str, option: DeclaredOption, declared: Sequence[DeclaredOption]) -> Iterator[str]:
    """Yield ``8`` of ``-b8`` unless the token is itself another declared option."""
    if token.startswith("--") or not option.takes_value:
        return
    if any(token.partition("=")[0] in other.flags for other in declared):
        return
    for flag in option.flags:
        if len(flag) == 2 and token.startswith(flag) and len(token) > 2:
            yield token[2:]


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
