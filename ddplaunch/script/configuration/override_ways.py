"""Ways in which a script lets words of its command line override the keys of its configuration.

Each is known by the call or decorator that reads the words: of hydra, OmegaConf, yacs, mmengine, Lightning, nanoGPT.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.script.configuration import config_files
from ddplaunch.script.configuration.config_files import Composed, Entry
from ddplaunch.script.names import Function, at, destination, dotted, keyword, last, string
from ddplaunch.script.options.fields import class_options
from ddplaunch.script.program import Program
from ddplaunch.script.reachable import ReachablePart
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, Spelling
from ddplaunch.script.source import read_text
from ddplaunch.values.frozen import dataclass

# https://mmengine.readthedocs.io/en/latest/advanced_tutorials/config.html, and mmcv's configurations before it
_MMENGINE = ("train_dataloader.batch_size", "optim_wrapper.optimizer.lr", "optim_wrapper.accumulative_counts")
# https://detectron2.readthedocs.io/en/latest/modules/config.html#yaml-config-references
_DETECTRON = ("SOLVER.IMS_PER_BATCH", "SOLVER.BASE_LR", "SOLVER.WARMUP_ITERS")
_MMCV = ("data.samples_per_gpu", "optimizer.lr")


# What reads words of the command line into a configuration.
_READERS = (
    "from_cli",
    "from_dotlist",
    "merge_from_list",
    "cfg_from_list",
    "DictAction",
    "add_argument",
    "exec",
    "LightningCLI",
)


@dataclass(frozen=True)
class Way:
    """How overrides are spelled, and where keys can be besides the files that the arguments name.

    ``entries``, ``classes`` and ``composed`` hold keys; ``known`` are those that the library documents.
    """

    spelling: Spelling
    at: DeclaredAt
    parser: str
    behind: str = ""
    front: bool = False
    prefix: str = ""
    entries: tuple[Entry, ...] = ()
    classes: tuple[DeclaredOption, ...] = ()
    composed: Composed | None = None
    known: tuple[str, ...] = ()


class Ways:
    """Finds the ways of one program."""

    def __init__(
        self,
        program: Program,
        parts: Sequence[ReachablePart],
        declared: Sequence[DeclaredOption],
        args: Sequence[str],
        cwd: Path,
    ) -> None:
        """Remember the program."""
        self.program, self.parts, self.declared, self.args, self.cwd = program, parts, declared, args, cwd

    def found(self) -> Iterator[Way]:
        """Yield every way."""
        for part in self.parts:
            for node in part.of(ast.FunctionDef, ast.AsyncFunctionDef):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    for item in node.decorator_list:
                        yield from self._decorated(node, item, part)
            for call in part.calls_of(*_READERS):
                if last(call.func) in _READERS:
                    yield from self._called(call, part)

    def _lists(self) -> Iterator[tuple[str, str]]:
        """Yield the flag, empty for none, and the destination of each option that takes any number of words.

        Of several flags it is the one that is passed: a second one would replace what the first one took.
        """
        passed = {word.partition("=")[0] for word in self.args}
        for part in self.parts:
            for call in part.calls_of("add_argument"):
                several = last(keyword(call, "nargs")) == "REMAINDER" or string(keyword(call, "nargs")) in (
                    "*",
                    "+",
                    "...",
                )
                flags = [text for item in call.args if (text := string(item))]
                if last(call.func) == "add_argument" and several and flags:
                    chosen = [flag for flag in flags if flag in passed] or [each for each in flags if each[:2] == "--"]
                    dest = string(keyword(call, "dest")) or destination(flags)
                    flag = [*chosen, flags[0]][0]
                    yield (flag if flag.startswith("-") else ""), dest

    def _decorated(self, function: Function, item: ast.expr, part: ReachablePart) -> Iterator[Way]:
        if isinstance(item, ast.Call) and dotted(item.func, part.aliases) == "hydra.main":
            folder = keyword(item, "config_path") or (item.args[0] if item.args else None)
            named = keyword(item, "config_name") or (item.args[1] if len(item.args) > 1 else None)
            below = _after(self.args, ("--config-path", "-cp")) or string(folder) or ""
            config = _after(self.args, ("--config-name", "-cn")) or string(named) or ""
            place = Path(os.path.normpath(part.source.path.parent / below))
            composed = config_files.compose_hydra(place, config, self.args, self.cwd)
            yield Way("k=v", at(function, part.source), "hydra", composed=composed)

    def _classes(
        self, node: ast.AST | None, part: ReachablePart, parser: str, prefix: str = ""
    ) -> Iterator[DeclaredOption]:
        node = node.func if isinstance(node, ast.Call) else node
        for option in class_options(self.program, part, node, parser, prefix):
            if option is not None:
                yield replace(option, spelling="k=v") if parser == "omegaconf" else option

    def _called(self, call: ast.Call, part: ReachablePart) -> Iterator[Way]:
        name, full = last(call.func), dotted(call.func, part.aliases)
        where = at(call, part.source)
        if name in ("from_cli", "from_dotlist") and full.startswith("omegaconf."):
            yield self._omegaconf(call, part, where)
        elif name in ("merge_from_list", "cfg_from_list") and call.args:
            packages = {value.partition(".")[0] for each in self.parts for value in each.aliases.values()}
            known = _DETECTRON if "detectron2" in packages else ()
            behind, front = self._source_of(call.args[0], part)
            yield Way("k v", where, "yacs", behind, front, entries=tuple(self._yacs()), known=known)
        elif name == "DictAction" or (name == "add_argument" and last(keyword(call, "action")) == "DictAction"):
            flag = next((each for item in call.args if (each := string(item) or "").startswith("--")), "")
            packages = {value.partition(".")[0] for value in part.aliases.values()}
            # a program with a copy of mmcv's configurations has keys of its own
            keys: tuple[str, ...] = _MMENGINE if "mmengine" in packages else _MMCV if "mmcv" in packages else ()
            yield Way("k=v", where, "mmengine", flag, known=keys)
        elif full == "exec" and call.args and self._is_configurator(call.args[0]):
            yield Way("--k=v", where, "globals", prefix="--", entries=tuple(_globals_before(call, part)))
        elif name == "LightningCLI":
            yield self._lightning(call, part, where)

    def _omegaconf(self, call: ast.Call, part: ReachablePart, where: DeclaredAt) -> Way:
        behind, front = self._source_of(call.args[0], part) if call.args else ("", False)
        structured = [(each, other) for other in self.parts for each in other.calls_of("structured") if each.args]
        classes = [option for each, other in structured for option in self._classes(each.args[0], other, "omegaconf")]
        return Way("k=v", where, "omegaconf", behind, front, classes=tuple(classes))

    def _source_of(self, node: ast.AST, part: ReachablePart) -> tuple[str, bool]:
        """Return the flag that overrides follow, and whether a parser left them over, so that they may stand first."""
        wanted = {last(inner) for inner in ast.walk(node) if isinstance(inner, (ast.Attribute, ast.Name))}
        names = ("opts", "options", "overrides", "override", "cfg_options", "opt", "set", "cfg_overrides")
        for own in (wanted, set(names)):
            for flag, dest in self._lists():
                if dest in own:
                    return flag, False
        left_over = any(
            last(call.func) == "parse_known_args" for each in self.parts for call in each.calls_of("parse_known_args")
        )
        positional = any(
            last(call.func) == "add_argument" and call.args and not (string(call.args[0]) or "-").startswith("-")
            for each in self.parts
            for call in each.calls_of("add_argument")
        )
        return "", left_over and not positional

    def _yacs(self) -> Iterator[Entry]:
        """Yield what modules assign below a ``CfgNode``: ``_C.TRAIN.LR = 0.1``."""
        for file in list(self.program.files.values()):
            if "CfgNode" not in file.text and "yacs" not in file.text:
                continue
            source = self.program.tree_of(file.path)
            if source is None:
                continue
            for statement in source.tree.body:
                if isinstance(statement, ast.Assign):
                    _, *names = ast.unparse(statement.targets[0]).split(".")
                    if names and all(name.isidentifier() for name in names):
                        yield from config_files.literal_entries(".".join(names), statement.value, source, {})

    def _is_configurator(self, node: ast.AST) -> bool:
        """Return whether a file is executed that sets module-level names from ``--key=value`` words."""
        texts = [text for inner in ast.walk(node) if (text := string(inner))]
        names = [text for text in (*texts, "/".join(texts)) if text.endswith(".py")]
        for path in (folder / name for name in names for folder in (self.cwd, self.program.root.path.parent)):
            read = read_text(path)
            if read is not None and "globals()" in read.text and "argv" in read.text:
                return True
        return False

    def _lightning(self, call: ast.Call, part: ReachablePart, where: DeclaredAt) -> Way:
        linked = {
            string(each.args[1])
            for other in self.parts
            for each in other.calls_of("link_arguments")
            if last(each.func) == "link_arguments" and len(each.args) > 1
        }
        found = [
            DeclaredOption(
                ("--trainer.accumulate_grad_batches",), where, default="1", dest="accumulate_grad_batches", front=False
            )
        ]
        for index, (section, names) in enumerate((("model", "model_class"), ("data", "datamodule_class"))):
            node = call.args[index] if len(call.args) > index else keyword(call, names)
            found += self._classes(node, part, "jsonargparse", f"{section}.")
        kept = [replace(each, parser="jsonargparse") for each in found if each.flags[0].lstrip("-") not in linked]
        return Way("--k v", where, "jsonargparse", prefix="--", classes=tuple(kept))


def _after(args: Sequence[str], flags: Sequence[str]) -> str:
    for position, word in enumerate(args):
        name, equals, value = word.partition("=")
        if name in flags:
            return value if equals else next(iter(args[position + 1 : position + 2]), "")
    return ""


def _globals_before(call: ast.Call, part: ReachablePart) -> Iterator[Entry]:
    for statement in part.source.tree.body:
        if statement.lineno >= call.lineno:
            return
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(statement, ast.Assign) and isinstance(target, ast.Name):
            yield from config_files.literal_entries(target.id, statement.value, part.source, {})
