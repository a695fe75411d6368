"""What one trial is: which launch, how long it is measured, and the command that starts it without harm.

A trial is an ordinary ``ddplaunch run`` with a record of its own. What its script would leave elsewhere, checkpoints
and the files of experiment trackers, goes into a fresh folder: ``{trial_dir}`` among the script's words names it, and
where that is not there the folder is put in the place of the options by which the script is told where to write.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ddplaunch.cli.parsing.typed_words import launch_words
from ddplaunch.planning.options import Said
from ddplaunch.records.directory import new_run_id, runs_directory
from ddplaunch.records.find import numbered
from ddplaunch.records.launchers import read_processes
from ddplaunch.records.own.own_files import closing, open_base, open_folder, remove_folder
from ddplaunch.script.declared import arranged, given, spell
from ddplaunch.script.names import last_word
from ddplaunch.script.script_report import DeclaredOption, ScriptReport
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.variable_names import TRIAL, own_command

#: Stands for the trial's folder among the script's words.
TRIAL_DIR = "{trial_dir}"
#: Flags of a launch that a trial decides for itself, or that would have it go on.
_OWN = ("nproc", "nnodes", "run_id", "phases", "timeout", "show", "verbose", "max_restarts")
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
_MOST_FILES = 50_000
#: What a script's tools leave beside it; said by nobody.
_OF_TOOLS = frozenset({".git", "__pycache__", ".ddplaunch", ".venv", "node_modules", ".pytest_cache", ".mypy_cache"})
#: Folders of caches, and of what is passed between processes: written again by whoever runs the script.
_PASSING = re.compile(r"/(?:__pycache__|\.cache|\.triton|torchinductor_[^/]*|pymp-[^/]*)/|^/(?:dev|proc|sys)/")


@dataclass(frozen=True)
class Measuring:
    """How long a trial is watched: until step times settle, and ``warmup_steps`` at least, then for so much.

    Of ``steps`` and ``seconds`` the one that is over first counts. It fails where nothing is measured in ``timeout_s``
    seconds after its start.
    """

    warmup_steps: int = 5
    steps: int | None = None
    seconds: float | None = 10.0
    timeout_s: float = 600.0


@dataclass(frozen=True)
class TrialOrder:
    """One trial. ``group`` and ``name`` make its run id (``scale-x7k2q9.2x4``); records of a group are folded by `ps`.

    ``processes`` is NPROC as it is typed. ``said`` are the flags of the launch, those of the trial already among them,
    ``words`` other flags of ``run`` (``--profile``, ``--hosts``), ``script`` what stands behind ``--``. ``variables``
    are set for the ranks. ``keep`` leaves the trial's folder where it is. ``elsewhere`` says that ranks
    run on other machines, whose records may be here only after the end.
    """

    group: str
    name: str
    processes: str
    said: Said
    script: tuple[str, ...]
    words: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    measuring: Measuring = Measuring()
    keep: bool = False
    elsewhere: bool = False

    @property
    def run_id(self) -> str:
        """The name of the run."""
        return f"{self.group}.{self.name}"


@dataclass(frozen=True)
class TrialPlaces:
    """Where a trial's things are: ``record`` is the run's directory, ``folder`` holds what the script writes.

    ``output`` is what ``{trial_dir}`` stands for, ``trackers`` is for W&B and its like; both are in ``folder``.
    """

    record: Path
    folder: Path

    @property
    def output(self) -> Path:
        """The script's own folder."""
        return self.folder / "output"

    @property
    def told(self) -> Path:
        """What the launch tells of itself."""
        return self.folder / "told.jsonl"

    @property
    def trackers(self) -> Path:
        """The folder of experiment trackers."""
        return self.folder / "trackers"


def new_group(command: str) -> str:
    """Return a name for the trials of one command: ``scale-20261121-143012-x7k2q9``."""
    return f"{command}-{new_run_id()}"


def places_of(order: TrialOrder, environ: Mapping[str, str], cwd: Path) -> TrialPlaces:
    """Return where the record of a trial will be, and its folder, beside the records."""
    said = order.said.get("run_dir")
    base = runs_directory(environ, None if said is None else str(said.value), cwd)
    return TrialPlaces(base / "runs" / order.run_id, base / "trials" / order.run_id)


def command_of(order: TrialOrder, places: TrialPlaces, report: ScriptReport | Unavailable) -> list[str]:
    """Return the words that start the trial; ``report`` says how the script is told where to write."""
    ours = [f"{name}={value}" for name, value in (*_trackers(places.trackers), *order.variables)]
    ours.append(f"{TRIAL}={order.group}/{order.name}")
    words = ["run", order.processes, "--run-id", order.run_id, "--phases", *order.words]
    words += [word for each in ours for word in ("--env", each)]  # in front, so that what the user sets wins
    words += launch_words(order.said, _OWN)
    script = redirected(order.script, places.output, report)
    return own_command(sys.executable, "ddplaunch", *words, "--", *script)


def _trackers(folder: Path) -> list[tuple[str, str]]:
    """Return the variables that have experiment trackers write into ``folder`` and reach for no server.

    https://docs.wandb.ai/models/ref/python/environment-variables, https://mlflow.org/docs/latest/ml/tracking; the
    Trainer of Hugging Face writes its TensorBoard files where TENSORBOARD_LOGGING_DIR says, and ranks of a trial make
    torch's SummaryWriter do so. MLflow 3 refuses folders unless MLFLOW_ALLOW_FILE_STORE is set.
    """
    off = os.environ.get("WANDB_MODE") == "disabled"
    return [
        *((name, str(folder)) for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR")),
        *([] if off else [("WANDB_MODE", "offline")]),
        ("MLFLOW_TRACKING_URI", f"file://{folder / 'mlruns'}"),
        ("MLFLOW_ALLOW_FILE_STORE", "true"),
        ("TENSORBOARD_LOGGING_DIR", str(folder / "tensorboard")),
    ]


def redirected(script: Sequence[str], output: Path, report: ScriptReport | Unavailable) -> tuple[str, ...]:
    """Return the words behind ``--`` of a script that writes into ``output`` instead of where it would."""
    if any(TRIAL_DIR in word for word in script):
        return tuple(word.replace(TRIAL_DIR, str(output)) for word in script)
    if isinstance(report, Unavailable):
        return tuple(script)
    begin = 2 if script[:1] == ["-m"] or script[:1] == ("-m",) else 1
    head, args = tuple(script[:begin]), tuple(script[begin:])
    folders = [option for option in report.options if _is_named(option, _FOLDER) or _is_said_to_be(option)]
    additions = []
    files = (each for each in report.options if _is_named(each, _FILE) and each not in folders)
    for option in (*folders, *files):
        values = given(args, option, report.options)
        folder = option in folders
        place = output / last_word(option.flags[-1]) if folder and len(folders) > 1 else output
        for value in values:
            args = _replaced(args, option, value, str(place if folder else output / Path(value).name))
        if folder and not values and option.fillable and option.spelling != "file":
            additions.append((option, spell(option, str(place))))
    return (*head, *arranged(args, additions))


def make_folders(words: Sequence[str], places: TrialPlaces) -> None:
    """Make the folders that have to be there before the trial's command ``words`` runs. Raises OSError."""
    inside = [Path(word.rpartition("=")[2]) for word in words if str(places.output) in word]
    wanted = [each.parent if each.suffix else each for each in inside if each.is_relative_to(places.output)]
    for path in (places.output, places.trackers, *wanted):
        reached = places.folder.parents[1]
        descriptor = open_base(reached, create=True)
        for name in path.relative_to(reached).parts:
            reached = reached / name
            with closing(descriptor):
                descriptor = open_folder(descriptor, name, str(reached), create=True)
        os.close(descriptor)


def remove_folders(places: TrialPlaces) -> None:
    """Remove the trial's folder with all in it; what cannot be removed stays."""
    with suppress(OSError), closing(open_base(places.folder.parents[1])) as base:
        with closing(open_folder(base, places.folder.parent.name)) as trials:
            remove_folder(trials, places.folder.name)
        os.rmdir(places.folder.parent.name, dir_fd=base)  # the last one


def _is_named(option: DeclaredOption, pattern: re.Pattern[str]) -> bool:
    if not option.takes_value or option.kind in ("int", "float", "bool"):
        return False
    return any(pattern.fullmatch(last_word(flag)) for flag in option.flags)


def _is_said_to_be(option: DeclaredOption) -> bool:
    return _is_named(option, _FILE) and _SAYS_FOLDER.match(option.help) is not None


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


class WrittenOutside:
    """The files that a trial writes outside of its own folders, from the moment that this is made."""

    def __init__(self, order: TrialOrder, places: TrialPlaces) -> None:
        """Look at the working directory and the folders that the script's words name, as they are now."""
        named = [Path(word.rpartition("=")[2]) for word in order.script[1:] if "/" in word]
        cwd, self._places, self._elsewhere = Path.cwd(), places, order.elsewhere
        folders = [folder.absolute() for folder in named if folder.is_dir()]
        self._folders = (cwd, *(each for each in dict.fromkeys(folders) if not each.is_relative_to(cwd)))
        self._before, self._began_s = self._files(self._folders), time.time()
        self._open: set[str] = set()

    def look(self, pids: Iterable[int]) -> None:
        """Add what these processes have open to write now."""
        for pid in pids:
            self._open.update(_open_to_write(pid))

    def found(self) -> tuple[str, ...]:
        """Return the paths, sorted: what is new or has changed, and what ranks noted or had open."""
        own, after = (f"{self._places.record}/", f"{self._places.folder}/"), self._files(self._folders)
        found = {path for path in self._open if not path.startswith(own)}
        if max(len(self._before), len(after)) < _MOST_FILES:
            found |= {path for path, seen in after.items() if self._before.get(path) != seen}
        found |= {path for path in self._noted() if not path.startswith(own)}
        return tuple(sorted(found.union(self._on_other_hosts() if self._elsewhere else ())))

    def _on_other_hosts(self) -> Iterator[str]:
        """Yield as ``HOST:PATH`` what ranks noted on other hosts and this one has not; it may be gone there by now."""
        own = tuple(f"{each.parent}" for each in (self._places.record, self._places.folder))
        for node in read_processes(self._places.record):
            notes = (self._places.record / f"node-{node.node}").glob("attempt-*/rank-*.written")
            paths = {path for note in notes for path in os.fsdecode(note.read_bytes()).splitlines()}
            above = {str(parent) for path in paths for parent in Path(path).parents}
            for path in paths - above if node.host != socket.gethostname() else ():
                passing = _PASSING.search(f"{path}/") or Path(path).parent == Path(tempfile.gettempdir())
                if not (passing or path.startswith(own) or os.path.lexists(path)):
                    yield f"{node.host}:{path}"

    def _noted(self) -> Iterator[str]:
        """Yield the files, written since it began, of which ranks noted that they write them, or made their folder."""
        for _, node in numbered(self._places.record, "node"):
            for note in node.glob("attempt-*/rank-*.written"):
                with suppress(OSError):
                    for path in map(Path, os.fsdecode(note.read_bytes()).splitlines()):
                        inside = self._files((path,)) if path.is_dir() else (str(path),)
                        yield from filter(self._is_new, inside)

    def _is_new(self, path: str) -> bool:
        with suppress(OSError):
            return not _PASSING.search(path) and Path(path).stat().st_mtime >= self._began_s - 1.0
        return False

    def _files(self, folders: Sequence[Path]) -> dict[str, tuple[int, int]]:
        """Return the files below ``folders`` with time and size of each, without the records; ``_MOST_FILES`` at most.

        So many are too many to know which of them have changed.
        """
        found: dict[str, tuple[int, int]] = {}
        skipped = {str(self._places.record.parent.parent), str(self._places.folder.parent)}
        for folder in folders:
            for at, inside, names in os.walk(folder):
                inside[:] = [name for name in inside if name not in _OF_TOOLS and f"{at}/{name}" not in skipped]
                for name in names:
                    with suppress(OSError):
                        seen = os.lstat(f"{at}/{name}")
                        found[f"{at}/{name}"] = seen.st_mtime_ns, seen.st_size
                if len(found) >= _MOST_FILES:
                    return found
        return found


def _open_to_write(pid: int) -> Iterator[str]:
    folder = Path(f"/proc/{pid}")
    with suppress(OSError):
        for link in (folder / "fd").iterdir():
            with suppress(OSError, ValueError, IndexError):
                target = str(link.readlink())
                if not target.startswith("/") or target.startswith(("/dev/", "/proc/", "/sys/", "/tmp/")):
                    continue
                flags = (folder / "fdinfo" / link.name).read_text().split("flags:")[1].split()[0]
                if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY and not target.endswith(" (deleted)"):
                    yield target
