"""A machine and its checks as Markdown for a bug report; refuses to show what looks secret."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from ddplaunch.checks.check import Outcome
from ddplaunch.probes.environment import redact
from ddplaunch.probes.facts import Facts
from ddplaunch.records.plain import plain
from ddplaunch.ui.doctor_view import doctor_text

# What concerns a launch; the rest of an environment is nobody's business.
_RELEVANT = re.compile(
    r"(NCCL|TORCH|PYTORCH|CUDA|NVIDIA|GLOO|PET|OMP|MKL|SLURM|DDPLAUNCH|UCX|FI|MASTER)_"
    r"|(RANK|LOCAL_RANK|GROUP_RANK|NODE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|LD_LIBRARY_PATH|PATH|PYTHON\w*|VIRTUAL_ENV)$"
)
# A command line or an address can carry a secret outside of any variable: --api-key x, TOKEN=x, https://user:x@host.
_NAME = r"(?:token|secret|password|passwd|passphrase|credential|(?:api|access|secret|private)[-_]?key)s?"
_SECRET = re.compile(rf"(--?[\w-]*{_NAME}(?:=|\s+)|\b\w*{_NAME}=)(\"[^\"]*\"|'[^']*'|[^\s\"',`]+)", re.IGNORECASE)
_LOGIN = re.compile(r"(\w+://[^\s/:@]*:)[^\s/@]+@")


def scrub(text: str) -> str:
    """Return ``text`` with the values of what looks like a password or a token replaced by ``***``."""
    return _LOGIN.sub(r"\1***@", _SECRET.sub(r"\1***", text))


def report_text(facts: Facts, outcomes: Sequence[Outcome], versions: Mapping[str, str]) -> str:
    """Return the report: versions, the checks as `doctor` prints them, the facts as JSON."""
    lines = ["### ddplaunch doctor", ""]
    lines += [f"- {name} {version}" for name, version in versions.items()]
    lines += ["", "```text", scrub(doctor_text(outcomes, facts, 100, False)).rstrip("\n"), "```", ""]
    lines += ["<details><summary>Facts</summary>", "", "```json", _facts(facts), "```", "", "</details>"]
    return "\n".join(lines) + "\n"


def _facts(facts: Facts) -> str:
    shown = plain(facts)
    environment = {name: value for name, value in sorted(facts.environment.items()) if _RELEVANT.match(name)}
    shown["environment"] = {name: redact(name, value) for name, value in environment.items()}
    return json.dumps(_scrubbed(shown), indent=1)


def _scrubbed(value: object) -> object:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {key: _scrubbed(each) for key, each in value.items()}
    return [_scrubbed(each) for each in value] if isinstance(value, list) else value
