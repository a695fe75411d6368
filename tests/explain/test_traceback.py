"""Exceptions out of interleaved, chained, boxed and cut tracebacks."""

from __future__ import annotations

import pytest

from ddplaunch.explain.diagnosis import UserCall, own_frame
from ddplaunch.explain.read.traceback import Traceback, Tracebacks
from tests.explain.logs import TORCH, lines_of, lost, raised


def tracebacks(text: str) -> list[Traceback]:
    collector = Tracebacks()
    for line in lines_of(text):
        collector.feed(line)
    return list(collector.finish())


def test_the_last_own_frame_is_named() -> None:
    frames = [
        ("/home/kim/train.py", 3, "<module>"),
        ("/home/kim/data.py", 9, "read"),
        (f"{TORCH}/serialization.py", 1, "load"),
    ]
    assert own_frame(frames) == "data.py:9 in read"
    assert own_frame(frames[:1]) == "train.py:3"
    assert own_frame(frames[2:]) is None


def test_the_users_calls_have_their_source_and_libraries_are_counted() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/opt/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        '  File "/home/kim/train.py", line 3, in <module>\n    main()\n    ~~~~^^\n'
        f'  File "{TORCH}/nn/module.py", line 1, in _call\n    return self.forward()\n'
        f'  File "{TORCH}/nn/module.py", line 2, in _impl\n    return hook()\n           ^^^^^^\n'
        '  File "/home/kim/model.py", line 9, in forward\n    return sum(\n        x)\n'
        '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\nValueError: no\n'
    )
    (found,) = tracebacks(text)
    assert found.calls == (
        UserCall("train.py:3", "main()", 2, "torch"),
        UserCall("model.py:9 in forward", "return sum(", 1, "Python"),
    )
    box = "╭──── Traceback (most recent call last) ────╮\n│ /home/kim/train.py:8 in main │\n│   7 │ x = 1 │\n"
    box += "│ ❱ 8 │   go(now) │\n╰────╯\nValueError: x\n"
    assert tracebacks(box)[0].calls == (UserCall("train.py:8 in main", "go(now)"),)


def test_ranks_that_speak_in_turns_are_kept_apart() -> None:
    ones, twos = raised(1, "ValueError: one").splitlines(), raised(2, "KeyError: 'two'").splitlines()
    mixed = "\n".join(line for pair in zip(ones, twos, strict=True) for line in pair)
    found = tracebacks(mixed)
    assert [(each.speaker.rank, each.root.raised.type, each.root.raised.message) for each in found] == [
        (1, "ValueError", "one"),
        (2, "KeyError", "'two'"),
    ]


def test_a_cache_miss_is_not_the_cause_but_a_cause_is() -> None:
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    missed = raised(None, "KeyError: 'a.nc'") + during + raised(None, "PermissionError: [Errno 13] denied: 'a.nc'")
    assert tracebacks(missed)[0].root.raised.type == "PermissionError"
    told = raised(None, "OSError: disk") + during + raised(None, "RuntimeError: could not save")
    assert tracebacks(told)[0].root.raised.type == "OSError"
    direct = "\nThe above exception was the direct cause of the following exception:\n\n"
    caused = raised(None, "KeyError: 'lr'") + direct + raised(None, "ValueError: bad config")
    assert tracebacks(caused)[0].root.raised.type == "KeyError"


def test_the_original_exception_of_a_dataloader_worker_counts() -> None:
    text = raised(0, "ValueError: Caught ValueError in DataLoader worker process 1.")
    text += "[rank0]: Original Traceback (most recent call last):\n"
    text += '[rank0]:   File "/home/kim/data.py", line 12, in __getitem__\n[rank0]:     decode()\n'
    text += "[rank0]: ValueError: corrupt JPEG\n"
    (found,) = tracebacks(text)
    assert (found.root.raised.message, found.root.raised.frame) == ("corrupt JPEG", "data.py:12 in __getitem__")


def test_mp_spawn_names_the_process() -> None:
    text = raised(None, "torch.multiprocessing.spawn.ProcessRaisedException: ")
    text += "\n-- Process 3 terminated with the following error:\n" + raised(None, "ValueError: x")
    assert [each.speaker.rank for each in tracebacks(text) if each.root.raised.type == "ValueError"] == [3]


def test_exception_groups_and_boxes() -> None:
    group = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/home/kim/train.py", line 5, in main\n  |     run()\n'
        "  | ExceptionGroup: two (1 sub-exception)\n  +-+---------------- 1 ----------------\n"
        '    | Traceback (most recent call last):\n    |   File "/home/kim/a.py", line 2, in f\n'
        "    | ValueError: inner\n"
    )
    assert "ValueError" in {part.raised.type for each in tracebacks(group) for part in each.parts}
    (nested,) = tracebacks(group)
    assert (nested.root.raised.type, nested.raised.frame) == ("ValueError", "a.py:2 in f")
    bare = (
        "step 1\n"  # a log that is indented as a whole is read without its indent
        + group[: group.index("    | Traceback")]
        + "    | KeyError: never raised\n    +---------------- 2 ----------------\n"
    )
    bare += "    | OSError: nor this\n    +------------------------------------\n"
    (found,) = tracebacks(bare)
    assert (found.root.raised.type, found.raised.frame) == ("KeyError", "train.py:5 in main")
    box = "╭──── Traceback (most recent call last) ────╮\n│ /home/kim/train.py:8 in main │\n│ ❱ 8 │ go() │\n"
    box += "╰────╯\nValueError: x\n"
    (found,) = tracebacks(box)
    assert (found.root.raised.type, found.root.raised.frame) == ("ValueError", "train.py:8 in main")


def test_a_traceback_without_its_head_and_a_bare_last_line() -> None:
    cut = "\n".join(raised(1, "TypeError: no such keyword").splitlines()[1:])
    assert tracebacks(cut)[0].root.raised.frame == "train.py:31 in main"
    trimmed = "\n".join(line.strip() for line in raised(None, "TypeError: no such keyword").splitlines())
    assert tracebacks(trimmed)[0].root.raised.frame == "train.py:31 in main", "indentation is lost where people paste"
    assert tracebacks("ValueError: alone")[0].bare
    assert tracebacks("train/error: 0.3\nError rate: 4\nsome words\nloss: 3") == []


def test_what_the_interpreter_ignores_is_marked() -> None:
    assert tracebacks("Exception ignored in: <function X.__del__>\n" + raised(None, "AssertionError: child"))[0].handled
    assert tracebacks("WARNING: retrying\n" + raised(None, "OSError: once"))[0].logged
    assert tracebacks("Exception in thread Thread-3:\n" + raised(None, "OSError: once"))[0].side
    plain = tracebacks("INFO: step 3\n" + lost(0))[0]
    assert not (plain.handled or plain.logged or plain.side)


def test_what_ranks_without_a_prefix_write_at_once_is_read_as_one_exception() -> None:
    frame = 'Traceback (most recent call last):\n  File "/home/kim/train.py", line 3, in main\n    go()\n'
    for said, name, message in (
        ("KeyErrorKeyErrorKeyError: : : 'a''a''a'", "KeyError", "'a'"),
        (": data.BadShardErrordata.BadShardError: : shard 3shard 4", "data.BadShardError", "shard 3shard 4"),
        ("ValueErrorValueError", "ValueError", ""),
    ):
        (found,) = tracebacks(frame + frame + said + "\n")
        assert (found.raised.type, found.raised.message, found.raised.frame) == (name, message, "train.py:3 in main")
    (other,) = tracebacks(frame + "HTTPErrorHandlerError: x\n")
    assert other.raised.type == "HTTPErrorHandlerError"


def test_frames_and_a_message_that_a_hook_prints_have_the_type_that_was_raised() -> None:
    frames = '  File "/home/kim/train.py", line 9, in main\n    raise ValueError(\n'
    (found,) = tracebacks("epoch 1\n" + frames + "the tokenizer has no padding token\n")
    assert (found.raised.type, found.raised.message) == ("ValueError", "the tokenizer has no padding token")
    assert found.raised.frame == "train.py:9 in main"
    assert not tracebacks(frames + "\n" * 3 + "epoch 2\n"), "another line of the log is no message"
    assert not tracebacks(frames.replace("raise ValueError(", "go(") + "epoch 2\n")


def test_a_traceback_without_its_exception_is_known_as_cut() -> None:
    for text, cut in (
        (raised(None, "KeyError: 'a'"), 0),
        (raised(None, ""), 1),
        (raised(1, "") + raised(2, "OSError"), 1),
    ):
        collector = Tracebacks()
        for line in lines_of(text):
            collector.feed(line)
        collector.finish()
        assert len(collector.cut) == cut, text


def test_a_message_that_begins_with_an_empty_line_is_the_next_one() -> None:
    for below, message in (
        ("        CUDA Setup failed\n        python -m bitsandbytes\n", "CUDA Setup failed"),
        ("\nthe tokenizer is not known\n", "the tokenizer is not known"),
        ("\n\n\nepoch 2\n", ""),
        ("Traceback (most recent call last):\n", ""),
    ):
        found = tracebacks(raised(None, "RuntimeError: ") + below)[0]
        assert found.raised.message == message
    assert tracebacks(raised(None, "StopIteration") + "epoch 2\n")[0].raised.message == ""


@pytest.mark.parametrize(
    ("cell", "inner", "calls"),
    [
        ("Cell In[3], line 1", "Cell In[2], line 5, in build(x)", ("Cell In[3]:1", "Cell In[2]:2 in build")),
        (
            "Input In [3], in <cell line: 1>()",
            "Input In [2], in build(x)",
            ("Input In [3]:1", "Input In [2]:2 in build"),
        ),
        ("<ipython-input-3-1f2a> in <module>", "~/net.py in build(x)", ("In [3]:1", "net.py:2 in build")),
        ("Cell In[3], line 1", "File ~/net.py:2, in Net.build(self, x)", ("Cell In[3]:1", "net.py:2 in Net.build")),
    ],
)
def test_the_frames_of_a_notebook_are_read(cell: str, inner: str, calls: tuple[str, ...]) -> None:
    text = (
        f"{'-' * 75}\nKeyError          Traceback (most recent call last)\n{cell}\n----> 1 build({{}})\n      2 b()\n\n"
        f"{inner}\n      1 try:\n----> 2     return x['a']\n      3 except ValueError:\n\n"
        "File /opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:1773, in Module.f(self)\n"
        "   1772 if a:\n-> 1773     return b\n   1774 else:\n\nKeyError: 'a'\n"
    )
    (found,) = tracebacks(text)
    assert [(each.place, each.source, each.folded) for each in found.calls] == [
        (calls[0], "build({})", 0),
        (calls[1], "return x['a']", 1),
    ]
    assert (found.raised.type, found.raised.frame) == ("KeyError", calls[1])
