"""Reads imports and finds their local files; reads names and literals, and the numbers that names stand for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from ddplaunch.script.script_report import DeclaredAt
from ddplaunch.script.source import ParsedFile, find_module
from ddplaunch.values.frozen import dataclass

_STATEMENT = re.compile(r"\n[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#;]+)|import[ \t]+([^\n#;(]+))")
_NOT_LOCAL = frozenset({"site-packages", "dist-packages"})
FunctionNodes = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class ImportRecord:
    """``from a.b import x as y``: module ``a.b``, level 0, names ``((x, y),)``; ``import a.b`` has no names."""

    module: str
    level: int
    names: tuple[tuple[str, str], ...]
    bound: str
    line: int

    @property
    def package(self) -> str:
        """The top-level package, empty for ``from . import x``."""
        return "" if self.level else self.module.partition(".")[0]


def records_of(nodes: Iterable[ast.AST]) -> Iterator[ImportRecord]:
    """Yield the imports among ``nodes``."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                yield ImportRecord(alias.name, 0, (), bound, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            names = tuple((alias.name, alias.asname or alias.name) for alias in node.names)
            yield ImportRecord(node.module or "", node.level, names, "", node.lineno)


def records_of_text(text: str) -> Iterator[ImportRecord]:
    """Yield the imports of a file by pattern, without parsing it; they may include lines inside strings."""
    line, counted = 0, 0
    text = f"\n{text}"  # a pattern that begins with this character is found twice as fast as one for line starts
    for match in _STATEMENT.finditer(text):
        origin, names, plain = match.groups()
        line, counted = line + text.count("\n", counted, match.start() + 1), match.start() + 1
        if plain:
            for name, bound in _aliases(plain):
                top = name.partition(".")[0]
                yield ImportRecord(name, 0, (), top if bound == name else bound, line)
        else:
            module = origin.lstrip(".")
            level = len(origin) - len(module)
            yield ImportRecord(module, level, tuple(_aliases(re.sub(r"#[^\n]*", "", names))), "", line)


def _aliases(text: str) -> Iterator[tuple[str, str]]:
    for item in text.strip(" \t()\r\n").split(","):
        words = item.strip(" \t()\r\n\\").split()
        if words:
            yield words[0], words[2] if len(words) == 3 and words[1] == "as" else words[0]


class Roots:
    """The directories of local imports: the script's, the working directory, its ``src``, entries of ``search`` there.

    ``above`` are those that the script adds itself.

    Installed packages are never local.
    """

    def __init__(self, script: Path, cwd: Path, search: Sequence[Path], above: Sequence[Path] = ()) -> None:
        below = [entry for entry in search if entry != cwd and entry.is_relative_to(cwd)]
        candidates = [
            entry for entry in dict.fromkeys([script.parent, cwd, cwd / "src", *below, *above]) if entry.is_dir()
        ]
        self.directories = [entry for entry in candidates if not _NOT_LOCAL & set(entry.parts)]
        self._entries: dict[Path, frozenset[str]] = {}
        self._found: dict[Path | None, dict[tuple[str, ...], Path | None]] = {}

    def file_of(self, importer: Path, record: ImportRecord, name: str = "") -> Path | None:
        """Return the local file of the imported module, or of its submodule ``name``; None if it is not local."""
        parts = tuple(record.module.split(".")) if record.module else ()
        return self._file_at(importer, record.level, (*parts, name) if name else parts)

    def _file_at(self, importer: Path, level: int, parts: tuple[str, ...]) -> Path | None:
        if not level:
            return self._find(parts, None)
        base = importer.parent
        for _ in range(level - 1):
            base = base.parent
        if not parts:
            package = base / "__init__.py"
            return package if package.is_file() else None
        return self._find(parts, base)

    def files_of(self, importer: Path, record: ImportRecord) -> list[Path]:
        """Return every local file that the statement executes: the packages on the way and imported submodules."""
        parts = tuple(record.module.split(".")) if record.module else ()
        if not record.level and not self._may_have(parts[0], self.directories):
            return []
        found = [self._file_at(importer, record.level, parts[:length]) for length in range(1, len(parts) + 1)]
        found = found or [self._file_at(importer, record.level, ())]
        if found[-1] is None or found[-1].name == "__init__.py":
            found += [self.file_of(importer, record, name) for name, _ in record.names if name != "*"]
        return [path for path in found if path is not None]

    def _may_have(self, name: str, directories: Sequence[Path]) -> bool:
        """Return whether one of the directories has the package or module; most imports are of installed ones."""
        return any(not self._entries_of(each).isdisjoint((name, f"{name}.py")) for each in directories)

    def _entries_of(self, directory: Path) -> frozenset[str]:
        if directory not in self._entries:
            self._entries[directory] = frozenset(entry.name for entry in directory.iterdir())
        return self._entries[directory]

    def _find(self, parts: tuple[str, ...], base: Path | None) -> Path | None:
        """Return the file of a module below ``base``, None for the roots."""
        memory = self._found.setdefault(base, {})
        if parts not in memory:
            above = self._find(parts[:-1], base) if len(parts) > 1 else None
            directories = self.directories if base is None else [base]
            rest = parts
            if above is not None:  # a package, or a file that has no modules in it
                directories = [above.parent] if above.name == "__init__.py" else []
                rest = parts[-1:]
            try:
                memory[parts] = find_module(rest, directories) if self._may_have(rest[0], directories) else None
            except (OSError, ValueError):  # a loop of symbolic links, a name too long
                memory[parts] = None
        return memory[parts]


def aliases_of(source: ParsedFile) -> dict[str, str]:
    """Map a file's imported names to their full names: ``mp`` to ``torch.multiprocessing``."""
    names: dict[str, str] = {}
    for record in records_of(source.imports):
        dots = "." * record.level
        if not record.names:
            names[record.bound] = record.module if record.bound != record.package else record.package
        for original, bound in record.names:
            names[bound] = f"{dots}{record.module}.{original}"
    return names


def dotted(node: ast.AST | None, aliases: dict[str, str]) -> str:
    """Return ``torch.multiprocessing.spawn`` for ``mp.spawn``; empty for anything but a chain of names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([aliases.get(node.id, node.id), *reversed(parts)])


def last(node: ast.AST | None) -> str:
    """Return the last name of a chain: ``spawn`` for ``mp.spawn`` and for ``get().spawn``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument."""
    return next((item.value for item in call.keywords if item.arg == name), None)


def string(node: ast.AST | None) -> str | None:
    """Return the value of a string literal."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def is_true(node: ast.AST | None) -> bool:
    """Return whether the expression is the literal ``True``."""
    return isinstance(node, ast.Constant) and node.value is True


def strings(nodes: Iterable[ast.expr]) -> list[str] | None:
    """Return the string literals, or None if one of the expressions is anything else."""
    found = [string(node) for node in nodes]
    return None if None in found else [text for text in found if text is not None]


def literal(node: ast.AST | None, source: ParsedFile) -> str | None:
    """Return a literal default: the value of a string, a number as it is written; None for computed ones."""
    if (text := string(node)) is not None:
        return text
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    if not isinstance(number, ast.Constant) or number.value is None or number.value is ...:
        return None
    assert isinstance(node, ast.expr)
    if node.lineno != node.end_lineno or node.lineno > len(source.lines):
        return None
    line = source.lines[node.lineno - 1].encode("utf-8", "surrogatepass")
    return line[node.col_offset : node.end_col_offset].decode("utf-8", "replace")


def is_computed(node: ast.AST | None) -> bool:
    """Return whether there is a default that is not a literal."""
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    return number is not None and not isinstance(number, ast.Constant)


def at(node: ast.AST, source: ParsedFile) -> DeclaredAt:
    """Return the line that a statement or expression starts on."""
    return DeclaredAt(source.shown, getattr(node, "lineno", 1))


def environment_variable(node: ast.Call, aliases: dict[str, str]) -> str | None:
    """Return the variable that ``os.getenv(…)`` or ``os.environ.get(…)`` looks up."""
    name = dotted(node.func, aliases)
    return string(node.args[0]) if name in ("os.getenv", "os.environ.get") and node.args else None


class Augmented(ast.expr):
    """``target op= value`` as the expression that it assigns."""

    left: ast.expr
    op: ast.operator
    right: ast.expr


def assignments(node: ast.AST) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield what a statement or expression assigns to, with the value."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.AugAssign):
        yield node.target, _augmented(node)


def _augmented(node: ast.AugAssign) -> ast.expr:
    found = getattr(node, "_as_expression", None)
    if found is None:
        found = Augmented()
        found.left, found.op, found.right = node.target, node.op, node.value
        node._as_expression = found  # type: ignore[attr-defined]  # one identity for one statement
    return found


def destination(flags: Iterable[str]) -> str:
    """Return the name that argparse gives to the value of an option: that of its first long flag."""
    long = [flag for flag in flags if flag.startswith("--")]
    return (long or list(flags))[0].lstrip("-").replace("-", "_") if flags else ""


# Names that the patterns below do not match, or that are clear without a look at the option's type.
_NAMES: dict[str, str] = {
    "batch_size": "b samples-per-gpu batch-per-gpu imgs-per-gpu images-per-gpu ims-per-gpu batch-gpu",
    "global_batch_size": "global-batch total-batch ims-per-batch",
    "lr": "blr lr0",
    "accum": "gradient-accumulation grad-accumulation grad-accum grad-acc accum accumulate accumulation "
    "update-freq accumulate-gradients accum-grad acc-grad iters-to-accumulate batch-split accumulative-counts "
    "batches-per-allreduce",
    "warmup_steps": "warmup warm-up warm-steps t-warmup",
    "warmup_epochs": "warmup-ep warmup-e",
    "warmup_ratio": "warmup-ratio warmup-proportion warmup-fraction warmup-frac lr-warmup-ratio warmup-percent",
}
_MEANINGS = {name: meaning for meaning, names in _NAMES.items() for name in names.split()}
_UNIT = "gpu|device|rank|proc|process|replica|worker|card"
_SIZE = "batch-?size|bsz?|batch"
_COMPOSED: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "batch_size",
        re.compile(
            rf"(?:(?:per-)?(?:{_UNIT})-|(?:local|micro|mini)-?)?(?:train(?:ing|er)?-)?(?:(?:local|micro|mini)-?)?(?:{_SIZE})"
            rf"(?:-train(?:ing)?)?(?:-(?:per-)?(?:{_UNIT}))?(?:-train(?:ing)?)?"
        ),
    ),
    ("global_batch_size", re.compile(rf"(?:global|total|effective|overall)-(?:train(?:ing)?-)?(?:{_SIZE})")),
    (
        "lr",
        re.compile(
            r"(?:(?:base|init|initial|peak|max|start|train)-)?(?:lr|learning-?rate)(?:-(?:base|init|peak|max))?"
        ),
    ),
    (
        "accum",
        re.compile(
            r"(?:n-|num-)?(?:grad(?:ient)?s?-)?(?:(?<!^)acc|acc(?!-factor)|accum|accumulate|accumulation)(?:-grad(?:ient)?s?)?"
            r"-(?:batches|steps?|every|iters?|iterations?|freq|num|count|factor)"
        ),
    ),
    (
        "warmup_steps",
        re.compile(r"(?:lr-)?(?:n-|num-)?(?:lr-)?warm-?up-(?:num-)?(?:steps?|iters?|iterations?|updates?|batches)"),
    ),
    ("warmup_epochs", re.compile(r"(?:lr-)?(?:n-|num-)?(?:lr-)?warm-?up-(?:num-)?epochs?")),
)


@lru_cache
def meaning_of(name: str) -> str | None:
    """Return the number of the plan that a name stands for; ``name`` is in lower case with dashes."""
    composed = (meaning for meaning, pattern in _COMPOSED if pattern.fullmatch(name))
    return _MEANINGS.get(name) or next(composed, None)


def last_word(flag: str) -> str:
    """Return the end of a flag or key in lower case with dashes: ``batch-size`` of ``--data.batch_size``."""
    return flag.lstrip("-").replace(":", ".").rpartition(".")[2].replace("_", "-").lower()


def is_number(text: str) -> bool:
    """Return whether ``float`` accepts a text."""
    try:
        float(text)
    except ValueError:
        return False
    return True
