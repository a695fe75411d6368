"""Spellings of torchrun, accelerate, DeepSpeed and of habit: read as ddplaunch's own where they mean the same."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise

from ddplaunch.cli.flags import LAUNCHING, flags_of, spellings
from ddplaunch.cli.help.command_help import HELP
from ddplaunch.cli.target import misplaced_script
from ddplaunch.planning.convert.launcher_options import ACCELERATE, DEEPSPEED, FLAGS, TORCHRUN
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.words import nearest

_TABLES = (TORCHRUN, ACCELERATE, DEEPSPEED)
#: Options of other launchers that take the same value as an own one. Underscores are dashes here.
_SAME = {
    name: FLAGS[means.kind]
    for table in _TABLES
    for name, means in table.items()
    if name.startswith("--") and means.kind in ("nnodes", "node_rank", "addr", "port", "gpus")
}
_PER_NODE = ("--nproc-per-node", "--nproc", "--num-gpus")
_OF_ALL_NODES = ("--num-processes", "-n", "-np")
PROCESSES = (*_PER_NODE, *_OF_ALL_NODES)
#: Ask for what a launch does anyway. ``--standalone`` is one of them on one node.
_AS_EVER = ("--standalone", "--use-env", "--multi-gpu")
#: torchrun's own, for which ddplaunch has none: they are handed on.
_TORCHRUNS = tuple(name for name, means in TORCHRUN.items() if means.kind == "torchrun" and name.startswith("--"))
#: accelerate's, which hands each on as this variable and as nothing else; no script has one of these names.
_BY_VARIABLE = {
    name: means.detail
    for name, means in ACCELERATE.items()
    if means.kind == "env" and name.startswith(("--mixed", "--fsdp", "--zero", "--offload", "--deepspeed", "--num-cpu"))
}
_BY_SWITCH = {name: ACCELERATE[name].detail for name in ("--use-deepspeed", "--use-fsdp", "--enable-cpu-affinity")}
#: torchrun's rendezvous, of which ddplaunch needs the address alone.
_RENDEZVOUS = ("--rdzv-backend", "--rdzv-id", "--rdzv-endpoint")
_HERE = ("localhost", "127.0.0.1", "[::1]", "")
_WITH_VALUE = (*PROCESSES, *_TORCHRUNS, *_BY_VARIABLE, *_RENDEZVOUS)
_C10D = "29400"  # torchrun's port where the endpoint names none
_HABITS = {
    "run": {"-e": "--env", "-d": "--detach"},
    "logs": {"-f": "--follow", "-n": "--lines", "--tail": "--lines", "-r": "--rank", "--ranks": "--rank"},
    "ps": {"-a": "--all"},
    "stop": {"-a": "--all"},
    "top": {"-n": "--count", "-d": "--interval"},
    "clean": {"-y": "--yes", "-f": "--yes", "--force": "--yes"},
    "report": {"-o": "--output"},
}
#: Options that take names in a list with commas, also where they may be repeated.
_LISTS = ("--ignore", "--include", "--exclude")
_COMMANDS = {
    "run": ("launch", "start", "train", "exec", "torchrun"),
    "stop": ("kill", "cancel", "end"),
    "ps": ("status", "list", "ls", "runs"),
    "logs": ("tail", "output"),
    "logs --follow": ("follow",),
    "doctor": ("check", "env", "test"),
    "explain": ("why", "diagnose"),
    "top": ("watch", "monitor"),
}


def as_spelled_here(command: str, words: Sequence[str]) -> list[str]:
    """Return the words behind ``command`` as ddplaunch spells them; unknown ones stay, and are refused later."""
    own = spellings(flags_of(command))
    found: list[str] = []
    rest = list(words)
    has_argument = False
    while rest:
        typed = rest.pop(0)
        if not typed.startswith("-"):
            has_argument = True
            found.append(typed)
            continue
        name, equals, value = typed.partition("=")
        name = _canonical(name, command)
        takes_value = own[name][1] is None if name in own else name in _WITH_VALUE
        is_value = rest and (name in own or not rest[0].startswith("-"))  # `--torchrun-arg --tee=3` is one of ours
        following = [rest.pop(0)] if takes_value and not equals and is_value else []
        if name in own:
            found += _own(name + equals + value, following)
        elif command not in LAUNCHING or (has_argument and name in PROCESSES):
            found += [typed, *following]
        else:
            said = _of_others(name, following[0] if following else value, [*found, *rest])
            has_argument = has_argument or (said is not None and name in PROCESSES)
            found += [typed, *following] if said is None else said
    return _gpus_of_this_machine(found) if command in LAUNCHING else found


def _gpus_of_this_machine(words: list[str]) -> list[str]:
    """Return DeepSpeed's ``--include localhost:0,1`` as ``--gpus 0,1`` where no hosts are named; all else stays."""
    names = [word.partition("=")[0] for word in words]
    if names.count("--include") != 1 or {"--hosts", "--hostfile"} & {*names}:
        return words
    at = names.index("--include")
    _, equals, value = words[at].partition("=")
    value = value if equals else "".join(words[at + 1 : at + 2])
    host, colon, gpus = value.partition(":")
    if host not in _HERE[:2] or not colon:
        return words
    return [*words[:at], "--gpus", gpus, *words[at + (1 if equals else 2) :]]


def _canonical(name: str, command: str) -> str:
    """Return an option with dashes for underscores, and the own name of one that means the same."""
    if name.startswith("--"):
        name = name.replace("_", "-")
    same = {**(_SAME if command in LAUNCHING else {}), **_HABITS.get(command, {})}
    return same.get(name, name)


def _own(option: str, following: list[str]) -> list[str]:
    name, _, attached = option.partition("=")
    value = following[0] if following else attached
    if name in _LISTS and "," in value:  # not in front of a number: `--exclude gpu-a:0,2` are GPUs of one host
        return [word for each in re.split(r",(?!\d+(?:,|$))", value) if each for word in (name, each)]
    return [name, "cuda"] if (name, value) == ("--device", "gpu") else [option, *following]


def _of_others(name: str, value: str, others: Sequence[str]) -> list[str] | None:
    """Return the own words for an option of another launcher beside ``others``, None if there are none."""
    nodes = _nodes(others)
    if name == "--cpu":
        return ["--device", "cpu"]
    if name in _AS_EVER:
        return [] if nodes == 1 or name != "--standalone" else None
    if name in _BY_VARIABLE and value:
        return ["--env", f"{_BY_VARIABLE[name]}={value}"]
    if name in _BY_SWITCH:
        return ["--env", _BY_SWITCH[name]]
    if name in _RENDEZVOUS and value:
        return _rendezvous(name, value, nodes)
    if name in _TORCHRUNS and value:
        return [f"--torchrun-arg={name}={value}"]
    if name in _PER_NODE and value:
        return ["auto" if value == "gpu" else value]
    if name in _OF_ALL_NODES and value.isdecimal() and nodes and int(value) % nodes == 0:
        return [str(int(value) // nodes)]
    return None


def _rendezvous(name: str, value: str, nodes: int) -> list[str] | None:
    """Return torchrun's rendezvous as an address; the nodes of ddplaunch find each other by that alone."""
    if name == "--rdzv-backend":
        return [] if value in ("c10d", "static") else None
    if name == "--rdzv-id":  # each run has a name of its own
        return []
    host, _, port = value.rpartition(":") if ":" in value else (value, "", "")
    if nodes == 1 and host in _HERE:
        return ["--master-port", port] if port not in ("", "0", _C10D) else []
    return ["--master-addr", host.strip("[]"), "--master-port", port or _C10D]


def _nodes(words: Sequence[str]) -> int:
    """Return the number of nodes of a launch, 0 if that is a range or comes from a list of hosts."""
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        name = _SAME.get(name.replace("_", "-"), name)
        if name in ("--hosts", "--hostfile"):
            return 0
        if several := re.fullmatch(r"(\d+)x\d+", word):
            return int(several[1])
        if name == "--nnodes":
            value = value if equals else following
            return int(value) if value.isdecimal() else 0
    return 1


def others_line(name: str, value: Sequence[str], script: Sequence[str]) -> str:
    """Return the command that translates an option of another launcher which has no own spelling; empty for no such."""
    for program, table in (("accelerate launch", ACCELERATE), ("deepspeed", DEEPSPEED), ("torchrun", TORCHRUN)):
        if name.partition("=")[0].replace("_", "-") in table:
            return f"ddplaunch convert -- {program} {shlex.join([name, *value, *script])}"
    return ""


_ANY = "`ddplaunch --help` says what each does; a launch is `ddplaunch run 4 -- train.py`"


def unknown_command(words: Sequence[str], script: Sequence[str] | None) -> UsageError:
    """Return the error for a first word that is no command, with the user's line corrected where its sense is plain."""
    from ddplaunch.cli.help.removed import removed  # for mistakes

    if (gone := removed(words[0])) is not None:
        return gone
    behind = [] if script is None else ["--", *script]
    known = [name for name, others in _COMMANDS.items() if words[0] in others]
    near = next(iter(known), None) or nearest(words[0], HELP)
    meant = [*near.split(), *words[1:]] if near else ["run", *words]
    meant[1:] = as_spelled_here(meant[0], meant[1:])
    missing = misplaced_script(meant, script) if meant[0] in LAUNCHING else None
    plain = near or script or re.fullmatch(r"auto|\d+(x\d+)?|-.*", words[0])
    fix = f"`{shlex.join(['ddplaunch', *meant, *behind])}`" if plain else _ANY
    fix = fix if missing is None else missing.findings[0].fix
    fix = f"did you mean {fix}?" if near else fix
    return usage(
        f"`{words[0]}` is not a command of ddplaunch",
        why=f"the commands are {', '.join(f'`{name}`' for name in HELP)}",
        fix=fix,
    )
