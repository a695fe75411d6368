"""``ddplaunch init``: a commented ``ddplaunch.toml`` for the script at hand; with ``--script`` a script that trains."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from ddplaunch import cli, examples
from ddplaunch.cli.parsing.command import Command
from ddplaunch.cli.prepare import prepare
from ddplaunch.cli.streams import say
from ddplaunch.cli.target import parse_target
from ddplaunch.planning.flag import Flag
from ddplaunch.planning.options import Options
from ddplaunch.values.finding import ExitStatus, usage

COMMAND = Command(
    examples=(
        ("ddplaunch init", "ddplaunch.toml, with the numbers of train.py"),
        ("ddplaunch init mine.py --script", "mine.py as well: a small model that trains with DDP"),
    ),
    options=(
        Flag("target", "argument", "", "The script at hand; no file is replaced [train.py].", "SCRIPT"),
        Flag("script", "switch", "", "Write SCRIPT too: a small transformer, trained with nothing but torch."),
    ),
)

_FILE = "ddplaunch.toml"
#: Keys of the profile for numbers of the script; a rate to scale from is for the user to switch on.
_KEYS = {"batch_size": "batch-size", "accum": "accum", "lr": "# base-lr", "warmup_steps": "# base-warmup"}


def init(target: str | None, script: bool | None) -> int:
    """Write the files. Raises UsageError where the script exists, or without ``--script`` a profile, or no script."""
    name = target or "train.py"
    if script:
        _refuse(name, f"`ddplaunch init {_free(name)} --script` writes it under another name")
        example = Path(examples.__file__).with_name("train_char.py").read_bytes()
        Path(name).write_bytes(example.replace(b"train_char.py", os.fsencode(name)))
        if os.path.lexists(_FILE):
            say(f"wrote {name}; `ddplaunch run 2 -- {name}` trains, and {_FILE} stays as it is")
            return ExitStatus.DONE
    script_at_hand = parse_target([name])
    _refuse(_FILE, f"edit it; after `mv {_FILE} {_FILE}.old` the same command writes a new one")
    numbers = prepare(Options(), script_at_hand).launch.numbers
    text = Path(cli.__file__).with_name("init.toml").read_text("utf-8")
    text = text.replace("NAME", Path(name).stem).replace("SCRIPT", name)
    for field, key in _KEYS.items():
        number = getattr(numbers, field)
        if number is not None and number.source.kind == "script":
            text += f"{key} = {number.value}  # {number.source}\n"
    Path(_FILE).write_text(text, "utf-8")
    say(
        f"wrote {f'{name} and ' * bool(script)}{_FILE}; `ddplaunch run 2 --profile {Path(name).stem} -- {name}` uses it"
    )
    return ExitStatus.DONE


def _refuse(path: str, fix: str) -> None:
    if os.path.lexists(path):
        raise usage(f"`{path}` exists", why="`init` replaces no file", fix=fix)


def _free(name: str) -> str:
    return next(free for number in count(2) if not os.path.lexists(free := f"{Path(name).stem}{number}.py"))
