"""What commands write: findings and other speech to stderr, data to stdout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ddplaunch.cli.told import tell_findings_to_starter
from ddplaunch.ui.speech import findings_text
from ddplaunch.ui.terminal import Terminal, speak, write
from ddplaunch.values.finding import Finding


def tell(text: str) -> None:
    """Write speech to stderr."""
    speak(text)


def answer(text: str) -> None:
    """Write data to stdout; a reader that went away (``| head -1``) is no error."""
    write(text)


def answer_json(value: Any) -> None:
    """Write a value to stdout as JSON."""
    import json

    write(json.dumps(value, indent=2) + "\n")


def tell_findings(findings: Sequence[Finding]) -> None:
    """Write findings to stderr, each in four lines."""
    if findings:
        tell(findings_text(findings, Terminal.of(sys.stderr)) + "\n")
        tell_findings_to_starter(findings)
