"""Print what a TrainerDDP configuration says about its launch, as words for ddplaunch.

Example: `3 --master-port 12355 --batch-size 64`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml


class AnyTagLoader(yaml.SafeLoader):
    """Safe loading that skips over application tags: nothing that `!pyobject` names is imported here."""


AnyTagLoader.add_multi_constructor("!", lambda loader, suffix, node: None)


def launch_words(config: Any) -> list[str]:
    """Return the world size and the options of the launch.

    Raises ValueError, with the key, for a value that is missing or no positive integer (a port may be quoted, as in
    the guide; `null` leaves it to ddplaunch).
    """
    parallel = config.get("parallel") if isinstance(config, dict) else None
    if not isinstance(parallel, dict):
        raise ValueError("there is no `parallel:` section; TrainerDDP needs one")
    training = config.get("training")
    batch_size = training.get("batch_size") if isinstance(training, dict) else None
    words = [positive("parallel.world_size", parallel.get("world_size"))]
    if parallel.get("master_port") is not None:
        words += ["--master-port", positive("parallel.master_port", parallel["master_port"])]
    if batch_size is not None:
        words += ["--batch-size", positive("training.batch_size", batch_size)]
    return words


def positive(key: str, value: object) -> str:
    """Return ``value`` as decimal digits, or raise ValueError naming ``key``."""
    if isinstance(value, bool) or not str(value).isdecimal() or int(str(value)) < 1:
        raise ValueError(f"`{key}` is {value!r}, not a positive integer")
    return str(int(str(value)))


def main(arguments: list[str]) -> int:
    """Print the words for the file named; return 2, with a line on stderr, if it cannot be used."""
    if len(arguments) != 1:
        print("usage: parallel_section.py CONFIG", file=sys.stderr)
        return 2
    try:
        words = launch_words(yaml.load(Path(arguments[0]).read_text(encoding="utf-8"), AnyTagLoader))
    except (OSError, ValueError, yaml.YAMLError) as problem:
        print(f"error: {arguments[0]}: {problem}; nothing was launched", file=sys.stderr)
        return 2
    print(*words)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
