"""Checks whether the numbers of a launch arrive in the script; refuses to say how a script should read them."""

from __future__ import annotations

from collections.abc import Iterator

from ddplaunch.checks.check import Check, declare
from ddplaunch.finding import Finding, warning
from ddplaunch.launch.plan import Launch
from ddplaunch.script.report import ScriptReport

#: What a user says for each number that the script would have to receive, in the order in which it is reported.
_SAID_BY = {
    "batch_size": ("batch_size", "global_batch_size"),
    "accum": ("accum",),
    "lr": ("lr", "base_lr"),
    "warmup_steps": ("base_warmup",),
}
_SIBLING = {"batch_size": "global_batch_size"}  # a script that takes the global batch divides it by the ranks itself


def number_not_received(launch: Launch, script: ScriptReport) -> Iterator[Finding]:
    """A number was given that the script has no way to receive.

    Numbers reach a script by a placeholder in its arguments, by an option that it declares, or by the environment
    (`DDPLAUNCH_BATCH_SIZE`, `ddplaunch.current()`). With none of the three it trains with its own numbers, whatever
    the plan shows. A script that cannot be read completely keeps this check silent. Remedy: a placeholder such as
    `{batch_size}` in an argument, an option in the script, or `ddplaunch.current()`.
    """
    if not script.complete or script.syntax_error is not None or _asks_itself(script):
        return
    received = {item.number for item in launch.passed} | {option.meaning for option in script.options}
    for number, options in _SAID_BY.items():
        said = next((name for name in options if getattr(launch.options, name) is not None), None)
        if said is None or number in received or _SIBLING.get(number) in received:
            continue
        resolved = getattr(launch.numbers, number)
        if resolved is None or (number == "accum" and resolved.value == 1):
            continue
        flag = "--" + said.replace("_", "-")
        yield warning(
            "number-not-received",
            f"{script.path} has no way to receive the {number.replace('_', ' ')} {resolved.value} of `{flag}`",
            why=f"it declares no such option, its arguments hold no `{{{number}}}`, and it reads no `DDPLAUNCH_*`; it "
            "trains with a number of its own",
            fix=f"pass it in an argument, as in `--{number.replace('_', '-')} {{{number}}}` behind `--`, or read "
            f"`ddplaunch.current().{number}` in the script",
            where=str(getattr(launch.options, said).source),
        )


def _asks_itself(script: ScriptReport) -> bool:
    return any(name.startswith("DDPLAUNCH_") for name in script.reads_env) or any(
        item.package == "ddplaunch" for item in script.imports
    )


CHECKS: tuple[Check, ...] = (declare("numbers", number_not_received),)
