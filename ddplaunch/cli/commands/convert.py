"""``ddplaunch convert``: says a launch line of another launcher, or those of a script, as commands of ddplaunch."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddplaunch.cli.parsing.command import Command
from ddplaunch.cli.streams import answer, answer_json, say, tell, tell_findings
from ddplaunch.planning.convert.launch_words import Word, plain
from ddplaunch.planning.convert.launcher_line import translate
from ddplaunch.planning.convert.translation import Site, Translation, changed
from ddplaunch.planning.flag import Flag
from ddplaunch.ui.shell import diff_text, line_json, line_text, not_converted, notes_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, UsageError, usage

COMMAND = Command(
    examples=(
        ("ddplaunch convert -- torchrun --nproc_per_node=4 train.py", "the command that starts the same ranks"),
        ("ddplaunch convert train.sh", "what changes in a script, as a diff; `--write` changes it"),
    ),
    options=(
        Flag("files", "arguments", "", "Shell and sbatch scripts, or accelerate's YAML; - for stdin.", "FILE"),
        Flag("write", "switch", "", "Change the scripts, and keep a copy of each as FILE.orig."),
        Flag("json", "switch", "", "Every line with its translation, as JSON."),
    ),
    more="It reads shell and sbatch scripts and the YAML of `accelerate config`.",
)

_LARGEST = 64 << 20  # of a script, in bytes


def convert(line: list[str] | None, files: list[str], write: bool | None, json: bool | None) -> int:
    """Print the translation of the ``line`` behind ``--``, or of the launch lines of ``files``.

    Raises UsageError for what is neither.
    """
    if bool(line) == bool(files):
        raise usage(
            "there is nothing to convert" if not files else "a file and a line behind `--`",
            why="`convert` reads scripts, or one launch line behind `--`",
            fix="`ddplaunch convert train.sh`, or `ddplaunch convert -- torchrun --nproc_per_node=4 train.py`",
        )
    if line:
        return _line(plain(line), bool(json))
    status = ExitStatus.DONE
    for name in files:
        status = max(status, _file(name, bool(write), bool(json)))
    return status


def _line(words: list[Word], json: bool) -> int:
    said = translate(words, read_config)
    if said is None:
        raise _no_launcher("that line")
    if json:
        answer_json(line_json(words, said))
    elif said.words:
        answer(line_text(words, said))
    return tell_notes(said, " ".join(word.source for word in words), "")


def _no_launcher(where: str) -> UsageError:
    return usage(
        f"there is no launcher in {where}",
        why="ddplaunch knows torchrun, accelerate, deepspeed, and srun with tasks per node",
        fix="`ddplaunch run 4 -- …` launches any training script",
        code="launcher-missing",
    )


def tell_notes(said: Translation, line: str, where: str) -> ExitStatus:
    """Tell what was dropped and what is not known; return the exit status that follows."""
    if not said.words:
        tell_findings([not_converted(said, line, where)])
        return ExitStatus.FINDINGS
    if said.dropped or said.unknown:
        tell(notes_text(said, Terminal.of(sys.stderr), f"{where}: " if where else ""))
    return ExitStatus.DONE


def _file(name: str, write: bool, json: bool) -> ExitStatus:
    """Convert one script."""
    from ddplaunch.planning.convert.shell_script import sites_of  # a parser, which a line has no need of

    stdin = name == "-"
    data = _read(name) if not stdin else _read_stdin()
    name = "stdin" if stdin else name
    if name.endswith((".yaml", ".yml", ".json")) and read_config(name) is not None:
        return ExitStatus(_line(plain(["accelerate", "launch", "--config_file", name, "train.py"]), json))
    if name.endswith(".py"):
        raise _no_script(name, "is a program of Python")
    sites = sites_of(data, read_config)
    if not any(site.text for site in sites):  # at most what is said of the whole script
        _tell_asides(name, sites)
        raise _no_launcher(f"`{name}`")
    new = changed(data, sites)
    status = ExitStatus.DONE
    if json:
        answer_json({"schema": 1, "file": name, "launches": [_site_json(site) for site in sites]})
    elif write and stdin:
        answer(new)  # there is no file to change: `convert --write - < old.sh > new.sh`
    elif write and new != data:
        _replace(Path(name), data, new)
    elif new != data:
        answer(diff_text(name, data, new))
    for site in sites:
        if site.aside:
            _tell_asides(name, [site])
        else:
            status = max(status, tell_notes(site.said, site.text, f"{name}:{site.line}"))
    return status


def _tell_asides(name: str, sites: Sequence[Site]) -> None:
    for site in sites:
        tell(notes_text(site.said, Terminal.of(sys.stderr), f"{name}:{site.line}: "))


def _site_json(site: Any) -> dict[str, Any]:
    notes = line_json([], site.said)
    return {**notes, "line": site.line, "command": site.said.source if site.said.words else None}


def _read(name: str) -> bytes:
    """Return the bytes of a script. Raises UsageError for what is none."""
    path = Path(name)
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise _no_script(name, "is a directory" if stat.S_ISDIR(about.st_mode) else "is no plain file")
        if about.st_size > _LARGEST:
            raise _no_script(name, "is larger than 64 MiB")
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise _no_script(name, "does not exist") from problem
    except OSError as problem:
        raise _no_script(name, f"cannot be read: {problem.strerror}") from problem
    return _text(name, data)


def _read_stdin() -> bytes:
    """Return the bytes of a script on stdin. Raises UsageError for what is none."""
    with open(0, "rb", closefd=False) as stream:
        data = stream.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise _no_script("stdin", "is larger than 64 MiB")
    return _text("stdin", data)


def _text(name: str, data: bytes) -> bytes:
    if b"\0" in data:
        raise _no_script(name, "is no text")
    return data


def _no_script(name: str, problem: str) -> UsageError:
    return usage(
        f"`{name}` {problem}",
        why="`convert` reads shell scripts, sbatch scripts and accelerate's YAML",
        fix="`ddplaunch convert train.sh`, or a launch line behind `--`",
        code="file-not-readable",
    )


def _replace(path: Path, old: bytes, new: bytes) -> None:
    """Put ``new`` in the place of a script at once, with its mode and owner; ``old`` stays as FILE.orig.

    Raises UsageError for a link, for a copy that is there already, and for what may not be written.
    """
    if path.is_symlink():
        target = shlex.quote(str(path.resolve()))
        raise usage(
            f"`{path}` is a link",
            why="others may use the file behind it, under another name",
            fix=f"`ddplaunch convert --write {target}`",
            code="file-not-writable",
        )
    copy, fresh = path.with_name(f"{path.name}.orig"), path.with_name(f".{path.name}.{os.getpid()}")
    try:
        was = path.stat()
        _create(copy, old, was)
        try:
            _create(fresh, new, was)
            fresh.replace(path)
        except OSError:
            fresh.unlink(missing_ok=True)
            copy.unlink(missing_ok=True)
            raise
    except OSError as problem:
        raise usage(
            f"`{path}` was not changed: {problem.filename or copy}: {problem.strerror}",
            why="the script is copied to FILE.orig, then replaced at once with its owner and mode",
            fix=f"`ddplaunch convert {shlex.quote(str(path))} | patch -p0`, or move the old copy away",
            code="file-not-writable",
        ) from problem
    say(f"changed {path}; the original is {copy}")


def _create(path: Path, data: bytes, like: os.stat_result) -> None:
    """Write a new file with the owner and mode of another; nothing that exists is touched."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), like.st_uid, like.st_gid)
            os.fchmod(file.fileno(), like.st_mode & 0o7777)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def read_config(path: str) -> Mapping[str, str] | None:
    """Return what a file of `accelerate config` says, None for a file that is none or cannot be read."""
    from ddplaunch.planning.convert.accelerate_file import accelerate_options  # for those who have such a file

    try:
        return accelerate_options(_read(path))
    except UsageError:
        return None
