"""What a script's arithmetic does with the values of its options.

An expression is read as options and numbers of ranks that are multiplied and divided: ``args.lr * args.batch_size *
get_world_size() / 256``. Names and attributes are followed through assignments, parameters and calls, so that a
division counts wherever it is written. Anything but a product (a sum, a call of an unknown function) becomes a factor
of its own.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ddplaunch.script.known import Known
from ddplaunch.script.names import (
    Augmented,
    Function,
    FunctionNodes,
    assignments,
    at,
    dotted,
    environment_variable,
    keyword,
    last,
    meaning_of,
    string,
)
from ddplaunch.script.program import Program
from ddplaunch.script.reachable import ReachablePart
from ddplaunch.script.script_report import LOCAL_WORLD, WORLD, DeclaredAt, DeclaredOption
from ddplaunch.values.frozen import dataclass

_WORLD_NAME = re.compile(
    r"(?i)_?(?:world_?size|num_?(?:tasks|processes|ranks|replicas|workers_total)|n_?(?:procs|ranks)|nprocs?"
    r"|(?:total|all)_(?:n_?|num_?)?(?:gpus|ranks|devices|processes)|(?:dp|data_parallel)_(?:world_)?size)"
)
_LOCAL_NAME = re.compile(
    r"(?i)_?(?:n_?gpus?(?:_per_node)?|num_?gpus?(?:_per_node)?|gpus?_(?:num|count)|device_count|local_world_size)"
)
_DEVICE_LIST = re.compile(r"(?i)_?(?:\w+_)?(?:gpu|device|cuda)(?:s|_?ids?|_list)")
# Objects whose attributes are options, by their names: not the ``batch_size`` of a batch, nor an engine's local rank.
_HAS_OPTIONS = re.compile(
    r"(?i)^$|^(?!.*(?:engine|accelerator|model|loader|optimizer)\W*$)"
    r".*(?:arg|opts?\b|options?|conf|cfg|param|flags|settings|hps?\b|_c\b|\bself\W*$|^\w\W*$)"
)
#: The factor of an expression that depends on samples or ranks in a way that is not understood.
UNREAD = "?unread"
#: One over it is the factor of what has an option's name, and was not followed from the parsed arguments.
UNFOLLOWED = "?unfollowed"
_SYMBOLS = {"WORLD_SIZE": WORLD, "LOCAL_WORLD_SIZE": LOCAL_WORLD}
_SYMBOLS |= dict.fromkeys(
    ("get_world_size", "num_processes", "get_data_parallel_world_size", "get_ddp_world_size"), WORLD
)
_SYMBOLS |= dict.fromkeys(("device_count", "get_local_size"), LOCAL_WORLD)
_CONVERSIONS = "int float round max min abs ceil floor str tensor"
_THROUGH = _CONVERSIONS.split()
#: Functions that only show what they get.
DISPLAYS = frozenset(
    {"print", "info", "debug", "warning", "log", "write", "format", "add_scalar", "set_postfix", "print_rank0"}
)
#: Functions that take a batch size for training; below, those that take a warmup and those that take a learning rate.
LOADERS = re.compile(r"(?i:loader|batchsampler|sampler\b|dataset\b|^rand(?:n|int)?\b)")
#: What a loader for an evaluation is called, or the function around it.
_EVALUATES = re.compile(r"(?i)(?!.*train).*(?:\b|_)(?:val|eval|test)")
_SCHEDULES = re.compile(r"(?i)sched|warm|cosine|anneal|lambda")
OPTIMIZERS = re.compile(r"(?i:adam|sgd|lion|lamb\b|adafactor|rmsprop|muon|optim)")
_OWN_NAMES = frozenset({"click", "fire", "jsonargparse"})
_MANY = 8
_DEPTH = 14
#: Most expressions to follow in one script, in about 30 ms.
_BUDGET = 20_000

Place = tuple[ast.expr, ReachablePart]


class Product(NamedTuple):
    """``constant`` times options, numbers of ranks and unknown factors (``?…``) to their powers, by name.

    A script may need ten thousand of them, and a tuple is made in a tenth of the time of a frozen dataclass.
    """

    constant: float = 1.0
    powers: tuple[tuple[str, float], ...] = ()

    def power(self, name: str) -> float:
        """Return the power of an option or a number of ranks, 0 if it does not occur."""
        return dict(self.powers).get(name, 0.0)

    def times(self, other: Product, sign: float) -> Product:
        """Return the product with ``other`` (``sign`` 1) or its inverse (-1)."""
        powers = dict(self.powers)
        for name, power in other.powers:
            powers[name] = powers.get(name, 0.0) + sign * power
        constant = self.constant * math.pow(other.constant, sign)
        return Product(constant, tuple(sorted((name, power) for name, power in powers.items() if power)))


def _factor(name: str) -> Product:
    return Product(powers=((name, 1.0),))


@dataclass(frozen=True)
class Use:
    """A product that the script computes: where, what for (the name that it is assigned or passed to), and if it runs
    in the training.

    ``sink`` is the function whose keyword or argument it is, empty for an assignment.
    """

    product: Product
    at: DeclaredAt
    name: str
    sink: str
    runs: bool


class Flow:
    """All arithmetic of the parts of a program that can run."""

    def __init__(self, program: Program, parts: Sequence[ReachablePart]) -> None:
        """Index assignments, calls and functions by name."""
        self.program, self.parts = program, parts
        self._options: dict[str, DeclaredOption] = {}
        self._names: dict[tuple[int, str], list[Place]] = {}
        self._attributes: dict[str, list[Place]] = {}
        self._calls: dict[str, list[tuple[ast.Call, ReachablePart]]] = {}
        # By the names of functions and global names of any file: what they return or are.
        self._given: dict[str, list[Any]] = {}
        self._functions: dict[int, Function | None] = {}
        self._passed: dict[tuple[int, str], list[Place]] = {}
        self._values: dict[int, tuple[Product, ...]] = {}
        self._open: set[object] = set()
        self._unparsed: set[int] = set()
        self._cut, self._left = False, _BUDGET
        for part in parts:
            for node in part.of(ast.Return, *PLACES):
                if isinstance(node, ast.Return):
                    self._given.setdefault(getattr(self.function_of(node, part), "name", ""), []).append((node, part))
                elif isinstance(node, ast.Call):
                    self._calls.setdefault(last(node.func), []).append((node, part))
                else:
                    for target, value in assignments(node):
                        part.source.parents.setdefault(value, node)
                        self._note(target, value, part)

    def use_conditions(self, options: Sequence[DeclaredOption], values: Mapping[str, object]) -> None:
        """Follow the values of ``options`` from here on, and decide conditions by those that are known."""
        self._options = {option.dest: option for option in options}
        self.known = Known(values, self.bound)

    def forget(self, places: Collection[DeclaredAt]) -> None:
        """Forget assignments to attributes at these lines: the configuration reader has their values."""
        for name, bound in self._attributes.items() if places else ():
            self._attributes[name] = [(value, part) for value, part in bound if at(value, part.source) not in places]

    def uses(self, wanted: Collection[str]) -> Iterator[Use]:
        """Yield every product that is assigned or passed on with one of the options ``wanted`` (destinations) in it."""
        for part in self.parts:
            for node in part.of(*PLACES):
                for name, sink, value in places_of(node):
                    for product in self._products(value, part) if type(value) in _FOLLOWED else ():
                        if any(product.power(dest) for dest in wanted):
                            named = getattr(part.parent(node), "targets", [self.function_of(node, part)])[0]
                            evaluates = _EVALUATES.match(getattr(named, "name", last(named)))
                            runs = self.known.runs(node, part) and not (evaluates and LOADERS.search(sink))
                            yield Use(product, at(node, part.source), name, sink, runs)

    def made_of(self, value: ast.expr, part: ReachablePart) -> frozenset[str]:
        """Return the options and numbers of ranks of which an expression is a product; none if it has other factors."""
        names = frozenset(name for product in self._products(value, part) for name, _ in product.powers)
        return names if names <= {*self._options, WORLD, LOCAL_WORLD} else frozenset()

    def is_own(self, name: str) -> bool:
        """Return whether the program defines a function or class of this name."""
        return any(name in file.definitions for file in self.program.files.values())

    def assigned(self, name: str) -> list[Place]:
        """Return what is assigned to an attribute ``name`` of anything."""
        return self._attributes.get(name, [])

    def _note(self, target: ast.AST, value: ast.expr, part: ReachablePart) -> None:
        if isinstance(target, ast.Name):
            self._names.setdefault((self._scope(target, part), target.id), []).append((value, part))
            if self.function_of(target, part) is None:
                self._given.setdefault(target.id, []).append((value, part))
        elif key := _key(target):
            self._attributes.setdefault(key, []).append((value, part))
        elif isinstance(target, ast.Tuple) and isinstance(value, (ast.Call, ast.Tuple)):
            values = getattr(value, "elts", [value] * len(target.elts))  # `args.rank, args.world_size = setup()`
            for item, item_value in zip(target.elts, values, strict=False):
                self._note(item, item_value, part)

    def function_of(self, node: ast.AST, part: ReachablePart) -> Function | None:
        """Return the innermost function around ``node``."""
        if id(node) not in self._functions:
            parent = part.parent(node)
            inner = parent is None or isinstance(parent, FunctionNodes)
            self._functions[id(node)] = parent if inner else self.function_of(parent, part)  # type: ignore[assignment, arg-type]
        return self._functions[id(node)]

    def _scope(self, node: ast.AST, part: ReachablePart) -> int:
        return id(self.function_of(node, part) or part.source.tree)

    def bound(self, node: ast.AST, part: ReachablePart) -> list[Place]:
        """Return what is assigned to, or passed as, a name, an attribute or ``config["name"]``."""
        if not isinstance(node, ast.Name):
            return self._attributes.get(_key(node), [])
        function = self.function_of(node, part)
        while function is not None:
            values = [*self._names.get((id(function), node.id), []), *self._arguments(function, node.id, part)]
            if values:
                return values
            function = self.function_of(function, part)
        return self._names.get((id(part.source.tree), node.id), [])

    def _arguments(self, function: Function, name: str, part: ReachablePart) -> list[Place]:
        """Return what the calls of ``function`` pass for its parameter ``name``."""
        key = (id(function), name)
        if key not in self._passed:
            self._passed[key] = list(self._read_arguments(function, name, part))
        return self._passed[key]

    def _read_arguments(self, function: Function, name: str, part: ReachablePart) -> Iterator[Place]:
        positional = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
        if name not in (*positional, *(item.arg for item in function.args.kwonlyargs)):
            return
        called, index = function.name, positional.index(name) if name in positional else -1
        parent = part.parent(function)
        if isinstance(parent, ast.ClassDef):
            called, index = parent.name if called == "__init__" else called, index - 1
        calls = self._calls.get(called, [])[:_MANY]
        for call, where in self._calls.get("__init__", ()) if called != function.name else ():
            around = where.parent(self.function_of(call, where) or call)
            if called in map(last, getattr(around, "bases", ())):
                calls = [*calls, (call, where)]  # `super().__init__(…)` of a class that extends this one
        for call, where in calls:
            starred = any(isinstance(item, ast.Starred) for item in call.args[: index + 1])
            by_position = 0 <= index < len(call.args) and not starred
            value = keyword(call, name) or (call.args[index] if by_position else None)
            if value is not None:
                yield value, where

    def _products(self, node: ast.expr, part: ReachablePart, depth: int = _DEPTH) -> tuple[Product, ...]:
        """Return the products that an expression can be; empty if it cannot be followed."""
        if id(node) in self._values:
            return self._values[id(node)]
        self._left -= 1
        if depth == 0 or id(node) in self._open or self._left < 0:
            self._cut = True
            return ()
        outer, self._cut = self._cut, False
        self._open.add(id(node))
        products = tuple(islice(dict.fromkeys(self._read(node, part, depth - 1)), _MANY))
        self._open.discard(id(node))
        if not self._cut:  # a cut answer is incomplete, and valid on this path only
            self._values[id(node)] = products
        self._cut = self._cut or outer
        return products

    def _read(self, node: ast.expr, part: ReachablePart, depth: int) -> Iterator[Product]:
        if isinstance(node, ast.Constant):
            if isinstance(node.value, (int, float)) and node.value > 0:
                yield Product(float(node.value))
        elif isinstance(node, (ast.BinOp, Augmented)):
            yield from self._binary(node, part, depth)
        elif isinstance(node, (ast.IfExp, ast.BoolOp)):
            for item in self._branches(node, part):
                yield from self._products(item, part, depth)
        elif isinstance(node, ast.Call):
            yield from self._call(node, part, depth)
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            yield from self._named(node, part, depth)

    def _branches(self, node: ast.IfExp | ast.BoolOp, part: ReachablePart) -> list[ast.expr]:
        if isinstance(node, ast.BoolOp):
            return node.values
        verdict = self.known.decide(node.test, part)
        both = [node.body, node.orelse]
        return both if verdict is None else both[not verdict :][:1]

    def _binary(self, node: ast.BinOp | Augmented, part: ReachablePart, depth: int) -> Iterator[Product]:
        if not isinstance(node.op, (ast.Mult, ast.Div, ast.FloorDiv)):
            yield self._unread([node.left] if isinstance(node.op, ast.Pow) else [], node, part, depth)
            return
        for left in self._products(node.left, part, depth) or [_factor(f"?{id(node.left)}")]:
            for right in self._products(node.right, part, depth) or [_factor(f"?{id(node.right)}")]:
                yield left.times(right, 1.0 if isinstance(node.op, ast.Mult) else -1.0)

    def _unread(self, inside: Sequence[ast.expr], node: ast.expr, part: ReachablePart, depth: int) -> Product:
        """Return the factor of an expression that is not a product; ``inside`` may have samples or ranks."""
        names = {name for item in inside for product in self._products(item, part, depth) for name, _ in product.powers}
        return _factor(UNREAD if any(map(is_of_samples, names)) else f"?{id(node)}")

    def _call(self, node: ast.Call, part: ReachablePart, depth: int) -> Iterator[Product]:
        name = last(node.func)
        symbol = _SYMBOLS.get(environment_variable(node, part.aliases) or name)
        if symbol is not None:
            yield _factor(symbol)
        elif name in _THROUGH:
            for item in node.args[:3]:
                yield from self._products(item, part, depth)
        elif name == "len" and node.args and _DEVICE_LIST.fullmatch(last(node.args[0])):
            yield _factor(UNREAD)
        elif name == "getattr" and len(node.args) > 1 and string(node.args[1]):
            yield from self._symbol(string(node.args[1]) or "", node, part, depth)
        else:
            yield self._unread(node.args, node, part, depth)

    def _named(
        self, node: ast.Name | ast.Attribute | ast.Subscript, part: ReachablePart, depth: int
    ) -> Iterator[Product]:
        name = string(node.slice) if isinstance(node, ast.Subscript) else last(node)
        if name is None:
            yield _factor(f"?{id(node)}")
        elif isinstance(node, ast.Subscript) and dotted(node.value, part.aliases) == "os.environ":
            yield _factor(_SYMBOLS.get(name, f"?{name}"))
        else:
            yield from self._symbol(name, node, part, depth)

    def _symbol(self, name: str, node: ast.expr, part: ReachablePart, depth: int) -> Iterator[Product]:
        """Yield what a name stands for: the number of ranks, an option's value, or what it was made from."""
        if _WORLD_NAME.fullmatch(name):
            yield _factor(WORLD)
            return
        option = self._options.get(name)
        if option and not _HAS_OPTIONS.search(ast.unparse(node).rpartition(name)[0]):
            option = None
        if option and (not isinstance(node, ast.Name) or self._is_parameter(node, part, option)):
            owner: Any = getattr(node, "value", None)
            followed = not owner or option.parser != "argparse" or self._is_parsed(owner, part)
            yield _factor(name) if followed else _factor(name).times(_factor(UNFOLLOWED), -1.0)
        key = ("attribute", name) if not isinstance(node, ast.Name) else (self._scope(node, part), name)
        if key in self._open:
            self._cut = True
            return
        self._open.add(key)
        products = [
            product
            for value, where in self.bound(node, part)[:_MANY]
            if self.known.runs(value, where)
            for product in self._products(value, where, depth)
        ]
        self._open.discard(key)
        for product in products:
            counted = _LOCAL_NAME.fullmatch(name) and product.powers[:1] and product.powers[0][0].startswith("?")
            yield _factor(LOCAL_WORLD) if counted else product
        if not (products or option):
            yield _factor(LOCAL_WORLD if _LOCAL_NAME.fullmatch(name) else f"?{name}")

    def _is_parsed(self, node: ast.AST, part: ReachablePart) -> bool:
        """Return whether an object has what a parser returned: by its name, a call that gets it, or a function."""
        name = last(node)
        if re.match("args|parse_(?:args|known)", name):
            return True
        if id(node) in self._unparsed:
            return False
        self._unparsed.add(id(node))  # until it is known better: an object may be made of itself
        values: Any = self.bound(node, part) or self._given.get(name, ())
        if name == "self":  # it has what the class is made with
            around = part.parent(self.function_of(node, part) or node)
            values = self._calls.get(getattr(around, "name", ""), ())
        elif (  # not the name of a file that is loaded, as in `load(args.config)`
            not isinstance(node, ast.Attribute)
            or last(node.value) == "self"
            or getattr(part.parent(node), "func", None) is node
        ) and all(isinstance(value, ast.Name) and not self.bound(value, where) for value, where in values):
            values = [*values, *((item, part) for item in ast.iter_child_nodes(node))]
        parsed = any(self._is_parsed(value, where) for value, where in values)
        if parsed:
            self._unparsed.remove(id(node))
        return parsed

    def _is_parameter(self, node: ast.Name, part: ReachablePart, option: DeclaredOption) -> bool:
        """Return whether ``node`` has the option's value: a parameter (click, fire, jsonargparse) or a global name."""
        function = self.function_of(node, part)
        if option.parser == "globals":
            own = function is not None and (id(function), node.id) in self._names
            return part.source is self.program.root.source and not own
        if function is None or option.parser not in _OWN_NAMES:
            return False
        handed = any(item.arg is None for call, _ in self._calls.get(function.name, ()) for item in call.keywords)
        if handed and any(getattr(item, "arg", "") == node.id for item in ast.walk(function.args)):
            return True  # `train(**kwargs)`
        if option.at.file != part.source.shown:
            return False
        first = min([function.lineno, *(item.lineno for item in function.decorator_list)])
        return first <= option.at.line <= (function.end_lineno or first)


def _key(node: ast.AST) -> str:
    """Return the name of an attribute, or NAME of ``config["NAME"]``; empty for anything else."""
    if isinstance(node, ast.Subscript):
        return string(node.slice) or ""
    return node.attr if isinstance(node, ast.Attribute) else ""


def is_of_samples(name: str) -> bool:
    """Return whether a factor counts samples, passes, ranks or devices, by its name."""
    spelled = name.lstrip("?").replace("_", "-").lower()
    return name in (WORLD, LOCAL_WORLD, UNREAD) or meaning_of(spelled) in ("batch_size", "global_batch_size", "accum")


#: What gives values to names.
PLACES = (ast.Call, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.AugAssign, ast.Dict)
# Expressions that can have the value of an option.
_FOLLOWED = (ast.Name, ast.Attribute, ast.Call, ast.BinOp, ast.Subscript, ast.IfExp, ast.BoolOp, Augmented)


def places_of(node: ast.AST) -> Iterator[tuple[str, str, ast.expr]]:
    """Yield the name, the called function and the value of each assignment and argument of ``node``."""
    if isinstance(node, ast.Dict):
        yield from ((string(key) or "", "dict", value) for key, value in zip(node.keys, node.values, strict=True))
    elif isinstance(node, ast.Call):
        function = last(node.func)
        if function == "backward" and isinstance(node.func, ast.Attribute):
            yield "", function, node.func.value
        if function not in DISPLAYS:
            yield from ((item.arg or "", function, item.value) for item in node.keywords)
            takes = any(each.search(function) for each in (LOADERS, _SCHEDULES, OPTIMIZERS))
            for item in node.args:
                for inner in item.elts if isinstance(item, ast.Tuple) else [item]:  # `torch.randint(9, (batch,))`
                    if takes or isinstance(inner, ast.BinOp):
                        yield "", function, inner
    else:
        for target, value in assignments(node):
            if isinstance(target, ast.Subscript):
                yield string(target.slice) or "", last(target.value), value
            else:
                yield last(target), "", value
