"""Ways in which a script lets words of its command line override the keys of its configuration.

Each is known by the call or the decorator that reads the words: those of hydra, OmegaConf, yacs, mmengine and others.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ddplaunch.script.configuration import config_files
from ddplaunch.script.configuration.config_files import Composed, Entry
from ddplaunch.script.configured import Bound, class_options
from ddplaunch.script.names import at, destination, dotted, keyword, last, string
from ddplaunch.script.program import Program, show
from ddplaunch.script.reachable import ReachablePart
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, Spelling
from ddplaunch.script.source import read_text
from ddplaunch.values.frozen import dataclass

_TRAINER = re.compile(r"(?:pytorch_)?lightning(?:\.\w+)*\.Trainer")
# https://mmengine.readthedocs.io/en/latest/advanced_tutorials/config.html, and mmcv's configurations before it
_MMENGINE = ("train_dataloader.batch_size", "optim_wrapper.optimizer.lr", "optim_wrapper.accumulative_counts")
# https://detectron2.readthedocs.io/en/latest/modules/config.html#yaml-config-references and its lazy configurations
_DETECTRON = ("SOLVER.IMS_PER_BATCH", "SOLVER.BASE_LR", "SOLVER.WARMUP_ITERS")
_DETECTRON_LAZY = ("dataloader.train.total_batch_size", "optimizer.lr")
_MMCV = ("data.samples_per_gpu", "optimizer.lr")
# https://pytorch.org/torchtune/main/deep_dives/configs.html
# https://github.com/pytorch/torchtitan/tree/main/torchtitan/config
_TORCHTITAN = ("optimizer.lr", "lr_scheduler.warmup_steps")
_TORCHTUNE = ("batch_size", "gradient_accumulation_steps", "optimizer.lr", "lr_scheduler.num_warmup_steps")


# What reads words of the command line into a configuration.
_READERS = frozenset(
    {"from_cli", "from_dotlist", "merge_from_list", "cfg_from_list", "DictAction", "add_argument", "HParams", "exec"}
)
_READERS |= {"apply_overrides", "get_all_args", "ConfigManager", "LightningCLI", "DEFINE_config_file"}


@dataclass(frozen=True)
class Way:
    """How overrides are spelled, and where keys can be besides the files that the arguments name.

    ``entries``, ``classes`` and ``composed`` hold keys, whose words are joined by ``separator``; ``known`` are those
    that the library documents, ``roots`` the names of the whole configuration in the script.
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
    roots: tuple[str, ...] = ()
    separator: str = "."


class Ways:
    """Finds the ways of one program."""

    def __init__(
        self,
        program: Program,
        parts: Sequence[ReachablePart],
        declared: Sequence[DeclaredOption],
        args: Sequence[str],
        cwd: Path,
        bound: Bound,
    ) -> None:
        """Remember the program; ``bound`` gives the expressions that a name stands for."""
        self.program, self.parts, self.declared = program, parts, declared
        self.args, self.cwd, self.bound = args, cwd, bound

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
            yield from self._by_hand(part)

    def _by_hand(self, part: ReachablePart) -> Iterator[Way]:
        """Yield the ways that the script has written itself.

        A function takes pairs, ``zip(words[0::2], words[1::2])``; a loop over an option's words splits each at ``=``.
        """
        lists = {dest: flag for flag, dest in self._lists()}
        for function in part.of(ast.FunctionDef) if "::2]" in part.source.text else ():
            if not any(_pairs_up(node) for node in ast.walk(function)):
                continue
            for each in self.parts:
                for call in each.calls_of(function.name):  # type: ignore[attr-defined]  # of a function
                    handed = [last(item) for item in call.args if last(item) in lists]
                    if handed:
                        behind = lists[handed[0]]
                        yield Way("k v", at(call, each.source), "yacs", behind, entries=tuple(self._yacs()))
        for loop in part.of(ast.For) if lists else ():
            over = loop.iter  # type: ignore[attr-defined]  # of a loop
            named = [node for node in ast.walk(over) if isinstance(node, (ast.Name, ast.Attribute))]
            named += [value for node in named for value, _ in self.bound(node, part)[:6]]  # type: ignore[misc]
            flag = next((lists[last(node)] for node in named if last(node) in lists), None)
            splits = set() if flag is None else {_split_at(node) for node in ast.walk(loop)}
            if "=" in splits:
                separator = ":" if ":" in splits else "."
                yield Way("k=v", at(loop, part.source), "words", flag or "", separator=separator)

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

    def _decorated(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, item: ast.expr, part: ReachablePart
    ) -> Iterator[Way]:
        name = dotted(item.func if isinstance(item, ast.Call) else item, part.aliases)
        roots = tuple(argument.arg for argument in function.args.args[:1])
        where = at(function, part.source)
        if name == "torchtune.config.parse":
            yield Way("k=v", where, "omegaconf", known=_TORCHTUNE, roots=roots)
        elif name == "hydra.main" and isinstance(item, ast.Call):
            folder = keyword(item, "config_path") or (item.args[0] if item.args else None)
            named = keyword(item, "config_name") or (item.args[1] if len(item.args) > 1 else None)
            below = _after(self.args, ("--config-path", "-cp")) or string(folder) or ""
            config = _after(self.args, ("--config-name", "-cn")) or string(named) or ""
            place = Path(os.path.normpath(part.source.path.parent / below))
            composed = config_files.compose_hydra(place, config, self.args, self.cwd)
            stored = tuple(self._stored(config)) if not composed.entries else ()
            extra = tuple(_trainer_entries(composed.entries, where))
            yield Way("k=v", where, "hydra", entries=extra, classes=stored, composed=composed, roots=roots)
        elif name in ("pyrallis.wrap", "draccus.wrap") and function.args.args:
            kind = function.args.args[0].annotation
            yield Way("--k v", where, "pyrallis", prefix="--", classes=tuple(self._classes(kind, part, "pyrallis")))

    def _stored(self, config: str) -> Iterator[DeclaredOption]:
        """Yield the keys of the class that ``ConfigStore.store(name=…, node=…)`` gives to hydra."""
        for part in self.parts:
            for call in part.calls_of("store"):
                if last(call.func) == "store" and string(keyword(call, "name")) == config:
                    yield from self._classes(keyword(call, "node"), part, "omegaconf")

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
        elif name in ("merge_from_list", "cfg_from_list", "apply_overrides") and call.args:
            yield from self._listed(call, part, where)
        elif name == "DictAction" or (name == "add_argument" and last(keyword(call, "action")) == "DictAction"):
            flag = next((each for item in call.args if (each := string(item) or "").startswith("--")), "")
            packages = {value.partition(".")[0] for value in part.aliases.values()}
            # a program with a copy of mmcv's configurations has keys of its own
            known = _MMENGINE if "mmengine" in packages else _MMCV if "mmcv" in packages else ()
            yield Way("k=v", where, "mmengine", flag, known=known)
        elif name == "HParams":
            flag = next((option.flags[-1] for option in self.declared if option.dest == "hparams"), "")
            entries = config_files.literal_entries("", call, part.source, {})
            if flag:
                yield Way("k=v,", where, "hparams", flag, entries=tuple(entries))
        elif full == "exec" and call.args and self._is_configurator(call.args[0]):
            yield Way("--k=v", where, "globals", prefix="--", entries=tuple(_globals_before(call, part)))
        else:
            yield from self._of_a_library(call, part, where)

    def _of_a_library(self, call: ast.Call, part: ReachablePart, where: DeclaredAt) -> Iterator[Way]:
        """Yield the way of a library that reads the command line by itself."""
        name, full = last(call.func), dotted(call.func, part.aliases)
        if full.startswith("prefigure.") and name == "get_all_args":
            yield self._prefigure(call, where)
        elif full.startswith("torchtitan.") and name == "ConfigManager":
            yield Way("--k v", where, "tyro", front=True, prefix="--", known=_TORCHTITAN)
        elif name == "DEFINE_config_file" and call.args:
            yield self._config_flags(call, where)
        elif name == "LightningCLI":
            yield self._lightning(call, part, where)

    def _listed(self, call: ast.Call, part: ReachablePart, where: DeclaredAt) -> Iterator[Way]:
        """Yield the way of words in a list: yacs' pairs of keys and values, or detectron2's lazy configurations."""
        behind, front = self._source_of(call, part)
        packages = {value.partition(".")[0] for each in self.parts for value in each.aliases.values()}
        if last(call.func) != "apply_overrides":
            known = _DETECTRON if "detectron2" in packages else ()
            yield Way("k v", where, "yacs", behind, front, entries=tuple(self._yacs()), known=known)
        elif "detectron2" in packages:
            yield Way("k=v", where, "omegaconf", behind, front, known=_DETECTRON_LAZY)

    def _omegaconf(self, call: ast.Call, part: ReachablePart, where: DeclaredAt) -> Way:
        behind, front = self._source_of(call.args[0], part) if call.args else ("", False)
        classes: list[DeclaredOption] = []
        for other in self.parts:
            for each in other.calls_of("structured"):
                if last(each.func) == "structured" and each.args:
                    found = list(self._classes(each.args[0], other, "omegaconf"))
                    classes += found or self._receivers
        dashed = self._takes_dashes()
        if dashed:
            classes = [replace(each, flags=(f"--{each.flags[0]}",), spelling="--k=v") for each in classes]
        return Way(
            "--k=v" if dashed else "k=v",
            where,
            "omegaconf",
            behind,
            front,
            "--" if dashed else "",
            classes=tuple(classes),
        )

    def _takes_dashes(self) -> bool:
        """Return whether the script takes dashes off its words, as in ``[clean(word) for word in sys.argv[2:]]``."""
        root = self.program.root
        loops = [node for node in root.source.nodes if isinstance(node, ast.ListComp)] if root.source else []
        names = {last(loop.elt.func) for loop in loops if isinstance(loop.elt, ast.Call)}
        origins = [
            self.program.roots.file_of(root.path, each) for each in root.records if names & set(dict(each.names))
        ]
        texts = [read.text for path in (root.path, *origins) if path is not None and (read := read_text(path))]
        stripping = [re.compile(rf"def {re.escape(name)}\b[^\0]{{0,600}}?strip\(['\"]-") for name in names - {""}]
        return any(each.search(text) for each in stripping for text in texts)

    @cached_property
    def _receivers(self) -> tuple[DeclaredOption, ...]:
        """The keys of ``Config`` in ``Config.load(path, overrides)``, which builds it from its own class."""
        found: list[DeclaredOption] = []
        for part in self.parts:
            for call in part.calls_of("load", "new", "from_args"):
                if part.source is self.program.root.source and last(call.func) in ("load", "new", "from_args"):
                    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
                    if isinstance(receiver, ast.Name) and receiver.id[:1].isupper():
                        found += self._classes(receiver, part, "omegaconf")
        return tuple(found)

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

    def _config_flags(self, call: ast.Call, where: DeclaredAt) -> Way:
        """https://ml-collections.readthedocs.io/en/latest/#config-flags: ``--config=file.py --config.optim.lr=0.1``."""
        flag = f"--{string(call.args[0])}"
        named = _after(self.args, (flag,)) or string(call.args[1] if len(call.args) > 1 else None) or ""
        path = self.cwd / named.partition(":")[0]  # behind it stands what the function gets
        entries = tuple(config_files.function_entries(path, show(path, self.cwd), self.cwd))
        composed = Composed(entries, (show(path, self.cwd),) if entries else ())
        return Way("--k=v", where, "ml_collections", prefix=f"{flag}.", composed=composed)

    def _prefigure(self, call: ast.Call, where: DeclaredAt) -> Way:
        name = string(call.args[0] if call.args else keyword(call, "defaults_file")) or "defaults.ini"
        path = self.cwd / name
        entries = config_files.read_entries(path, show(path, self.cwd))
        dashed = tuple(replace(entry, key=entry.key.replace("_", "-")) for entry in entries)
        return Way("--k v", where, "prefigure", front=True, prefix="--", entries=dashed)

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


def _pairs_up(node: ast.AST) -> bool:
    """Return whether this is ``zip(words[0::2], words[1::2])``."""
    sliced = node.args if isinstance(node, ast.Call) and last(node.func) == "zip" and len(node.args) == 2 else []
    steps = [
        item.slice.step for item in sliced if isinstance(item, ast.Subscript) and isinstance(item.slice, ast.Slice)
    ]
    return len(steps) == 2 and all(isinstance(step, ast.Constant) and step.value == 2 for step in steps)


def _split_at(node: ast.AST) -> str | None:
    """Return ``=`` of ``word.split("=")`` and of ``word.partition("=")``."""
    splits = isinstance(node, ast.Call) and last(node.func) in ("split", "partition") and node.args
    return string(node.args[0]) if splits else None  # type: ignore[attr-defined]  # of a call


def _after(args: Sequence[str], flags: Sequence[str]) -> str:
    for position, word in enumerate(args):
        name, equals, value = word.partition("=")
        if name in flags:
            return value if equals else next(iter(args[position + 1 : position + 2]), "")
    return ""


def _trainer_entries(entries: Sequence[Entry], where: DeclaredAt) -> Iterator[Entry]:
    """Yield the accumulation of a Lightning trainer that the configuration builds without naming it."""
    for entry in entries:
        section, _, name = entry.key.rpartition(".")
        key, trainer = f"{section}.accumulate_grad_batches", name == "_target_" and _TRAINER.fullmatch(entry.text or "")
        if trainer and not any(each.key == key for each in entries):
            yield Entry(f"+{section}.accumulate_grad_batches", "1", entry.at)


def _globals_before(call: ast.Call, part: ReachablePart) -> Iterator[Entry]:
    for statement in part.source.tree.body:
        if statement.lineno >= call.lineno:
            return
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(statement, ast.Assign) and isinstance(target, ast.Name):
            yield from config_files.literal_entries(target.id, statement.value, part.source, {})
