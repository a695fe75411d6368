"""Dumps of torch's flight recorder: who is missing from which collective, in the forms of NCCL, of gloo and of JSON."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.explain.decide.flight import Flight, flight, is_dump, read_dump, read_dumps
from ddplaunch.values.finding import ExitStatus, UsageError
from tests.cli.cli_calls import Call
from tests.hosts.launching import clean_environment

#: Groups of eight ranks: pairs that hold one tensor, and two groups of four that share experts.
GROUPS = {"default_pg": range(8)} | {f"tensor-{rank // 2}": range(rank, rank + 2) for rank in range(0, 8, 2)}
GROUPS |= {"experts-0": range(4), "experts-1": range(4, 8)}


def entry(group: str, number: int, state: str = "scheduled", name: str = "all_reduce", **more: Any) -> dict[str, Any]:
    """One collective as torch 2.13 records it."""
    about = {"process_group": (group, ""), "collective_seq_id": number, "state": state, "is_p2p": False}
    frames = [{"name": name, "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 9}]
    frames.append({"name": "step", "filename": "/home/me/train.py", "line": 20 + number})
    sizes = {"input_sizes": [[8]], "frames": frames, "retired": False}
    return {**about, "profiling_name": f"nccl:{name}", **sizes, **more}


def done(group: str, *numbers: int) -> list[dict[str, Any]]:
    return [entry(group, number, "completed") for number in numbers]


def dump(*entries: dict[str, Any], groups: Mapping[str, Sequence[int]] = GROUPS) -> dict[str, Any]:
    about = {name: {"name": name, "desc": "", "ranks": str(list(ranks))} for name, ranks in groups.items()}
    return {"version": "2.10", "pg_config": about, "pg_status": {}, "entries": list(entries)}


def written(place: Path, dumps: Sequence[dict[str, Any]]) -> Path:
    for rank, each in enumerate(dumps):
        (place / f"flight-recorder-rank-{rank}").write_bytes(pickle.dumps(each))
    return place


def recorded(place: Path, *dumps: dict[str, Any]) -> Flight:
    found = flight(read_dumps(written(place, dumps)))
    assert found is not None
    return found


TENSOR, EXPERTS = "tensor-0", "experts-0"
ALL = "default_pg"
#: What is recorded by the ranks 0, 1 … and who is missing, told how.
CASES: dict[str, tuple[list[list[dict[str, Any]]], tuple[int, ...], str]] = {
    "one does not come": (
        [[*done(ALL, 1, 2), entry(ALL, 3)], [*done(ALL, 1, 2), entry(ALL, 3, "started")], done(ALL, 1, 2)],
        (2,),
        "rank 2 did not join all_reduce of [8] (number 3); ranks 0, 1 did",
    ),
    "gloo says by another word what has ended": (
        [[entry(ALL, 1, retired=True), entry(ALL, 2)], [entry(ALL, 1, retired=True)]],
        (1,),
        "rank 1 did not join all_reduce of [8] (number 2); rank 0 did",
    ),
    "only what is open is recorded, and one has nothing open": (
        [[entry(EXPERTS, 7), entry(EXPERTS, 8)], [entry(EXPERTS, 7)], []],
        (2,),
        "rank 2 did not join all_reduce of [8] (number 7); ranks 0, 1 did",
    ),
    "one waits in a group for a rank that another group misses": (
        [[entry(TENSOR, 5)], [entry(EXPERTS, 3), *done(TENSOR, 4)], [entry(EXPERTS, 3)], done(EXPERTS, 2)],
        (3,),
        "rank 3 did not join all_reduce of [8] (number 3); ranks 1, 2 did",
    ),
    "one has called all, and ends none that the others ended": (
        [[*done(EXPERTS, 1, 2), entry(EXPERTS, 3)]] * 2 + [[entry(EXPERTS, 1), entry(EXPERTS, 2), entry(EXPERTS, 3)]],
        (2,),
        "rank 2 did not end all_reduce of [8] (number 1), as others did",
    ),
    "two in two groups": (
        [[entry(TENSOR, 5)], [], [entry("tensor-1", 5)], []],
        (1, 3),
        "; ".join(f"rank {late} did not join all_reduce of [8] (number 5); rank {late - 1} did" for late in (1, 3)),
    ),
    "three in three groups": (
        [[entry(TENSOR, 5)], [], [entry("tensor-1", 5)], [], [entry("tensor-2", 5)], []],
        (1, 3, 5),
        "rank 1 did not join all_reduce of [8] (number 5); rank 0 did; ranks 3, 5 did not come in other groups",
    ),
    "two in the second group, where one is also late in the first": (
        [[entry(TENSOR, 5)], [], [entry(EXPERTS, 7)], []],
        (1, 3),
        "ranks 1, 3 did not join all_reduce of [8] (number 7); rank 2 did",
    ),
    "all came": (
        [[*done(ALL, 1), entry(ALL, 2)], [*done(ALL, 1), entry(ALL, 2)]],
        (),
        "ranks 0, 1 joined all_reduce of [8] (number 2), and its end is not recorded",
    ),
    "another operation": (
        [[*done(ALL, 1), entry(ALL, 2)], [*done(ALL, 1), entry(ALL, 2, name="broadcast")]],
        (),
        "in collective 2, rank 0 called all_reduce of [8]; rank 1 called broadcast of [8]",
    ),
    "another size": (
        [[entry(ALL, 2)], [entry(ALL, 2, input_sizes=[[9]])]],
        (),
        "in collective 2, rank 0 called all_reduce of [8]; rank 1 called all_reduce of [9]",
    ),
    "sizes that may differ": (
        [[entry(ALL, 2, name="all_to_all")], [entry(ALL, 2, name="all_to_all", input_sizes=[[9]])]],
        (),
        "ranks 0, 1 joined all_to_all of [8] (number 2), and its end is not recorded",
    ),
}


def p2p(group: str, number: int, name: str, state: str = "scheduled") -> dict[str, Any]:
    """A send or recv as torch records it: its peers by their places in the group, numbered by rank and group."""
    return entry(group, 0, state, name, is_p2p=True, p2p_seq_id=number)


def batch(number: int, state: str, *names: str) -> list[dict[str, Any]]:
    """What one `batch_isend_irecv` records: only the entry at its end says that all of it has ended."""
    return [*(p2p(ALL, number, name) for name in names), p2p(ALL, number, "coalesced", state)]


OLD = [p2p(ALL, number, "send 0->1", "completed") for number in range(1, 4)]  # more than rank 1 still has
CASES |= {
    "a recv without its send": (
        [OLD, [p2p(ALL, 3, "recv 1<-0", "completed"), p2p(ALL, 4, "recv 1<-0")]],
        (0,),
        "rank 0 did not send to rank 1, which waits for it",
    ),
    "a send without its recv, by places in a group": (
        [*[[]] * 6, [p2p("experts-1", 1, "send 2->3")], done(ALL, 1)],
        (7,),
        "rank 7 did not receive from rank 6, which waits for it",
    ),
    "stages that wait for each other, the first for nobody": (
        [[entry(TENSOR, 5)], [entry(TENSOR, 5), p2p(ALL, 1, "recv 1<-2")], [p2p(ALL, 1, "recv 2<-3")], done(ALL, 1)],
        (3,),
        "rank 3 did not send to rank 2, which waits for it",
    ),
    "a batch that has ended, and one that has not": (
        [
            batch(1, "completed", "send 0->1", "recv 0<-1") + batch(2, "started", "recv 0<-1"),
            batch(1, "completed", "recv 1<-0", "send 1->0"),
        ],
        (1,),
        "rank 1 did not send to rank 0, which waits for it",
    ),
    "each waits for what the other would send": (
        [[p2p(ALL, 1, "recv 0<-1")], [p2p(ALL, 1, "recv 1<-0")]],
        (0, 1),
        "rank 1 did not send to rank 0, which waits for it; rank 0 did not send to rank 1, which waits for it",
    ),
    "both have called it": (
        [[*OLD, p2p(ALL, 4, "send 0->1")], [p2p(ALL, 1, "recv 1<-0", "started")]],
        (),
        "ranks 0, 1 joined send 0->1 of [8] (number 1), and its end is not recorded",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_who_is_missing(case: str, tmp_path: Path) -> None:
    entries, missing, what = CASES[case]
    found = recorded(tmp_path, *(dump(*each) for each in entries))
    assert found.missing == missing
    assert found.what == what
    assert found.differs == case.startswith("another")
    of_run = flight(read_dumps(tmp_path), len(entries))
    assert of_run and of_run.everyone == (0 if missing or found.differs else len(entries))
    assert flight(read_dumps(tmp_path), 9) == found, "of all ranks some have no dump"


def test_nothing_is_told_of_ranks_that_ended_all_or_are_alone(tmp_path: Path) -> None:
    apart = recorded(tmp_path, dump(*done(ALL, 1), entry(ALL, 2), groups={}), dump(*done(ALL, 1), groups={}))
    assert apart.missing == (1,), "a group whose ranks are not named is of those that call"
    both = [dump(*done(ALL, 1, 2))] * 2
    assert flight(read_dumps(written(tmp_path, both))) is None
    (tmp_path / "flight-recorder-rank-1").unlink()
    alone = read_dumps(written(tmp_path, [dump(entry(ALL, 1))]))
    assert flight({0: alone[0]}) is None and flight({0: alone[0]}, 2) is None
    found = flight({0: alone[0]}, 1)
    assert found is not None and found.everyone == 1


@pytest.mark.parametrize(
    "data",
    [pickle.dumps({"entries": [Path("x")]}), pickle.dumps(os.getcwd), b"", b"\x80", pickle.dumps([1]), b'{"entries":'],
)
def test_a_dump_that_is_broken_or_would_run_code_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "flight-recorder-rank-0"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="is not a dump of torch's flight recorder"):
        read_dump(path)
    assert read_dumps(tmp_path) == {}
    (tmp_path / "flight-recorder-rank-x").write_bytes(pickle.dumps(dump()))
    assert read_dumps(tmp_path) == {0: ()}, "a name without a number"


def test_files_are_known_as_dumps_by_name_and_content(tmp_path: Path) -> None:
    for name, data, told in (
        ("nccl_trace_rank_3", pickle.dumps(dump()), True),
        ("_dump_12", pickle.dumps(dump(), protocol=2), True),
        ("rank7.json", json.dumps(dump()).encode(), True),
        ("model.pt", pickle.dumps(dump()), False),
        ("train.log.1", b"pg_config of rank 1\n", False),
        ("records-3.json", b'{"message": "step 1"}\n', False),
    ):
        (tmp_path / name).write_bytes(data)
        assert is_dump(tmp_path / name) is told, name


def test_explain_reads_dumps_and_folders_of_them(call: Call, folder: Path) -> None:
    dumps = [dump(*done(ALL, 1), entry(ALL, 2)), dump(*done(ALL, 1))]
    (folder / "fr").mkdir()
    written(folder / "fr", dumps)
    for rank, each in enumerate(dumps):
        (folder / f"trace_{rank}.json").write_text(json.dumps(each))
    for words in (("fr",), ("trace_0.json", "trace_1.json")):
        said = call("explain", *words)
        assert said.status == ExitStatus.FINDINGS
        assert said.out.startswith("error[collective-timeout]: rank 1 did not join all_reduce of [8] (number 2);")
        assert "  --> rank 1\n" in said.out and "as all_reduce at train.py:21" in " ".join(said.out.split())
    (folder / "ended").mkdir()
    written(folder / "ended", [dump(*done(ALL, 1))] * 2)
    assert call("explain", "ended").out.startswith("nothing failed"), "all that is recorded has ended"
    (folder / "fr" / "rank-0.err").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    assert "error[cuda-out-of-memory]" in call("explain", "fr").out, "a log beside them says why"
    (folder / "fr" / "rank-0.err").write_text("RuntimeError: Timed out waiting 6000ms for recv operation to complete\n")
    assert "rank 1 did not join" in call("explain", "fr").out, "they say more than one that only tells of a time-out"
    (folder / "trace_1.json").write_text('{"pg_config": ')
    refused = call("explain", "trace_0.json", "trace_1.json")
    assert refused.status == ExitStatus.USAGE and "`trace_1.json` is not a dump" in refused.err


#: Two ranks that share one import of torch: both reduce, and rank 0 broadcasts alone.
HANGS = """
import os, pickle, threading, time, torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
rank = 0 if os.fork() else 1
dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
dist.all_reduce(torch.ones(4))
if rank == 0:
    threading.Thread(target=dist.broadcast, args=(torch.ones(8), 1), daemon=True).start()
while [each["retired"] for each in pickle.loads(c10d._dump_fr_trace())["entries"]] != [True, False][: 2 - rank]:
    time.sleep(0.2)  # torch notes a moment after it that a collective has ended
with open(f"writing_{rank}", "wb") as file:
    file.write(c10d._dump_fr_trace())
os.rename(f"writing_{rank}", f"dump_{rank}")
while not os.path.exists(f"dump_{1 - rank}"):  # a rank that is gone would end what the other one waits for
    time.sleep(0.05)
os._exit(0)
"""


@pytest.mark.slow
def test_what_torch_writes_for_gloo_is_read(folder: Path, call: Call) -> None:
    environment = clean_environment() | {"TORCH_FR_BUFFER_SIZE": "100"}
    subprocess.run([sys.executable, "-c", HANGS], cwd=folder, env=environment, check=True, timeout=120)
    said = call("explain", "dump_0", "dump_1")
    assert said.status == ExitStatus.FINDINGS, said
    assert "rank 1 did not join broadcast of [8] (number 2); rank 0 did" in " ".join(said.out.split())
