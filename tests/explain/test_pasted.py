"""What people paste into reports: a title above the log, sentences around it, several ranks at once, several runs."""

from __future__ import annotations

import pytest

from tests.explain.logs import diagnosed, raised

STEPS = "".join(f"epoch 1 step {step}/900 loss 2.{step}\n" for step in range(100, 106))


@pytest.mark.parametrize("file", ["agent/server/api.py:836", "multiprocessing/errors/error_handler.py:141"])
def test_a_traceback_that_torch_elastic_logs(file: str) -> None:
    front = f"E1128 10:00:00.123000 18472 torch/distributed/elastic/{file}] "
    told = "".join(front + line + "\n" for line in raised(None, "KeyError: 'title'").splitlines())
    assert diagnosed(STEPS * 9 + told).what == "KeyError: 'title' at train.py:31 in main"
