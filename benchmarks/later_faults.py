# ruff: noqa: E501  the scripts read better in whole lines
"""Faults for ``python -m benchmarks.faults --set later``, of kinds that no rule was mended on at their first run; and
the reader of the sets that are scripts and logs in a file of benchmarks/fault_sets:

    === NAME; CODE|CODE; RANK or * for any; STATUS or *; WORDS|OTHER WORDS && MORE WORDS
    #timeout SECONDS   #options --env X=1   #raw: the script is all of it   #all: for all ranks, behind a collective
    def fail(): ...    without these two, what rank 1 calls after a collective

    === log:NAME; CODES or none for a healthy log; RANK or - where none is expected; WORDS
"""

from __future__ import annotations

import lzma
import re
import shlex
from pathlib import Path

from benchmarks.fault_list import ANY, EXCEPTION, LOADER, MEET, NET, Fault

ITEMS = "class Data(Dataset):\n    def __len__(self): return 32\n    def __getitem__(self, i): return item(i)\n"
LOAD = "for batch in DataLoader(Data(), num_workers=2, batch_size=4): reduce()\n"
ENDS = "reduce()\ntime.sleep(20)\n"


def _one(text: str) -> str:
    """Return a body in which rank 1 alone runs ``text``, and then all meet."""
    return MEET + "if r == 1:\n" + "".join(f"    {line}\n" for line in text.splitlines()) + "reduce()\n"


def _bash(text: str) -> dict[str, str]:
    return {"job.sh": text}


RUNS_BASH = "import subprocess\nsubprocess.run(['bash', 'job.sh'], check=True)"

LATER = (
    # libraries
    Fault(
        "sqlite_locked",
        _one(
            "import sqlite3\na = sqlite3.connect('m.db', timeout=0.2)\na.execute('create table t (x)')\na.execute('begin exclusive')\nb = sqlite3.connect('m.db', timeout=0.2)\nb.execute('insert into t values (1)')"
        ),
        EXCEPTION,
        1,
        1,
        ("database is locked", "b.execute('insert into t"),
    ),
    Fault(
        "sqlite_folder",
        _one("import sqlite3\nsqlite3.connect('no/such/m.db').execute('select 1')"),
        (*EXCEPTION, "dataset-missing"),
        1,
        1,
        ("unable to open database file", "sqlite3.connect('no/such/m.db')"),
    ),
    Fault(
        "bad_zip",
        _one(
            "import zipfile\nopen('data.zip', 'wb').write(b'PK' + b'0' * 99)\nzipfile.ZipFile('data.zip').extractall()"
        ),
        (*EXCEPTION, "checkpoint-corrupt"),
        1,
        1,
        ("not a zip file", "zipfile.ZipFile('data.zip')"),
    ),
    Fault(
        "csv_field",
        _one("import csv\nopen('a.csv', 'w').write('x' * 200000)\nlist(csv.reader(open('a.csv')))"),
        EXCEPTION,
        1,
        1,
        ("field larger than field limit", "csv.reader(open('a.csv'))"),
    ),
    Fault(
        "asyncio_timeout",
        _one(
            "import asyncio\nasync def fetch():\n    await asyncio.wait_for(asyncio.sleep(9), 0.2)\nasyncio.run(fetch())"
        ),
        EXCEPTION,
        1,
        1,
        ("asyncio.wait_for", "TimeoutError"),
    ),
    Fault(
        "pool_breaks",
        MEET
        + "from concurrent.futures import ProcessPoolExecutor\ndef bad(x):\n    os._exit(3)\nif r == 1:\n    with ProcessPoolExecutor(1) as pool:\n        list(pool.map(bad, [1]))\nreduce()\n",
        EXCEPTION,
        1,
        1,
        ("pool.map(bad", "terminated abruptly"),
    ),
    Fault(
        "env_not_a_number",
        MEET + "steps = int(os.environ['MAX_STEPS'])\n",
        EXCEPTION,
        ANY,
        1,
        ("int(os.environ['MAX_STEPS'])", "'ten'"),
        options=("--env", "MAX_STEPS=ten"),
    ),
    Fault(
        "env_missing",
        MEET + "token = os.environ['MY_TOKEN']\n",
        EXCEPTION,
        ANY,
        1,
        ("os.environ['MY_TOKEN']", "KeyError: 'MY_TOKEN'"),
    ),
    Fault("reduce_on_empty", _one("losses = []\nbest = min(losses)"), EXCEPTION, 1, 1, ("best = min(losses)",)),
    Fault(
        "unbound",
        _one("def train():\n    for batch in ():\n        loss = 1\n    return loss\ntrain()"),
        EXCEPTION,
        1,
        1,
        ("return loss",),
    ),
    Fault(
        "own_server_twice",
        MEET
        + "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', int(os.environ['MASTER_PORT'])))\ns.listen()\n",
        ("port-taken",),
        ANY,
        1,
        ("s.bind(|Address already in use",),
    ),
    Fault(
        "tls",
        _one(
            "import ssl, socket, threading\nserver = socket.create_server(('127.0.0.1', 0))\nthreading.Thread(target=lambda: server.accept()[0].sendall(b'hello there, no tls\\n' * 9), daemon=True).start()\nssl.create_default_context().wrap_socket(socket.create_connection(server.getsockname()), server_hostname='x')"
        ),
        (*EXCEPTION, "download-failed"),
        1,
        1,
        ("wrap_socket", "SSL"),
    ),
    # shells and programs
    Fault(
        "bash_unbound",
        _one(RUNS_BASH),
        EXCEPTION,
        1,
        1,
        ("DATA_ROOT: unbound variable",),
        files=_bash("set -eu\nls $DATA_ROOT\n"),
    ),
    Fault(
        "bash_pipefail",
        _one(RUNS_BASH),
        EXCEPTION,
        1,
        1,
        ("No such file|cannot open", "tokens.txt"),
        files=_bash("set -eo pipefail\ncat tokens.txt | sort > out.txt\n"),
    ),
    Fault(
        "bash_syntax",
        _one(RUNS_BASH),
        EXCEPTION,
        1,
        1,
        ("unexpected end of file",),
        files=_bash("for f in *; do echo $f\n"),
    ),
    Fault(
        "child_segfault",
        _one("import subprocess\nsubprocess.run(['bash', '-c', 'kill -SEGV $$'], check=True)"),
        ("segmentation-fault", *EXCEPTION),
        1,
        1,
        ("SIGSEGV", "kill -SEGV"),
    ),
    Fault(
        "program_of_another_arch",
        _one(
            "import subprocess\nopen('tool', 'wb').write(b'\\x00\\x01\\x02' * 30)\nos.chmod('tool', 0o755)\nsubprocess.run(['./tool'], check=True)"
        ),
        EXCEPTION,
        1,
        1,
        ("Exec format error", "./tool"),
    ),
    Fault(
        "program_not_executable",
        _one("import subprocess\nopen('tool', 'w').write('x')\nsubprocess.run(['./tool'], check=True)"),
        ("permission-denied",),
        1,
        1,
        ("./tool", "chmod"),
    ),
    Fault(
        "program_in_missing_folder",
        _one("import subprocess\nsubprocess.run(['ls'], cwd='work/dir', check=True)"),
        ("script-not-found", "dataset-missing"),
        1,
        1,
        ("work/dir", "cwd"),
    ),
    Fault("exec_missing", _one("os.execvp('nvtop-x', ['nvtop-x'])"), ("script-not-found",), 1, 1, ("nvtop-x", "PATH")),
    Fault(
        "perl_died",
        _one(
            "import subprocess\nraise SystemExit(subprocess.run(['perl', '-e', 'die \"cannot parse shard 7\\n\"']).returncode)"
        ),
        EXCEPTION,
        1,
        ANY,
        ("cannot parse shard 7",),
    ),
    # signals
    Fault(
        "sigfpe",
        _one("os.kill(os.getpid(), signal.SIGFPE)"),
        ("unknown", "aborted", *EXCEPTION),
        1,
        136,
        ("SIGFPE", "os.kill(os.getpid(), signal.SIGFPE)"),
    ),
    Fault(
        "sigill",
        _one("os.kill(os.getpid(), signal.SIGILL)"),
        ("unknown", "aborted", *EXCEPTION),
        1,
        132,
        ("SIGILL", "CPU|instruction"),
    ),
    Fault(
        "sigsys",
        _one("os.kill(os.getpid(), signal.SIGSYS)"),
        ("unknown", "aborted", *EXCEPTION),
        1,
        159,
        ("SIGSYS", "seccomp|system call"),
    ),
    Fault(
        "null_pointer_in_a_thread",
        _one("import ctypes, threading\nt = threading.Thread(target=ctypes.string_at, args=(0,))\nt.start()\nt.join()"),
        ("segmentation-fault",),
        1,
        139,
        ("SIGSEGV|Segmentation", "train.py"),
    ),
    Fault(
        "killed_by_its_child",
        _one("import subprocess\nsubprocess.run(['bash', '-c', 'kill -9 $PPID'])"),
        ("killed",),
        1,
        137,
        ("SIGKILL", "memory"),
    ),
    Fault(
        "alarm_in_a_library",
        _one(
            "def late(*_):\n    raise TimeoutError('batch took more than 1 s')\nsignal.signal(signal.SIGALRM, late)\nsignal.alarm(1)\ntime.sleep(9)"
        ),
        EXCEPTION,
        1,
        1,
        ("batch took more than 1 s",),
    ),
    Fault(
        "abort_with_words",
        _one("os.write(2, b'FATAL: mapped_tokens.cc:88: Check failed: n < limit (9 vs. 8)\\n')\nos.abort()"),
        ("aborted",),
        1,
        134,
        ("Check failed: n < limit",),
    ),
    # DataLoader
    Fault(
        "item_raises",
        LOADER
        + ITEMS
        + MEET
        + "def item(i):\n    if r == 1 and i == 21:\n        raise ValueError(f'sample {i} has no mask')\n    return i\n"
        + LOAD,
        EXCEPTION,
        1,
        1,
        ("sample 21 has no mask",),
    ),
    Fault(
        "worker_exits",
        LOADER + ITEMS + MEET + "def item(i):\n    if r == 1 and i == 21:\n        os._exit(5)\n    return i\n" + LOAD,
        (*EXCEPTION, "killed"),
        1,
        1,
        ("DataLoader worker", "os._exit|num_workers=0"),
    ),
    Fault(
        "worker_segfault",
        LOADER
        + ITEMS
        + MEET
        + "def item(i):\n    if r == 1 and i == 21:\n        import ctypes\n        ctypes.string_at(0)\n    return i\n"
        + LOAD,
        ("segmentation-fault",),
        1,
        1,
        ("DataLoader worker|worker", "num_workers=0"),
    ),
    Fault(
        "init_fn",
        LOADER
        + ITEMS
        + MEET
        + "def item(i): return i\ndef begin(worker):\n    open(f'shard-{worker}.bin')\nfor batch in DataLoader(Data(), num_workers=2, worker_init_fn=begin): reduce()\n",
        ("dataset-missing",),
        ANY,
        1,
        ("shard-0.bin|shard-1.bin",),
    ),
    Fault(
        "none_in_batch",
        LOADER + ITEMS + MEET + "def item(i): return None if i == 9 else i\n" + LOAD,
        EXCEPTION,
        ANY,
        1,
        ("NoneType",),
    ),
    Fault(
        "iterable_short",
        LOADER
        + MEET
        + "from torch.utils.data import IterableDataset\nclass Stream(IterableDataset):\n    def __iter__(self): return iter(range(8 if r else 12))\nfor batch in DataLoader(Stream()):\n    reduce()\n",
        ("rank-left-early", "collective-timeout"),
        1,
        ANY,
        ("reduce", "batches|turns"),
        timeout_s=5,
    ),
    # checkpoints
    Fault(
        "missing_part",
        MEET + "torch.save({'model': {}}, f'c{r}.pt')\nstate = torch.load(f'c{r}.pt')\nstate['optimizer']\n",
        EXCEPTION,
        ANY,
        1,
        ("state['optimizer']",),
    ),
    Fault(
        "shape_changed",
        MEET + "net = torch.nn.Linear(4, 8)\nnet.load_state_dict(torch.nn.Linear(4, 9).state_dict())\n",
        ("checkpoint-mismatch",),
        ANY,
        1,
        ("size mismatch|shape", "weight"),
    ),
    Fault(
        "class_is_gone",
        MEET
        + "import sys, types\nif r == 1:\n    m = types.ModuleType('oldmodels')\n    exec('class Net: pass', m.__dict__)\n    sys.modules['oldmodels'] = m\n    torch.save(m.Net(), 'old.pt')\n    del sys.modules['oldmodels']\n    torch.load('old.pt', weights_only=False)\nreduce()\n",
        ("module-not-found", "checkpoint-mismatch"),
        1,
        1,
        ("oldmodels",),
    ),
    Fault(
        "save_into_missing_folder",
        _one("torch.save({}, 'runs/7/last.pt')"),
        ("dataset-missing", "permission-denied", *EXCEPTION, "checkpoint-corrupt"),
        1,
        1,
        ("runs/7", "torch.save({}, 'runs/7/last.pt')"),
    ),
    Fault(
        "empty_checkpoint",
        _one("open('last.pt', 'w').close()\ntorch.load('last.pt')"),
        ("checkpoint-corrupt",),
        1,
        1,
        ("torch.load('last.pt')",),
    ),
    # collectives
    Fault(
        "source_out_of_range",
        MEET + "dist.broadcast(torch.ones(2), src=5)\n",
        EXCEPTION,
        ANY,
        1,
        ("dist.broadcast(torch.ones(2), src=5)",),
    ),
    Fault(
        "scatter_lists",
        MEET + "dist.scatter(torch.zeros(1), [torch.ones(1)] * 3 if r == 0 else None, src=0)\n",
        (*EXCEPTION, "collective-mismatch"),
        0,
        1,
        ("dist.scatter",),
        timeout_s=20,
    ),
    Fault(
        "lone_recv",
        MEET + "if r == 1:\n    dist.recv(torch.zeros(1), src=0)\n" + ENDS,
        ("collective-timeout", "collective-mismatch"),
        ANY,
        ANY,
        ("recv",),
        timeout_s=5,
    ),
    Fault(
        "barrier_and_reduce",
        MEET
        + "if r == 0:\n    dist.barrier()\nelse:\n    dist.all_gather([torch.zeros(1)] * 2, torch.ones(1))\n"
        + ENDS,
        ("collective-mismatch", "collective-timeout"),
        ANY,
        ANY,
        ("all_gather|barrier",),
        timeout_s=5,
    ),
    Fault(
        "early_return",
        MEET
        + "def epoch():\n    for step in range(6):\n        if r == 1 and step == 3:\n            return\n        reduce()\nepoch()\n",
        ("rank-left-early", "collective-timeout"),
        1,
        ANY,
        ("return", "train.py"),
        timeout_s=5,
    ),
    Fault(
        "unused_branch",
        NET
        + "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)\n    def forward(self, x): return self.a(x)\nnet = DDP(Net())\nfor step in range(3): net(torch.ones(1, 2)).sum().backward()\n",
        ("unused-parameters",),
        ANY,
        1,
        ("find_unused_parameters",),
    ),
    Fault(
        "models_differ",
        NET + "net = DDP(torch.nn.Linear(2, 2 + r))\n",
        ("parameter-mismatch",),
        ANY,
        1,
        ("DDP(torch.nn.Linear|shape|size",),
        timeout_s=20,
    ),
    # disks and files
    Fault(
        "dev_full",
        _one("with open('/dev/full', 'w') as out:\n    out.write('x' * 100000)"),
        ("disk-full",),
        1,
        1,
        ("No space left", "df -h"),
    ),
    Fault("name_too_long", _one("open('x' * 300, 'w')"), EXCEPTION, 1, 1, ("File name too long", "open('x' * 300")),
    Fault(
        "links_in_a_circle",
        _one("os.symlink('a', 'b')\nos.symlink('b', 'a')\nopen('a')"),
        (*EXCEPTION, "dataset-missing"),
        1,
        1,
        ("Too many levels of symbolic links", "open('a')"),
    ),
    Fault(
        "stale_handle",
        _one("raise OSError(116, 'Stale file handle', '/mnt/nfs/train.bin')"),
        ("storage-failed",),
        1,
        1,
        ("Stale file handle", "/mnt/nfs/train.bin"),
    ),
    Fault(
        "io_error",
        _one("raise OSError(5, 'Input/output error')"),
        ("storage-failed",),
        1,
        1,
        ("Input/output error", "dmesg|disk"),
    ),
    Fault(
        "folder_not_empty",
        _one("os.makedirs('out/x')\nos.rmdir('out')"),
        (*EXCEPTION, "dataset-race"),
        1,
        1,
        ("os.rmdir('out')",),
    ),
    Fault(
        "closed_file",
        _one("log = open('log.txt', 'w')\nlog.close()\nlog.write('x')"),
        EXCEPTION,
        1,
        1,
        ("log.write('x')", "closed file"),
    ),
    Fault(
        "input_asked_for",
        _one("name = input('experiment name: ')"),
        EXCEPTION,
        1,
        1,
        ("input('experiment name: ')", "EOF"),
    ),
)

_HEAD = re.compile(r"^=== (\S+); ?(.*)$", re.MULTILINE)
_SETTING = re.compile(r"^#(timeout|options|raw|all) ?(.*)\n", re.MULTILINE)


def _read(path: Path) -> tuple[Fault, ...]:
    """Return the faults of a packed file in the form above."""
    text = lzma.decompress(path.read_bytes()).decode()
    _, *parts = _HEAD.split(text)
    return tuple(_parsed(*parts[at : at + 3]) for at in range(0, len(parts), 3))


def _parsed(name: str, head: str, text: str) -> Fault:
    fields = [each.strip() for each in head.split(";")]
    codes, helps = tuple(fields[0].split("|")), tuple(each.strip() for each in fields[-1].split("&&") if each.strip())
    rank = ANY if fields[1] in "*-" else int(fields[1])
    if name.startswith("log:"):
        return Fault(name, "", codes, rank, ANY, helps, log=text.removeprefix("\n"))
    settings: dict[str, str] = dict(_SETTING.findall(text))
    body = _SETTING.sub("", text).removeprefix("\n")
    if "raw" not in settings:
        body = MEET + body if "all" in settings else f"{body}{MEET}if r == 1:\n    fail()\nreduce()\n"
    options = tuple(shlex.split(settings.get("options", "")))
    status, timeout_s = ANY if fields[2] == "*" else int(fields[2]), int(settings.get("timeout", "60"))
    return Fault(name, body, codes, rank, status, helps, options=options, timeout_s=timeout_s)


#: By the name of its file: the faults of each set that is one.
FILES = {path.name.partition(".")[0]: _read(path) for path in Path(__file__).with_name("fault_sets").glob("*.txt.xz")}
