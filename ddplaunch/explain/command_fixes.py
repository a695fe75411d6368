"""Fixes as whole commands: the run's own command line with a smaller batch, another port or one more setting."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ddplaunch.explain.diagnosis import RankEnd, RunFacts, line_of
from ddplaunch.explain.stacks.hang import EQUAL_BATCHES, TOGETHER
from ddplaunch.scaling.batch import resolve_batch
from ddplaunch.scaling.numbers import NumbersRequest
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source
from ddplaunch.values.variable_names import TRIAL
from ddplaunch.values.words import duration_text, ranks_text, signal_name

if TYPE_CHECKING:
    from ddplaunch.explain.decide.collectives import Left, Stuck

CORE_DUMP = "a core dump has the native stack: `coredumpctl gdb`, or `ulimit -c unlimited` and run it again"
_TOLERATE = "--tolerate-exit-aborts"
_SOMEBODY = "a person, a scheduler that takes the node back, or a supervisor asked the run to end"
_COMPUTED = Source("computed", "")
_NPROC, _EXAMPLE = re.compile(r"auto|\d+(?:x\d+)?"), re.compile(r"\bddplaunch run 4 --")
_PY_SPY = re.compile(r"`py-spy dump --pid PID` (?:on|for) every rank")
_VARIABLE = re.compile(r"--env ([A-Z]\w*)=([^\s`,…]+)")
_TYPED = re.compile(r"`(-[^`]+)` behind `--`")
_NO_HALF = (
    "a batch of 1 cannot be halved: smaller inputs or a smaller model, activation checkpointing, or FSDP, which shards "
    "weights and optimizer state"
)


def command_fixes(code: str, facts: RunFacts | None, dumped: bool = False) -> tuple[str, ...]:
    """Return what can be typed after a failure with ``code``; empty unless the command was a known ``run``.

    ``dumped``: the stack of Python is in the log.
    """
    if facts is None or not facts.argv or not _was_typed_by_a_user(facts.argv):
        return ()
    if code == "disk-full":
        return tuple(
            f"make room on `{path}`: {full}; `du -xh {shlex.quote(path)} | sort -h | tail`"
            for path, full in facts.full_disks
        )
    words = ("ddplaunch", *facts.argv[1:])
    own = words[: words.index("--")] if "--" in words else words  # the words behind it are the script's
    behind = words[len(own) :]
    if code == "cuda-out-of-memory":
        return _smaller_batch(_Command(own, behind, facts.plan or {}))
    # a thread's stack counts as well, and the kernel refuses it by the words for too many threads (pthread_create(3))
    if code in ("host-out-of-memory", "process-limit") and (limit := _value(own, "--memory")):
        smaller = _smaller_batch(_Command(own, behind, facts.plan or {}))
        return (f"more for each rank than `--memory {limit}`, if the machine has it", *smaller)
    if code == "collective-timeout" and "--no-stacks" in own:
        shown = (*(word for word in own if word != "--no-stacks"), *behind)
        return (f"`{shlex.join(shown)}` then says where each rank was when the first gave up",)
    if code == "too-many-open-files":
        return (f"`ulimit -n 65535 && {shlex.join(words)}`",)
    if code == "port-taken" and any(word.partition("=")[0] == "--master-port" for word in own):
        free = (*_with(own, "--master-port", None), *behind)
        return (f"without the port, a free one is taken: `{shlex.join(free)}`",)
    if code == "port-taken" and _picks_its_port(facts.plan or {}):
        return (
            "the launch had picked a free port, so the script asks for this one: `init_process_group()` without "
            "`init_method` takes the launch's, and a server of its own a free one as port 0",
        )
    if code == "missing-rank-environment":
        return ("the ranks have them; hand them on to what they start: `env={**os.environ, …}`, `--export=ALL`",)
    return _of_crash(own, behind, facts, dumped) if code == "segmentation-fault" else ()


def _was_typed_by_a_user(argv: Sequence[str]) -> bool:
    """Return whether it is a `run` of a user's; `scale` and `fit` say themselves what to type after their trials."""
    return tuple(argv[1:2]) == ("run",) and not any(word.startswith(f"{TRIAL}=") for word in argv)


def _of_crash(own: tuple[str, ...], behind: tuple[str, ...], facts: RunFacts, dumped: bool) -> tuple[str, ...]:
    if any("TORCH_DISTRIBUTED_DEBUG=DETAIL" in word for word in own):
        return ("without TORCH_DISTRIBUTED_DEBUG=DETAIL: some versions of torch crash with it under DDP on CPUs",)
    if dumped or _sets(facts, "PYTHONFAULTHANDLER"):
        return ()
    return (f"where in Python it was: `{shlex.join((*own, '--env', 'PYTHONFAULTHANDLER=1', *behind))}`",)


def still_to_do(fixes: Sequence[str], facts: RunFacts | None, dumped: bool) -> tuple[str, ...]:
    """Return ``fixes`` without those that the run had followed; ``dumped``: the stack of Python is in the log.

    Where that stack is known already, the native one is the next measurement.
    """
    left = []
    for fix in _own_number(fixes, facts):
        if "--no-forward" in fix:  # said only of a launch that filled something in
            left += _filled_in(facts)
            continue
        if facts is not None and facts.argv and facts.argv[1:2] == ("run",):
            fix = _PY_SPY.sub("`ddplaunch stacks`", fix)
        followed = _already_followed(fix, facts)
        if "PYTHONFAULTHANDLER" in fix and (dumped or followed):
            left.append(CORE_DUMP)
        elif not followed:
            left.append(fix)
    return tuple(dict.fromkeys(left))


def _own_number(fixes: Sequence[str], facts: RunFacts | None) -> list[str]:
    """Return ``fixes`` with the number of processes that was typed, in the place of the 4 of examples."""
    typed = facts.argv[2] if facts is not None and facts.argv and len(facts.argv) > 2 and facts.argv[1] == "run" else ""
    return [_EXAMPLE.sub(f"ddplaunch run {typed} --", fix) if _NPROC.fullmatch(typed) else fix for fix in fixes]


def _already_followed(fix: str, facts: RunFacts | None) -> bool:
    """Return whether the run that failed had done what ``fix`` says, or had nothing that it could undo."""
    if facts is None or (facts.plan is None and not facts.ranks):
        return False
    if "PYTHONFAULTHANDLER" in fix:
        return _sets(facts, "PYTHONFAULTHANDLER")
    if _TOLERATE in fix:
        return _was_typed(_TOLERATE, facts)
    if asked := _VARIABLE.findall(fix):
        return all(_sets(facts, name, value) for name, value in asked)
    return "ddplaunch run … -- SCRIPT" in fix or "--tee 3" in fix


def _was_typed(flag: str, facts: RunFacts | None) -> bool:
    """Return whether ``flag`` was among ddplaunch's own words."""
    words = facts.argv or () if facts is not None else ()
    return flag in (words[: words.index("--")] if "--" in words else words)


def _filled_in(facts: RunFacts | None) -> list[str]:
    """Return which options ddplaunch gave to the script, and how to have it give none; nothing where it gave none."""
    passed = (facts.plan or {}).get("passed") if facts is not None else None
    words: list[str] = []
    for each in passed if isinstance(passed, list) else []:
        arguments = each.get("arguments") if isinstance(each, dict) else None
        words += map(str, arguments) if isinstance(arguments, list) else ()
    return [f"ddplaunch filled in `{shlex.join(words)}`: `--no-forward` leaves it out"] if words else []


def never_launched(groups: Mapping[str, str], facts: RunFacts | None) -> tuple[str, str, tuple[str, ...]] | None:
    """Return what, why and the fixes of a script that waits for a rank (``culprit``) which the launch does not have."""
    awaited, ranks = groups.get("culprit", ""), _number((facts.plan if facts else None) or {}, "world_size")
    if not (awaited.isdecimal() and isinstance(ranks, int) and int(awaited) >= ranks):
        return None
    return (
        f"the script waits for rank {awaited}, and the launch has {ranks} ranks",
        "`init_process_group` got another number of ranks than were started, so it waits for some that never come",
        ("look for `world_size=` in the script, and leave it out: the launcher sets WORLD_SIZE, RANK and LOCAL_RANK",),
    )


#: What is said of a run that was ended so.
STOPPED = "the run was ended by `ddplaunch stop`"


def stopped_by(user: str) -> tuple[str, str, tuple[str, ...]]:
    """Return what, why and the fixes of a run that ``user`` ended by `ddplaunch stop`."""
    why = f"{user} typed it, and it sends torchrun SIGTERM, which ends the ranks"
    return STOPPED, why, ("nothing is wrong if that was meant",)


def aborted_at_exit(rank: int | None, end: RankEnd, facts: RunFacts | None) -> tuple[str, str, tuple[str, ...]]:
    """Return what, why and the fixes of a rank whose libraries aborted after its program was through."""
    who = "the ranks" if rank is None else f"rank {rank}"
    last = "`os._exit(0)` as the script's last call, behind `sys.stdout.flush()`: no destructor runs then"
    close = "close DataLoaders, writers and whatever else runs threads before the script ends"
    group = ("`dist.barrier()` and `dist.destroy_process_group()` at the end of the script",)
    still = "; its process group still existed" if end.through == "group" else ""
    if _was_typed(_TOLERATE, facts):
        still += f"; `{_TOLERATE}` excuses no program whose status may be another than 0"
    return (
        f"{who} aborted after the program was through, while its libraries were taken down",
        f"no exception ended the program: it came to its last line or `sys.exit`, with a native thread at work{still}",
        (*(group if still else ()), close, last, f"`{_TOLERATE}`: the run goes on, and this rank ended well"),
    )


def left_early(left: Left, stuck: Stuck | None) -> tuple[str, str, tuple[str, ...]]:
    """Return what, why and fixes of ranks that ended with status 0 while another one still waited for them.

    A collective that the script itself calls has a place that these ranks did not come to. In `backward`, and where
    nothing tells the call, ranks meet once a batch.
    """
    waits = stuck.waited if stuck is not None else ()
    waited = next((each for each in waits if each.rank == left.waiting), None)
    call = waited.described if waited is not None and waited.op else left.call
    where = f" in {call}" if call else " in a collective"
    who, they = ranks_text(left.ranks), "they" if len(left.ranks) > 1 else "it"
    what = f"{who} left{'' if left.told else ' with status 0'} while rank {left.waiting} still waited{where}"
    since = f", {duration_text(left.before_s)} before rank {left.waiting} failed" if left.before_s >= 0.1 else ""
    batches, branch = "fewer batches than the others", "a `return`, `break` or `sys.exit` that not all ranks take"
    called = bool(left.frame) and left.call not in ("", "backward")
    reasons = f"{branch}, or {batches}" if called else f"{batches}, or {branch}"
    place = line_of(left.frame)
    missed = f"look for what lets {who} end before `{place}`: {branch}, or fewer turns of the loop around it"
    return (
        f"{what}, at {left.frame}" if left.frame else what,
        f"a collective needs all ranks, and {they} had ended{since}: {reasons}",
        (missed, TOGETHER, EQUAL_BATCHES) if called else (EQUAL_BATCHES, TOGETHER),
    )


#: What, why and the fixes of a run that its host ended because its launcher was lost.
_WITHOUT_LAUNCHER = (
    "this host ended its part of the run, because its launcher was lost",
    "nothing was heard of the launcher for a minute, or its connection closed",
    ("look at the machine that launched: `ddplaunch explain` there, `last -x`, `dmesg -T`",),
)


def signal_to_launcher(code: str, facts: RunFacts | None, was_it_memory: str) -> tuple[str, str, tuple[str, ...]]:
    """Return what, why and the fixes of a run whose launcher was ended by a signal."""
    if code == "killed":
        return (
            "torchrun was killed (SIGKILL); its ranks were then stopped",
            "SIGKILL reaches only the process it is sent to: a person, a supervisor, or the kernel for lack of memory",
            (was_it_memory, "start it again; to stop a run, `ddplaunch stop` ends all of it in order"),
        )
    if facts is not None and facts.launcher_lost:
        return _WITHOUT_LAUNCHER
    if facts is not None and facts.stopped_by is not None:
        return stopped_by(facts.stopped_by)
    reasons = {
        "SIGHUP": ("usually the terminal or ssh session was closed", "run it in tmux or screen, or as a batch job"),
        "SIGINT": ("Ctrl-C in the terminal, or somebody's `kill -INT`", "nothing is wrong if that was you"),
    }
    name = signal_name(facts.signal) if facts is not None and facts.signal else "a signal"
    why, fix = reasons.get(name, (_SOMEBODY, who_asked(facts)))
    return f"the run was ended from outside by {name}", why, (fix,)


def who_asked(facts: RunFacts | None) -> str:
    """Return how to find out who ended a run by SIGTERM: from Slurm only where it ran in a job."""
    save = "save checkpoints on SIGTERM"
    if facts is not None and facts.slurm_job:
        return f"if it was not you: `sacct -j {facts.slurm_job} -o State,ExitCode,Reason` says why Slurm did; {save}"
    if facts is not None and facts.argv:
        return f"if it was not you, a `kill` of somebody's or what supervises this process sent it; {save}"
    return f"if it was not you: in a job of Slurm, `sacct -j JOBID -o State,ExitCode,Reason` says why; {save}"


def _picks_its_port(plan: Mapping[str, Any]) -> bool:
    """Return whether torchrun takes a free port, as on one node without `--master-port`."""
    topology = plan.get("topology")
    nodes = topology.get("nnodes") if isinstance(topology, dict) else None
    return isinstance(nodes, dict) and nodes.get("value") == 1 and plan["topology"].get("master_port") is None


def another_port(fix: str, line: str) -> str:
    """Return ``fix`` with another port than the one that ``line`` says is taken."""
    return fix.replace("29501", "29511") if "29501" in line else fix


def _sets(facts: RunFacts, name: str, value: str = "") -> bool:
    """Return whether the launch set a variable of the ranks, to ``value`` if that is given."""
    variables = (facts.plan or {}).get("environment")
    known = variables if isinstance(variables, list) else []
    named = [each.get("value") for each in known if isinstance(each, dict) and each.get("name") == name]
    return any(each == value if value else each for each in named)


class _Command(NamedTuple):
    """The words of a run, those behind ``--`` apart, and what its plan says of the numbers."""

    own: tuple[str, ...]
    behind: tuple[str, ...]
    plan: Mapping[str, Any]

    def takes(self, name: str) -> bool:
        """Return whether the script receives the number in some way; of runs of older versions that is not known."""
        receives = self.plan.get("receives")
        return not isinstance(receives, list) or name in receives or self.literal(name) is not None

    def literal(self, name: str) -> str | None:
        """Return the script's option that was typed behind ``--`` and decided the number."""
        found = _of_numbers(self.plan, name).get("source")
        detail = found.get("detail") if isinstance(found, dict) and found.get("kind") == "script" else None
        match = _TYPED.fullmatch(detail) if isinstance(detail, str) else None
        return match[1] if match else None

    def put(self, name: str, value: int) -> _Command:
        """Return the command with another number, where the script gets it from."""
        option, now = self.literal(name), _number(self.plan, name)
        if option is None or now is None:
            return self._replace(own=tuple(_with(self.own, "--" + name.replace("_", "-"), str(value))))
        words = list(self.behind)
        for at, word in enumerate(words):
            flag, equals, attached = word.partition("=")
            text = attached if equals else words[at + 1] if at + 1 < len(words) else ""
            if flag == option and text.isdecimal():  # maybe a total of several processes: it changes in proportion
                changed = str(int(text) * value // now)
                words[at : at + (1 if equals else 2)] = [f"{flag}={changed}"] if equals else [flag, changed]
        return self._replace(behind=tuple(words))

    def text(self) -> str:
        """Return it as it is typed."""
        return shlex.join((*self.own, *self.behind))


def _smaller_batch(command: _Command) -> tuple[str, ...]:
    """Return the command with a smaller batch per process: of the same effective batch if the script can accumulate."""
    plan = command.plan
    batch, accum, world = (_number(plan, name) for name in ("batch_size", "accum", "world_size"))
    if not command.takes("batch_size"):
        return (f"a smaller batch, in the script itself: {_reason(plan, 'batch_size')}",)
    if batch is not None and batch < 2:
        return () if "receives" not in plan else (_NO_HALF,)
    if not command.takes("accum"):
        return _without_accumulation(command, batch, accum or 1, world)
    return () if batch is None or world is None else _with_accumulation(command, batch, accum or 1, world)


def _without_accumulation(command: _Command, batch: int | None, accum: int, world: int | None) -> tuple[str, ...]:
    if batch is None or world is None:
        return ("a smaller batch, `--batch-size` N/2: the effective batch halves too, the script does not accumulate",)
    smaller = command._replace(own=tuple(_with(command.own, "--global-batch-size", None))).put("batch_size", batch // 2)
    whole = f"{batch // 2 * accum * world} in the place of {batch * accum * world}"
    return (f"an effective batch of {whole}, since the script does not accumulate: `{smaller.text()}`",)


def _with_accumulation(command: _Command, batch: int, accum: int, world: int) -> tuple[str, ...]:
    whole = _number(command.plan, "global_batch_size") or batch * accum * world
    ranks, effective = Resolved(world, _COMPUTED), Resolved(whole, _COMPUTED)
    for smaller in range(batch // 2, 0, -1):
        request = NumbersRequest(ranks, batch_size=Resolved(smaller, _COMPUTED), global_batch_size=effective)
        try:
            found = resolve_batch(request)
        except UsageError:  # does not divide
            continue
        if found.accum is None:
            return ()
        changed = command.put("batch_size", smaller).put("accum", found.accum.value)
        return (f"same effective batch of {whole} in less memory: `{changed.text()}`",)
    return ()


def _reason(plan: Mapping[str, Any], name: str) -> str:
    """Return why a number does not reach the script, as the plan says."""
    missing = plan.get("missing")
    for each in missing if isinstance(missing, list) else []:
        if isinstance(each, dict) and each.get("number") == name and isinstance(each.get("reason"), str):
            return str(each["reason"])
    return "no option was found by which it takes one"


def _of_numbers(plan: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    numbers = plan.get("numbers")
    found = numbers.get(name) if isinstance(numbers, dict) else None
    return found if isinstance(found, dict) else {}


def _number(plan: Mapping[str, Any], name: str) -> int | None:
    value = _of_numbers(plan, name).get("value")
    return value if isinstance(value, int) and value > 0 else None


def _value(own: Sequence[str], flag: str) -> str | None:
    """Return what was typed behind ``flag`` or attached to it, None where it was not given."""
    for word, after in zip(own, [*own[1:], ""], strict=True):
        name, equals, attached = word.partition("=")
        if name == flag:
            return attached if equals else after
    return None


def _with(own: Sequence[str], flag: str, value: str | None) -> list[str]:
    """Return the words with ``flag`` set to ``value`` where it stands, else at the end; without it for None."""
    new = [] if value is None else [flag, value]
    result: list[str] = []
    words = iter(own)
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
