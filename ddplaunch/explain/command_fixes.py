"""Fixes as whole commands: the run's own command line with a smaller batch, another port or one more setting."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.explain.diagnosis import RunFacts
from ddplaunch.explain.signatures import has_words, say
from ddplaunch.explain.signatures.signature import Words
from ddplaunch.values.variable_names import TRIAL
from ddplaunch.values.words import signal_name

CORE_DUMP = "a core dump has the native stack: `coredumpctl gdb`, or `ulimit -c unlimited` and run it again"
_PY_SPY = re.compile(r"`py-spy dump --pid PID` (?:on|for) every rank")
_VARIABLE = re.compile(r"--env ([A-Z]\w*)=([^\s`,…]+)")
_TYPED = re.compile(r"`(-[^`]+)` after `--`")
_OWN_PORT = (
    "the launch had picked a free port, so the script asks for this one: `init_process_group()` without `init_method` "
    "takes the launch's, and a server of its own a free one as port 0"
)
_NO_HALF = (
    "a batch of 1 cannot be halved: smaller inputs or a smaller model, activation checkpointing, or FSDP, which shards "
    "weights and optimizer state"
)


def command_fixes(code: str, facts: RunFacts, dumped: bool = False) -> tuple[str, ...]:
    """Return what can be typed after a failure with ``code``; empty unless the command was a known ``run``.

    ``dumped``: the stack of Python is in the log.
    """
    if not facts.argv or not _was_typed_by_a_user(facts.argv):
        return ()
    if code == "disk-full":
        return tuple(
            f"make room on `{path}`: {full}; `du -xh {shlex.quote(path)} | sort -h | tail`"
            for path, full in facts.full_disks
        )
    words = ("ddplaunch", *facts.argv[1:])
    own_words = words[: words.index("--")] if "--" in words else words  # the words behind it are the script's
    script_words = words[len(own_words) :]
    if code == "cuda-out-of-memory":
        return _smaller_batch(own_words, script_words, facts.plan or {})
    # a thread's stack counts as well, and the kernel refuses it by the words for too many threads (pthread_create(3))
    if code in ("host-out-of-memory", "process-limit") and (limit := _value(own_words, "--memory")):
        smaller = _smaller_batch(own_words, script_words, facts.plan or {})
        return (f"more for each rank than `--memory {limit}`, if the machine has it", *smaller)
    if code == "collective-timeout" and "--no-stacks" in own_words:
        shown = (*(word for word in own_words if word != "--no-stacks"), *script_words)
        return (f"`{shlex.join(shown)}` then says where each rank was when the first gave up",)
    if code == "too-many-open-files":
        return (f"`ulimit -n 65535 && {shlex.join(words)}`",)
    if code == "port-taken":
        return _of_port(own_words, script_words, facts.plan or {})
    if code == "missing-rank-environment":
        return ("the ranks have them; hand them on to what they start: `env={**os.environ, …}`, `--export=ALL`",)
    if code == "segmentation-fault" and not (dumped or _sets(facts, "PYTHONFAULTHANDLER")):
        return (
            f"where in Python it was: `{shlex.join((*own_words, '--env', 'PYTHONFAULTHANDLER=1', *script_words))}`",
        )
    return ()


def _of_port(own_words: tuple[str, ...], script_words: tuple[str, ...], plan: Mapping[str, Any]) -> tuple[str, ...]:
    if any(word.partition("=")[0] == "--master-port" for word in own_words):
        free = (*_with(own_words, "--master-port", None), *script_words)
        return (f"without the port, a free one is taken: `{shlex.join(free)}`",)
    return (_OWN_PORT,) if _picks_its_port(plan) else ()


def _was_typed_by_a_user(argv: Sequence[str]) -> bool:
    """Return whether it is a `run` of a user's; `scale` and `fit` say themselves what to type after their trials."""
    return tuple(argv[1:2]) == ("run",) and not any(word.startswith(f"{TRIAL}=") for word in argv)


def still_to_do(fixes: Sequence[str], facts: RunFacts, dumped: bool) -> tuple[str, ...]:
    """Return ``fixes`` without those that the run had followed; ``dumped``: the stack of Python is in the log.

    Where that stack is known already, the native one is the next measurement.
    """
    fixes_left = []
    for fix in fixes:
        if facts.argv and facts.argv[1:2] == ("run",):
            fix = _PY_SPY.sub("`ddplaunch stacks`", fix)
        followed = _already_followed(fix, facts)
        if "PYTHONFAULTHANDLER" in fix and (dumped or followed):
            fixes_left.append(CORE_DUMP)
        elif not followed:
            fixes_left.append(fix)
    return tuple(dict.fromkeys(fixes_left))


def _already_followed(fix: str, facts: RunFacts) -> bool:
    """Return whether the run that failed had done what ``fix`` says, or had nothing that it could undo."""
    if "--no-forward" in fix:
        return not (facts.plan or {}).get("passed")
    if facts.plan is None and not facts.ranks:
        return False
    if "PYTHONFAULTHANDLER" in fix:
        return _sets(facts, "PYTHONFAULTHANDLER")
    if asked_variables := _VARIABLE.findall(fix):
        return all(_sets(facts, name, value) for name, value in asked_variables)
    return "ddplaunch run … -- SCRIPT" in fix or "--tee 3" in fix


def never_launched(groups: Mapping[str, str], facts: RunFacts) -> dict[str, str] | None:
    """Return the rank that a script waits for (``culprit``) and the number of ranks, where it is none of them."""
    awaited, ranks = groups.get("culprit", ""), _number(facts.plan or {}, "world_size")
    if not (awaited.isdecimal() and ranks is not None and int(awaited) >= ranks):
        return None
    return {"awaited": awaited, "ranks": str(ranks)}


#: What is said of a run that was ended so.
STOPPED = "the run was ended by `ddplaunch stop`"


def stopped_by(user: str) -> Words:
    """Return what, why and the fixes of a run that ``user`` ended by `ddplaunch stop`."""
    return say("stopped", user=user)


def signal_to_launcher(code: str, facts: RunFacts) -> Words:
    """Return what, why and the fixes of a run whose launcher was ended by a signal."""
    if code == "killed":
        return say("launcher-killed")
    if facts.launcher_lost:
        return say("launcher-lost")
    if facts.stopped_by is not None:
        return stopped_by(facts.stopped_by)
    signal = signal_name(facts.signal) if facts.signal else "a signal"
    known = f"launcher-{signal}"
    return say(known if has_words(known) else "launcher-ended", signal=signal, asked=who_asked(facts))


def who_asked(facts: RunFacts) -> str:
    """Return how to find out who ended a run by SIGTERM: from Slurm only where it ran in a job."""
    save = "save checkpoints on SIGTERM"
    if facts.slurm_job:
        return f"if it was not you: `sacct -j {facts.slurm_job} -o State,ExitCode,Reason` says why Slurm did; {save}"
    if facts.argv:
        return f"if it was not you, a `kill` of somebody's or what supervises this process sent it; {save}"
    return f"if it was not you: in a job of Slurm, `sacct -j JOBID -o State,ExitCode,Reason` says why; {save}"


def _picks_its_port(plan: Mapping[str, Any]) -> bool:
    """Return whether torchrun takes a free port, as on one node without `--master-port`."""
    topology = plan.get("topology")
    nodes = topology.get("nnodes") if isinstance(topology, dict) else None
    return isinstance(nodes, dict) and nodes.get("value") == 1 and plan["topology"].get("master_port") is None


def _sets(facts: RunFacts, name: str, value: str = "") -> bool:
    """Return whether the launch set a variable of the ranks, to ``value`` if that is given."""
    variables = (facts.plan or {}).get("environment")
    entries = variables if isinstance(variables, list) else []
    named = [entry.get("value") for entry in entries if isinstance(entry, dict) and entry.get("name") == name]
    return any(entry == value if value else entry for entry in named)


def _smaller_batch(own_words: Sequence[str], script_words: Sequence[str], plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command with a smaller batch per process: of the same effective batch if the script can accumulate."""
    batch, accum, world = (_number(plan, name) for name in ("batch_size", "accum", "world_size"))
    receives = plan.get("receives")
    takes = receives if isinstance(receives, list) else ("batch_size", "accum")  # older versions did not record it
    option = _typed_option(plan)
    if "batch_size" not in takes and option is None:
        return (f"a smaller batch, in the script itself: {_reason(plan, 'batch_size')}",)
    if batch is not None and batch < 2:
        return () if "receives" not in plan else (_NO_HALF,)
    if batch is None or world is None:
        halves = "the effective batch halves too, the script does not accumulate"
        return () if "accum" in takes else (f"a smaller batch, `--batch-size` N/2: {halves}",)
    whole, of_rank = _number(plan, "global_batch_size") or batch * (accum or 1) * world, batch * (accum or 1)
    smaller = batch // 2
    if "accum" not in takes:
        words = _with_batch(_with(own_words, "--global-batch-size", None), script_words, option, batch, smaller)
        halved = f"{smaller * (accum or 1) * world} in the place of {of_rank * world}"
        return (f"an effective batch of {halved}, since the script does not accumulate: `{words}`",)
    smaller = next(size for size in range(smaller, 0, -1) if of_rank % size == 0)
    words = _with_batch(own_words, script_words, option, batch, smaller, str(of_rank // smaller))
    return (f"same effective batch of {whole} in less memory: `{words}`",)


def _with_batch(
    own_words: Sequence[str],
    script_words: Sequence[str],
    option: str | None,
    batch: int,
    smaller: int,
    accum: str | None = None,
) -> str:
    """Return the command with ``smaller`` where the script gets its batch: by ddplaunch, or by its own ``option``.

    What the script's own option says may be a total of several processes: it changes in proportion.
    """
    script = " ".join(map(shlex.quote, script_words))
    if option is None:
        own_words = _with(own_words, "--batch-size", str(smaller))
    else:
        typed = re.compile(rf"(?<=\s{re.escape(option)}[ =])\d+(?!\S)")
        script = typed.sub(lambda number: str(int(number[0]) * smaller // batch), script)
    return f"{shlex.join(own_words if accum is None else _with(own_words, '--accum', accum))} {script}"


def _typed_option(plan: Mapping[str, Any]) -> str | None:
    """Return the script's option that was typed behind ``--`` and decided the batch."""
    source = _of_numbers(plan, "batch_size").get("source")
    detail = source.get("detail") if isinstance(source, dict) and source.get("kind") == "script" else None
    match = _TYPED.fullmatch(detail) if isinstance(detail, str) else None
    return match[1] if match else None


def _reason(plan: Mapping[str, Any], name: str) -> str:
    """Return why a number does not reach the script, as the plan says."""
    missing = plan.get("missing")
    for entry in missing if isinstance(missing, list) else []:
        if isinstance(entry, dict) and entry.get("number") == name and isinstance(entry.get("reason"), str):
            return str(entry["reason"])
    return "no option was found by which it takes one"


def _of_numbers(plan: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    numbers = plan.get("numbers")
    number = numbers.get(name) if isinstance(numbers, dict) else None
    return number if isinstance(number, dict) else {}


def _number(plan: Mapping[str, Any], name: str) -> int | None:
    value = _of_numbers(plan, name).get("value")
    return value if isinstance(value, int) and value > 0 else None


def _value(own_words: Sequence[str], flag: str) -> str | None:
    """Return what was typed behind ``flag`` or attached to it, None where it was not given."""
    for word, next_word in zip(own_words, [*own_words[1:], ""], strict=True):
        name, equals, attached = word.partition("=")
        if name == flag:
            return attached if equals else next_word
    return None


def _with(own_words: Sequence[str], flag: str, value: str | None) -> list[str]:
    """Return the words with ``flag`` set to ``value`` where it stands, else at the end; without it for None."""
    new = [] if value is None else [flag, value]
    result: list[str] = []
    words = iter(own_words)
    for word in words:
        name, equals, _ = word.partition("=")
        if name != flag:
            result.append(word)
            continue
        if not equals:
            next(words, None)  # its value
        result += new
        new = []
    return result + new
