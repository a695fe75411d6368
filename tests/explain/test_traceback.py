"""Exceptions out of interleaved, chained, boxed and cut tracebacks."""

from __future__ import annotations

from ddplaunch.explain.diagnosis import Frame, UserCall, own_frame
from ddplaunch.explain.read.traceback import Traceback, Tracebacks
from tests.explain.logs import TORCH, lines_of, lost, raised


def tracebacks(text: str) -> list[Traceback]:
    collector = Tracebacks()
    for line in lines_of(text):
        collector.feed(line)
    return list(collector.finish())


def test_the_last_own_frame_is_named() -> None:
    frames = [Frame("/home/kim/train.py", 3, "<module>"), Frame("/home/kim/data.py", 9, "read")]
    frames.append(Frame(f"{TORCH}/serialization.py", 1, "load"))
    assert own_frame(frames) == "data.py:9 in read"
    assert own_frame(frames[:1]) == "train.py:3"
    assert own_frame(frames[2:]) is None


def test_the_users_calls_have_their_source_and_libraries_are_counted() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/opt/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        '  File "/home/kim/train.py", line 3, in <module>\n    main()\n    ~~~~^^\n'
        f'  File "/v/site-packages/timm/x.py", line 3, in run\n  File "{TORCH}/nn/module.py", line 1, in _call\n'
        f'  File "{TORCH}/nn/module.py", line 2, in _impl\n    return hook()\n           ^^^^^^\n'
        '  File "/home/kim/model.py", line 9, in forward\n    return sum(\n        x)\n'
        '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\nValueError: no\n'
    )
    (found,) = tracebacks(text)
    assert found.calls == (
        UserCall("train.py:3", "main()", 3, "timm", "/home/kim/train.py"),
        UserCall("model.py:9 in forward", "return sum(", 1, "Python", "/home/kim/model.py"),
    )


def test_a_cache_miss_is_not_the_cause_but_a_cause_is() -> None:
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    missed = raised(None, "KeyError: 'a.nc'") + during + raised(None, "PermissionError: [Errno 13] denied: 'a.nc'")
    assert tracebacks(missed)[0].root.raised.type == "PermissionError"
    twice = raised(None, "KeyError: 'a'", "/w/cache.py") + during + raised(None, "OSError: disk", "/w/disk.py")
    assert tracebacks(twice)[0].raised.frame == "disk.py:31 in main"
    library = raised(None, "OSError: disk", f"{TORCH}/serialization.py") + during + raised(None, "RuntimeError: x")
    found = tracebacks(library)[0].raised
    assert (found.type, found.frame) == ("OSError", "train.py:31 in main"), "the user's own code is elsewhere in it"
    told = raised(None, "OSError: disk") + during + raised(None, "RuntimeError: could not save")
    assert tracebacks(told)[0].root.raised.type == "OSError"
    direct = "\nThe above exception was the direct cause of the following exception:\n\n"
    caused = raised(None, "KeyError: 'lr'") + direct + raised(None, "ValueError: bad config")
    assert tracebacks(caused)[0].root.raised.type == "KeyError"


def test_the_original_exception_of_a_worker_and_of_a_checkpoints_rank_counts() -> None:
    for outer, header in (
        (
            "ValueError: Caught ValueError in DataLoader worker process 1.",
            "Original Traceback (most recent call last):",
        ),
        ("x.CheckpointException: ranks:dict_keys([0])", "Traceback (most recent call last): (RANK 0)"),
    ):
        text = raised(0, outer) + f"[rank0]: {header}\n"
        text += '[rank0]:   File "/home/kim/data.py", line 12, in __getitem__\n[rank0]:     decode()\n'
        text += "[rank0]: ValueError: corrupt JPEG\n"
        (found,) = tracebacks(text)
        assert (found.root.raised.message, found.root.raised.frame) == ("corrupt JPEG", "data.py:12 in __getitem__")


def test_mp_spawn_names_the_process() -> None:
    text = raised(None, "torch.multiprocessing.spawn.ProcessRaisedException: ")
    text += "\n-- Process 3 terminated with the following error:\n" + raised(None, "ValueError: x")
    assert [each.speaker.rank for each in tracebacks(text) if each.root.raised.type == "ValueError"] == [3]
    of_rank = "[rank1]: -- Process 3 terminated with the following error:\n" + raised(1, "ValueError: x")
    assert [each.speaker.rank for each in tracebacks(of_rank)] == [1], "a rank that spawned it is known"


def test_the_first_member_of_an_exception_group_counts() -> None:
    group = (
        "step 1\n"  # a log that is indented as a whole is read without its indent
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/home/kim/train.py", line 5, in main\n  |     run()\n'
        "  | ExceptionGroup: two (1 sub-exception)\n  +-+---------------- 1 ----------------\n"
    )
    member = '    | Traceback (most recent call last):\n    |   File "/home/kim/a.py", line 2, in f\n'
    (found,) = tracebacks(group + member + "    | ValueError: inner\n")
    assert (found.root.raised.type, found.raised.frame) == ("ValueError", "a.py:2 in f")


def test_a_traceback_without_its_head_and_a_bare_last_line() -> None:
    cut = "\n".join(raised(1, "TypeError: no such keyword").splitlines()[1:])
    assert tracebacks(cut)[0].root.raised.frame == "train.py:31 in main"
    trimmed = "\n".join(line.strip() for line in raised(None, "TypeError: no such keyword").splitlines())
    assert tracebacks(trimmed)[0].root.raised.frame == "train.py:31 in main", "indentation is lost where people paste"
    assert tracebacks("ValueError: alone")[0].bare
    quoted = 'it says "Traceback (most recent call last)" there'
    assert tracebacks(f"train/error: 0.3\n{quoted}\nsome words\n  | ValueError: of a table\nloss: 3") == []


def test_lines_of_others_inside_a_chain_do_not_end_it_and_below_it_they_do() -> None:
    during = "During handling of the above exception, another exception occurred:\n\n"
    begun, last = raised(None, "OSError: disk"), raised(None, "ValueError: late")
    *frames, error = last.splitlines(keepends=True)
    words = "".join(f"words of another {number}\n" for number in range(12))
    (chain,) = tracebacks("".join([begun, during, *frames, words, error]))
    assert [part.raised.message for part in chain.parts] == ["disk", "late"] and chain.parts[1].link == "during"
    for below, bare in ((words, [False]), ("a\nb\nKeyError: 'a'\n", [False, True]), ("KeyError: 'a'\n", [False])):
        assert [each.bare for each in tracebacks(begun + below)] == bare


def test_what_launchers_raise_is_marked() -> None:
    spawned = "Exception: process 0 terminated with exit code 1"
    for error, file, launcher in (
        (spawned, "/w/a.py", True),
        (f"Value{spawned}", "/w/a.py", False),
        ("ValueError: x", f"{TORCH}/distributed/run.py", True),
    ):
        assert tracebacks(raised(None, error, file))[0].launcher is launcher, error


def test_what_the_interpreter_ignores_is_marked() -> None:
    assert tracebacks("Exception ignored in: <function X.__del__>\n" + raised(None, "AssertionError: child"))[0].handled
    assert tracebacks("WARNING: retrying\n" + raised(None, "OSError: once"))[0].logged
    assert tracebacks("Exception in thread Thread-3:\n" + raised(None, "OSError: once"))[0].side
    assert tracebacks(raised(None, "OSError: once") + "skipping shard 7\n")[0].logged
    assert not tracebacks(raised(None, "OSError: once") + "ERROR: skipping is no option\n")[0].logged
    plain = tracebacks("INFO: step 3\n" + lost(0))[0]
    assert not (plain.handled or plain.logged or plain.side)


def test_a_message_that_begins_with_an_empty_line_is_the_next_one() -> None:
    for below, message in (
        ("        CUDA Setup failed\n        python -m bitsandbytes\n", "CUDA Setup failed"),
        ("\nthe tokenizer is not known\n", "the tokenizer is not known"),
        ("\n\n\nepoch 2\n", ""),
        ('  File "/w/a.py", line 3, in f\n', ""),
    ):
        found = tracebacks(raised(None, "RuntimeError: ") + below)[0]
        assert found.raised.message == message
    assert tracebacks(raised(None, "StopIteration") + "epoch 2\n")[0].raised.message == ""
