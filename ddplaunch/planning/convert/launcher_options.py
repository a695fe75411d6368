"""The options of torchrun, accelerate and DeepSpeed as data: how many values each takes, and how it is translated.

Names are spelled with dashes; these launchers accept underscores as well.
"""

from __future__ import annotations

from typing import NamedTuple

from ddplaunch.values.codec import toml_beside


class Meaning(NamedTuple):
    """How an option is translated: ``kind`` says how; ``detail`` is a flag, a variable or why it is left out.

    ``values`` is the number of words that follow the option.
    """

    kind: str
    detail: str = ""
    values: int = 1


#: The variable that ddplaunch reads if no port is typed; torchrun and accelerate do not read it.
PORT = "MASTER_PORT"


def _of(launcher: str) -> dict[str, Meaning]:
    rows = [row for row in toml_beside(__file__, "launcher_options.toml")["options"] if launcher in row["of"]]
    return {
        name: Meaning(row["kind"], row.get("detail", ""), row.get("values", 1))
        for row in rows
        for name in row["names"].split()
    }


#: What each launcher understands.
LAUNCHERS = {name: _of(name) for name in ("torchrun", "accelerate", "deepspeed")}
LAUNCHERS["torch.distributed.launch"] = LAUNCHERS["torchrun"]
#: Modules that are launchers when Python runs them with ``-m``.
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
}
#: Programs that are launchers, by name.
PROGRAMS = {
    "torchrun": "torchrun",
    "deepspeed": "deepspeed",
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "horovodrun"), "mpirun"),
    "srun": "srun",
}
#: A script with a launcher in it contains at least one of these names.
_NAMES = tuple(name.encode() for name in (*PROGRAMS, "accelerate", "torchx", "torch.distributed"))


def named_in(text: bytes) -> bool:
    """Return whether a launcher may be in ``text``."""
    return any(name in text for name in _NAMES)


def canonical(launcher: str, name: str) -> str | None:
    """Return an option as the table of ``launcher`` spells it, None if it is not in there.

    As in argparse, a prefix that only one long option has stands for that option.
    """
    table = LAUNCHERS[launcher]
    spelled = name.replace("_", "-") if name.startswith("--") else name
    if spelled in table:
        return spelled
    near = [option for option in table if spelled.startswith("--") and len(spelled) > 3 and option.startswith(spelled)]
    return near[0] if len(near) == 1 else None
