"""What every benchmark does with its arguments and its findings."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that knows ``--check`` (exit with 1 if a target is missed) and ``--no-write``."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    made.add_argument("--no-write", action="store_true", help="print only")
    return made


_LEAF = re.compile(r"\{[^{}\[\]]+\}")


def _in_a_line(leaf: re.Match[str]) -> str:
    """Return an object without others inside in one line; braces in a string are left alone."""
    try:
        return json.dumps(json.loads(leaf[0]))
    except ValueError:
        return leaf[0]


def publish(name: str, text: str, value: Any, *, write: bool = True) -> None:
    """Print ``text``; with ``write`` keep it as ``results/NAME.md``, and ``value`` beside it as JSON."""
    print(text)
    if write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(_LEAF.sub(_in_a_line, json.dumps(value, indent=1)) + "\n")
        (RESULTS / f"{name}.md").write_text(text)
