# ruff: noqa: E501  the scripts read better in whole lines
"""Faults for ``python -m benchmarks.faults``, written before anybody saw what the program says of them.

``helps`` are the words that somebody needs to mend the fault: mostly the line of the script to change, or what it names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ANY = -1  # all ranks fail alike, or which one failed first is not decidable


@dataclass(frozen=True)
class Fault:
    """A script for two ranks behind ``tests.faults.catalogue.INIT``, and what has to be said of it.

    ``codes`` are the right ones, best first; ``rank`` the guilty one, or ANY; ``status`` the exit status, or ANY;
    ``files`` lie beside the script; ``options`` stand before ``--``, ``args`` behind the script. ``log``: what
    ``explain`` is given, instead of a launch.
    """

    name: str
    body: str
    codes: tuple[str, ...]
    rank: int
    status: int
    helps: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    timeout_s: int = 60
    log: str = ""


EXCEPTION = ("script-exception",)
MEET = "r, w = init()\nreduce()\n"
LOADER = "from torch.utils.data import DataLoader, Dataset, DistributedSampler\n"
NET = "from torch.nn.parallel import DistributedDataParallel as DDP\n" + MEET


def _signal(number: str) -> str:
    return f"{MEET}if r == 1:\n    os.kill(os.getpid(), signal.{number})\ntime.sleep(20)\n"


PLAIN = (
    Fault(
        "config_key",
        MEET + "import json\nconfig = json.load(open('config.json'))\nprint(config['optim']['lr'])\n",
        EXCEPTION,
        ANY,
        1,
        ("config['optim']['lr']", "KeyError: 'lr'"),
        files={"config.json": '{"optim": {}}'},
    ),
    Fault(
        "config_json",
        MEET + "import json\nconfig = json.load(open('config.json'))\n",
        EXCEPTION,
        ANY,
        1,
        ("json.load(open('config.json'))", "line 1 column 13"),
        files={"config.json": '{"optim": {},}'},
    ),
    Fault(
        "config_toml",
        MEET + "import tomllib\nconfig = tomllib.loads(open('c.toml').read())\n",
        EXCEPTION,
        ANY,
        1,
        ("tomllib.loads(open('c.toml')", "at line 2"),
        files={"c.toml": "[optim]\nlr = 1e\n"},
    ),
    Fault(
        "label_out_of_range",
        MEET
        + "if r == 1:\n    torch.nn.functional.cross_entropy(torch.ones(2, 10), torch.tensor([3, 10]))\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("cross_entropy(torch.ones(2, 10)", "Target 10 is out of bounds"),
    ),
    Fault(
        "channels",
        MEET + "net = torch.nn.Conv2d(3, 8, 3)\nnet(torch.ones(2, 1, 8, 8))\n",
        EXCEPTION,
        ANY,
        1,
        ("net(torch.ones(2, 1, 8, 8))", "to have 3 channels"),
    ),
    Fault(
        "recursion",
        MEET + "def walk(tree):\n    return walk([tree])\nif r == 1:\n    walk([])\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("RecursionError", "return walk([tree])"),
    ),
    Fault(
        "bare_assert",
        MEET + "tokens = [1] * 1023\nif r == 1:\n    assert len(tokens) % 8 == 0\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("assert len(tokens) % 8 == 0",),
    ),
    Fault(
        "backward_twice",
        MEET + "x = torch.ones(3, requires_grad=True)\nloss = (x * x).sum()\nloss.backward()\nloss.backward()\n",
        EXCEPTION,
        ANY,
        1,
        ("loss.backward()", "second time"),
    ),
    Fault(
        "dtype",
        MEET + "net = torch.nn.Linear(4, 4)\nif r == 1:\n    net(torch.ones(2, 4, dtype=torch.float64))\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("net(torch.ones(2, 4, dtype=torch.float64))", "dtype"),
    ),
    Fault(
        "text_not_utf8",
        MEET
        + "open(f's{r}.txt', 'wb').write(b'caf\\xe9 au lait' if r else b'tea')\nopen(f's{r}.txt').read()\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("open(f's{r}.txt').read()", "0xe9"),
    ),
    Fault(
        "not_serialisable",
        MEET + "import json\nif r == 0:\n    json.dump({'loss': reduce.__call__}, open('log.json', 'w'))\nreduce()\n",
        EXCEPTION,
        0,
        1,
        ("json.dump({'loss'", "not JSON serializable"),
    ),
    Fault(
        "warning_as_error",
        MEET + "import warnings\nwarnings.simplefilter('error')\nwarnings.warn('old scheduler', FutureWarning)\n",
        EXCEPTION,
        ANY,
        1,
        ("warnings.warn('old scheduler'", "FutureWarning: old scheduler"),
    ),
    Fault(
        "in_another_file",
        MEET + "from model import Net\nif r == 1:\n    Net()(torch.ones(2, 8))\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("model.py:7", "x.view(4, 5)"),
        files={
            "model.py": "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.layer = torch.nn.Identity()\n    def forward(self, x):\n        return x.view(4, 5)\n"
        },
    ),
    Fault(
        "in_a_hook",
        MEET
        + "x = torch.ones(3, requires_grad=True)\ndef clip(grad):\n    return grad / limits[0]\nlimits = [1] if r == 0 "
        "else []\nx.register_hook(clip)\nx.sum().backward()\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("grad / limits[0]", "IndexError"),
    ),
    Fault(
        "raised_from",
        MEET + "def read():\n    return open('/data/imagenet/train.txt')\nif r == 1:\n    try:\n        read()\n"
        "    except OSError as problem:\n        raise RuntimeError('training failed') from problem\nreduce()\n",
        ("dataset-missing", "script-exception"),
        1,
        1,
        ("/data/imagenet/train.txt", "open('/data/imagenet/train.txt')"),
    ),
    Fault(
        "while_handling",
        MEET
        + "if r == 1:\n    try:\n        {}['shard-7']\n    except KeyError:\n        undefined_name.warn('skip')\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("undefined_name.warn('skip')", "undefined_name"),
    ),
    Fault(
        "exception_group",
        MEET + "import asyncio\nasync def fetch(n):\n    if n == 2:\n        raise ValueError('shard 2 has no index')\n"
        "async def all_of_them():\n    async with asyncio.TaskGroup() as group:\n        [group.create_task(fetch(n)) for n "
        "in range(3)]\nif r == 1:\n    asyncio.run(all_of_them())\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("shard 2 has no index", "raise ValueError('shard 2 has no index')"),
    ),
    Fault(
        "note_added",
        MEET
        + "if r == 1:\n    try:\n        [][3]\n    except IndexError as problem:\n        problem.add_note('sample 3 of "
        "shard cats-07.tar')\n        raise\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("[][3]", "cats-07.tar"),
    ),
    Fault(
        "logged_and_exit",
        MEET
        + "import logging\ndef step():\n    raise ValueError('bad mask at step 12')\nif r == 1:\n    try:\n        step()\n"
        "    except Exception:\n        logging.exception('training failed')\n        sys.exit(1)\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("bad mask at step 12", "raise ValueError('bad mask at step 12')"),
    ),
    Fault(
        "printed_and_exit",
        MEET
        + "if r == 1:\n    print('ERROR: vocabulary has 32001 tokens, model 32000', flush=True)\n    sys.exit(1)\nreduce()\n",
        ("unknown", "script-exception"),
        1,
        1,
        ("vocabulary has 32001 tokens, model 32000",),
    ),
    Fault(
        "silent_status",
        MEET + "if r == 1:\n    os._exit(70)\nreduce()\n",
        ("unknown", "script-exception"),
        1,
        70,
        ("70", "os._exit"),
    ),
    Fault(
        "status_137",
        MEET + "if r == 1:\n    print('evaluation asked to stop', flush=True)\n    os._exit(137)\nreduce()\n",
        ("unknown", "script-exception"),
        1,
        137,
        ("evaluation asked to stop", "137"),
    ),
    Fault(
        "no_command",
        MEET + "import subprocess\nif r == 0:\n    subprocess.run(['ffmpegg', '-i', 'a.mp4'], check=True)\nreduce()\n",
        ("script-not-found", *EXCEPTION),
        0,
        1,
        ("'ffmpegg'", "subprocess.run(['ffmpegg'"),
    ),
    Fault(
        "command_timed_out",
        MEET + "import subprocess\nif r == 0:\n    subprocess.run(['sleep', '60'], timeout=1)\nreduce()\n",
        EXCEPTION,
        0,
        1,
        ("timed out after 1 second", "subprocess.run(['sleep', '60']"),
    ),
    Fault(
        "library_missing",
        MEET + "import ctypes\nctypes.CDLL('libdecord_fast.so')\n",
        ("module-not-found", "extension-build-failed", "script-exception"),
        ANY,
        1,
        ("libdecord_fast.so",),
    ),
    Fault(
        "folder_missing",
        MEET + "if r == 0:\n    torch.save({'step': 3}, 'checkpoints/last.pt')\nreduce()\n",
        ("script-exception", "dataset-missing"),
        0,
        1,
        ("checkpoints", "torch.save({'step': 3}"),
    ),
    Fault(
        "not_permitted",
        MEET + "if r == 1:\n    open('/sys/kernel/uevent_seqnum', 'w').write('1')\nreduce()\n",
        ("permission-denied", "script-exception"),
        1,
        1,
        ("/sys/kernel/uevent_seqnum",),
    ),
    Fault(
        "own_interrupt",
        MEET + "if r == 1:\n    raise KeyboardInterrupt\nreduce()\n",
        ("terminated", "script-exception"),
        1,
        ANY,
        ("raise KeyboardInterrupt",),
    ),
    Fault(
        "file_too_large",
        MEET + "import resource\nif r == 1:\n    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n    "
        "open('out.bin', 'wb').write(b'x' * 9999)\nreduce()\n",
        ("script-exception", "disk-full"),
        1,
        1,
        ("File too large", "ulimit -f"),
    ),
    Fault(
        "too_much_memory",
        MEET + "if r == 1:\n    attention = torch.empty(10 ** 7, 10 ** 7)\nreduce()\n",
        ("host-out-of-memory",),
        1,
        1,
        ("torch.empty(10 ** 7, 10 ** 7)",),
    ),
    Fault(
        "two_exceptions_same_time",
        MEET
        + "time.sleep(0.5 * r)\nif r == 1:\n    raise ValueError('second')\nraise LookupError('first: rank 0 has no plan')\n",
        EXCEPTION,
        0,
        1,
        ("first: rank 0 has no plan",),
    ),
    Fault(
        "long_message",
        MEET
        + "if r == 1:\n    raise ValueError('unexpected columns: ' + ', '.join(f'column_{n}' for n in range(400)))\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("unexpected columns: column_0", "raise ValueError('unexpected columns: '"),
    ),
    Fault(
        "own_exception_class",
        MEET
        + "class ShardMissing(Exception):\n    pass\nif r == 1:\n    raise ShardMissing('shard 9 of 8\\nindex: idx.json')\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("ShardMissing: shard 9 of 8", "index: idx.json"),
    ),
    Fault(
        "system_exit_object",
        MEET + "if r == 1:\n    raise SystemExit({'reason': 'no free slot', 'slot': 4})\nreduce()\n",
        ("unknown", "script-exception"),
        1,
        1,
        ("no free slot",),
    ),
)

SIGNALS = (
    Fault("sigusr1", _signal("SIGUSR1"), ("terminated", "killed", "unknown"), 1, 138, ("SIGUSR1", "handler")),
    Fault("sigusr2", _signal("SIGUSR2"), ("terminated", "killed", "unknown"), 1, 140, ("SIGUSR2", "handler")),
    Fault("sigfpe", _signal("SIGFPE"), ("aborted", "segmentation-fault", "unknown"), 1, 136, ("SIGFPE",)),
    Fault("sigill", _signal("SIGILL"), ("aborted", "segmentation-fault", "unknown"), 1, 132, ("SIGILL", "instruction")),
    Fault(
        "sigalrm",
        MEET + "if r == 1:\n    signal.alarm(1)\ntime.sleep(20)\n",
        ("time-limit", "terminated", "unknown", "killed"),
        1,
        142,
        ("SIGALRM", "alarm"),
    ),
    Fault(
        "sigxcpu",
        MEET
        + "import resource\nif r == 1:\n    resource.setrlimit(resource.RLIMIT_CPU, (1, 9))\n    while True: pass\nreduce()\n",
        ("time-limit", "killed"),
        1,
        152,
        ("SIGXCPU", "ulimit -t"),
    ),
    Fault(
        "sigterm_by_a_rank",
        MEET
        + "import torch.distributed as d\npids = [None, None]\nd.all_gather_object(pids, os.getpid())\nif r == 0:\n    "
        "os.kill(pids[1], signal.SIGTERM)\ntime.sleep(20)\n",
        ("terminated",),
        1,
        143,
        ("SIGTERM",),
    ),
    Fault(
        "mapped_file_shrank",
        MEET
        + "import mmap\nif r == 1:\n    file = open('tokens.bin', 'r+b')\n    tokens = mmap.mmap(file.fileno(), 0)\n    "
        "os.truncate('tokens.bin', 0)\n    print(tokens[9000])\nreduce()\n",
        ("unknown", "segmentation-fault", "script-exception", "killed"),
        1,
        135,
        ("SIGBUS", "print(tokens[9000])"),
        files={"tokens.bin": "x" * 10000},
    ),
    Fault(
        "panic",
        MEET
        + "if r == 1:\n    os.write(2, b\"thread '<unnamed>' panicked at src/lib.rs:41:9:\\nindex out of bounds: the len is "
        '3 but the index is 9\\n")\n    os.abort()\nreduce()\n',
        ("aborted",),
        1,
        134,
        ("index out of bounds: the len is 3",),
    ),
    Fault(
        "terminate",
        MEET
        + "if r == 1:\n    os.write(2, b\"terminate called after throwing an instance of 'std::runtime_error'\\n  what():  "
        'shard 3 has bad magic\\n")\n    os.abort()\nreduce()\n',
        ("aborted",),
        1,
        134,
        ("shard 3 has bad magic",),
    ),
    Fault(
        "glibc_abort",
        MEET
        + "import ctypes\nif r == 1:\n    libc = ctypes.CDLL(None)\n    libc.malloc.restype = ctypes.c_void_p\n    libc.free."
        "argtypes = [ctypes.c_void_p]\n    p = libc.malloc(64)\n    libc.free(p)\n    libc.free(p)\n    libc.free(p)\nreduce()\n",
        ("aborted", "segmentation-fault"),
        1,
        134,
        ("double free|free()", "libc.free(p)"),
    ),
    Fault(
        "stack_overflow_in_c",
        MEET + "import ctypes\nif r == 1:\n    def read(at): return ctypes.string_at(at)\n    read(8)\nreduce()\n",
        ("segmentation-fault",),
        1,
        139,
        ("ctypes.string_at(at)",),
    ),
    Fault(
        "worker_killed",
        LOADER
        + "class Data(Dataset):\n    def __len__(self): return 16\n    def __getitem__(self, i):\n        if i == 5:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n        return torch.ones(2)\n"
        + MEET
        + "if r == 1:\n    for batch in DataLoader(Data(), num_workers=1): pass\nreduce()\n",
        ("killed", "host-out-of-memory"),
        1,
        1,
        ("DataLoader worker", "memory"),
    ),
)

DATA = (
    Fault(
        "collate",
        LOADER
        + "class Data(Dataset):\n    def __len__(self): return 8\n    def __getitem__(self, i): return torch.ones(i + 1)\n"
        + MEET
        + "if r == 1:\n    for batch in DataLoader(Data(), batch_size=4, num_workers=2): pass\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("for batch in DataLoader(Data()", "equal size"),
    ),
    Fault(
        "worker_file",
        LOADER
        + "class Data(Dataset):\n    def __len__(self): return 32\n    def __getitem__(self, i):\n        return "
        "open(f'images/img_{i}.jpg', 'rb').read()\n"
        + MEET
        + "if r == 1:\n    for batch in DataLoader(Data(), num_workers=2): pass\nreduce()\n",
        ("dataset-missing",),
        1,
        1,
        ("images/img_", "open(f'images/img_{i}.jpg'"),
    ),
    Fault(
        "loader_timed_out",
        LOADER
        + "class Data(Dataset):\n    def __len__(self): return 8\n    def __getitem__(self, i): time.sleep(30)\n"
        + MEET
        + "if r == 1:\n    for batch in DataLoader(Data(), num_workers=1, timeout=2): pass\nreduce()\n",
        ("script-exception", "hang"),
        1,
        1,
        ("DataLoader timed out after 2 seconds", "timeout=2"),
    ),
    Fault(
        "pickle_lambda",
        LOADER
        + MEET
        + "class Data(Dataset):\n    def __init__(self): self.crop = lambda x: x\n    def __len__(self): return 8\n"
        "    def __getitem__(self, i): return 1\nif r == 1:\n    iter(DataLoader(Data(), num_workers=1, "
        "multiprocessing_context='spawn'))\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("pickle", "iter(DataLoader(Data(), num_workers=1"),
    ),
    Fault(
        "no_guard",
        MEET
        + "import multiprocessing\nmultiprocessing.set_start_method('spawn')\nwith multiprocessing.Pool(1) as pool:\n    "
        "pool.map(print, [1])\n",
        EXCEPTION,
        ANY,
        ANY,
        ("__main__",),
        options=("--timeout", "25s"),
        timeout_s=12,
    ),
    Fault(
        "empty_dataset",
        LOADER
        + MEET
        + "import glob\nfiles = glob.glob('/data/coco/*.jpg')\nloader = DataLoader(files, shuffle=True)\n",
        ("script-exception", "dataset-missing"),
        ANY,
        1,
        ("num_samples=0", "DataLoader(files, shuffle=True)"),
    ),
    Fault(
        "no_set_epoch",
        LOADER + MEET + "loader = DataLoader(list(range(8)), shuffle=True)\nloader.sampler.set_epoch(1)\n",
        EXCEPTION,
        ANY,
        1,
        ("loader.sampler.set_epoch(1)", "set_epoch"),
    ),
    Fault(
        "mkdir_race",
        MEET + "time.sleep(r)\nos.mkdir('cache')\nreduce()\n",
        ("dataset-race",),
        1,
        1,
        ("cache", "os.mkdir('cache')", "exist_ok"),
    ),
    Fault(
        "download",
        MEET
        + "import urllib.request\nif r == 0:\n    urllib.request.urlopen('http://weights.invalid/resnet50.pth')\nreduce()\n",
        ("download-failed", "host-name-unresolvable"),
        0,
        1,
        ("urlopen('http://weights.invalid/resnet50.pth')",),
    ),
    Fault(
        "tracker_refused",
        MEET
        + "import http.client\nif r == 0:\n    http.client.HTTPConnection('127.0.0.1', 9).request('POST', '/metrics')\nreduce()\n",
        ("script-exception", "download-failed"),
        0,
        1,
        ("Connection refused", "HTTPConnection('127.0.0.1', 9)"),
    ),
)

CHECKPOINTS = (
    Fault(
        "optimizer_group",
        MEET
        + "a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False)\nstate = torch.optim.SGD(a.parameters(), 1e-3)."
        "state_dict()\ntorch.optim.SGD(b.parameters(), 1e-3).load_state_dict(state)\n",
        ("checkpoint-mismatch",),
        ANY,
        1,
        ("load_state_dict(state)", "optimizer|group"),
    ),
    Fault(
        "module_prefix",
        MEET
        + "net = torch.nn.Linear(2, 2)\nnet.load_state_dict({'module.' + k: v for k, v in net.state_dict().items()})\n",
        ("checkpoint-mismatch",),
        ANY,
        1,
        ("module.", "net.load_state_dict("),
    ),
    Fault(
        "weights_only",
        MEET
        + "import argparse\nif r == 0:\n    torch.save({'args': argparse.Namespace(lr=1)}, 'old.pt')\nreduce()\ntorch.load('old.pt')\n",
        ("checkpoint-mismatch", "checkpoint-corrupt", "script-exception"),
        ANY,
        1,
        ("weights_only", "torch.load('old.pt')"),
    ),
    Fault(
        "truncated",
        MEET
        + "if r == 0:\n    torch.save(torch.ones(9999), 'a.pt')\n    os.truncate('a.pt', 9000)\nreduce()\ntorch.load('a.pt')\n",
        ("checkpoint-corrupt",),
        ANY,
        1,
        ("torch.load('a.pt')",),
    ),
    Fault(
        "html_as_weights",
        MEET + "torch.load('resnet50.pth')\n",
        ("checkpoint-corrupt",),
        ANY,
        1,
        ("torch.load('resnet50.pth')",),
        files={"resnet50.pth": "<!DOCTYPE html><title>404</title>\n"},
    ),
    Fault(
        "cuda_weights",
        MEET + "class Gpu:\n    pass\ntorch.cuda.FloatTensor(3)\n",
        ("cuda-unavailable",),
        ANY,
        1,
        ("torch.cuda.FloatTensor(3)",),
    ),
)

IMPORTS = (
    Fault(
        "no_such_name",
        MEET + "from model import Resnet\n",
        ("module-not-found", "script-exception"),
        ANY,
        1,
        ("'Resnet' from 'model'", "from model import Resnet"),
        files={"model.py": "class ResNet: pass\n"},
    ),
    Fault(
        "circular",
        MEET + "import data\n",
        ("module-not-found", "script-exception"),
        ANY,
        1,
        ("circular import", "model.py:1"),
        files={
            "data.py": "from model import Net\nclass Data: pass\n",
            "model.py": "from data import Data\nclass Net: pass\n",
        },
    ),
    Fault(
        "shadows_library",
        MEET + "from queue import Empty\nimport sched_queue\n",
        ("module-not-found", "script-exception"),
        ANY,
        1,
        ("colorsys.py",),
        files={"sched_queue.py": "from colorsys import rgb_to_hsv\n", "colorsys.py": "PALETTE = 1\n"},
    ),
    Fault(
        "syntax_of_a_module",
        MEET + "import model\n",
        ("syntax-error",),
        ANY,
        1,
        ("model.py:2",),
        files={"model.py": "class Net:\n    def forward(self, x) return x\n"},
    ),
    Fault(
        "relative_import",
        MEET + "from .model import Net\n",
        ("module-not-found", "script-exception"),
        ANY,
        1,
        ("relative import", "-m"),
    ),
    Fault(
        "ninja",
        MEET
        + "os.environ['PATH'] = '/nowhere'\nfrom torch.utils.cpp_extension import load_inline\nload_inline('fast', 'int "
        "f() { return 1; }', functions=['f'])\n",
        ("extension-build-failed", "script-exception"),
        ANY,
        1,
        ("load_inline('fast'",),
    ),
    Fault(
        "click_option",
        "import click\n@click.command()\n@click.option('--epochs', type=int)\ndef main(epochs): init()\nmain()\n",
        ("script-arguments",),
        ANY,
        2,
        ("--epoch",),
        args=("--epoch", "3"),
    ),
    Fault(
        "config_override",
        MEET
        + "if 'optim.lrr=3' in sys.argv:\n    print(\"Could not override 'optim.lrr'.\\nKey 'lrr' is not in struct\\n    "
        'full_key: optim.lrr\\n\\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.", '
        "file=sys.stderr, flush=True)\n    sys.exit(1)\n",
        ("script-arguments", "script-exception"),
        ANY,
        1,
        ("optim.lrr",),
        args=("optim.lrr=3",),
    ),
)

TRAINING = (
    Fault(
        "nan_exit",
        MEET + "if r == 1:\n    print('Loss is nan, stopping training', flush=True)\n    sys.exit(1)\nreduce()\n",
        ("not-a-number",),
        1,
        1,
        ("Loss is nan",),
    ),
    Fault(
        "nan_anomaly",
        MEET + "torch.autograd.set_detect_anomaly(True)\nx = torch.zeros(2, requires_grad=True)\nif r == 1:\n    "
        "y = x.sqrt() * 0\n    y.sum().backward()\nreduce()\n",
        ("not-a-number",),
        1,
        1,
        ("x.sqrt()", "returned nan"),
    ),
    Fault(
        "inplace",
        MEET + "x = torch.ones(3, requires_grad=True)\ny = x.sigmoid()\ny += 1\ny.sum().backward()\n",
        ("inplace-modification",),
        ANY,
        1,
        ("y.sum().backward()",),
    ),
    Fault(
        "no_gradients",
        NET + "net = torch.nn.Linear(2, 2).requires_grad_(False)\nDDP(net)\n",
        EXCEPTION,
        ANY,
        1,
        ("DDP(net)", "requires a gradient|require a gradient"),
    ),
    Fault(
        "wrapped_attribute",
        NET + "class Net(torch.nn.Linear):\n    def encode(self, x): return x\nnet = DDP(Net(2, 2))\nnet.encode(1)\n",
        EXCEPTION,
        ANY,
        1,
        ("net.encode(1)", ".module"),
    ),
    Fault(
        "deep_copy",
        MEET + "import copy\ncopy.deepcopy(torch.ones(2, requires_grad=True) * 2)\n",
        EXCEPTION,
        ANY,
        1,
        ("copy.deepcopy(",),
    ),
    Fault(
        "ddp_before_init",
        "from torch.nn.parallel import DistributedDataParallel as DDP\nDDP(torch.nn.Linear(2, 2))\n",
        ("process-group-not-initialized",),
        ANY,
        1,
        ("DDP(torch.nn.Linear(2, 2))", "init_process_group"),
    ),
    Fault(
        "init_twice",
        MEET + "dist.init_process_group('gloo')\n",
        EXCEPTION,
        ANY,
        1,
        ("twice", "dist.init_process_group('gloo')"),
    ),
    Fault("nccl_on_cpu", "init('nccl')\nreduce()\n", ("nccl-unavailable",), ANY, 1, ("gloo",)),
    Fault(
        "cuda_device",
        MEET + "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n",
        ("cuda-unavailable",),
        ANY,
        1,
        ("torch.cuda.set_device(",),
    ),
    Fault(
        "cuda_model",
        MEET + "torch.nn.Linear(2, 2).cuda()\n",
        ("cuda-unavailable",),
        ANY,
        1,
        ("torch.nn.Linear(2, 2).cuda()",),
    ),
    Fault(
        "slurm_variable",
        "rank = int(os.environ['SLURM_PROCID'])\n",
        ("missing-rank-environment", "script-exception"),
        ANY,
        1,
        ("SLURM_PROCID", "RANK"),
    ),
    Fault(
        "mpi_variable",
        "rank = int(os.environ.get('OMPI_COMM_WORLD_RANK'))\n",
        ("script-exception", "missing-rank-environment"),
        ANY,
        1,
        ("OMPI_COMM_WORLD_RANK",),
    ),
)

WAITING = (
    Fault(
        "barrier_of_one",
        MEET + "if r == 0:\n    dist.barrier()\nreduce(1000)\ntime.sleep(3)\n",
        ("collective-mismatch", "collective-timeout"),
        ANY,
        1,
        ("dist.barrier()",),
        timeout_s=8,
    ),
    Fault(
        "slow_rank",
        MEET + "if r == 1:\n    time.sleep(40)  # tokenize\nreduce()\n",
        ("collective-timeout",),
        1,
        1,
        ("time.sleep(40)",),
        timeout_s=8,
    ),
    Fault(
        "queue_forever",
        MEET + "import queue\nif r == 1:\n    queue.Queue().get()\nreduce()\n",
        ("collective-timeout", "hang"),
        1,
        1,
        ("queue.Queue().get()",),
        timeout_s=8,
    ),
    Fault(
        "thread_died",
        MEET
        + "import threading, queue\nbatches = queue.Queue()\ndef feed():\n    raise ValueError('decoder lost frame 88')\n"
        "if r == 1:\n    threading.Thread(target=feed, daemon=True).start()\n    batches.get()\nreduce()\n",
        ("script-exception", "hang", "collective-timeout"),
        1,
        1,
        ("decoder lost frame 88",),
        timeout_s=8,
    ),
    Fault(
        "nothing_to_do",
        MEET + "files = ['a'] if r == 0 else []\nif not files:\n    print('no files for this rank')\n    sys.exit(0)\n"
        "dist.broadcast_object_list(files, src=1)\n",
        ("rank-left-early",),
        1,
        1,
        ("rank 1", "broadcast_object_list"),
        timeout_s=12,
    ),
    Fault(
        "never_sent",
        MEET + "if r == 0:\n    dist.recv(torch.ones(4), src=1)\nelse:\n    dist.destroy_process_group()\n",
        ("rank-left-early",),
        1,
        1,
        ("dist.recv(torch.ones(4), src=1)",),
        timeout_s=12,
    ),
    Fault(
        "gather_shapes",
        MEET + "parts = [torch.ones(4 + r) for _ in range(w)]\ndist.all_gather(parts, torch.ones(4 + r))\nreduce()\n",
        ("collective-mismatch",),
        ANY,
        ANY,
        ("dist.all_gather(parts",),
        timeout_s=12,
    ),
    Fault(
        "monitored",
        MEET + "if r == 1:\n    time.sleep(60)\ndist.monitored_barrier(timeout=datetime.timedelta(seconds=5))\n",
        ("collective-timeout",),
        1,
        1,
        ("monitored_barrier", "rank 1"),
    ),
    Fault(
        "not_of_group",
        MEET
        + "group = dist.new_group([1])\nif r == 1:\n    dist.broadcast(torch.ones(2), src=0, group=group)\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("dist.broadcast(torch.ones(2), src=0, group=group)",),
    ),
    Fault(
        "unpicklable",
        MEET
        + "import threading\nparts = [None] * w\ndist.all_gather_object(parts, threading.Lock() if r == 1 else 1)\n",
        EXCEPTION,
        1,
        1,
        ("cannot pickle", "dist.all_gather_object(parts"),
    ),
    Fault(
        "own_key",
        MEET + "store = dist.distributed_c10d._get_default_store()\nif r == 0:\n    store.wait(['index-built'], "
        "datetime.timedelta(seconds=3))\ntime.sleep(15)\n",
        ("script-exception", "collective-timeout"),
        0,
        1,
        ("index-built",),
    ),
    Fault(
        "locked_twice",
        MEET + "import threading\nlock = threading.Lock()\nlock.acquire()\nif r == 1:\n    lock.acquire()\nreduce()\n",
        ("hang", "collective-timeout"),
        1,
        ANY,
        ("lock.acquire()",),
        options=("--hang-timeout", "8s", "--on-hang", "stop"),
    ),
    Fault(
        "too_long",
        MEET + "for step in range(10 ** 9):\n    reduce()\n    time.sleep(0.1)\n",
        ("time-limit",),
        ANY,
        ANY,
        ("--timeout",),
        options=("--timeout", "8s"),
    ),
)

ALL = (*PLAIN, *SIGNALS, *DATA, *CHECKPOINTS, *IMPORTS, *TRAINING, *WAITING)
