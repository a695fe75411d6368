"""What a report draws of a rank's output: the loss and the rates in its lines, and where else the run is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddplaunch.records.log_files import LOSS, STEPS

_NUMBER = r"(\d{1,12}(?:\.\d{1,9})?)"
_COUNTED = "(?:samples?|images?|img|examples?|seq|sequences?|tokens?|tok|it|iters?|iterations?|steps?|batch(?:es)?)"
#: ``350 samples/s``, ``4.1it/s``, ``throughput: 1200``, ``'train_samples_per_second': 350.1``
_RATE = re.compile(
    rf"(?i)(?<![\w.]){_NUMBER} ?({_COUNTED}/s(?:ec\w*)?)\b(?![\"']?[:=])"
    rf"|(throughput|{_COUNTED}(?:/s|_per_s)(?:ec\w*)?)[\"']?\s{{0,3}}[:=]?\s{{0,6}}{_NUMBER}".encode()
)
_PER_SECOND = re.compile("(?:/|_per_)s.*")
#: Where a run is also shown, by the line that says it: a page of W&B (SERVER/ENTITY/PROJECT/runs/ID), or the folder of
#: a run offline; a page of MLflow or Databricks; a folder or page of TensorBoard.
_ALSO_SHOWN = {
    "W&B": re.compile(
        rb"(?:View run .{,99}|(?=http\S{,99}wandb)|wandb sync )"
        rb"(https?:/(?:/[!-.0-~]{1,99}){3}/runs/[\w-]+|/.{,255}offline-run-[\w-]+)"
    ),
    "MLflow": re.compile(rb"(https?://\S{1,99}/(?:#|ml)/experiments/\d+/runs/\w+(?:\?workspace=[\w.%~-]+)?)"),
    "TensorBoard": re.compile(
        rb"(?i)tensorboard\W.{0,40}?(?:--logdir[= ]|\b(?:in|to|at|dir\w*)[:=]? )[\"'`]?(https?://[\w.:/-]+|[\w./~-]+)"
    ),
}


def curves_in(lines: Iterable[bytes]) -> dict[str, list[tuple[float, str]]]:
    """Return the numbers in a rank's output, ``loss`` and rates by their unit, such as ``samples/s``.

    Each has the step of its line, "" if the line has none.
    """
    curves: dict[str, list[tuple[float, str]]] = {"loss": []}
    for line in lines:
        loss, rate = LOSS.search(line), _RATE.search(line)
        if not loss and not rate:
            continue
        step = next((match[1].decode() for pattern in STEPS if (match := pattern.search(line))), "")
        if loss:
            curves["loss"].append((float(loss[1]), step))
        if rate:
            unit = _PER_SECOND.sub("/s", (rate[2] or rate[3]).decode().lower())
            curves.setdefault(unit, []).append((float(rate[1] or rate[4]), step))
    return curves


def also_shown(lines: Iterable[bytes]) -> dict[str, bytes]:
    """Return the address or folder of each service that a rank's output names, the last one of each."""
    return {
        name: found[1] for line in lines for name, pattern in _ALSO_SHOWN.items() if (found := pattern.search(line))
    }
