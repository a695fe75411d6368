"""Every fault of ranks and of what they read, for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.catalogue import RANKS, Fault
from tests.faults.happening import happens

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fault", RANKS, ids=lambda fault: fault.name)
def test_fault(fault: Fault, tmp_path: Path) -> None:
    happens(fault, tmp_path)
