"""What only a machine with NVIDIA GPUs can show, tried there in one go: a line for each item, and a JSON.

    python -m benchmarks.gpu --minutes 9 --json gpu.json

Needs torch with CUDA, this checkout, and what ddplaunch needs of other packages; no network, no tests' tools, and no
installed ddplaunch. Where packages are missing it says which, and how they come along as wheels. All ends within
``--minutes``, and the JSON and the table in benchmarks/results/gpu.md are written anew after each item, so that whoever
ends the program loses none of it. Each item is ``ok``, ``wrong`` with what was seen, or ``not tried`` with the reason:
too few GPUs, no rights, no time left. Where there is no GPU, what can be launched on the CPU is, nothing is written to
the table, and everything else says so. The exit status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ddplaunch import __version__

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).with_name("results") / "gpu.md"
#: The longest that one item may take, and what an end that was asked for may take.
ITEM_S, END_S = 150.0, 10.0
SOON_S = 15.0  # of the time for all, in which nothing is begun any more
MEBI = 1 << 20
#: Modules that launches, `doctor`, `fit` and `top` import, and the packages that bring them.
NEEDED = {"psutil": "psutil", "rich": "rich", "typer": "typer", "pynvml": "nvidia-ml-py", "yaml": "pyyaml"}

#: What a rank does is the first argument. `bad` stores to address 16 by PTX, which needs no compiler.
SCRIPT = """
import argparse, ctypes, os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("what")
parser.add_argument("--batch-size", type=int, default=1)
parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
said = parser.parse_args()
what, rank, local = said.what, int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])

def tell(text):
    os.write(1, f"{text}\\n".encode())  # at once, whoever writes to the same terminal

def devices(pid):
    links = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            pass
    return sorted(each for each in links if each.startswith("/dev/nvidia"))

inherited = devices(os.getpid())
cuda = torch.cuda.is_available()
if what == "forked":
    import gc
    from ddplaunch.agent.warm import kernel
    assert gc.get_freeze_count() > 0, "not forked"
    assert not torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork(), "CUDA was in use before the fork"
    assert "/dev/nvidia-uvm" not in inherited, f"{inherited} were open before the rank asked for CUDA"
one = what in ("same", "replicas") or (what == "late" and torch.cuda.device_count() == 1)
if one and what == "late":  # NCCL refuses two ranks on one GPU of one host, but not of two
    os.environ.update(NCCL_HOSTID=f"host-{rank}", NCCL_SOCKET_IFNAME="lo")
device = torch.device("cuda", 0 if one else local) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
if what == "uuid":
    seen = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    tell(" ".join(["uuids", *(f"GPU-{each.uuid}" for each in seen)]))
    os._exit(0)
if what == "memory":
    held = torch.empty(int(torch.cuda.get_device_properties(device).total_memory * 0.15) * said.batch_size,
                       dtype=torch.uint8, device=device)
    torch.cuda.synchronize()
    tell(f"held {held.numel()} bytes")
    os._exit(0)
if what == "assert":
    print(torch.arange(4, device=device)[torch.tensor([99], device=device)])
if what == "bad":
    torch.zeros(1, device=device)
    ptx = (b".version 6.0\\n.target sm_70\\n.address_size 64\\n.visible .entry bad() { .reg .u64 %a; .reg .u32 %r; "
           b"mov.u64 %a, 16; mov.u32 %r, 1; st.global.u32 [%a], %r; ret; }\\0")
    driver, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuModuleLoadData(ctypes.byref(module), ptx) == 0, "the driver did not take the PTX"
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"bad") == 0
    assert driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
    torch.cuda.synchronize()
if what == "hold":
    tensor = torch.empty(3 << 30, dtype=torch.uint8, device=device)
    product = torch.rand(4096, 4096, device=device)
    until = time.monotonic() + 90
    while time.monotonic() < until:
        product = (product @ product).clamp_(0, 1)
        torch.cuda.synchronize()
        tell("step 1")
        time.sleep(0.1)
    os._exit(0)
class Waves(torch.nn.Module):
    def forward(self, batch):  # keeps much for the backward pass, and computes little
        for _ in range(8):
            batch = batch.sin()
        return batch

if what in ("fit", "phases"):
    width, middle = (1 << 18, Waves()) if what == "fit" else (8192, torch.nn.Linear(8192, 8192))
    model = torch.nn.Sequential(torch.nn.Linear(64, width), middle, torch.nn.Linear(width, 1)).to(device)
    if what == "phases" or int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters())
    samples = torch.utils.data.TensorDataset(torch.randn(1, 64).expand(1 << 20, 64))
    for number, (batch,) in enumerate(torch.utils.data.DataLoader(samples, said.batch_size)):
        model(batch.to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if what == "phases" and number == 60:
            break
    os._exit(0)
if what == "replicas":
    dist.init_process_group("gloo")  # ranks may share a GPU
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(device))
    with torch.no_grad():
        model.module.bias += rank
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        value = model(torch.randn(4, 64, device=device)).square().mean()
        value.backward()
        optimizer.step()
        tell(value.item())
    dist.barrier()
    os._exit(0)
dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=10 if what == "late" else 120))
tensor = torch.full((1 << 20,), float(rank + 1), device=device)
dist.all_reduce(tensor)
expected = sum(range(dist.get_world_size() + 1))
assert tensor.min().item() == expected == tensor.max().item(), "the sum is wrong"
tell(f"summed with {dist.get_backend()}")
if what == "late":
    if rank == 1:
        time.sleep(100)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
dist.barrier()
if what == "killed" and rank == 0:
    os.kill(os.getpid(), 9)
dist.destroy_process_group() if cuda else os._exit(0)
"""

#: Prints torch's version, its CUDA, the GPUs' names, and why there are none.
ABOUT = """
import json, torch
names, fault = [], None
try:
    torch.cuda.init()
    names = [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
except Exception as error:
    fault = str(error).strip().splitlines()[0]
print(json.dumps([torch.__version__, torch.version.cuda, names, fault]))
"""


class NotTriedError(Exception):
    """An item cannot be tried here; the text says why."""


class WrongError(Exception):
    """An item is not as it should be; the text says what was seen."""


@dataclass(frozen=True)
class Smi:
    """One GPU in nvidia-smi's words; memory in MiB."""

    index: int
    uuid: str
    name: str
    driver: str
    total: float
    used: float
    mig: str


@dataclass
class Place:
    """A folder for launches, what was found of this machine, and where torchrun finds the plug-in (``site``)."""

    folder: Path
    gpus: int
    site: str = ""
    records: int = 0
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def device(self) -> str:
        """What ranks compute on."""
        return "cuda" if self.gpus else "cpu"

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start ``ddplaunch WORDS`` with these variables set, in a directory of its own; output is one text."""
        self.records += 1
        above = {name: text for name, text in os.environ.items() if name != "CUDA_VISIBLE_DEVICES" or self.gpus == 0}
        path = os.pathsep.join(filter(None, [str(ROOT), self.site, os.environ.get("PYTHONPATH")]))
        directory = {"DDPLAUNCH_DIR": str(self.records_of(self.records))}
        process = subprocess.Popen(
            [sys.executable, "-m", "ddplaunch", *words],
            cwd=self.folder,
            env={**above, **directory, "PYTHONPATH": path, "COLUMNS": "200", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.started.append(process)
        return process

    def records_of(self, number: int) -> Path:
        """Return where the ``number``-th command keeps its records."""
        return self.folder / f"records-{number}"

    def ddplaunch(self, *words: str, status: int | None = 0, **environment: str) -> str:
        """Return what ``ddplaunch WORDS`` said; raises WrongError if it ended with another status than ``status``."""
        return self.finish(self.start(*words, **environment), status)

    def finish(self, process: subprocess.Popen[str], status: int | None = 0) -> str:
        """Wait for the end and return what was said; raises WrongError for another status."""
        said, _ = process.communicate()
        if status is not None and process.returncode != status:
            raise WrongError(f"status {process.returncode} instead of {status}: {said[-400:]!r}")
        return said

    def outcome(self) -> dict[str, Any]:
        """Return what the newest command recorded of its end; raises WrongError if it recorded none."""
        found = sorted(self.records_of(self.records).rglob("outcome.json"))
        if not found:
            raise WrongError("no outcome was recorded")
        loaded: dict[str, Any] = json.loads(found[-1].read_text(encoding="utf-8"))
        return loaded

    def said_by_ranks(self) -> str:
        """Return all that ranks of the newest command wrote."""
        found = self.records_of(self.records).rglob("rank-*.[oe][ur][tr]")
        return "\n".join(each.read_text(errors="replace") for each in sorted(found))

    def diagnosed(self, *codes: str) -> str:
        """Return the newest diagnosis; raises WrongError if its code is none of these."""
        found = self.outcome()["diagnosis"]
        if not found or found["code"] not in codes:
            seen = found["code"] if found else None
            raise WrongError(f"diagnosed as {seen} instead of {codes[0]}: {self.said_by_ranks()[-600:]!r}")
        return f"diagnosed as {found['code']}, rank {self.outcome()['first_failed_rank']}"

    def end(self) -> None:
        """End what still runs as somebody at the keyboard would, and what does not listen."""
        running = [each for each in self.started if each.poll() is None]
        for each in running:
            each.terminate()
        until_s = time.monotonic() + END_S
        for each in running:
            try:
                each.wait(timeout=max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.kill()

    def need(self, gpus: int) -> None:
        """Raise NotTriedError unless so many GPUs are here."""
        if self.gpus < gpus:
            raise NotTriedError(f"needs {gpus} GPU{'s' * (gpus > 1)}, {self.gpus} here")


def smi() -> list[Smi]:
    """Return the GPUs that nvidia-smi lists. Raises NotTriedError where it is missing or fails."""
    asked = "index,uuid,name,driver_version,memory.total,memory.used,mig.mode.current"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotTriedError(f"nvidia-smi: {error}") from None
    rows = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [Smi(int(row[0]), row[1], row[2], row[3], float(row[4]), float(row[5]), row[6]) for row in rows]


def memory_comes_back(before: Sequence[Smi]) -> str:
    """Return how much more memory is in use than before once that is little; raises WrongError if it stays much."""
    until = time.monotonic() + 20
    while True:
        now = {each.index: each.used for each in smi()}
        more = max((now[each.index] - each.used for each in before if each.index in now), default=0.0)
        if more <= 64:
            return f"{more:+.0f} MiB after it"
        if time.monotonic() > until:
            raise WrongError(f"20 s after the end {more:.0f} MiB more are in use than before")
        time.sleep(0.5)


def doctor(at: Place) -> str:
    """`doctor` finds nothing in the families of GPUs and torch, and looks at what it can."""
    text = at.ddplaunch("doctor", "--json", status=None)
    found = json.loads(text[text.index("{") :])
    checks = [each for each in found["checks"] if each["family"] in ("gpu", "torch")]
    wrong = [each["code"] for each in checks if each["status"] in ("found", "crashed")]
    skipped = [f"{each['code']} ({each['reason']})" for each in checks if each["status"] == "skipped"]
    if wrong:
        raise WrongError(f"{', '.join(wrong)}: {found['verdict']}")
    passed = sum(each["status"] == "passed" for each in checks)
    if not at.gpus:
        return f"{passed} checks of gpu and torch passed, {len(skipped)} skipped for want of a GPU"
    return f"{passed} checks of gpu and torch passed; skipped: {'; '.join(skipped) or 'none'}"


def facts(at: Place) -> str:
    """The facts of NVML are those of nvidia-smi."""
    at.need(1)
    text = at.ddplaunch("doctor", "--json", status=None)
    nvml = json.loads(text[text.index("{") :])["facts"]["nvml"]
    if "unavailable" in nvml:
        raise WrongError(nvml["unavailable"])
    for gpu, row in zip(nvml["gpus"], smi(), strict=True):
        ours = (gpu["index"], gpu["uuid"], gpu["name"], nvml["driver_version"], gpu["memory_total_bytes"] // MEBI)
        theirs = (row.index, row.uuid, row.name, row.driver, int(row.total))
        if ours[:4] != theirs[:4] or abs(ours[4] - theirs[4]) > 1024:
            raise WrongError(f"{ours}, nvidia-smi: {theirs}")
    return f"{len(nvml['gpus'])} x {nvml['gpus'][0]['name']}, driver {nvml['driver_version']}"


def trains(at: Place, *options: str, what: str = "sum") -> str:
    """One rank for each GPU sums with NCCL (two with gloo without), and gives the memory back."""
    before = smi() if at.gpus else []
    ranks = at.gpus or 2
    said = at.ddplaunch("run", str(ranks), "--device", at.device, *options, "--show", "all", "--", "train.py", what)
    wanted = f"summed with {'nccl' if at.gpus else 'gloo'}"
    if said.count(wanted) != ranks:
        raise WrongError(f"{said.count(wanted)} of {ranks} ranks {wanted}: {said[-400:]!r}")
    old = re.search(r"\w*NCCL_\w+ is deprecated", said + at.said_by_ranks())
    if old:
        raise WrongError(f"a name that this torch no longer wants: {old[0]}")
    if "warm" in options and "cold start" in said:
        raise WrongError(f"started cold: {said[-400:]!r}")
    opened = re.search("torchrun has .* open", said)
    words = [
        f"{ranks} ranks {wanted}",
        *([memory_comes_back(before)] if at.gpus else []),
        *([opened[0]] if opened else []),
    ]
    return ", ".join(words)


def warm(at: Place) -> str:
    """Ranks forked from a process that has torch imported use CUDA only after the fork."""
    return trains(at, "--start", "warm", what="forked" if at.gpus else "sum")


def killed(at: Place) -> str:
    """A rank that is killed leaves no memory behind."""
    before = smi() if at.gpus else []
    at.ddplaunch("run", str(at.gpus or 2), "--device", at.device, "--", "train.py", "killed", status=137)
    return memory_comes_back(before) if at.gpus else "status 137; no memory of a GPU to look at"


def same_gpu(at: Place) -> str:
    """Two ranks on one GPU: refused before the start; past that, NCCL refuses and is understood."""
    at.need(1)
    two = str(at.gpus + 1)
    said = at.ddplaunch("run", two, "--device", "cuda", "--", "train.py", "same", status=4)
    if "more-processes-than-gpus" not in said:
        raise WrongError(said[-400:])
    at.ddplaunch(
        "run", two, "--device", "cuda", "--ignore", "more-processes-than-gpus", "--", "train.py", "same", status=None
    )
    return "refused before the start; past that " + at.diagnosed("duplicate-gpu")


def out_of_memory(at: Place) -> str:
    """A batch that does not fit is named; with half of it and twice the accumulation it fits."""
    at.need(1)
    run = ("run", "1", "--device", "cuda", "--global-batch-size", "8")
    at.ddplaunch(*run, "--batch-size", "8", "--", "train.py", "memory", status=1)
    named = at.diagnosed("cuda-out-of-memory")
    at.ddplaunch(*run, "--batch-size", "4", "--accum", "2", "--", "train.py", "memory")
    return f"{named}; `--batch-size 4 --accum 2` then ran"


def device_assert(at: Place) -> str:
    """An index out of range on the GPU is a device-side assert."""
    at.need(1)
    at.ddplaunch("run", "1", "--device", "cuda", "--", "train.py", "assert", status=None)
    return at.diagnosed("device-side-assert")


def illegal_access(at: Place) -> str:
    """A kernel that stores to a bad address is a fault of the GPU's, with the kernel's Xid where it may be read."""
    at.need(1)
    at.ddplaunch("run", "1", "--device", "cuda", "--", "train.py", "bad", status=None)
    named = at.diagnosed("gpu-fault", "illegal-memory-access")
    try:
        kernel = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return f"{named}; its Xid not looked for, the kernel's log is not readable"
    xids = [line for line in kernel.splitlines() if "Xid" in line]
    return f"{named}; {xids[-1].strip()}" if xids else f"{named}; the kernel's log shows no Xid here"


def visible_devices(at: Place) -> str:
    """CUDA_VISIBLE_DEVICES by number, UUID and the beginning of one; none and an unknown one are refused."""
    at.need(1)
    first = smi()[0]
    if first.mig == "Enabled":
        raise NotTriedError("MIG is enabled; that is its own item")
    for spelling in ("0", first.uuid, first.uuid[:12]):
        said = at.ddplaunch("run", "1", "--device", "cuda", "--", "train.py", "uuid", CUDA_VISIBLE_DEVICES=spelling)
        if f"uuids {first.uuid}\n" not in said:
            raise WrongError(f"{spelling}: {said[-300:]!r}")
    for spelling in ("", "-1", "GPU-00000000"):
        said = at.ddplaunch(
            "run", "1", "--device", "cuda", "--", "train.py", "uuid", status=None, CUDA_VISIBLE_DEVICES=spelling
        )
        if at.started[-1].returncode != 4:
            raise WrongError(f"{spelling!r} was not refused: {said[-300:]!r}")
    return "3 spellings ran on the right GPU, 3 without a GPU were refused"


def mig(at: Place) -> str:
    """A MIG device by its UUID."""
    at.need(1)
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
    devices = [line.rpartition("UUID: ")[2].strip(" )") for line in listed.splitlines() if "UUID: MIG-" in line]
    if not devices:
        raise NotTriedError("no MIG device here")
    at.ddplaunch("run", "1", "--device", "cuda", "--", "train.py", "sum", CUDA_VISIBLE_DEVICES=devices[0])
    return f"trained on {devices[0]}"


def watched(at: Place) -> str:
    """`top` shows the memory that nvidia-smi shows, and whose it is."""
    at.need(1)
    running = at.start("run", "1", "--device", "cuda", "--", "train.py", "hold")
    records = str(at.records_of(at.records))
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and "step 1" not in at.said_by_ranks():
            time.sleep(0.3)
        sample = json.loads(
            at.ddplaunch("top", "--count", "1", "--json", DDPLAUNCH_DIR=records).strip().splitlines()[-1]
        )
        now = smi()
    finally:
        running.terminate()
        running.communicate()
    gpu = next((each for each in sample["gpus"] if 0 in each.get("ranks", ())), None)
    if gpu is None:
        raise WrongError(f"no GPU is said to be rank 0's: {sample['gpus']} {sample.get('no_gpus')}")
    theirs = next(each.used for each in now if each.index == gpu["index"])
    if abs(gpu["memory_used_bytes"] / MEBI - theirs) > 1024:
        raise WrongError(f"{gpu['memory_used_bytes'] / MEBI:.0f} MiB, nvidia-smi {theirs:.0f} MiB")
    return (
        f"{gpu['memory_used_bytes'] / MEBI:.0f} MiB, nvidia-smi {theirs:.0f}; {gpu.get('utilization_percent')} % busy"
    )


def idle_gpu(at: Place) -> str:
    """`--gpus free:1` avoids a GPU that a foreign program keeps busy, and refuses where no other is there."""
    at.need(1)
    held = "torch.ones(3 << 30, dtype=torch.uint8, device='cuda:0')"
    busy = f"import time, torch; held = {held}; print(1, flush=True); time.sleep(120)"
    holder = subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    at.started.append(holder)
    assert holder.stdout is not None
    said_by_it: list[str] = []
    while (line := holder.stdout.readline()) not in ("", "1\n"):  # warnings of torch come before
        said_by_it.append(line)
    if not line:
        raise WrongError(f"a program could not take a GPU: {''.join(said_by_it)[-300:]}")
    expected = 0 if at.gpus > 1 else 4
    said = at.ddplaunch("run", "1", "--gpus", "free:1", "--", "train.py", "uuid", status=expected)
    holder.kill()
    if at.gpus > 1 and f"uuids {smi()[0].uuid}" in said:
        raise WrongError("it took the busy GPU")
    return "took an idle one" if at.gpus > 1 else "the only one was busy: refused"


def late_rank(at: Place) -> str:
    """A collective that waits for a late rank: time-out, diagnosis, and the flight recorder names that rank."""
    at.need(1)
    ranks = ("2", "--device", "cuda", "--ignore", "more-processes-than-gpus")
    at.ddplaunch("run", *ranks, "--", "train.py", "late", status=None)
    named = at.diagnosed("collective-timeout")
    if not list(at.records_of(at.records).rglob("*flight*")) and "rank 1" not in json.dumps(at.outcome()["diagnosis"]):
        raise WrongError(f"{named}, but the flight recorder was not read")
    return named


def replicas(at: Place) -> str:
    """Parameters that one rank has changed by itself are told of, without waiting for the GPU."""
    ranks = ("2", "--device", at.device, "--ignore", "more-processes-than-gpus")
    at.ddplaunch("run", *ranks, "--", "train.py", "replicas")
    codes = [each["code"] for each in at.outcome()["findings"]]
    if "replicas-differ" not in codes:
        raise WrongError(f"findings: {codes}")
    return "replicas-differ"


def comm(at: Place) -> str:
    """`doctor --comm` measures collectives."""
    ranks = at.gpus if at.gpus > 1 else 2
    if at.gpus == 1:
        raise NotTriedError("needs 2 GPUs, 1 here")
    text = at.ddplaunch("doctor", str(ranks), "--device", at.device, "--comm", "--json", status=None)
    return str(json.loads(text[text.index("{") :])["verdict"])


def fits(at: Place) -> str:
    """`fit` finds the largest batch on the GPU's own memory."""
    at.need(1)
    said = at.ddplaunch("fit", "1", "--timeout", "40", "--", "train.py", "fit", status=None)
    if at.started[-1].returncode != 0:
        raise WrongError(said[-500:])
    return " ".join(said.split())[-300:]


def phases(at: Place) -> str:
    """`--phases` tells the phases of steps on the GPU, also of a training that makes fewer than a hundred."""
    at.need(1)
    said = at.ddplaunch("run", "1", "--device", "cuda", "--phases", "--batch-size", "64", "--", "train.py", "phases")
    found = re.search(r"phases: .*", said)
    if found is None or "unknown" in found[0] or "ended" in found[0] or "no optimizer step" in found[0]:
        raise WrongError(said[-500:])
    return found[0]


def scales(at: Place) -> str:
    """`scale` compares one GPU with all."""
    at.need(2)
    said = at.ddplaunch("scale", str(at.gpus), "--batch-size", "64", "--", "train.py", "fit", status=None)
    if at.started[-1].returncode != 0:
        raise WrongError(said[-500:])
    return " ".join(said.split())[-300:]


#: In this order: what is nearest to every launch first, what takes long last.
ITEMS: dict[str, Callable[[Place], str]] = {
    "doctor": doctor,
    "run, cold": trains,
    "run, warm": warm,
    "SIGKILL": killed,
    "facts against nvidia-smi": facts,
    "two ranks on one GPU": same_gpu,
    "out of memory, and its fix": out_of_memory,
    "illegal access": illegal_access,
    "device-side assert": device_assert,
    "--gpus free:1": idle_gpu,
    "top against nvidia-smi": watched,
    "CUDA_VISIBLE_DEVICES": visible_devices,
    "late rank, flight recorder": late_rank,
    "doctor --comm": comm,
    "parameters that differ": replicas,
    "--phases": phases,
    "MIG": mig,
    "fit": fits,
    "scale": scales,
}


def install(folder: Path) -> str:
    """Return a directory for PYTHONPATH in which torchrun finds this checkout's plug-in, as `pip` would make it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = text.partition('[project.entry-points."torchrun.logs_specs"]\n')[2].partition("\n\n")[0]
    about = folder / f"ddplaunch-{__version__}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ddplaunch\nVersion: {__version__}\n")
    (about / "entry_points.txt").write_text(f"[torchrun.logs_specs]\n{declared.replace(chr(34), '')}\n")
    return str(folder)


def how_to_bring(missing: Sequence[str]) -> str:
    """Return what to type where there is a network, and then here."""
    version, names = ".".join(map(str, sys.version_info[:2])), " ".join(NEEDED[each] for each in missing)
    return "\n".join(
        (
            f"missing here: {names}. Where there is a network:",
            f"  python -m pip download --only-binary=:all: --python-version {version} -d wheels {names}",
            "and here, with that folder:",
            f"  {sys.executable} -m pip install --no-index --find-links wheels --target site {names}",
            "  PYTHONPATH=site python -m benchmarks.gpu",
        )
    )


def machine() -> dict[str, Any]:
    """Return what a reader has to know of this machine; raises SystemExit where torch or a dependency is missing."""
    if find_spec("torch") is None:
        raise SystemExit(f"torch is missing in {sys.executable}")
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise SystemExit(how_to_bring(missing))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ABOUT], capture_output=True, text=True, timeout=ITEM_S)
    if done.returncode:
        raise SystemExit(f"torch cannot be imported: {done.stderr[-400:]}")
    torch, cuda, gpus, fault = json.loads(done.stdout)
    try:
        driver = smi()[0].driver
    except (NotTriedError, LookupError):
        driver = None
    python = ".".join(map(str, sys.version_info[:3]))
    about = {"Python": python, "torch": torch, "CUDA of torch": cuda, "driver": driver, "GPUs": gpus}
    return {**about, "fault": fault} if fault else about


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise WrongError in what the main thread waits for once it has taken so long, and again where that tidies up."""

    def over(*_: object) -> None:
        raise WrongError(f"not done within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, END_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(item: Callable[[Place], str], place: Place, seconds: float) -> tuple[str, str]:
    """Return how an item came out within ``seconds``, and what was seen; nothing of it runs on."""
    try:
        place.folder.mkdir()
        (place.folder / "train.py").write_text(SCRIPT, encoding="utf-8")
        with at_most(seconds):
            return "ok", item(place)
    except NotTriedError as reason:
        return "not tried", str(reason)
    except WrongError as seen:
        return "wrong", str(seen)
    except Exception as error:  # an item that breaks is told beside the others
        return "wrong", f"{type(error).__name__}: {error}"
    finally:
        place.end()


def write(about: Mapping[str, Any], found: Sequence[Mapping[str, Any]], file: Path | None, table: bool) -> None:
    """Write what is known so far."""
    if file:
        draft = file.with_name(f"{file.name}.draft")
        draft.write_text(json.dumps({"schema": 1, "machine": about, "items": found}, indent=1) + "\n", encoding="utf-8")
        draft.replace(file)
    if table:
        rows = [f"| {each['item']} | {each['result']} | {_cell(each['seen'])} |" for each in found]
        head = ["# On real GPUs", "", f"`python -m benchmarks.gpu`: {json.dumps(about)}", ""]
        lines = [*head, "| item | result | seen |", "|---|---|---|", *rows]
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def main() -> int:
    """Try every item; return 1 if any was wrong."""
    began_s = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9, help="all ends by then; what is not begun is not tried")
    parser.add_argument("--only", default="", help="items whose name contains it; no table is written")
    parser.add_argument("--json", type=Path, metavar="FILE")
    said = parser.parse_args()
    until_s = began_s + said.minutes * 60 - END_S
    about = machine()
    print(json.dumps(about), flush=True)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ddplaunch-gpu-", ignore_cleanup_errors=True) as folder:
        site = install(Path(folder, "site"))
        for number, (name, item) in enumerate(ITEMS.items()):
            if said.only not in name:
                continue
            at_s = time.monotonic()
            left_s = until_s - at_s
            if left_s < SOON_S:
                how, seen = "not tried", f"no time left of {said.minutes:g} minutes"
            else:
                place = Place(Path(folder, f"item-{number}"), len(about["GPUs"]), site)
                how, seen = attempt(item, place, min(ITEM_S, left_s))
            took_s = round(time.monotonic() - at_s, 1)
            found.append({"item": name, "result": how, "seen": seen, "seconds": took_s})
            print(f"{how:9}  {name}: {seen} ({took_s} s)", flush=True)
            write(about, found, said.json, bool(about["GPUs"]) and not said.only)
    return 1 if any(each["result"] == "wrong" for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
