"""Every fault of ranks, of what they read, of memory, ports and the network, and ranks that print little, for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.catalogue import MACHINE, NETWORK, RANKS, WORDS, Fault
from tests.faults.happening import happens

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[pytest.mark.root] if fault.root else [])
        for fault in (*RANKS, *WORDS, *MACHINE, *NETWORK)
    ],
)
def test_fault(fault: Fault, tmp_path: Path) -> None:
    happens(fault, tmp_path)
