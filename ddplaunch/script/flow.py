"""What a script's arithmetic does with the values of its options.

An expression is read as a product of powers: ``args.lr * args.batch_size * get_world_size() / 256`` is
lr¹ batch_size¹ world¹ / 256. Names and attributes are followed through assignments, parameters and calls, so that a
division counts wherever it is written. What is no product (a sum, a call of something unknown) becomes a symbol of its
own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from ddplaunch.script.known import Known, Product
from ddplaunch.script.names import (
    Augmented,
    Function,
    FunctionNodes,
    as_text,
    assignments,
    at,
    dotted,
    environment_variable,
    keyword,
    last,
    string,
)
from ddplaunch.script.program import Program, is_main_guard
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
#: The symbol of how many devices a list of the script's own names.
UNREAD_DEVICES = "?devices"
_WORLD_CALLS = frozenset({"get_world_size", "num_processes", "get_data_parallel_world_size", "get_ddp_world_size"})
_THROUGH = frozenset({"int", "float", "round", "max", "min", "abs", "ceil", "floor", "str", "tensor"})
_ROOTS = frozenset({"sqrt"})
#: Functions that only show what they get.
TALK = frozenset(
    {"print", "info", "debug", "warning", "log", "write", "format", "add_scalar", "set_postfix", "print_rank0"}
)
_OWN_NAMES = frozenset({"click", "typer", "fire", "jsonargparse"})
_MANY = 8
_DEPTH = 14
#: Expressions to follow in one script: some 30 ms.
_BUDGET = 20_000


@dataclass(frozen=True)
class Use:
    """A product that the script computes: where, what for (the name that it is assigned or passed to), and if it runs.

    ``sink`` is the function whose keyword or argument it is, empty for an assignment. It happens only ``without`` a
    value of these options.
    """

    product: Product
    at: DeclaredAt
    name: str
    sink: str
    runs: bool
    without: frozenset[str] = frozenset()


class Flow:
    """All arithmetic of the parts of a program that can run."""

    def __init__(self, program: Program, parts: Sequence[ReachablePart]) -> None:
        """Index assignments, calls and functions by name."""
        self.program, self.parts = program, parts
        self._options: dict[str, DeclaredOption] = {}
        self._shown = {part.source.shown for part in parts}
        self._trees = {part.source.path: id(part.source.tree) for part in parts}
        self._names: dict[tuple[int, str], list[tuple[ast.expr, ReachablePart]]] = {}
        self._attributes: dict[str, list[tuple[ast.expr, ReachablePart]]] = {}
        self._calls: dict[str, list[tuple[ast.Call, ReachablePart]]] = {}
        self._functions: dict[int, Function | None] = {}
        self._passed: dict[tuple[int, str], list[tuple[ast.expr, ReachablePart]]] = {}
        self._values: dict[int, tuple[Product, ...]] = {}
        self._open: set[object] = set()
        self._assumed = ""
        self._cut, self._left = False, _BUDGET
        for part in parts:
            for node in part.of(*_PLACES):
                if isinstance(node, ast.Call):
                    self._calls.setdefault(last(node.func), []).append((node, part))
                else:
                    for target, value in assignments(node):
                        part.source.parents.setdefault(value, node)
                        self._note(target, value, part)

    def use_conditions(
        self, options: Sequence[DeclaredOption], values: Mapping[str, object], torch: str | None
    ) -> Known:
        """Follow the values of ``options`` from here on, and decide conditions by those that are known."""
        self._options = {option.dest: option for option in options}
        self.known = Known(values, torch, self.bound)
        return self.known

    def assume(self, condition: str) -> None:
        """Take what this condition keeps from running for what runs: a finding says how to have it the other way."""
        self._assumed = condition

    def _runs(self, node: ast.AST, part: ReachablePart) -> bool:
        around = self.known.conditions(node, part)
        stopped = (test for test, wanted in around if self.known.decide(test, part) not in (None, wanted))
        return all(self._assumed and as_text(test) == self._assumed for test in stopped)

    def forget(self, places: Collection[DeclaredAt]) -> None:
        """Leave out what is assigned to attributes at these lines: values of a configuration that is read otherwise."""
        for name, bound in self._attributes.items() if places else ():
            self._attributes[name] = [(value, part) for value, part in bound if at(value, part.source) not in places]

    def uses(self, wanted: Collection[str]) -> Iterator[Use]:
        """Yield every product that is assigned or passed on with one of the options ``wanted`` (destinations) in it."""
        for part in self.parts:
            for node in part.of(*_PLACES):
                for name, sink, value in _places(node):
                    if type(value) not in _FOLLOWED:
                        continue
                    for product in self._products(value, part):
                        if any(product.power(each) for each in wanted):
                            place, runs = at(node, part.source), self._runs(node, part)
                            yield Use(product, place, name, sink, runs, self.known.absent(node, part))

    def made_of(self, value: ast.expr, part: ReachablePart) -> frozenset[str] | None:
        """Return the options and numbers of ranks that an expression is a product of; None of any other expression."""
        products = self._products(value, part)
        names = {name for product in products for name, _ in product.powers}
        known = names <= {*self._options, WORLD, LOCAL_WORLD}
        return frozenset(names) if products and known else None

    def assigned(self, name: str) -> list[tuple[ast.expr, ReachablePart]]:
        """Return what is assigned to an attribute ``name`` of anything."""
        return self._attributes.get(name, [])

    def _note(self, target: ast.AST, value: ast.expr, part: ReachablePart) -> None:
        if isinstance(target, ast.Name):
            self._names.setdefault((self._scope(target, part), target.id), []).append((value, part))
        elif isinstance(target, ast.Attribute):
            self._attributes.setdefault(target.attr, []).append((value, part))
        elif isinstance(target, ast.Subscript) and string(target.slice):
            self._attributes.setdefault(string(target.slice) or "", []).append((value, part))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for each, item in zip(target.elts, value.elts, strict=True):
                self._note(each, item, part)

    def function_of(self, node: ast.AST, part: ReachablePart) -> Function | None:
        """Return the innermost function around ``node``."""
        if id(node) not in self._functions:
            parent = part.source.parents.get(node)
            if parent is None or isinstance(parent, FunctionNodes):
                self._functions[id(node)] = parent
            else:
                self._functions[id(node)] = self.function_of(parent, part)
        return self._functions[id(node)]

    def _scope(self, node: ast.AST, part: ReachablePart) -> int:
        function = self.function_of(node, part)
        return id(part.source.tree if function is None else function)

    def bound(self, node: ast.AST, part: ReachablePart) -> list[tuple[ast.expr, ReachablePart]]:
        """Return the expressions behind a name, an attribute or ``config["name"]``: assigned ones, or arguments."""
        if isinstance(node, ast.Attribute):
            return self._attributes.get(node.attr, [])
        if isinstance(node, ast.Subscript):
            return self._attributes.get(string(node.slice) or "", [])
        if not isinstance(node, ast.Name):
            return []
        function = self.function_of(node, part)
        while function is not None:
            found = list(self._names.get((id(function), node.id), []))
            found += self._arguments(function, node.id, part)
            if found:
                return found
            function = self.function_of(function, part)
        return self._names.get((id(part.source.tree), node.id), []) or self._imported(node.id, part)

    def _imported(self, name: str, part: ReachablePart) -> list[tuple[ast.expr, ReachablePart]]:
        """Return what the file that a name is imported from assigns to it."""
        target = self.program.resolve(part.source.path, name) if name in part.aliases else None
        return [] if target is None else self._names.get((self._trees.get(target[0], 0), target[1]), [])

    def _arguments(self, function: Function, name: str, part: ReachablePart) -> list[tuple[ast.expr, ReachablePart]]:
        """Return what the calls of ``function`` pass for its parameter ``name``."""
        key = (id(function), name)
        if key not in self._passed:
            self._passed[key] = self._read_arguments(function, name, part)
        return self._passed[key]

    def _read_arguments(
        self, function: Function, name: str, part: ReachablePart
    ) -> list[tuple[ast.expr, ReachablePart]]:
        positional = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
        if name not in positional and name not in [item.arg for item in function.args.kwonlyargs]:
            return []
        called = function.name
        parent = part.source.parents.get(function)
        offset = 0
        if isinstance(parent, ast.ClassDef):
            offset = 1
            called = parent.name if called == "__init__" else called
        found: list[tuple[ast.expr, ReachablePart]] = []
        for call, where in self._calls.get(called, [])[:_MANY]:
            value = keyword(call, name)
            if value is None and name in positional:
                index = positional.index(name) - offset
                starred = any(isinstance(item, ast.Starred) for item in call.args[: index + 1])
                value = call.args[index] if 0 <= index < len(call.args) and not starred else None
            if value is not None:
                found.append((value, where))
        return found

    def _products(self, node: ast.expr, part: ReachablePart, depth: int = _DEPTH) -> tuple[Product, ...]:
        """Return the products that an expression can be; empty where following it leads nowhere."""
        if id(node) in self._values:
            return self._values[id(node)]
        self._left -= 1
        if depth == 0 or id(node) in self._open or self._left < 0:
            self._cut = True
            return ()
        outer, self._cut = self._cut, False
        self._open.add(id(node))
        found = tuple(islice(dict.fromkeys(self._read(node, part, depth - 1)), _MANY))
        self._open.discard(id(node))
        if not self._cut:  # otherwise it is a part of the answer, which holds on this way alone
            self._values[id(node)] = found
        self._cut = self._cut or outer
        return found

    def _read(self, node: ast.expr, part: ReachablePart, depth: int) -> Iterator[Product]:
        if isinstance(node, ast.Constant):
            if isinstance(node.value, (int, float)) and node.value > 0:
                yield Product(float(node.value))
        elif isinstance(node, (ast.BinOp, Augmented)):
            yield from self._binary(node.left, node.op, node.right, part, depth)
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
        if verdict is None:
            return [node.body, node.orelse]
        return [node.body if verdict else node.orelse]

    def _binary(
        self, left: ast.expr, op: ast.operator, right: ast.expr, part: ReachablePart, depth: int
    ) -> Iterator[Product]:
        if isinstance(op, ast.Pow):
            exponent = self.known.value(right, part)
            if isinstance(exponent, (int, float)):
                yield from (product.raised(float(exponent)) for product in self._products(left, part, depth))
            return
        if not isinstance(op, (ast.Mult, ast.Div, ast.FloorDiv)):
            yield Product(powers=((f"?{id(left)}", 1.0),))
            return
        unknown = (Product(powers=((f"?{id(right)}", 1.0),)),)
        ones = self._products(left, part, depth) or (Product(powers=((f"?{id(left)}", 1.0),)),)
        for one in ones:
            for other in self._products(right, part, depth) or unknown:
                yield one.times(other, 1.0 if isinstance(op, ast.Mult) else -1.0)

    def _call(self, node: ast.Call, part: ReachablePart, depth: int) -> Iterator[Product]:
        name = last(node.func)
        environment = environment_variable(node, part.aliases)
        if name in _WORLD_CALLS or environment == "WORLD_SIZE":
            yield Product(powers=((WORLD, 1.0),))
        elif name in ("device_count", "get_local_size") or environment == "LOCAL_WORLD_SIZE":
            yield Product(powers=((LOCAL_WORLD, 1.0),))
        elif name in _THROUGH:
            for item in node.args[:3]:
                yield from self._products(item, part, depth)
        elif name in _ROOTS and node.args:
            yield from (product.raised(0.5) for product in self._products(node.args[0], part, depth))
        elif name == "pow" and len(node.args) == 2:
            yield from self._binary(node.args[0], ast.Pow(), node.args[1], part, depth)
        elif name == "len" and node.args and _DEVICE_LIST.fullmatch(last(node.args[0])):
            yield Product(powers=((UNREAD_DEVICES, 1.0),))
        elif name == "getattr" and len(node.args) > 1 and string(node.args[1]):
            yield from self._symbol(string(node.args[1]) or "", node, part, depth)
        else:
            yield Product(powers=((f"?{id(node)}", 1.0),))

    def _named(
        self, node: ast.Name | ast.Attribute | ast.Subscript, part: ReachablePart, depth: int
    ) -> Iterator[Product]:
        if isinstance(node, ast.Subscript):
            name = string(node.slice)
            if name is None:
                yield Product(powers=((f"?{id(node)}", 1.0),))
                return
            if dotted(node.value, part.aliases) == "os.environ":
                symbol = {"WORLD_SIZE": WORLD, "LOCAL_WORLD_SIZE": LOCAL_WORLD}.get(name, f"?{name}")
                yield Product(powers=((symbol, 1.0),))
                return
        else:
            name = node.id if isinstance(node, ast.Name) else node.attr
        yield from self._symbol(name, node, part, depth)

    def _symbol(self, name: str, node: ast.expr, part: ReachablePart, depth: int) -> Iterator[Product]:
        """Yield what a name stands for: the number of ranks, an option's value, or what it was made from."""
        if _WORLD_NAME.fullmatch(name):
            alone = isinstance(node, ast.Name) and self.known.is_one(node, self.function_of(node, part), part)
            yield Product() if alone else Product(powers=((WORLD, 1.0),))
            return
        option = self._options.get(name)
        key = ("attribute", name) if not isinstance(node, ast.Name) else (self._scope(node, part), name)
        circular = key in self._open
        own = not isinstance(node, ast.Name) or (option is not None and self._is_parameter(node, part, option))
        if option is not None and own and (circular or not self._is_set_anew(name, node, part)):
            yield Product(powers=((name, 1.0),))
        self._cut = self._cut or circular
        bound = [] if circular else self.bound(node, part)[:_MANY]
        if bound:
            self._open.add(key)
        found = False
        for value, where in bound:
            if self.known.runs(value, where):
                without = name in self.known.absent(value, where)
                for product in self._products(value, where, depth):
                    if without and product.power(name):
                        continue  # it is assigned where the option has no value
                    found = True
                    counted = (
                        _LOCAL_NAME.fullmatch(name) and product.powers[:1] and product.powers[0][0].startswith("?")
                    )
                    yield Product(powers=((LOCAL_WORLD, 1.0),)) if counted else product
        if bound:
            self._open.discard(key)
        if not found and option is None:
            yield Product(powers=((LOCAL_WORLD if _LOCAL_NAME.fullmatch(name) else f"?{name}", 1.0),))

    def _is_set_anew(self, name: str, node: ast.expr, part: ReachablePart) -> bool:
        """Return whether the script has made an option's value from itself by then: ``args.b = args.b // world``."""
        function = self.function_of(node, part)
        for value, where in self._attributes.get(name, ()):
            parents = where.source.parents
            statement = parents.get(value)
            around = parents.get(statement) if statement is not None else None
            if not isinstance(statement, (ast.Assign, ast.AugAssign)) or around is None:
                continue
            read = (each for each in ast.walk(statement.value) if isinstance(each, (ast.Attribute, ast.Subscript)))
            if isinstance(statement, ast.Assign) and not any(last(each) == name for each in read):
                continue
            at_once = isinstance(around, ast.Module) or is_main_guard(around)
            if around is function or (function is None and at_once):
                if where is part and node.lineno > (statement.end_lineno or 0):
                    return True
            elif function is not None and at_once:
                calls = (call for call, home in self._calls.get(function.name, ()) if not self.function_of(call, home))
                if all(call.lineno > statement.lineno for call in calls):
                    return True
        return False

    def _is_parameter(self, node: ast.Name, part: ReachablePart, option: DeclaredOption) -> bool:
        """Return whether ``node`` is what holds the option's value: a parameter for click or fire, or a global name."""
        function = self.function_of(node, part)
        if option.parser == "globals":
            own = function is not None and (id(function), node.id) in self._names
            home = option.at.file if option.at.file in self._shown else self.program.root.shown  # or a file for `exec`
            return home == part.source.shown and not own
        if function is None or option.parser not in _OWN_NAMES or option.at.file != part.source.shown:
            return False
        first = min([function.lineno, *(item.lineno for item in function.decorator_list)])
        return first <= option.at.line <= (function.end_lineno or first)


_PLACES = (ast.Call, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.AugAssign)
# Expressions that can have the value of an option.
_FOLLOWED = (ast.Name, ast.Attribute, ast.Call, ast.BinOp, ast.Subscript, ast.IfExp, ast.BoolOp, Augmented)


def _places(node: ast.AST) -> Iterator[tuple[str, str, ast.expr]]:
    """Yield the name, the called function and the value of each assignment and argument of ``node``."""
    if isinstance(node, ast.Call):
        function = last(node.func)
        if function not in TALK:
            yield from ((item.arg or "", function, item.value) for item in node.keywords)
            yield from (("", function, item) for item in node.args if isinstance(item, ast.BinOp))
    else:
        for target, value in assignments(node):
            yield (string(target.slice) or "" if isinstance(target, ast.Subscript) else last(target)), "", value
