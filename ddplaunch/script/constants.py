"""What stands in the place of an option: constants of the script, values that it sets, values that nothing reads.

It also finds options that only say what they are where their value goes: ``{"gradient_accumulation_steps": args.k}``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from ddplaunch.script.commands import parameters
from ddplaunch.script.configured import find_definition
from ddplaunch.script.flow import TALK, Flow
from ddplaunch.script.names import FunctionNodes, at, dotted, last, meaning_of, string
from ddplaunch.script.program import LocalFile, Program, is_main_guard
from ddplaunch.script.reachable import ReachablePart
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, Meaning
from ddplaunch.script.source import ParsedFile
from ddplaunch.values.frozen import dataclass

# The variables that the result of parsing arguments goes by.
_NAMESPACES = frozenset({"args", "opt", "opts", "options", "hparams", "params", "FLAGS", "flags", "arguments"})
#: Functions that take a batch size for training.
LOADERS = re.compile(r"(?i)loader|batchsampler|sampler$|^dataset$")
_OPTIMIZERS = re.compile(r"(?i)adam|sgd|optim|rmsprop|lion\b|lamb\b|lars\b|adagrad|adafactor")
_NOT_TRAINING = re.compile(r"(?i)val|test|eval|infer|gen|demo")


@dataclass(frozen=True)
class Number:
    """A positive number under a name: assigned, in a dictionary, or handed to the function ``sink``.

    ``near`` is the name that the result of this function is assigned to.
    """

    name: str
    text: str
    at: DeclaredAt
    sink: str = ""
    near: str = ""


def without_effect(option: DeclaredOption, meaning: Meaning, flow: Flow, numbers: Iterable[DeclaredOption]) -> str:
    """Return why a value of the option changes nothing, as a clause; empty if it may.

    That nothing reads it is only found where the program reads another of the ``numbers``, and of no batch size.
    """
    place = _overwritten(option.dest, flow)
    if place is not None:
        return f"{place[0]} sets `{option.dest}` to {place[1]} itself"
    unread = meaning in _SURE and _is_unread(option, flow, numbers)
    return f"nothing reads `{option.flags[0]}` ({option.at})" if unread else ""


def handed_on(
    options: Sequence[DeclaredOption],
    candidates: Sequence[Meaning | None],
    flow: Flow,
    fits: Callable[[str, str, DeclaredOption], bool],
) -> list[Meaning | None]:
    """Return the candidates, and for a number that no option is called after the one that is handed on as it."""
    found = list(candidates)
    left = {"accum", "lr", "batch_size"} - set(candidates)
    left -= {"batch_size"} if "global_batch_size" in candidates else set()
    unnamed = {
        option.dest: index
        for index, option in enumerate(options)
        if candidates[index] is None and not _NOT_TRAINING.search(option.dest)
    }
    under: dict[str, set[str]] = {}
    for part in flow.parts if left and unnamed else ():
        for value in part.of(ast.Attribute):
            if last(value) not in unnamed:
                continue
            around = part.source.parents.get(value)
            node = part.source.parents.get(around) if isinstance(around, ast.keyword) else around
            for name, handed, sink in _named_values(node) if isinstance(node, (ast.Call, ast.Dict)) else ():
                meaning = meaning_of(name.replace("_", "-").lower()) if handed is value else None
                if meaning in left and _takes(str(meaning), sink, node, part):  # type: ignore[arg-type]  # a node
                    under.setdefault(str(meaning), set()).add(last(value))
    for meaning, dests in under.items():
        option = options[unnamed[min(dests)]]
        if len(dests) == 1 and option.takes_value and option.fillable and fits("", meaning, option):
            found[unnamed[option.dest]] = meaning  # type: ignore[call-overload]
    return found


def _takes(meaning: str, sink: str, node: ast.AST, part: ReachablePart) -> bool:
    """Return whether what the function ``sink`` gets under the name of a number is that of the training."""
    sinks = {"batch_size": LOADERS, "lr": _OPTIMIZERS}.get(meaning)
    fits = sinks is None or sinks.search(sink) is not None
    return fits and not _NOT_TRAINING.search(f"{sink} {_near(node, part)}")


def _near(node: ast.AST, part: ReachablePart) -> str:
    """Return the name that the value of a call is assigned to."""
    statement = part.source.parents.get(node) if isinstance(node, ast.Call) else None
    return last(statement.targets[0]) if isinstance(statement, ast.Assign) else ""


def _overwritten(name: str, flow: Flow) -> tuple[DeclaredAt, str] | None:
    """Return where the script sets an option's value under no condition, and to what: a constant, or other options."""
    for value, part in flow.assigned(name):
        statement = part.source.parents.get(value)
        if not isinstance(statement, ast.Assign):
            continue
        others = None if _is_number(value) else flow.made_of(value, part)
        if not _is_number(value) and (not others or name in others):
            continue
        target = statement.targets[0]
        owner = last(target.value) if isinstance(target, ast.Attribute) else ""
        around = part.source.parents.get(statement)
        plain = isinstance(around, (ast.Module, *FunctionNodes)) or (around is not None and is_main_guard(around))
        if owner in _NAMESPACES and plain and not isinstance(part.source.parents.get(around), ast.ClassDef):  # type: ignore[arg-type]
            return at(statement, part.source), ast.unparse(value)
    return None


def numbers_in(flow: Flow) -> dict[str, list[Number]]:
    """Return the numbers that stand in the source under a name, by what the name speaks of."""
    found: dict[str, list[Number]] = {}
    for part in flow.parts:
        for node in part.of(ast.Call, ast.Dict, ast.Assign):
            for name, value, sink in _named_values(node):
                meaning = meaning_of(name.replace("_", "-").lower()) if _is_number(value) else None
                if meaning is not None:
                    found.setdefault(meaning, []).append(_number(name, value, sink, node, part))
    return found


def constant(meaning: str, numbers: Sequence[Number], script: str) -> str | None:
    """Return which constant a script has for a number, as a clause: one passed to what takes it, or an assigned one.

    Of assigned ones those in the file ``script`` count.
    """
    sinks = {"batch_size": LOADERS, "lr": _OPTIMIZERS}.get(meaning)
    fitting = [each for each in numbers if not _NOT_TRAINING.search(f"{each.sink} {each.near}")]
    passed = [each for each in fitting if each.sink and sinks is not None and sinks.search(each.sink)]
    assigned = [each for each in fitting if not each.sink and each.at.file == script]
    first = next(iter([*passed, *assigned]), None)
    return None if first is None else f"`{first.name}` is {first.text} at {first.at}"


def _is_number(node: ast.AST | None) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr, str]]:
    """Yield each name with its value and the function that gets it."""
    if isinstance(node, ast.Call):
        sink = "" if last(node.func) == "dict" else last(node.func)
        yield from ((item.arg, item.value, sink) for item in node.keywords if item.arg)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            yield string(key) or "", value, ""
    elif isinstance(node, ast.Assign):
        yield from ((last(target), node.value, "") for target in node.targets)


def _number(name: str, value: ast.expr, sink: str, node: ast.AST, part: ReachablePart) -> Number:
    where = node if isinstance(node, ast.Assign) else value
    return Number(name, ast.unparse(value), at(where, part.source), sink, _near(node, part))


_PARSE = frozenset({"parse_args", "parse_known_args", "parse_intermixed_args", "parse_args_into_dataclasses"})
# Functions of libraries that only show, keep or copy all values, and those of Python that look at them by name.
_KEEP = TALK | {"str", "repr", "pprint", "pformat", "save", "dump", "dumps", "safe_dump", "init", "isinstance", "len"}
_KEEP |= {"hasattr", "setattr", "delattr", "add_text", "add_hparams", "log_hyperparams", "log_params", "update", "id"}
# It reads the name of its file from the arguments.
_READ_NO_NUMBERS = frozenset({"deepspeed.initialize"})
_KEEP |= {"sorted", "save_config", "add_params", "warn", "error", "critical"}
# A sampler that groups samples by length takes the accumulation for the size of its groups.
_SAMPLER = re.compile(r"Sampler$")
_TRAINER = re.compile(r"Trainer$")
_COPIES = frozenset({"vars", "asdict", "dict", "copy", "deepcopy", "Namespace", "EasyDict", "AttrDict", "edict"})
# Nodes that look at a value, show it, or give it to a name.
_LOOKS: tuple[type[ast.AST], ...] = (
    ast.Attribute,
    ast.FormattedValue,
    ast.Starred,
    ast.Return,
    ast.Assign,
    ast.AnnAssign,
    ast.Expr,
    ast.Compare,
    ast.Subscript,
)
_ROUNDS = 6
# Numbers that no library takes from the arguments in ways that do not show.
_SURE = frozenset({"accum", "lr", "warmup_steps", "warmup_epochs", "warmup_ratio"})


def _is_unread(option: DeclaredOption, flow: Flow, numbers: Iterable[DeclaredOption]) -> bool:
    """Return whether the program, which reads others of the numbers, does nothing with this one in any of its files."""
    if option.parser not in ("argparse", "transformers") or len(option.dest) < 2:
        return False
    program, others = flow.program, {each.dest for each in numbers} - {option.dest}
    if any(_does(option.dest, part.of(ast.Attribute), part.source, program) for part in flow.parts):
        return False
    if not others or not any(_mentions(others, file.text) for file in program.files.values()):
        return False
    if option.parser == "transformers" and not _is_own_loop(flow, option):
        return False
    known = set(program.files)
    if _is_read_in(list(program.files.values()), option.dest, program) or not program.whole():
        return False
    rest = [file for path, file in program.files.items() if path not in known]
    return not _is_read_in(rest, option.dest, program) and not _go_to_a_library(flow)


@lru_cache(maxsize=1)
def _go_to_a_library(flow: Flow) -> bool:
    """Return whether a function that is not in the program gets the arguments: the same for every option of it."""
    return _Arguments(flow).go_to_a_library()


def _mentions(names: Iterable[str], text: str) -> bool:
    """Return whether a source reads an attribute with one of the names, as far as its text tells."""
    return re.search(rf"\.(?:{'|'.join(map(re.escape, names))})\b", text) is not None


def _is_read_in(files: Iterable[LocalFile], dest: str, program: Program) -> bool:
    """Return whether one of the files does something with the value of an option; one that cannot be parsed may."""
    trees = (program.tree_of(file.path) for file in files if dest in file.text)
    return any(source is None or _does(dest, source.nodes, source, program) for source in trees)


def _is_own_loop(flow: Flow, option: DeclaredOption) -> bool:
    """Return whether no trainer of Hugging Face's gets the arguments; only of their accumulation that says all."""
    if option.dest != "gradient_accumulation_steps":
        return False
    foreign = any(_TRAINER.search(name) for _, record in flow.program.foreign for name, _ in record.names)
    read = (last(node) for part in flow.parts for node in part.of(ast.Attribute))
    return not (foreign or any(_TRAINER.search(name) and not flow.program.defining(name) for name in read))


def _does(dest: str, nodes: Iterable[ast.AST], source: ParsedFile, program: Program) -> bool:
    """Return whether one of the nodes takes the value of ``dest`` for anything but to show it."""
    for node in nodes:
        if isinstance(node, ast.Attribute):
            named = node.attr == dest and (isinstance(node.ctx, ast.Load) or _is_augmented(node, source))
        elif isinstance(node, ast.Name):
            named = node.id == dest and isinstance(node.ctx, ast.Load)
        else:
            named = string(node) == dest
        if named and not (_is_shown(node, source, "accum" in dest) or _is_dropped(node, source, program)):
            return True
    return False


def _is_dropped(node: ast.AST, source: ParsedFile, program: Program) -> bool:
    """Return whether a value is handed to a parameter that its function, one of the program, never reads."""
    parent = source.parents.get(node)
    call = source.parents.get(parent) if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return False
    found = find_definition(program, source, call.func.id)
    if (
        found is None
        or not isinstance(found[0], FunctionNodes)
        or any(isinstance(item, ast.Starred) for item in call.args)
    ):
        return False
    arguments = found[0].args
    names = [item.arg for item in (*arguments.posonlyargs, *arguments.args)]
    index = next((place for place, item in enumerate(call.args) if item is node), len(names))
    name = parent.arg if isinstance(parent, ast.keyword) else next(iter(names[index:]), None)
    if name not in (*names, *(item.arg for item in arguments.kwonlyargs)):
        return False
    read = {each.id for each in ast.walk(found[0]) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    return read.isdisjoint((name, "locals"))


def _is_augmented(node: ast.AST, source: ParsedFile) -> bool:
    return isinstance(source.parents.get(node), ast.AugAssign)


def _is_shown(node: ast.AST, source: ParsedFile, accumulation: bool) -> bool:
    """Return whether a value goes into a text, a log, or the options' own declaration."""
    parent = source.parents.get(node)
    while parent is not None and not isinstance(parent, ast.stmt):
        if isinstance(parent, ast.FormattedValue):
            return accumulation
        if isinstance(parent, ast.Call):
            name = last(parent.func)
            if name == "add_argument" or (accumulation and (name in TALK or _SAMPLER.search(name))):
                return True
        parent = source.parents.get(parent)
    return False


class _Arguments:
    """What the arguments are parsed into, by the names of variables, attributes and parameters that hold it."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.program = flow, flow.program
        self.parts = list(flow.parts)
        self.seen = {part.source.path for part in flow.parts}
        self.names: set[str] = set()
        self.makers = set(_PARSE)
        for _ in range(_ROUNDS):
            before = len(self.names), len(self.makers), len(self.parts)
            for part in list(self.parts):
                self._follow(part)
            if before == (len(self.names), len(self.makers), len(self.parts)):
                break

    def go_to_a_library(self) -> bool:
        """Return whether a function that is not in the program gets them."""
        return any(not self._stays(node, part) for part in self.parts for node in self._uses(part))

    def _follow(self, part: ReachablePart) -> None:
        for call in part.calls:
            self._into(call, part)
        for node in part.of(ast.Assign, ast.AnnAssign, ast.Return):
            value = getattr(node, "value", None)
            if value is not None and self._holds(value):
                if isinstance(node, ast.Return):
                    self.makers.add(getattr(self.flow.function_of(node, part), "name", ""))
                for target in getattr(node, "targets", [getattr(node, "target", None)]):
                    each = target.elts if isinstance(target, ast.Tuple) else [target]
                    self.names.update({last(item) for item in each} - {""})

    def _into(self, call: ast.Call, part: ReachablePart) -> None:
        """Follow the arguments into the parameters of a function of the program."""
        places = [index for index, item in enumerate(call.args) if self._holds(item)]
        named = {item.arg for item in call.keywords if item.arg and self._holds(item.value)}
        name = last(call.func)
        if not (places or named) or name in _KEEP or not self._is_defined(name):
            return
        self.names |= named
        of_module = isinstance(call.func, ast.Attribute) and last(call.func.value) in part.aliases
        for each in self.parts:
            for node in each.of(ast.FunctionDef, ast.AsyncFunctionDef):
                owner = each.source.parents.get(node)
                method = isinstance(owner, ast.ClassDef)
                if method and of_module and node.name != "__init__":  # type: ignore[attr-defined]  # of a function
                    continue
                called = owner.name if isinstance(owner, ast.ClassDef) and node.name == "__init__" else node.name  # type: ignore[attr-defined]
                if isinstance(node, FunctionNodes) and called == name:
                    arguments = [item.arg for item in (*node.args.posonlyargs, *node.args.args)]
                    skipped = int(method and not any(last(item) == "staticmethod" for item in node.decorator_list))
                    self.names.update(
                        arguments[index + skipped] for index in places if index + skipped < len(arguments)
                    )

    def _holds(self, node: ast.AST | None) -> bool:
        if isinstance(node, ast.Call):
            copied = last(node.func) in _COPIES and bool(node.args) and self._holds(node.args[0])
            return copied or last(node.func) in self.makers
        if isinstance(node, ast.Attribute) and node.attr == "__dict__":
            return self._holds(node.value)
        return isinstance(node, (ast.Name, ast.Attribute)) and last(node) in self.names

    def _uses(self, part: ReachablePart) -> Iterator[ast.expr]:
        for node in part.of(ast.Name, ast.Attribute, ast.Call):
            stored = not isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            if isinstance(node, ast.expr) and not stored and self._holds(node):
                yield node

    def _stays(self, node: ast.expr, part: ReachablePart) -> bool:
        """Return whether all that happens to the arguments here is in sight, or only shows or keeps them."""
        parents = part.source.parents
        child: ast.AST = node
        parent = parents.get(node)
        if isinstance(parent, ast.Attribute) and parent.attr in ("items", "values"):
            child = parents[parent]
            parent = parents.get(child)
        while isinstance(parent, (ast.keyword, ast.Dict, ast.Tuple, ast.List)):
            child, parent = parent, parents.get(parent)
        if isinstance(parent, (ast.For, ast.comprehension)):
            return "setattr" not in ast.unparse(parent)
        if not isinstance(parent, ast.Call) or parent.func is child:
            return isinstance(parent, _LOOKS)
        name = last(parent.func)
        if name == "getattr":
            return len(parent.args) > 1 and string(parent.args[1]) is not None
        kept = name in _KEEP or name in _COPIES or dotted(parent.func, part.aliases) in _READ_NO_NUMBERS
        return kept or self._is_defined(name) or self._is_handed(parent, part)

    def _is_handed(self, call: ast.Call, part: ReachablePart) -> bool:
        """Return whether a parameter is called whose default is a function or class of the program."""
        function = self.flow.function_of(call, part) if isinstance(call.func, ast.Name) else None
        defaults = [each.default for each in parameters(function) if each.name == last(call.func)] if function else []
        return any(self._is_defined(last(default)) for default in defaults)

    def _is_defined(self, name: str) -> bool:
        """Return whether a function or class of the program has the name; its file is looked through from then on."""
        if name.startswith("__"):
            return False
        here = self.program.defining(name)
        for path in here:
            source = self.program.tree_of(path) if path not in self.seen else None
            if source is not None:
                self.parts.append(ReachablePart(source, source.nodes))
                self.seen.add(path)
        return bool(here)
