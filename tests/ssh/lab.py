"""Hosts with a real sshd each, and one to launch from, in namespaces of one machine; needs root and OpenSSH.

The hosts are those of ``tests.hosts.namespaces``; the last one is where launches are typed. Its ssh is configured by a
file that is mounted over the system's own, since ssh finds a user's home without ``$HOME``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.agent.guarded import until
from tests.conftest import skip
from tests.hosts.launching import clean_environment
from tests.hosts.namespaces import INTERFACE, Node, OwnName, in_network, nodes

_SSHD = """Port 22
HostKey {folder}/hostkey
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication yes
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
AcceptEnv XDG_CACHE_HOME
UseDNS no
MaxStartups 200
"""
_CONFIG = """Host *
  User root
  IdentityFile {folder}/id
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
"""


@dataclass(frozen=True)
class Lab:
    """``hosts`` have an sshd; ``login`` is where ddplaunch is started, in ``work``. Every host has its own ``work``."""

    hosts: tuple[Node, ...]
    login: Node
    work: Path
    folder: Path

    @property
    def names(self) -> str:
        """What ``--hosts`` gets."""
        return ",".join(host.name for host in self.hosts)

    def own(self, host: Node) -> Path:
        """Return where this machine sees the ``work`` of ``host``."""
        return self.folder / f"work-{host.name}"

    def write(self, name: str, text: str) -> None:
        """Put a file into every host's directory, and into the one of the launcher."""
        for folder in (self.work, *map(self.own, self.hosts)):
            (folder / name).write_text(text)

    def cut(self, host: Node) -> None:
        """Pull the cable: what is sent to and from ``host`` is lost, without a word to anybody."""
        in_network(host.pid, "ip", "link", "set", INTERFACE, "down")

    def plug_in(self, host: Node) -> None:
        in_network(host.pid, "ip", "link", "set", INTERFACE, "up")
        again = f"ip address replace {host.address6}/64 dev {INTERFACE} nodad"  # the kernel takes those of IPv6 away
        in_network(host.pid, *again.split())

    def power_off(self, host: Node) -> None:
        """Take the power of ``host`` away: no connection is closed, nobody is told, and all its processes are gone."""
        self.cut(host)
        os.kill(host.pid, signal.SIGKILL)  # the first process of the namespace; the kernel kills all others with it

    @contextmanager
    def configured(self, text: str) -> Iterator[None]:
        """Put ``text`` in front of what ssh is configured with where launches are typed."""
        config = self.folder / "ssh_config"
        before = config.read_text()
        config.write_text(f"{text}\n{before}")  # in place: it is mounted
        try:
            yield
        finally:
            config.write_text(before)

    def processes(self, host: Node, *words: str, files: Sequence[str] = ("environ", "cmdline")) -> list[int]:
        """Return the pids, in the namespace of ``host``, of processes with a word in environment or command line."""
        patterns = [word for mark in words for word in ("-e", f"[{mark[0]}]{mark[1:]}")]  # grep does not find itself
        find = " ".join(['exec grep -lzs "$@"', *(f"/proc/[0-9]*/{name}" for name in files)])
        done = host.run(["sh", "-c", find, "sh", *patterns], Path("/"), {"PATH": "/usr/bin:/bin"})
        return sorted({int(path.split("/")[2]) for path in done.stdout.split()})

    def nothing_left(self, run_id: str, deadline_s: float = 60.0, hosts: Sequence[Node] | None = None) -> None:
        """Fail unless within the deadline no process of the run is left on any host, nor what serves its launcher."""
        marks = (f"DDPLAUNCH_RUN_ID={run_id}", "ddplaunch.cli.hosts.serve")
        until_s = time.monotonic() + deadline_s
        while any(left := {host.name: self.processes(host, *marks) for host in hosts or self.hosts}.values()):
            assert time.monotonic() < until_s, f"processes of {run_id!r} are left: {list(left)}"
            time.sleep(0.3)


def require_ssh() -> None:
    """Skip, or fail where nothing may be left out, without an sshd and an ssh."""
    missing = [name for name in ("sshd", "ssh", "ssh-keygen") if _program(name) is None]
    if missing:
        skip(f"no {', '.join(missing)}: `apt-get install openssh-server openssh-client`")


def _program(name: str) -> str | None:
    return shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin")


@contextmanager
def lab(count: int, folder: Path, own_name: OwnName = "address") -> Iterator[Lab]:
    """Bring up ``count`` hosts and take them down again; ``own_name`` as in ``nodes``."""
    require_ssh()
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's own, which its package makes at boot
    work = folder / "work"
    work.mkdir()
    with nodes(count + 1, folder, own_name) as made:
        *hosts, login = made
        result = Lab(tuple(hosts), login, work, folder)
        _keys(folder, hosts)
        for host in hosts:
            _start(result, host)
        config = folder / "ssh_config"
        config.write_text(_CONFIG.format(folder=folder))
        _checked(login, ["mount", "--bind", str(config), "/etc/ssh/ssh_config"])
        yield result


def _keys(folder: Path, hosts: Sequence[Node]) -> None:
    _generate(folder / "id")
    known = []
    for host in hosts:
        home = folder / f"sshd-{host.name}"
        home.mkdir()
        _generate(home / "hostkey")
        (home / "authorized_keys").write_bytes((folder / "id.pub").read_bytes())
        (home / "sshd_config").write_text(_SSHD.format(folder=home))
        known.append(
            f"{host.name},{host.address},{host.address6} {' '.join((home / 'hostkey.pub').read_text().split()[:2])}\n"
        )
    (folder / "known_hosts").write_text("".join(known))


def _generate(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=30)


def _start(made: Lab, host: Node) -> None:
    """Give the host a directory of its own in the place of ``work``, and start its sshd."""
    made.own(host).mkdir()
    _checked(host, ["mount", "--bind", str(made.own(host)), str(made.work)])
    start_sshd(made, host)


def start_sshd(made: Lab, host: Node, name: str = "sshd") -> Path:
    """Start an sshd of the host, by its file ``NAME_config``, and return its log; it ends with the host."""
    settings = made.folder / f"sshd-{host.name}"
    log, pid = settings / f"{name}.log", settings / f"{name}.pid"
    pid.unlink(missing_ok=True)
    _checked(host, [_program("sshd") or "sshd", "-f", str(settings / f"{name}_config"), "-E", str(log)])
    until(pid.exists, f"sshd of {host.name}; its log is {log}")
    return log


def _checked(host: Node, argv: Sequence[str]) -> None:
    done = host.run(argv, Path("/"), clean_environment())
    assert done.returncode == 0, done.stderr
