"""Evidence from outside the logs: how ranks ended, what the kernel and the cgroup say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.explain.decide import recorded as of_record
from ddplaunch.explain.decide.work import telling
from ddplaunch.explain.diagnosis import RankEnd, RunFacts
from ddplaunch.explain.read.scan import scan
from tests.explain.logs import (
    TORCH,
    diagnosed,
    ended,
    explained,
    failed,
    lines_of,
    lost,
    raised,
    recorded,
    summary,
    told,
)

KILLED = (RankEnd(0, "a", exit_code=1, ended_by="launcher"), RankEnd(1, "a", signal="SIGKILL", ended_by="itself"))


def test_a_killed_rank_with_an_oom_kill_ran_out_of_host_memory() -> None:
    plain = diagnosed(lost(0), RunFacts(ranks=KILLED, state="failed"))
    assert (plain.code, plain.rank, plain.certainty) == ("killed", 1, "likely")
    counted = diagnosed(lost(0), RunFacts(ranks=KILLED, state="failed", oom_kills=1))
    assert (counted.code, counted.rank, counted.certainty) == ("host-out-of-memory", 1, "observed")
    assert any(each.file == "memory.events" for each in counted.evidence)
    line = "[1.5] Out of memory: Killed process 88 (python3) total-vm:612214400kB, anon-rss:241880160kB, file-rss:0kB"
    assert diagnosed(lost(0), RunFacts(ranks=KILLED, state="failed", dmesg=(line,))).code == "host-out-of-memory"
    decided = RunFacts(ranks=(RankEnd(0, "a", exit_code=1, ended_by="itself"),), state="failed", oom_kills=1)
    assert diagnosed(raised(0, "ValueError: x"), decided).code == "script-exception", "the log decides"


REPORT = (
    "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "oom-kill:constraint=CONSTRAINT_{why},nodemask=(null),cpuset=/,mems_allowed=0{cgroup},task=python,pid=29292,uid=0",
    "Memory cgroup out of memory: Killed process 29292 (python) total-vm:1515244kB, anon-rss:906852kB, UID:0",
)


def test_sigbus_is_of_a_full_shared_memory_or_of_another_file() -> None:
    ranks = (RankEnd(0, "a", signal="SIGBUS", ended_by="itself"),)
    full = RunFacts(ranks=ranks, state="failed", shm_free_bytes=1 << 20, shm_size_bytes=64 << 20)
    assert diagnosed("", full).code == "shm-too-small"
    roomy = diagnosed("", replace(full, shm_free_bytes=60 << 20))
    assert roomy.code == "unknown" and "maps" in roomy.fixes[0] and "docker" not in f"{roomy.fixes}"
    assert "docker" in diagnosed("", RunFacts(ranks=ranks, state="failed")).fixes[0]


@pytest.mark.parametrize(("number", "name"), [(15, "SIGTERM"), (2, "interrupted"), (1, "SIGHUP")])
def test_a_signal_to_the_launcher(number: int, name: str) -> None:
    found = diagnosed(raised(0, "KeyboardInterrupt"), RunFacts(state="terminated", signal=number))
    assert found.code == "terminated" and name in found.what
    assert found.is_stop == (number == 2), "Ctrl-C is no failure"


def test_how_a_run_ended_counts_whatever_it_printed() -> None:
    assert "torchrun was killed" in diagnosed("step 3\n", RunFacts(state="killed")).what
    assert explained(raised(0, "ValueError: x"), RunFacts(state="succeeded")).diagnosis is None


def test_the_rank_that_ended_first_is_the_cause_of_failures_in_several_files() -> None:
    ends = (RankEnd(0, "a", 1, None, 12.5, "launcher"), ended(1, 1, 11.0))
    found = recorded(*((raised(None, f"ValueError: of {end.rank}"), end) for end in ends))
    assert found.exception is not None and (found.exception.message, found.certainty) == ("of 1", "observed")
    assert found.evidence[0].file == "rank-1.err"


DUMP = (
    "{head}\n\nThread 0x00007f21aa7fc640 (most recent call first):\n"
    '  File "/usr/lib/python3.11/threading.py", line 331 in wait\n  File "pool.py", line 5 in feed\n\n'
    "{current} 0x00007f21bb7fc640 (most recent call first):\n"
    '  File "/opt/env/lib/python3.11/site-packages/decord/reader.py", line 9 in seek\n'
    '  File "train.py", line 77 in load\n  File "train.py", line 101 in <module>\n'
)
FATAL = DUMP.format(head="Fatal Python error: {}", current="Current thread")
LOGGED = "2026-02-03 11:02:07,121 INFO train: resuming\n2026-02-03 11:02:07,480 ERROR train: 32000 words, not 50257\n"
PANIC = "thread '<unnamed>' panicked at src/lib.rs:231:14:\nindex out of bounds: the len is 4\nnote: run with X\n"


@pytest.mark.parametrize(
    ("text", "status", "code", "said"),
    [
        ("loading conf.yaml\nconfig: unknown optimizer 'adamx'\n", 1, "script-exception", "unknown optimizer 'adamx'"),
        (LOGGED, 3, "script-exception", "exit code 3: ERROR train: 32000 words, not 50257"),
        ("prepare.sh: no shards under $SCRATCH\n", 7, "script-exception", "no shards under $SCRATCH"),
        ("please set WANDB_API_KEY\n", 3, "script-exception", "please set WANDB_API_KEY"),
        ("env: 'python2': No such file or directory\n", 127, "script-not-found", "'python2'"),
        ("./rank.sh: line 9: nvcc-select: command not found\n", 127, "script-not-found", "nvcc-select"),
        ("rank.sh: ./run: cannot execute binary file: Exec format error\n", 126, "permission-denied", "./run"),
        ("step 3 loss 0.5\n", 9, "unknown", "no line says why; its last one: step 3 loss 0.5"),
        ("", 9, "unknown", "it printed nothing"),
        ("F0203 10:11:12.130 4132 loader.cc:88] Check failed: a == b\n", "SIGABRT", "aborted", "Check failed: a == b"),
        (PANIC, "SIGABRT", "aborted", "panicked at src/lib.rs:231:14"),
        (DUMP.format(head="Timeout (0:00:30)!", current="Thread"), 1, "hang", "train.py:77 in load"),
        (FATAL.format("Segmentation fault"), "SIGSEGV", "segmentation-fault", "train.py:77 in load"),
        (FATAL.format("Bus error"), "SIGBUS", "unknown", "train.py:77 in load"),
    ],
)
def test_the_last_lines_of_a_rank_that_ends_by_itself_are_quoted(
    text: str, status: int | str, code: str, said: str
) -> None:
    found = recorded(("", told(0)), (text, ended(1, status)))
    assert (found.code, found.rank) == (code, 1)
    assert said in found.what
    if text:
        assert found.evidence[0].file == "rank-1.err" and found.evidence[0].line > 0
    advice = " ".join(found.fixes)
    assert "ddplaunch run" not in advice and "torchrun" not in advice, "it is a run of ddplaunch"
    assert ("`--env WANDB_API_KEY=VALUE`" in advice) == ("WANDB_API_KEY" in text)


@pytest.mark.parametrize(
    ("text", "status", "taken"),
    [
        ("Segmentation fault (core dumped)", "SIGSEGV", "PYTHONFAULTHANDLER"),
        ("double free or corruption (!prev)", "SIGABRT", "PYTHONFAULTHANDLER"),
    ],
)
def test_no_advice_that_is_already_followed(text: str, status: int | str, taken: str) -> None:
    plan = {"environment": [{"name": "PYTHONFAULTHANDLER", "value": "1"}]}
    ranks = (("", told(0)), (f"{text}\n", ended(1, status)))
    assert taken not in " ".join(recorded(*ranks, plan=plan, argv=("ddplaunch", "run", "2")).fixes)
    assert taken in " ".join(recorded(*ranks, plan={}).fixes), "where it was not followed, it is given"
    assert "coredumpctl" in " ".join(recorded(*ranks, plan=plan).fixes), "and then the native stack is the next"


def test_a_variable_that_was_set_as_advised_is_no_advice() -> None:
    text = (
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=8, "
        "NumelOut=8, Timeout(ms)=6000) ran for 6057 milliseconds before timing out.\n"
    )
    sets = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    for buffer, advised in (("2000", False), ("0", True)):
        values = sets | {"TORCH_FR_BUFFER_SIZE": buffer}
        plan = {"environment": [{"name": name, "value": value} for name, value in values.items()]}
        fixes = " ".join(recorded((text, ended(0, "SIGABRT")), plan=plan, argv=("ddplaunch", "run", "2")).fixes)
        assert ("TORCH_FR_BUFFER_SIZE" in fixes) == advised
        assert "`ddplaunch stacks`" in fixes and "py-spy" not in fixes


def test_only_a_launch_that_filled_options_in_is_told_how_to_leave_them_out() -> None:
    ranks = (("", told(0)), ("train.py: error: unrecognized arguments: --lrr\n", ended(1, 2)))
    some = {"passed": [{"number": "lr", "arguments": ["--lrr", "0.1"]}, {"number": "accum", "arguments": []}]}
    fixes = " ".join(recorded(*ranks, plan=some).fixes)
    assert "turn that off: `--no-forward`" in fixes
    without: tuple[dict[str, object] | None, ...] = (None, {}, {"passed": []})
    for nothing in without:
        assert "no-forward" not in " ".join(recorded(*ranks, plan=nothing).fixes)


@pytest.mark.parametrize(
    ("facts", "says", "never"),
    [
        (RunFacts(stopped_by="ada"), "stopped by ada with `ddplaunch stop`", "sacct"),
        (
            RunFacts(run={"environment": {"SLURM_JOB_ID": "17"}}, argv=("ddplaunch", "run")),
            "`sacct -P -j 17 -o State,ExitCode,Reason`",
            "JOBID",
        ),
        (RunFacts(argv=("ddplaunch", "run")), "a `kill` from another shell, or a supervisor", "sacct"),
        (RunFacts(), "in a job of Slurm, `sacct -P -j JOBID", "ddplaunch stop"),
    ],
)
def test_who_ended_a_run_is_said_as_far_as_it_is_known(facts: RunFacts, says: str, never: str) -> None:
    found = diagnosed("step 3\n", replace(facts, state="terminated", signal=15))
    text = " ".join((found.what, found.why, *found.fixes))
    assert found.code == "terminated" and says in text and never not in text


STORE = "torch.distributed.DistNetworkError: failed to recv, got 0 bytes"
GLOO_WAITED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for "
    "recv operation to complete"
)
WATCHDOG = (
    "[rank1]:[E203 10:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=311, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600011 milliseconds\n"
)
C10D = f'[rank1]:   File "{TORCH}/distributed/distributed_c10d.py", line 9, in barrier\n'


def through_torch(text: str) -> str:
    """Return a traceback of rank 1 that goes through a collective of torch."""
    *lines, last = text.splitlines(keepends=True)
    return "".join([*lines, C10D, "[rank1]:     work.wait()\n", last])


@pytest.mark.parametrize(
    ("text", "status", "call"),
    [
        (through_torch(lost(1)), 1, "in barrier, at train.py:31 in main"),
        (through_torch(raised(1, STORE)), 1, "in barrier, at train.py:31 in main"),
        (through_torch(raised(1, GLOO_WAITED)), 1, "in barrier, at train.py:31 in main"),
        (WATCHDOG, "SIGABRT", "in ALLREDUCE (number 311, 1 elements)"),
        (lost(1), 1, "in a collective, at train.py:31 in main"),
    ],
)
def test_a_rank_that_left_with_status_0_is_the_cause_for_those_who_wait(
    text: str, status: int | str, call: str
) -> None:
    found = recorded(("epoch 3 is the last one\n", ended(0, 0, 9.0)), (text, ended(1, status, 11.0)))
    assert (found.code, found.rank, found.certainty) == ("rank-left-early", 0, "observed")
    assert found.what == f"rank 0 left with status 0 while rank 1 still waited {call}"
    assert ("before `train.py:31`" in found.fixes[0]) == call.startswith("in barrier")
    assert found.evidence[0].file == "rank-1.err"


def test_status_255_is_known_as_minus_one() -> None:
    for text in ("done with it\n", "error: no such dataset\n"):
        assert "sys.exit(-1)" in recorded(("", told(0)), (text, ended(1, 255))).why
    assert "sys.exit(-1)" not in recorded(("", told(0)), ("done with it\n", ended(1, 3))).why
    by_signals = (
        recorded(("", told(0)), ("words\n", ended(1, status))).why for status in (133, 134, 135, 136, 137, 139)
    )
    assert ["a shell gives" in why for why in by_signals] == [False, True, True, False, True, True]


@pytest.mark.parametrize(
    ("name", "code", "fix"),
    [
        ("SIGUSR1", "terminated", "signal.SIGUSR1"),
        ("SIGALRM", "unknown", "signal.alarm"),
        ("SIGXCPU", "time-limit", "ulimit -t"),
        ("SIGFPE", "unknown", "divisor"),
        ("SIGQUIT", "terminated", "if it was not you"),
    ],
)
def test_a_signal_that_ended_a_rank_is_explained(name: str, code: str, fix: str) -> None:
    found = recorded(("", told(0)), ("", ended(1, name)))
    assert (found.code, found.rank) == (code, 1)
    assert name in found.what and fix in found.fixes[0]
    assert "sys.exit" not in f"{found.why} {found.fixes}"


@pytest.mark.parametrize("just_ended", [True, False])
def test_the_source_of_a_crash_is_read_while_the_script_is_what_ran(tmp_path: Path, just_ended: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text("import reader\n\nreader.seek(8)\n")
    text = (
        f'Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File "{script}", '
    )
    found = recorded((f"{text}line 3 in <module>\n", ended(1, "SIGSEGV")), just_ended=just_ended)
    assert found.calls[0].source == ("reader.seek(8)" if just_ended else "")


def test_a_program_that_is_missing_is_no_data() -> None:
    frame = (
        '  File "/usr/lib/python3.11/subprocess.py", line 1917, in _execute_child\n    raise child_exception_type()\n'
    )
    text = raised(None, "FileNotFoundError: [Errno 2] No such file or directory: 'ffmpegg'")
    started = recorded(("", told(0)), (text.replace("    step()\n", "    step()\n" + frame), ended(1, 1)))
    assert (started.code, started.rank) == ("script-not-found", 1)
    assert "`command -v ffmpegg`" in started.fixes[0]
    assert recorded(("", told(0)), (text, ended(1, 1))).code == "dataset-missing"


def test_what_other_ranks_said_is_named_a_consequence_only_where_they_said_something_else() -> None:
    text = raised(None, "KeyError: 'lr'")
    alone = recorded(("", told(0)), (text, ended(1, 1)))
    assert alone.why == "rank 1 ended by an uncaught exception"
    alike = recorded((text, ended(0, 1)), (text, ended(1, 1)))
    assert alike.why == "the ranks ended alike, by an uncaught exception"
    others = recorded((lost(0), ended(0, 1, 5.4)), (text, ended(1, 1)))
    assert others.why == "rank 1 ended by an uncaught exception; errors on other ranks are consequences"


LATE = "gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"
LATE_OF_0 = f"RuntimeError: [{LATE}"
KEY, ALIKE = (raised(rank, "KeyError: 'lr_min'") for rank in (1, None))


def test_what_a_rank_waited_for_in_finally_is_not_the_cause() -> None:
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    own = raised(1, "ValueError: bad sample 7") + during + raised(1, f"RuntimeError: [{LATE}")
    found = recorded((raised(0, f"RuntimeError: [{LATE}"), told(0)), (own, ended(1, 1)))
    assert (found.code, found.rank) == ("script-exception", 1) and "bad sample 7" in found.what
    timed_out = raised(1, "queue.Empty").replace("/home/kim/train.py", f"{TORCH}/utils/x.py") + during
    waits = recorded(("", told(0)), (timed_out + raised(1, f"RuntimeError: [{LATE}"), ended(1, 1)))
    assert waits.code == "collective-timeout", "a library's own try is no cause"


SOURCE = 'batch = {"image": x, "labels": y}\nloss = f(batch["lables"], self.encoder, args["--batch-size"])\n'
GONE = "FileNotFoundError: [Errno 2] No such file or directory: "


@pytest.mark.parametrize(
    ("error", "place", "near"),
    [
        (GONE + "'{}/cats/train_1.jsn'", "cats", "train_1.json"),
        (GONE + "'{}/cast/val/x.json'", "", "cats"),
        (GONE + "'{}/cats/x/train_1.json'", "", ""),
        (GONE + "'{}/cats/train_2.jso'", "", ""),  # of another kind
        ("KeyError: 'lables'", "train.py", "labels"),
        ("KeyError: 'batch_size'", "train.py", "batch-size"),
        ("KeyError: 'max_epoch'", "conf.yaml", "max_epochs"),
        ("AttributeError: 'Net' object has no attribute 'encode'", "train.py", "encoder"),
        ("AttributeError: 'NoneType' object has no attribute 'encode'", "", ""),
        ("KeyError: 'bird'", "", ""),
    ],
)
def test_a_name_that_is_close_is_the_first_fix(tmp_path: Path, error: str, place: str, near: str) -> None:
    """Beside a missing file or folder, and in the user's source, while these are what the ranks saw."""
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "train_1.json").touch()
    (tmp_path / "train.py").write_text(SOURCE)
    text = raised(1, error.format(tmp_path))
    (tmp_path / "conf.yaml").write_text("trainer:\n  max_epochs: 9\n")
    argv = ("ddplaunch", "run", "2", "--", "train.py", f"--config={tmp_path / 'conf.yaml'}")
    known = {"argv": argv, "code": (str(tmp_path / "gone.py"), str(tmp_path / "train.py"))}
    found, later = (recorded(("", told(0)), (text, ended(1, 1)), just_ended=now, **known) for now in (True, False))
    asks = f"in `{tmp_path / place}` there is `{near}`: is that the one?"
    assert (asks in found.fixes[:1]) is bool(near), found.fixes
    assert "is that the one" not in " ".join(later.fixes)


def test_a_full_disk_is_named_with_what_is_left() -> None:
    text = raised(0, "OSError: [Errno 28] No space left on device")
    known = {"argv": ("ddplaunch", "run", "2", "--", "t.py"), "full_disks": (("out", "0 B of 2 MiB are free"),)}
    found = recorded((text, ended(0, 1)), **known)
    assert found.fixes[0] == "make room on `out`: 0 B of 2 MiB are free; `du -xh out | sort -h | tail`"
    assert "df -h" not in " ".join(found.fixes)


def test_a_read_only_file_system_is_no_question_of_who_may() -> None:
    found = recorded((raised(None, "OSError: [Errno 30] Read-only file system: '/data/x'"), ended(1, 1)))
    assert found.code == "permission-denied" and "`findmnt -T /data/x`" in found.fixes[0]
    denied = recorded((raised(None, "PermissionError: [Errno 13] Permission denied: '/data/x'"), ended(1, 1)))
    assert "findmnt" not in "".join(denied.fixes)


def test_stacks_of_a_crash_are_no_last_words() -> None:
    dump = [
        "Fatal Python error: Aborted",
        "",
        "Current thread 0x00007f (most recent call first):",
        '  File "/x/a.py", line 9 in f',
    ]
    assert telling(["step 3", *dump, "Extension modules: numpy.linalg (total: 9)"]) == ["step 3", dump[0]]
    raises = ["Traceback (most recent call last):", '  File "/x/a.py", line 9, in f', "KeyError: 3"]
    assert telling(raises) == raises


FULL = "torch.OutOfMemoryError: CUDA out of memory."
UNMET = "torch.distributed.DistNetworkError: The client socket has timed out after 6000ms while connecting to (a, 1)."
IN_THREAD = "Exception in thread T:\n" + raised(None, "KeyError: 'q'")
WARNED = "[W1102 10:00:00.1 pair.cc:1] Connection closed by peer [10.0.0.7]:4411\n"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
BUS = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n\n"
SPAWNED = raised(1, "torch.multiprocessing.spawn.ProcessRaisedException: ")
SPAWNED += "\n-- Process 0 terminated with the following error:\n" + raised(None, "ValueError: feature 3 is empty")
ABSENT = raised(0, "torch.distributed.DistStoreError: wait timeout after 8000ms, keys: /default_pg/0//cpu//0/2")
LEFT = [("", ended(0, 0, 9.0)), ("", ended(1, 0, 9.1))]
TWO = {"plan": {"numbers": {"world_size": {"value": 2}}}}
NO_FRAME = "\n\nThread 0x00007f1ad33136c0 (most recent call first):\n  <no Python frame>\n\n"
ALL_THREADS = FATAL.format("Floating point exception").replace("\n\n", NO_FRAME, 1)


#: What a rank printed and how it ended after rank 0 had left with status 0, and who is blamed.
AFTER_IT_LEFT: list[tuple[str, int | str, str, int]] = [
    (lost(1), 1, "rank-left-early", 0),
    (lost(1), "SIGABRT", "rank-left-early", 0),
    (lost(1), "SIGKILL", "killed", 1),
    (raised(1, "ZeroDivisionError: division by zero"), 1, "script-exception", 1),
    (raised(1, f"{FULL} Tried to allocate 2 GiB."), 1, "cuda-out-of-memory", 1),
    ("metrics are below the floor\n", 3, "script-exception", 1),
    (lost(1), "SIGSEGV", "segmentation-fault", 1),
    (raised(1, UNMET), 1, "rank-left-early", 0),
    (lost(1) + IN_THREAD, 1, "script-exception", 1),
    (WARNED, 1, "unknown", 1),
    ("", 1, "unknown", 1),
]
#: What an exception only mentions is not its cause.
MENTIONED = {
    'RuntimeError: failed: "slurmstepd: error: Detected 1 oom_kill event in StepId=1"': "script-exception",
    f"{FULL} Tried to allocate 2.00 GiB.": "cuda-out-of-memory",
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB": "cuda-out-of-memory",
    "ValueError: Default process group has not been initialized": "process-group-not-initialized",
}


@pytest.mark.parametrize(
    ("ranks", "known", "code", "rank", "said"),
    [
        ([("", told(0)), ("run.sh: it is gone\n", ended(1, 137))], {"oom_kills": 1}, "host-out-of-memory", 1, ""),
        # of ranks that exit alike the one that speaks for itself
        ([(lost(0), ended(0, 1)), ("giving up: no quota left\n", ended(1, 1, 5.1))], {}, "script-exception", 1, ""),
        ([("no data\n", ended(at, 7)) for at in (0, 1)], {}, "script-exception", None, "with exit code 7: no data"),
        ([*LEFT, (lost(2), ended(2, 1, 9.5))], {}, "rank-left-early", None, "ranks 0, 1 left with status 0 while"),
        ([("done\n", ended(0, 0, 12.0)), (lost(1), ended(1, 1, 11.0))], {}, "unknown", 1, ""),  # after the failure
        ([(BUS + raised(0, "RuntimeError: loader gone"), ended(0, 1)), ("", told(1))], {}, "shm-too-small", 0, ""),
        # what sys.exit prints is the reason, whatever it says
        ([("", told(0)), ("please install foo >= 2\n", ended(1, 1))], {}, "script-exception", 1, "install foo >= 2"),
        # a rank that was ended is the cause where the others only lost it
        ([(raised(0, LATE_OF_0), told(0, 5.2)), (lost(1), ended(1, 1))], {}, "collective-timeout", 1, ""),
        ([(raised(0, LATE_OF_0), told(0, 5.2)), (KEY, ended(1, 1))], {}, "script-exception", 1, "lr_min"),
        ([(lost(0), ended(0, 1, 5.5)), (SPAWNED, ended(1, 1))], {}, "script-exception", 1, "feature 3 is empty"),
        ([(ABSENT, ended(0, 1)), ("", told(1))], TWO, "rendezvous-failed", 2, "for rank 2, and the launch has 2 ranks"),
        ([("", told(0)), (ALL_THREADS, ended(1, "SIGFPE"))], {}, "unknown", 1, "train.py:77 in load"),
        # a lost connection is the echo of another rank's failure
        ([(raised(0, RESET), ended(0, 1, 5.6)), (KEY, ended(1, 1))], {}, "script-exception", 1, "KeyError"),
        ([(raised(0, RESET), ended(0, 1, 5.6)), ("", ended(1, "SIGKILL"))], {}, "killed", 1, ""),
        ([(ALIKE, told(0)), (ALIKE, ended(1, 1))], {}, "script-exception", None, "lr_min"),  # before it was told
        # one that left in silence is named beside those that complain
        ([("", ended(0, 1)), (lost(1), ended(1, 1, 5.4))], {}, "unknown", 0, "rank 0 ended with exit code 1"),
        *(([(raised(0, error), ended(0, 1)), ("", told(1))], {}, code, 0, "") for error, code in MENTIONED.items()),
        *(
            ([("the last epoch\n", ended(0, 0, 9.0)), (text, ended(1, end, 11.0)), ("", told(2))], {}, code, rank, "")
            for text, end, code, rank in AFTER_IT_LEFT
        ),
    ],
)
def test_a_record_names_the_cause(
    ranks: list[tuple[str, RankEnd]], known: dict[str, Any], code: str, rank: int | None, said: str
) -> None:
    found = recorded(*ranks, **known)
    assert (found.code, found.rank) == (code, rank) and said in found.what


def test_the_exits_of_a_record_stand_in_for_those_that_a_launcher_printed_of_its_hosts() -> None:
    scanned = scan(lines_of(failed(1, 0, 10) + summary((5, 1, 9), (1, 1, 8))))
    assert of_record.with_facts(scanned, RunFacts()) is scanned
    ends = (told(0), ended(1, "SIGKILL"), ended(2, 0), ended(3, 3))
    known = of_record.with_facts(scanned, RunFacts(ranks=ends))
    assert [(each.rank, each.code, each.by_agent, each.seen) for each in known.exits] == [
        (0, -15, True, True),
        (1, -9, False, True),
        (3, 3, False, True),
        (5, 1, False, False),
    ]
    assert min(each.line.at for each in known.exits[:3]) > scanned.lines[-1].at
    assert known.exits[2].line.text == "rank 3 ended with exit code 3" and known.exits[2].line.number == 0
    all_hosts = replace(ended(7, 1), host="node-7")
    assert {each.rank for each in of_record.with_facts(scanned, RunFacts(ranks=(*ends, all_hosts))).exits} == {
        0,
        1,
        3,
        7,
    }


@pytest.mark.parametrize(
    ("ends", "rank"),
    [
        # the one that crashed, else the one that did not only abort, else the one that failed
        ({0: 1, 1: -11, 2: 1}, 1),
        ({0: 1, 1: -7, 2: -6}, 1),
        ({0: -9, 1: -11}, None),
        ({0: -6, 1: 1, 2: -6}, 1),
        ({0: -6}, 0),
        ({0: -6, 1: -6}, None),
        ({0: -15, 1: -15}, None),
        ({}, None),
    ],
)
def test_the_only_rank_that_failed_is_known_by_its_exit(ends: dict[int, int], rank: int | None) -> None:
    rows = [(number, code, 10 + number) for number, code in ends.items()]
    assert of_record.only_failed_rank(scan(lines_of(summary(*rows) if rows else ""))) == rank


@pytest.mark.parametrize(
    ("code", "status", "known", "says"),
    [
        ("killed", -9, {"oom_kills": 1}, "the cgroup's limit was reached once during the run"),
        ("unknown", 137, {"oom_kills": 3}, "the cgroup's limit was reached 3 times during the run"),
        ("unknown", 136, {"oom_kills": 3}, None),
        ("killed", -9, {"oom_kills": 0, "shm_free_bytes": 0, "shm_size_bytes": 64}, None),
        ("killed", -9, {"dmesg": ("usb 1-1: new device", *REPORT)}, REPORT[2]),
        ("unknown", -7, {"shm_free_bytes": 100 << 10, "shm_size_bytes": 1000 << 10}, "100 KiB of 1000 KiB are free"),
        ("unknown", -7, {"shm_free_bytes": 101 << 10, "shm_size_bytes": 1000 << 10}, None),
        ("unknown", -7, {"shm_free_bytes": 0, "shm_size_bytes": 0}, None),
        ("unknown", -6, {"shm_free_bytes": 0, "shm_size_bytes": 64, "oom_kills": 1}, None),
    ],
)
def test_memory_explains_an_exit_as_far_as_it_is_known_to_have_run_out(
    code: str, status: int, known: dict[str, Any], says: str | None
) -> None:
    told_of = of_record.memory_says(code, status, RunFacts(**known))
    assert (told_of and told_of[1].text.removeprefix("oom_kill: ")) == says
    assert told_of is None or told_of[1].number == 0 == told_of[1].at * (not known.get("dmesg")), "no line of a file"
    assert told_of is None or told_of[0] == ("shm-too-small" if status == -7 else "host-out-of-memory")


def test_who_ended_before_whom_is_known_by_the_times_of_a_record() -> None:
    timeless = replace(ended(4, 1), ended_s=None)
    ends = (
        told(0, 1.0),
        ended(1, 1, 5.0),
        ended(2, 0, 5.0),
        ended(3, 0, 5.1),
        timeless,
        ended(5, 1, 5.0),
        ended(6, 0, 4.0),
        replace(told(8, 3.0), exit_code=0, signal=None),
    )
    facts = RunFacts(ranks=ends)
    first = of_record.first_by_itself(facts)
    assert first == ends[1] and of_record.left_before(facts, ends[1]) == (ends[6], ends[2])
    assert of_record.end_times(facts) == {0: 1.0, 1: 5.0, 2: 5.0, 3: 5.1, 5: 5.0, 6: 4.0, 8: 3.0}
    assert of_record.first_by_itself(RunFacts(ranks=(told(0), ended(2, 0), timeless))) is None
    assert of_record.ended_later(facts, frozenset()) == {0, 2, 3, 6, 8}
    assert of_record.ended_later(facts, frozenset((1, 4, 5))) == {2, 3, 6, 8}
    assert of_record.ended_later(RunFacts(ranks=(told(0), ended(2, 0))), frozenset()) == frozenset()


def test_a_rank_aborted_when_through_only_if_all_that_failed_did() -> None:
    through = replace(ended(1, "SIGABRT"), through="group")
    facts = RunFacts(ranks=(told(0), through, ended(2, 1)))
    assert of_record.aborted_when_through(facts, 1) == through
    assert of_record.aborted_when_through(facts, None) is None and of_record.aborted_when_through(facts, 2) is None
    assert of_record.aborted_when_through(RunFacts(ranks=(told(0), through)), None) == through
    for other in (ended(1, "SIGABRT"), replace(ended(1, 1), through="group")):
        assert of_record.aborted_when_through(RunFacts(ranks=(other,)), 1) is None


def test_the_local_rank_of_an_exit_is_its_rank_on_a_single_host() -> None:
    for fronts, rank in (
        (("", ""), 2),
        (("[pod/w-1/x] ", "[pod/w-1/x] "), 2),
        (("[pod/w-1/x] ", "[pod/w-2/x] "), None),
    ):
        scanned = scan(lines_of(f"{fronts[0]}words\n{fronts[1]}{failed(1, 2, 10)}"))
        assert of_record.exit_rank(scanned.exits[0], scanned) == rank == of_record.rank_of_pid(10, scanned)
