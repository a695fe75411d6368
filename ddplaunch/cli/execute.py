"""The last step of a launch: this process becomes torchrun, with the launch's arguments and environment."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ddplaunch.launch.launch import Launch
from ddplaunch.values.finding import RefusedError, error
from ddplaunch.values.variable_names import EXECUTED, SETTINGS

_LONGEST_WORD = 32 * 4096  # bytes, with the null byte at the end


def environment_of(launch: Launch) -> dict[str, str]:
    """Return the environment that torchrun gets: this process's with the launch's variables set and removed."""
    environment = dict(os.environ)
    for variable in launch.environment:
        if variable.value is None:
            environment.pop(variable.name, None)
        else:
            environment[variable.name] = variable.value
    return environment


def refuse_too_long(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise RefusedError for an argument or variable that the kernel would not pass on (MAX_ARG_STRLEN, execve(2))."""
    words = [(f"the argument `{word[:20]}…`", os.fsencode(word)) for word in argv if len(word) > _LONGEST_WORD // 4]
    words += [
        (f"the variable `{name}`", os.fsencode(f"{name}={value}"))
        for name, value in environment.items()
        if len(name) + len(value) > _LONGEST_WORD // 4
    ]
    for what, word in words:
        if len(word) >= _LONGEST_WORD:
            raise RefusedError(
                error(
                    "argument-too-long",
                    f"{what} has {len(word)} bytes; Linux passes at most {_LONGEST_WORD - 1} to a program",
                    why="torchrun could not be started with it",
                    fix="write it to a file, and pass the file's name",
                )
            )


def execute(launch: Launch, environment: dict[str, str]) -> NoReturn:
    """Replace this process by torchrun."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it is None where its descriptor was closed
            stream.flush()
    if launch.options.trace is not None and SETTINGS in environment:
        environment[EXECUTED] = str(time.time())
    os.execve(launch.argv[0], list(launch.argv), environment)
