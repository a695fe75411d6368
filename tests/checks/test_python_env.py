"""The python_env family."""

from __future__ import annotations

import pytest

from ddplaunch.checks.host import CHECKS
from ddplaunch.machine.facts import PythonFacts
from tests.checks.healthy import healthy_facts
from tests.checks.outcome_of import NO_LAUNCH, NO_SCRIPT, found, silent_when_healthy

CODE = "torchrun-of-another-python"


def test_healthy() -> None:
    silent_when_healthy(CHECKS)


def test_fires() -> None:
    python = PythonFacts("/opt/my env/bin/python", "3.11.9", "/usr/bin/torchrun", "/usr/bin/python3")
    for launch, script in ((None, None), (NO_LAUNCH, NO_SCRIPT)):
        finding = found(CHECKS, CODE, healthy_facts(python=python), launch, script)
        assert finding and "/usr/bin/torchrun, which runs /usr/bin/python3" in finding.what
        assert "`export PATH='/opt/my env/bin':$PATH`" in finding.fix


@pytest.mark.parametrize(
    ("executable", "torchrun_python"),
    [
        ("/opt/env/bin/python", "/opt/env/bin/python3.11"),
        ("/usr/bin/python3", "/bin/python3"),
        ("/opt/env/bin/python", None),
        ("/opt/env/bin/python", "python3"),
    ],
)
def test_silent(executable: str, torchrun_python: str | None) -> None:
    python = PythonFacts(executable, "3.11.9", "/opt/env/bin/torchrun", torchrun_python)
    assert found(CHECKS, CODE, healthy_facts(python=python)) is None
