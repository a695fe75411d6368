"""What one failure looks like in a log, as data, and how far its lines can be trusted to name the root cause.

Of exceptions and signals that no signature knows, tables say what some types, messages and signals mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum, auto

from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import size_text

#: Codes of what machines, drivers and schedulers do, which an exception of the program's own logic only mentions.
OF_MACHINES = frozenset(
    (
        *("cuda-out-of-memory", "gpu-fault", "device-side-assert", "cudnn-error"),
        *("host-out-of-memory", "shm-too-small"),
        *("disk-full", "killed", "segmentation-fault", "aborted", "terminated", "time-limit", "scheduler-error"),
        *("collective-timeout", "infiniband-error", "wrong-network-interface", "too-many-open-files", "port-taken"),
    )
)
#: Codes of what kernels, drivers and schedulers tell of ranks, who sign for themselves.
BY_OTHERS = frozenset(("host-out-of-memory", "killed", "gpu-fault", "terminated", "time-limit", "scheduler-error"))
#: Codes of what ends a rank before its first step, if it ends it.
AT_START = frozenset(
    (
        *("port-taken", "rendezvous-failed", "stale-rendezvous", "host-name-unresolvable"),
        *("wrong-network-interface", "process-group-not-initialized"),
        *("launcher-arguments", "script-arguments", "local-rank-argument", "missing-rank-environment", "syntax-error"),
        *("module-not-found", "extension-build-failed", "torchvision-mismatch", "nccl-version-mismatch"),
        *("driver-too-old", "cuda-unavailable", "cuda-arch-mismatch", "nccl-unavailable", "nccl-net-plugin"),
        *("invalid-device-ordinal", "duplicate-gpu", "fabric-manager-down"),
    )
)
#: Codes of echoes that do not speak of a lost peer: launchers' summaries, and what interpreters print as they end.
NOISE = frozenset(
    ("launcher-summary", "told-elsewhere", "stopped-by-launcher", "teardown-noise", "rendezvous-shutdown")
)


class Tier(IntEnum):
    """How far a line can be trusted to name the root cause. The best tier wins; within a tier, the earliest failure."""

    #: The line itself says what went wrong: no other failure has to come first.
    CAUSE = auto()
    #: The line says how something failed, not why: an exception that no signature knows, a library's error code.
    GENERAL = auto()
    #: The line may name the cause, but other failures lead to the same line: a crash, a mismatch.
    UNCERTAIN = auto()
    #: The rank went on after the error, logged it as a warning, or was stopped by the launcher; not for signatures.
    SURVIVED = auto()
    #: Healthy ranks print this too when another rank fails: timeouts, aborts, nodes that do not meet.
    SYMPTOM = auto()
    #: The line only supports a cause of the same code; with nothing better in the log, it makes that code likely.
    HINT = auto()
    #: A rank or launcher reports a failure elsewhere; never a cause.
    ECHO = auto()


@dataclass(frozen=True)
class Signature:
    """One way in which ``code`` shows: a rule of ``ddplaunch/explain/families/*.toml``.

    - ``tier``: how it ranks against other failures. If two signatures of a tier match one line, the first listed wins.
    - ``patterns``: regular expressions of Python, searched in one line without its prefix and ANSI codes; the first
      that matches counts. Each needs some plain words: lines without them are skipped. ``unless``: expressions that
      make the line a near-miss. ``log_unless``: expressions that contradict the line if any line of the same rank
      matches. ``log_with``: expressions of which each has to match some line of the log; their groups are words too.
      ``log_by_several``: as ``log_with``, but two ranks print it, or one line stands twice where no rank is named.
    - ``what``, ``why``, ``fixes``: words that may use named groups of the pattern as ``{name}``; ``{line}`` is what the
      whole pattern matched, unless it names a part so. A fix whose groups are missing is left out. Echoes have no
      ``why`` and no ``fixes``.
    - ``raises``: exceptions of a program's own logic (ValueError …) that have this message nevertheless.
    - ``needed``: texts of which every line that matches contains one.
    - ``source``: where the message is printed or discussed. ``example``: a line that matches.
    - ``name``: of words that the engine asks for by name; it has no patterns.
    """

    code: str
    tier: Tier
    what: str
    patterns: tuple[str, ...] = ()
    example: str = ""
    why: str = ""
    fixes: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    log_unless: tuple[str, ...] = ()
    log_with: tuple[str, ...] = ()
    log_by_several: tuple[str, ...] = ()
    raises: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    source: str = ""
    name: str = ""

    @property
    def is_root(self) -> bool:
        """Whether a matching line can be the root cause by itself."""
        return self.tier < Tier.HINT


_LOST = ("lost the other end of a connection of its own; no other rank had failed before", "look at who serves it")
#: What an exception means that a rank raises because of a process that it had started or was connected to, and a fix.
OF_EXCEPTIONS = {
    "CalledProcessError": (
        "started a program that failed; the program printed its own reason above the traceback, if any",
        "run the program by itself on that node: same folder, same environment",
    ),
    "DistStoreError": (
        "waited for a key of the store that its script chose, and no rank had set it by then",
        "look at what sets the key: that rank ended, came late, or took another branch",
    ),
    "BdbQuit": (
        "came to a breakpoint that stands above this line, and has no terminal to ask at",
        "take `breakpoint()` or `pdb.set_trace()` out; `--env PYTHONBREAKPOINT=0` passes over each `breakpoint()`",
    ),
    "KeyboardInterrupt": (
        "was interrupted alone: SIGINT came to this process and not to the launcher, or its own code raised it",
        "look for what interrupts it: `interrupt_main`, `raise_signal` or a watchdog in the script, a `kill -INT`",
    ),
    "ConnectionResetError": _LOST,
    "ConnectionAbortedError": _LOST,
    "ConnectionRefusedError": _LOST,
    "BrokenPipeError": _LOST,
}

#: What an exception's message means that Python's own words do not say, and a fix.
OF_MESSAGES = (
    (
        re.compile(
            r"'(?:DistributedDataParallel|FullyShardedDataParallel|DataParallel)' object has no attribute '(\w+)'"
        ),
        "the model is wrapped: what it has itself is reached through `.module` of the wrapper",
        "`model.module.{0}` in place of `model.{0}`, or keep the bare model beside the wrapped one",
    ),
    (
        re.compile(
            r"DistributedDataParallel device_ids and output_device arguments only work with single-device/"
            r"multiple-device GPU modules or CPU modules, but got device_ids \[(?!None)"
        ),
        "`device_ids` are GPUs, and this model is on the CPU",
        "`DistributedDataParallel(model)` without `device_ids` where the model is on the CPU",
    ),
    (
        re.compile(r"SyncBatchNorm layers only work with GPU modules|SyncBatchNorm expected input tensor to be on"),
        "`SyncBatchNorm` computes on GPUs only, and this model is on the CPU",
        "leave `SyncBatchNorm.convert_sync_batchnorm` out where there are no GPUs; Lightning: `sync_batchnorm=False`",
    ),
    (
        re.compile(r"^Parent directory (\S+) does not exist\.$"),
        "`torch.save` makes no folders",
        "`os.makedirs('{0}', exist_ok=True)` before it, on every rank that saves",
    ),
    (
        re.compile(r"^\[Errno 21\] Is a directory: ['\"]([^'\"]+)['\"]$"),
        "a folder stands where a file is to be read or written",
        "give the path of a file: `ls {0}` shows what is in the folder",
    ),
    (
        re.compile(r"^Cannot re-initialize CUDA in forked subprocess"),
        "a process that is forked after the first use of CUDA cannot use it, and DataLoader workers are forked",
        "give out CPU tensors in the dataset, and move each batch in the loop: `batch.to(device, non_blocking=True)`; "
        'or `DataLoader(..., multiprocessing_context="spawn")`',
    ),
    (
        re.compile(r"^No backend type associated with device type cpu"),
        "NCCL moves tensors of GPUs only, and this one is on the CPU",
        "move the tensor to the rank's GPU, or begin with `init_process_group('cpu:gloo,cuda:nccl')`",
    ),
    (
        re.compile(r"^No backend type associated with device type cuda"),
        "this process group was made for the CPU, and the tensor is on a GPU",
        "begin with `init_process_group('nccl')`, or with `'cpu:gloo,cuda:nccl'` for tensors of both",
    ),
    (
        re.compile(r"^NCCL error: (unhandled \w+ error|internal error|remote process \w+)"),
        "a call failed in NCCL, whose own lines say which",
        "run again with `--nccl-debug INFO`: a line `NCCL WARN` names the call and its error",
    ),
    (
        re.compile(r"^EOF when reading a line$"),
        "the script asks for input, and a rank has none: nobody types into it",
        "give the answer as an argument or `--env NAME=VALUE`, and ask nothing",
    ),
)

_CORE = "a core dump has the native stack: `coredumpctl gdb`, or `ulimit -c unlimited` and run it again"
_WARNED = "no handler of the rank takes it, and then it ends a process; job scripts send it as a warning before a limit"
_PROFILER = "a timer of CPU time, as sampling profilers use them, ran out in the rank, and nothing handles the signal"
_TIMERS = "stop the timer before its handler goes: look for `setitimer` and `{}`, and leave out the profiler meanwhile"
#: Signals that end a process for a reason of their own: what one means, and a fix (signal(7), getrlimit(2)).
ENDED_BY = {
    "SIGUSR1": (_WARNED, "handle it: `signal.signal(signal.SIGUSR1, save)`; or send none: `--signal` of sbatch"),
    "SIGUSR2": (_WARNED, "handle it: `signal.signal(signal.SIGUSR2, save)`; or send none: `--signal` of sbatch"),
    "SIGALRM": (
        "`signal.alarm()` or `signal.setitimer()` ran out in the rank, and nothing handles the signal",
        "a longer time, or `signal.alarm(0)` at its end: look for `signal.alarm` and `setitimer` in the script",
    ),
    "SIGPROF": (_PROFILER, _TIMERS.format("ITIMER_PROF")),
    "SIGVTALRM": (_PROFILER, _TIMERS.format("ITIMER_VIRTUAL")),
    "SIGXCPU": (
        "the process has used as many seconds of CPU as its limit allows: `ulimit -t`, often set on login nodes",
        "`ulimit -t unlimited` in front of the launch, or run it in a job, where no such limit holds",
    ),
    "SIGXFSZ": (
        "a file grew beyond the largest size that the process may write: `ulimit -f`",
        "`ulimit -f unlimited` in front of the launch",
    ),
    "SIGFPE": (
        "native code divided an integer by zero: a size, a stride or a count of 0 that no check had stopped",
        "look at what that line hands to native code: an empty tensor, a divisor of 0",
    ),
    "SIGILL": (
        "the processor does not know an instruction: a package was built for a newer one (AVX2, AVX512), or a check of "
        "its own failed and trapped",
        "compare `lscpu` here with where the package was built; install a wheel for this CPU, or build it on this node",
    ),
    "SIGTRAP": ("native code ran into a trap: a check of a library that failed, or a breakpoint", _CORE),
    "SIGSYS": (
        "a sandbox (seccomp) forbids a system call that the rank made",
        "`docker run --security-opt seccomp=unconfined` tells whether it is the container's",
    ),
    "SIGPIPE": (
        "it wrote into a pipe that nobody reads any more, and Python's own handling of that was switched off",
        "look for `signal.SIGPIPE` in the script, and at the program behind the pipe: it ended first",
    ),
}
#: The same for a signal that has none.
ENDED_BY_ANOTHER = (
    "no handler of the rank takes this signal, and then it ends a process; nothing that was seen says who sent it",
    "look for {0} in the script and in what it starts; `signal.signal({1}, signal.SIG_IGN)` passes over it",
)

#: A part of a template that a group of the pattern fills.
FIELD = re.compile(r"\{(\w+)\}")
_BYTES = re.compile(r"(\d{4,18}) ?bytes")
_BUS = re.compile(r"([0-9a-f]*)([0-9a-f]{2})([0-9a-f]{2})([0-9a-f])")


def readable(groups: Mapping[str, str]) -> Mapping[str, str]:
    """Return the groups as a person writes them: sizes in units, without the frame that rich draws around an error.

    NCCL leaves the colons and dots of a PCI device out, which `lspci` writes: ``busIdToInt64`` in
    https://github.com/NVIDIA/nccl/blob/master/src/misc/utils.cc
    """
    shown = dict(groups)
    if match := _BUS.fullmatch(groups.get("bus", "").zfill(6)):
        domain, bus, device, function = match.groups()
        shown["bus"] = f"{domain.lstrip('0') and f'{domain}:'}{bus}:{device}.{function}"
    if match := _BYTES.fullmatch(groups.get("size", "")):
        shown["size"] = size_text(int(match[1]))
    if "line" in groups:
        shown["line"] = groups["line"].strip(" │┃")
    return shown


def filled(template: str, groups: Mapping[str, str]) -> str:
    """Return ``template`` with each ``{name}`` replaced by its group, by "?" if there is none."""
    return FIELD.sub(lambda match: groups.get(match.group(1), "?"), template)
