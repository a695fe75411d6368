"""Where a trial's script writes: a folder of the trial's own instead of the user's, by options and variables.

``prepare_place`` decides all of it, so that another kind of place, such as a copy of the working directory, needs only
that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ddplaunch.records.own.own_files import closing, open_base, open_folder, remove_folder
from ddplaunch.script.declared import arranged, given, spell
from ddplaunch.script.names import last_word
from ddplaunch.script.script_report import DeclaredOption, ScriptReport
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable

#: Options that say in which folder a script writes, by the end of their names. What is read is called alike, as in
#: ``--checkpoint-path``, so that names that may mean both are left out.
_FOLDER = re.compile(
    r"(?:.*-)?(?:output|out|save|log|logging|tensorboard|tb|summary|result|results|work|exp|experiment|run|default-root"
    r"|wandb|dump)-?(?:dir|directory|folder|root)|logdir|(?:save-|write-)?(?:checkpoints?|ckpts?)-(?:dir|folder)|save-path"
)
#: Options that may name a file too: replaced where they are given, never added.
_FILE = re.compile(r"output|out|save|save-to|output-(?:file|path)|out-(?:file|path)|log-file|save-(?:file|name)")
#: What the help of such an option says where it names a folder after all: timm's ``--output``.
_SAYS_FOLDER = re.compile(r"(?i)(?!.*\bfile)(?=.*\b(?:folder|directory)\b)")
_OF_TOOLS = frozenset(
    {".git", ".ddplaunch", "__pycache__", ".venv", "node_modules", ".pytest_cache", ".mypy_cache", ".cache"}
)
_MOST_FILES = 50_000
#: What has experiment trackers write into a folder, and reach for no server.
#: https://docs.wandb.ai/models/ref/python/environment-variables, https://mlflow.org/docs/latest/ml/tracking; the
#: Trainer of Hugging Face writes its TensorBoard files where TENSORBOARD_LOGGING_DIR says, and ranks of a trial make
#: torch's SummaryWriter do so. MLflow 3 refuses folders unless MLFLOW_ALLOW_FILE_STORE is set.
_TRACKERS = {
    "WANDB_DIR": "{}",
    "WANDB_CACHE_DIR": "{}",
    "WANDB_DATA_DIR": "{}",
    "WANDB_MODE": "offline",
    "MLFLOW_TRACKING_URI": "file://{}/mlruns",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "TENSORBOARD_LOGGING_DIR": "{}/tensorboard",
}


@dataclass(frozen=True)
class TrialPlace:
    """``folder`` is the trial's own, ``script`` the words after ``--`` and ``variables`` those of its ranks.

    ``folders`` are made before it begins.
    """

    folder: Path
    script: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    folders: tuple[Path, ...]

    @property
    def told(self) -> Path:
        """Where the launch says what it found."""
        return self.folder / "told.jsonl"

    def make(self) -> None:
        """Make the folders. Raises OSError, NotOursError among them."""
        base, name = self.folder.parents[1], self.folder.name
        with (
            closing(open_base(base, create=True)) as parent,
            closing(open_folder(parent, "trials", f"{base}/trials", create=True)) as trials,
        ):
            os.close(open_folder(trials, name, str(self.folder), create=True))
        for path in self.folders:
            path.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """Remove the trial's folder with all in it; what cannot be removed stays."""
        with suppress(OSError), closing(open_base(self.folder.parents[1])) as base:
            with closing(open_folder(base, "trials")) as trials:
                remove_folder(trials, self.folder.name)
            os.rmdir("trials", dir_fd=base)  # the last one


def prepare_place(base: Path, run_id: str, script: Sequence[str], report: ScriptReport | Unavailable) -> TrialPlace:
    """Return where a trial writes whose records are in ``base``; ``report`` says how its script is told so."""
    folder = base / "trials" / run_id
    trackers = folder / "trackers"
    words, folders = _redirected(script, folder / "output", report)
    variables = [(name, text.format(trackers)) for name, text in _TRACKERS.items()]
    if os.environ.get("WANDB_MODE") == "disabled":
        variables.remove(("WANDB_MODE", "offline"))
    return TrialPlace(folder, words, tuple(variables), (folder / "output", trackers, *folders))


def _redirected(
    script: Sequence[str], output: Path, report: ScriptReport | Unavailable
) -> tuple[tuple[str, ...], list[Path]]:
    """Return the words after ``--`` of a script that writes into ``output``, and the folders that they name."""
    if isinstance(report, Unavailable):
        return tuple(script), []
    begin = 2 if script[0] == "-m" else 1
    args = tuple(script[begin:])
    folders, additions = [], []
    for option in report.options:
        folder = _is_named(option, _FOLDER)
        if not folder and not _is_named(option, _FILE):
            continue
        folder = folder or _SAYS_FOLDER.match(option.help) is not None
        place = output / last_word(option.flags[-1])
        values = given(args, option, report.options)
        for value in values:
            args = _replaced(args, option, value, str(place if folder else output / Path(value).name))
        if folder and not values and option.fillable and option.spelling != "file":
            additions.append((option, spell(option, str(place))))
        folders += [place] if folder else []
    return (*script[:begin], *arranged(args, additions)), folders


def _is_named(option: DeclaredOption, pattern: re.Pattern[str]) -> bool:
    if not option.takes_value or option.kind in ("int", "float", "bool"):
        return False
    return any(pattern.fullmatch(last_word(flag)) for flag in option.flags)


def _replaced(args: Sequence[str], option: DeclaredOption, value: str, new: str) -> tuple[str, ...]:
    """Return ``args`` with another value of an option; where it is not found as it is spelled, it follows once more."""
    result = list(args)
    for position, word in enumerate(result):
        name, equals, attached = word.partition("=")
        if name.lstrip("+") not in option.flags:
            continue
        if equals and attached == value:
            result[position] = f"{name}={new}"
            return tuple(result)
        if not equals and result[position + 1 : position + 2] == [value]:
            result[position + 1] = new
            return tuple(result)
    return (*result, *spell(option, new))


def files_here(base: Path) -> dict[str, tuple[int, int]]:
    """Return time and size of the files in the working directory, without the records in ``base``.

    Of more than 50,000 files none is returned: looking at them would take longer than a trial.
    """
    files: dict[str, tuple[int, int]] = {}
    for folder, inside, names in os.walk(Path.cwd()):
        inside[:] = [name for name in inside if name not in _OF_TOOLS and Path(folder, name) != base.absolute()]
        for name in names:
            with suppress(OSError):
                status = os.lstat(f"{folder}/{name}")
                files[f"{folder}/{name}"] = status.st_mtime_ns, status.st_size
        if len(files) > _MOST_FILES:
            return {}
    return files
