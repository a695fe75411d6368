"""A real Slurm of several nodes with GPUs (GRES) on this one machine, all of it in one folder.

Every slurmd has a name and a port of its own, as ``-N`` allows. The names resolve inside the cluster alone, by an
/etc/hosts that is mounted over the real one where no other process sees it. The GPUs are device nodes without device.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.agent.guarded import until
from tests.conftest import skip
from tests.hosts.launching import run_and_read
from tests.ports import free_ports

GPUS = 4
#: All "nodes" are this host, whose own name may mean the loopback only.
HERE = ("--ignore", "host-name-loopback", "--ignore", "host-name-unresolvable")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "unshare")
_OVER = ("COMPLETED", "FAILED", "OUT_OF_MEMORY", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
_UP_S = 120.0
_DOWN_S = 30.0

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/run/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MinJobAge=300
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10 State=UP
PartitionName=short Nodes=ALL MaxTime=1 State=UP
PartitionName=first Nodes=ALL PriorityTier=10 DefaultTime=10 State=UP
"""


def _stays(cgroup: Path) -> bool:
    with suppress(OSError):
        cgroup.rmdir()
    return cgroup.exists()


class Cluster:
    """``with Cluster(folder, nodes=2) as cluster``: up until the end of the block.

    A node has 16 CPUs that it does not have, unless it is to bind tasks: then those of this machine. A node that
    ``confines`` jobs has the kernel kill what takes more than their memory, by a cgroup for each.
    """

    def __init__(self, folder: Path, nodes: int, *, binds: bool = False, confines: bool = False) -> None:
        self.folder, self.nodes, self._binds, self._confines = folder, nodes, binds, confines
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        """Skip, or fail where nothing may be left out, without Slurm's programs."""
        if absent := [name for name in _PROGRAMS if shutil.which(name) is None]:
            skip(f"a real Slurm needs {', '.join(absent)}: `apt-get install slurm-wlm munge`")
        try:
            self._write()
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._running):
            process.terminate()
        deadline = time.monotonic() + _DOWN_S
        for process in self._running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process_left in psutil.process_iter():  # slurmstepd of a step that was just ending
            with suppress(psutil.Error):
                if process_left.environ().get("SLURM_CONF") == str(self.folder / "slurm.conf"):
                    process_left.kill()
        if self._confines:  # slurmd leaves these behind, busy for as long as a step is ending
            until(lambda: not any(map(_stays, Path("/sys/fs/cgroup").glob("*/slurm_vn*"))), "no cgroup is left")

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Slurm's programs find this cluster, with nothing in it of an allocation outside."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        package = str(Path(__file__).parents[2])
        return {**clean, "SLURM_CONF": str(self.folder / "slurm.conf"), "PYTHONPATH": package}

    def run(
        self, words: Sequence[str], cwd: Path, *, environment: Mapping[str, str] | None = None, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as a user of the cluster would."""
        given = {**self.environment, **(environment or {})}
        return run_and_read(words, cwd, given, errors="replace", timeout=timeout_s)

    def ddplaunch(self, *words: str, cwd: Path, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run ``python -m ddplaunch WORDS`` outside of any allocation."""
        return self.run([sys.executable, "-m", "ddplaunch", *words], cwd, timeout_s=timeout_s)

    def finished(self, job: str, timeout_s: float = 120) -> dict[str, str]:
        """Wait for the end of a job and return what ``scontrol show job`` says of it."""
        return self.shown(job, lambda fields: fields.get("JobState") in _OVER, timeout_s)

    def shown(self, job: str, holds: Callable[[dict[str, str]], bool], timeout_s: float = 120) -> dict[str, str]:
        """Wait until what ``scontrol show job`` says of a job ``holds``, and return it."""
        deadline = time.monotonic() + timeout_s
        while True:
            shown = self.run(["scontrol", "show", "job", "-o", job], self.folder).stdout
            fields = dict(word.partition("=")[::2] for word in shown.split() if "=" in word)
            if holds(fields):
                return fields
            assert time.monotonic() < deadline, f"job {job} is still so: {shown}"
            time.sleep(0.3)

    def _write(self) -> None:
        for name in ("run", "state", "dev", *(f"spool/vn{node}" for node in self._numbers)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for gpu in range(GPUS):
            os.mknod(self.folder / f"dev/nvidia{gpu}", 0o20666, os.makedev(1, 3))
        ports = free_ports(self.nodes + 1)
        cpus = os.cpu_count() if self._binds else 16
        host = socket.gethostname()
        lines = [
            f"NodeName=vn{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[node]} CPUs={cpus} Sockets=1 "
            f"CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=64000 Gres=gpu:h100:{GPUS}"
            for node in self._numbers
        ]
        general = _CONFIGURATION.format(folder=self.folder, host=host, port=ports[0])
        plugins = ["task/affinity"] * self._binds + ["task/cgroup"] * self._confines
        general = general.replace("task/none", ",".join(plugins) or "task/none")
        cgroups = "CgroupPlugin=cgroup/v1\n"
        if self._confines:
            general = general.replace("=CR_Core", "=CR_Core_Memory")
            general = general.replace("proctrack/linuxproc", "proctrack/cgroup")
            cgroups += "ConstrainRAMSpace=yes\nConstrainSwapSpace=yes\nAllowedSwapSpace=0\n"
        (self.folder / "slurm.conf").write_text(general + "\n".join(lines) + "\n")
        (self.folder / "gres.conf").write_text(
            "AutoDetect=off\n"
            f"NodeName=vn[1-{self.nodes}] Name=gpu Type=h100 File={self.folder}/dev/nvidia[0-{GPUS - 1}]\n"
        )
        (self.folder / "cgroup.conf").write_text(cgroups)
        names = [f"127.0.0.1 vn{node}\n" for node in self._numbers]
        (self.folder / "hosts").write_text(Path("/etc/hosts").read_text() + "\n" + "".join(names))

    @property
    def _numbers(self) -> range:
        return range(1, self.nodes + 1)

    def _start_all(self) -> None:
        self._start(
            *("munged", "--force", "--foreground", f"--socket={self.folder}/run/munge"),
            *(f"--key-file={self.folder}/munge.key", f"--pid-file={self.folder}/run/munged.pid"),
            *(f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/run/seed", "--num-threads=2"),
        )
        self._wait(lambda: (self.folder / "run/munge").exists(), "munged")
        self._start("slurmctld", "-D")
        for node in self._numbers:
            mounted = f"mount --bind {shlex.quote(str(self.folder / 'hosts'))} /etc/hosts && exec slurmd -D -N vn{node}"
            self._start("unshare", "--mount", "--propagation", "private", "sh", "-c", mounted)
        self._wait(self._idle, "slurmd")

    def _start(self, *words: str) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            process = subprocess.Popen(
                words, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._running.append(process)

    def _idle(self) -> bool:
        shown = self.run(["sinfo", "-h", "-p", "gpu", "-N", "-o", "%T"], self.folder).stdout.split()
        return shown.count("idle") == self.nodes

    def _wait(self, ready: object, what: str) -> None:
        assert callable(ready)
        deadline = time.monotonic() + _UP_S
        while not ready():
            ended = [process.args for process in self._running if process.poll() is not None]
            late = time.monotonic() > deadline
            assert not ended and not late, f"{what}: {ended}\n{(self.folder / 'daemons.log').read_text()[-4000:]}"
            time.sleep(0.1)


def submit(cluster: Cluster, place: Path, *words: str) -> str:
    """Submit ``words`` from ``place``; return the job's number."""
    done = cluster.ddplaunch("submit", "--time", "5", *HERE, *words, cwd=place)
    assert done.stdout.strip().isdigit(), done.stderr
    return done.stdout.strip()


def explained(cluster: Cluster, place: Path, word: str) -> str:
    return " ".join(cluster.ddplaunch("explain", word, cwd=place).stdout.split())
