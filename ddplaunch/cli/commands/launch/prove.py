"""``ddplaunch prove``: measures in a few steps whether N ranks train what one process would."""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import replace

from ddplaunch.cli.configuration import with_configuration
from ddplaunch.cli.parsing.command import OUTPUT, TRIALS, Command
from ddplaunch.cli.parsing.typed_words import TypedLaunch
from ddplaunch.cli.streams import answer, answer_json
from ddplaunch.cli.target import required
from ddplaunch.cli.trials.trial import Change, Trial, Trials, decided, measure_of
from ddplaunch.planning.flag import Flag
from ddplaunch.prove.answer import proof_json, proof_text
from ddplaunch.prove.proof import OWN, Proof
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, usage
from ddplaunch.values.resolved import Resolved, value_of

COMMAND = Command(
    examples=(
        ("ddplaunch prove 2 -- train.py", "six steps on two ranks, then in one process"),
        ("ddplaunch prove 2 --device cpu --json -- train.py", "on the CPU, every claim as JSON"),
    ),
    options=(
        Flag("steps", "integer", TRIALS, "Optimizer steps to record [6].", "N"),
        Flag("in_place", "switch", TRIALS, "Let trials change files as the script does."),
        Flag("json", "switch", OUTPUT, "Everything as JSON."),
    ),
    more="--timeout limits each trial [10m].",
)


def prove(typed: TypedLaunch, json: bool | None, steps: int | None, in_place: bool | None) -> int:
    """Record the ranks and one process, and print the claims. The status is 1 if one is an error."""
    words, launch = required(typed.script), {"nproc": Resolved("2", OWN), **typed.said}
    if "device" not in launch:
        launch["ignore"] = (*launch.get("ignore", ()), Resolved("cuda-without-gpus", OWN))  # the CPU stands in for them
    options = with_configuration(replace(typed, said=launch))
    if value_of(options.nproc, "auto") == 1:
        raise usage(
            "one process is proved by comparing it with itself",
            why="`prove` measures whether several ranks train what one process would",
            fix="`ddplaunch prove 2 …`",
        )
    first = decided(options, words)
    never_enough = measure_of(options, sys.maxsize, usual_s=0.0)
    runs = Trials("prove", first, typed, never_enough, in_place=bool(in_place))
    proof = Proof(first.launch, launch, steps)

    def series() -> Generator[Change, Trial, None]:
        for part in proof.parts(first.base):
            trial = yield Change(*part)
            proof.ended(trial.problem)

    if runs.run_all(series()):
        return ExitStatus.INTERRUPTED
    answered = proof.judged()
    if json:
        answer_json(proof_json(answered))
    else:
        answer(proof_text(answered, Terminal.of(sys.stdout)))
    return ExitStatus.FINDINGS if answered.is_wrong else ExitStatus.DONE
