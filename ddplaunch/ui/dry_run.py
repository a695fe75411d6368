"""A launch as shell text that runs when pasted, with the reasons as comments; refuses to print a secret."""

from __future__ import annotations

from ddplaunch.launch.plan import Launch, Variable
from ddplaunch.probes.environment import redact
from ddplaunch.ui.launch_words import device_text, nodes_text, target_text
from ddplaunch.ui.shell import assignment, command_lines, quote
from ddplaunch.ui.style import ascii_only, visible

_WIDTH = 100  # of lines that are copied, whatever the terminal: the text is often redirected into a file


def dry_run_text(launch: Launch, *, unicode: bool = True) -> str:
    """Return comments and one command: ``env -u X NAME=value … python -m torch.distributed.run …``.

    A variable whose name looks secret is taken from the shell that the text is pasted into, which stops if it is unset.
    """
    about = f"{launch.run_id}: {target_text(launch.target)} on {nodes_text(launch)}, {device_text(launch)}"
    comments = [about, *(_comment(variable) for variable in launch.environment)]
    removed = [f"-u {quote(variable.name, unicode)}" for variable in launch.environment if variable.value is None]
    values = [_set(variable, unicode) for variable in launch.environment if variable.value is not None]
    lines = [ascii_only(f"# {visible(comment)}", unicode) for comment in comments]
    command = command_lines(launch.argv, _WIDTH - 4, unicode)
    if removed or values:
        lines += _environment(removed, values)
        command = [f"  {line}" for line in command]
    return "\n".join([*lines, *command]) + "\n"


def _environment(removed: list[str], values: list[str]) -> list[str]:
    """One variable a line; every line goes on in the next."""
    return [f"{line} \\" for line in [" ".join(["env", *removed]), *(f"  {value}" for value in values)]]


def is_secret(variable: Variable) -> bool:
    """Return whether the value of ``variable`` must not be shown."""
    return variable.value is not None and redact(variable.name, variable.value) != variable.value


def _comment(variable: Variable) -> str:
    text = f"{variable.name}: {variable.reason} ({variable.source})"
    if variable.value is None:
        return f"without {text}"
    return f"{text}; its value is not printed, set it before" if is_secret(variable) else text


def _set(variable: Variable, unicode: bool) -> str:
    if is_secret(variable):
        return f'{variable.name}="${{{variable.name}:?}}"'
    return assignment(variable.name, variable.value or "", unicode)
