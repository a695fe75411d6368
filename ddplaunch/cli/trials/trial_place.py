"""Where a trial runs: in the working tree as it is, without letting the trial's changes out."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from ddplaunch.machine import scratch_tree
from ddplaunch.records.gpu_lock import lock_directory
from ddplaunch.records.own.own_files import closing, open_base
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.variable_names import own_command

#: Caches of compilers and model hubs that trials may add to: variables, and folders in the home directory.
_CACHES = "XDG_CACHE_HOME HF_HOME TORCH_HOME TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR CUDA_CACHE_PATH"
_CACHES_OF_HOME = (".cache", ".triton", ".nv", ".config/matplotlib")


@dataclass(frozen=True)
class TrialPlace:
    """``folder`` takes the trial's changes to ``tree``, ``temporary`` its temporary files; both are the trial's own.

    ``folder`` is None where the trial changes the tree itself. ``records`` is where the trial's record goes.
    """

    folder: Path | None
    temporary: Path
    tree: Path
    records: Path

    @property
    def told(self) -> Path:
        """The file to which the launch reports its findings."""
        return self.temporary / "told.jsonl"

    @property
    def variables(self) -> dict[str, str]:
        """Variables that keep experiment trackers from contacting a server.

        https://docs.wandb.ai/models/ref/python/environment-variables, https://mlflow.org/docs/latest/ml/tracking
        """
        offline = {} if os.environ.get("WANDB_MODE") == "disabled" else {"WANDB_MODE": "offline"}
        return {**offline, "MLFLOW_TRACKING_URI": f"file://{self.temporary}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}

    def command(self) -> list[str]:
        """Return a command prefix that runs the command after it in this place; empty where trials change the tree."""
        if self.folder is None:
            return []
        caches = [path for name in _CACHES.split() if (path := os.environ.get(name))]
        caches += [str(Path.home() / name) for name in _CACHES_OF_HOME]
        places = map(str, (self.folder, self.tree, self.records, self.temporary, lock_directory(os.environ)))
        return [*own_command(sys.executable, "ddplaunch.machine.scratch_tree", *places, *caches), "--"]

    def changes(self) -> tuple[str, ...]:
        """Return the files that the trial wrote or removed, as paths below the tree."""
        if self.folder is None:
            return ()
        written, removed = scratch_tree.changes_in(self.folder, self.tree)
        return (*written, *(f"{path} (removed)" for path in removed))

    def remove(self) -> None:
        """Remove the trial's files."""
        scratch_tree.remove(self.temporary)
        if self.folder is not None:
            scratch_tree.remove(self.folder)


def make_place(base: Path, run_id: str, *, in_place: bool) -> TrialPlace:
    """Make the place for a trial whose record goes to ``base``. Raises OSError, including NotOursError."""
    with closing(open_base(base, create=True)):
        pass
    working_directory = Path.cwd()
    tree = next(
        (path for path in (working_directory, *working_directory.parents) if (path / ".git").exists()),
        working_directory,
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddplaunch" / "trials"
    folder = None if in_place else cache / run_id
    if folder is not None and tree in folder.parents:
        folder = Path(tempfile.mkdtemp(prefix="ddplaunch-trial-"))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return TrialPlace(folder, Path(tempfile.mkdtemp(prefix="ddplaunch-")), tree, base.absolute())
