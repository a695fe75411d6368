"""Ways in which a script lets words of its command line override the keys of its configuration.

Each is recognised by the call that reads the words, in Hydra, OmegaConf, yacs, mmengine or nanoGPT.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddplaunch.script.configuration import config_files
from ddplaunch.script.configuration.config_files import Entry
from ddplaunch.script.names import assignments, at, destination, dotted, keyword, last, string, strings
from ddplaunch.script.options.calls import has_positional
from ddplaunch.script.program import Program, show
from ddplaunch.script.reachable import ReachablePart, calls_in
from ddplaunch.script.script_report import DeclaredAt, Spelling
from ddplaunch.script.source import read_text
from ddplaunch.values.frozen import dataclass

# https://mmengine.readthedocs.io/en/latest/advanced_tutorials/config.html
_MMENGINE = ("train_dataloader.batch_size", "optim_wrapper.optimizer.lr", "optim_wrapper.accumulative_counts")
# https://detectron2.readthedocs.io/en/latest/modules/config.html#yaml-config-references
_DETECTRON = ("SOLVER.IMS_PER_BATCH", "SOLVER.BASE_LR", "SOLVER.WARMUP_ITERS")


# Functions that read words of the command line into a configuration.
_READERS = (
    "from_cli",
    "from_dotlist",
    "merge_from_list",
    "cfg_from_list",
    "DictAction",
    "add_argument",
    "exec",
    "main",
)
# In a file of Hydra that is composed with others.
_DEFAULTS = re.compile(r"^defaults:", re.MULTILINE)


@dataclass(frozen=True)
class Way:
    """How overrides are spelled, and where keys can be besides the files that the arguments name.

    ``entries`` hold keys; ``known`` are those that the library documents.
    """

    spelling: Spelling
    at: DeclaredAt
    parser: str
    after_flag: str = ""
    comes_first: bool = False
    prefix: str = ""
    entries: tuple[Entry, ...] = ()
    known: tuple[str, ...] = ()


class Ways:
    """Finds the ways of one program."""

    def __init__(
        self,
        program: Program,
        parts: Sequence[ReachablePart],
        args: Sequence[str],
        cwd: Path,
    ) -> None:
        """Remember the program."""
        self.program, self.parts, self.args, self.cwd = program, parts, args, cwd
        self.packages = {name.partition(".")[0] for part in parts for name in part.aliases.values()}

    def found(self) -> Iterator[Way]:
        """Yield every way."""
        for call, part in calls_in(self.parts, *_READERS):
            yield from self._called(call, part)

    def _lists(self) -> Iterator[tuple[str, str]]:
        """Yield the flag, empty for none, and the destination of each option that takes any number of words.

        Of several flags it is the one that is passed: a second one would replace what the first one took.
        """
        passed = {word.partition("=")[0] for word in self.args}
        for part in self.parts:
            for call in part.calls_of("add_argument"):
                nargs = keyword(call, "nargs")
                several = last(nargs) == "REMAINDER" or string(nargs) in ("*", "+", "...")
                flags = strings(call.args) or []
                if several and flags:
                    chosen = [flag for flag in flags if flag in passed] or [each for each in flags if each[:2] == "--"]
                    flag = (chosen or flags)[0]
                    yield (flag if flag.startswith("-") else ""), string(keyword(call, "dest")) or destination(flags)

    def _called(self, call: ast.Call, part: ReachablePart) -> Iterator[Way]:
        name, full = last(call.func), dotted(call.func, part.aliases)
        where = at(call, part.source)
        if name in ("from_cli", "from_dotlist") and full.startswith("omegaconf."):
            flag, first = self._source_of(call.args[0]) if call.args else ("", False)
            yield Way("k=v", where, "omegaconf", flag, first)
        elif full == "hydra.main":
            yield Way("k=v", where, "hydra", entries=tuple(self._hydra(call, part)))
        elif name in ("merge_from_list", "cfg_from_list") and call.args:
            known = _DETECTRON if "detectron2" in self.packages else ()
            flag, first = self._source_of(call.args[0])
            yield Way("k v", where, "yacs", flag, first, entries=tuple(self._yacs()), known=known)
        elif name == "DictAction" or (name == "add_argument" and last(keyword(call, "action")) == "DictAction"):
            flag = next((each for item in call.args if (each := string(item) or "").startswith("--")), "")
            # without mmengine's runner the script itself chooses its keys
            keys: tuple[str, ...] = _MMENGINE if "Runner" in part.aliases else ()
            yield Way("k=v", where, "mmengine", flag, known=keys)
        elif full == "exec" and call.args and self._is_configurator(call.args[0]):
            yield Way("--k=v", where, "globals", prefix="--", entries=tuple(_globals_before(call, part)))

    def _hydra(self, call: ast.Call, part: ReachablePart) -> Iterator[Entry]:
        """Yield the entries of the file that ``hydra.main`` names; none if it is composed with others.

        See https://hydra.cc/docs/advanced/defaults_list/.
        """
        folder = string(keyword(call, "config_path") or next(iter(call.args), None)) or ""
        name = string(keyword(call, "config_name") or next(iter(call.args[1:]), None)) or ""
        path = Path(os.path.normpath(part.source.path.parent / folder / f"{name.removesuffix('.yaml')}.yaml"))
        read = read_text(path)
        composes = any(word.startswith(("+", "-c", "--config")) for word in self.args)
        if read is not None and not composes and not _DEFAULTS.search(read.text):
            yield from config_files.read_entries(path, show(path, self.cwd))

    def _source_of(self, node: ast.AST) -> tuple[str, bool]:
        """Return the flag that overrides follow, and whether they are what a parser left over: they may come first."""
        wanted = {last(inner) for inner in ast.walk(node) if isinstance(inner, (ast.Attribute, ast.Name))}
        names = ("opts", "options", "overrides", "override", "cfg_options", "opt", "set", "cfg_overrides")
        for own in (wanted, set(names)):
            for flag, dest in self._lists():
                if dest in own:
                    return flag, False
        return "", not has_positional(self.parts) and any(calls_in(self.parts, "parse_known_args"))

    def _yacs(self) -> Iterator[Entry]:
        """Yield what modules assign below a ``CfgNode``: ``_C.TRAIN.LR = 0.1``."""
        for file in list(self.program.files.values()):
            if "CfgNode" not in file.text and "yacs" not in file.text:
                continue
            source = self.program.tree_of(file.path)
            if source is None:
                continue
            for statement in source.tree.body:
                for target, value in assignments(statement):
                    _, _, key = ast.unparse(target).partition(".")
                    if key and all(name.isidentifier() for name in key.split(".")):
                        yield from config_files.literal_entries(key, value, source)

    def _is_configurator(self, node: ast.AST) -> bool:
        """Return whether a file is executed that sets module-level names from ``--key=value`` words."""
        texts = [text for inner in ast.walk(node) if (text := string(inner))]
        name = "/".join(texts).partition(".py")[0]
        files = (read_text(folder / f"{name}.py") for folder in (self.cwd, self.program.root.path.parent))
        return any(file and "globals()" in file.text and "argv" in file.text for file in files)


def _globals_before(call: ast.Call, part: ReachablePart) -> Iterator[Entry]:
    for statement in part.source.tree.body:
        if statement.lineno >= call.lineno:
            return
        for target, value in assignments(statement):
            if isinstance(target, ast.Name):
                yield from config_files.literal_entries(target.id, value, part.source)
