"""``ddplaunch prove``: measures in a few steps whether N ranks train what one process would."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

from ddplaunch.cli.configuration import with_configuration
from ddplaunch.cli.parsing.command import OUTPUT, PROFILE, TRIALS, Command
from ddplaunch.cli.streams import answer, answer_json
from ddplaunch.cli.target import required
from ddplaunch.cli.trials.measured_steps import Measure
from ddplaunch.cli.trials.trial import Change, Trial, Trials, decided
from ddplaunch.planning.flag import Flag
from ddplaunch.planning.options import Said
from ddplaunch.prove.answer import proof_json, proof_text
from ddplaunch.prove.proof import Proof, with_ranks
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus
from ddplaunch.values.resolved import value_of

COMMAND = Command(
    examples=(
        ("ddplaunch prove 2 -- train.py", "six steps of two ranks, then of one process"),
        ("ddplaunch prove 2 --device cpu --json -- train.py", "on the CPU; every claim as JSON"),
    ),
    options=(
        PROFILE,
        Flag("steps", "integer", TRIALS, "Optimizer steps to record [6].", "N"),
        Flag("in_place", "switch", TRIALS, "Let trials change files as the script does."),
        Flag("json", "switch", OUTPUT, "Everything as JSON."),
    ),
    more="--timeout limits each trial [10m].",
)


def prove(said: Said, script: list[str] | None, profile: str | None, json: bool | None, **flags: Any) -> int:
    """Record the ranks and one process, and print what was shown."""
    words, launch = required(script, "prove"), with_ranks(said)
    options = with_configuration(launch, profile)
    first = decided(options, words)
    never_enough = Measure(0, sys.maxsize, None, value_of(options.timeout_s, 600.0))
    runs = Trials("prove", first, words, profile, never_enough, in_place=bool(flags["in_place"]))
    with Proof(first.base, first.launch, launch, flags["steps"]) as proof:

        def series() -> Generator[Change, Trial, None]:
            for part in proof.parts():
                trial = yield Change(part.name, part.ranks, part.said)
                proof.ended(trial.ending, trial.problem, trial.observed)

        if runs.run_all(series()):
            return ExitStatus.INTERRUPTED
        answered = proof.judged()
    if json:
        answer_json(proof_json(answered))
    else:
        answer(proof_text(answered, Terminal.of(sys.stdout)))
    return ExitStatus.FINDINGS if answered.is_wrong else ExitStatus.DONE
