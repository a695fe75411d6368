"""The ssh command that starts a session on one host, and findings that explain how such a session ended.

It is the user's own OpenSSH, with their configuration, keys, agent and jump hosts: https://man.openbsd.org/ssh_config
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.values.finding import Finding, error
from ddplaunch.values.variable_names import own_command
from ddplaunch.values.words import signal_name

CONNECT_S = 10
_ALIVE_S = 15  # ssh sends a keep-alive message after this much silence
_OPTIONS = (
    "BatchMode=yes",  # no prompts: there may be no user to answer
    f"ConnectTimeout={CONNECT_S}",
    f"ServerAliveInterval={_ALIVE_S}",
    "ClearAllForwardings=yes",  # a LocalForward in the user's configuration would collide with their other session
    "RequestTTY=no",
    "RemoteCommand=none",
    "PermitLocalCommand=no",
    "LogLevel=ERROR",
)


def command(host: str, python: str, host_timeout_s: float = 60.0) -> list[str]:
    """Return the command line that starts a session on ``host``; its last word is valid in any login shell.

    ssh gives up when it hears nothing of the host for ``host_timeout_s``.
    """
    words = own_command(python, "ddplaunch.cli.hosts.serve")
    if "-P" in words:  # the interpreter on the host may be too old for it
        words.remove("-P")
    patience = f"ServerAliveCountMax={math.ceil(host_timeout_s / _ALIVE_S)}"
    options = [word for option in (*_OPTIONS, patience) for word in ("-o", option)]
    return ["ssh", "-T", *options, "--", host, f"exec env PYTHONSAFEPATH=1 {shlex.join(words)}"]


def environment() -> dict[str, str]:
    """Return the environment for ssh: this one, with password windows turned off, also for jump hosts.

    BatchMode does not apply to the ssh that connects to a jump host. OpenSSH before 8.4 ignores the first variable; the
    second names a program that fails instead of asking: https://man.openbsd.org/ssh#ENVIRONMENT
    """
    return {**os.environ, "SSH_ASKPASS_REQUIRE": "never", "SSH_ASKPASS": "false"}


def configured_hosts(file: Path) -> list[str]:
    """Return the host names in this ssh_config, without patterns; none where it cannot be read."""
    lines = _HOST_LINE.findall(file.read_text(errors="replace")) if os.access(file, os.R_OK) else []
    return list(dict.fromkeys(name for line in lines for name in line.split() if not set(name) & set("*?!")))


_HOST_LINE = re.compile(r"^[ \t]*host[ \t=]+(.+)", re.IGNORECASE | re.MULTILINE)
_ANYTHING = re.compile(r"\S")
_NO_NAME = re.compile(r"Could not resolve hostname|Name or service not known|nodename nor servname", re.IGNORECASE)
_CHANGED = re.compile(r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for .* has changed")
_UNKNOWN_KEY = re.compile(r"Host key verification failed|No \S+ host key is known")
_DENIED = re.compile(
    r"Permission denied|Too many authentication failures|no more authentication methods", re.IGNORECASE
)
_CLOSED = re.compile(
    r"Connection refused|timed out|No route to host|Network is unreachable|Connection closed|Connection reset"
    r"|banner exchange|kex_exchange_identification|Broken pipe|UNKNOWN port",
    re.IGNORECASE,
)
_DROPPED = re.compile(r"(?:kex|ssh)_exchange_identification|Connection (?:closed|reset) by UNKNOWN port")
_REFUSED_BEHIND = re.compile(
    r"open failed|stdio forwarding failed|Could not resolve|timed out|Connection refused|Permission denied|verification"
)
_ENDS = re.compile(
    r"^(?:client_loop|ssh|packet_write_\w+|Write failed|Received disconnect|Disconnected|Timeout, server"
    r"|(?:Shared )?[Cc]onnection (?:to|closed|reset|refused|timed out))\b"
)
_REMOVAL = re.compile(r"^[^\S\n]*(ssh-keygen -f .+ -R .+?)\s*$", re.MULTILINE)
_NO_PYTHON = re.compile(r"(?:No such file or directory|not found|Permission denied|Unknown command)")
_NO_MODULE = re.compile(
    r"No module named '?(ddplaunch[\w.]*|psutil|torch)'?|ModuleNotFoundError: No module named '(\w+)'"
)


def was_dropped(status: int | None, stderr_text: str) -> bool:
    """Return whether a connection closed before either side identified itself: there were too many, so try again."""
    return status == 255 and _DROPPED.search(stderr_text) is not None and _REFUSED_BEHIND.search(stderr_text) is None


def failure(host: str, python: str, status: int | None, stderr_text: str, tries: int = 1) -> Finding:
    """Return the finding for a session on ``host`` that ended, or did not begin (``status`` None).

    ``stderr_text`` is the session's stderr, ``tries`` the number of attempts.
    """
    login = shlex.join(["ssh", host])
    last, denied = _last_line(stderr_text), _last_line(stderr_text, _DENIED).rstrip(".")
    removal, module = _REMOVAL.search(stderr_text), _NO_MODULE.search(stderr_text)
    forget = removal[1] if removal else f"ssh-keygen -R {shlex.quote(host.rpartition('@')[2])}"
    missing = (module[1] or module[2]).partition(".")[0] if module else ""
    install = _installing(host, python, missing) if missing else ""
    no_python = status in (126, 127) or (status != 255 and python in stderr_text and _NO_PYTHON.search(stderr_text))
    cases = (
        (
            missing,
            "host-without-ddplaunch",
            f"`{python}` has no module `{missing}`",
            "every host runs its part of the launch with the same ddplaunch, in the environment that trains",
            f"`{install}`, or name the interpreter that has it by `--python PATH`",
        ),
        (
            no_python,
            "host-without-python",
            f"there is no interpreter `{python}`",
            "every host uses the interpreter of this launch unless another one is named",
            "`--python PATH` with one that all hosts have",
        ),
        (
            tries > 1 and was_dropped(255, stderr_text),
            "host-connections-dropped",
            f"{tries} connections to {host} were closed before ssh began",
            "its sshd, or that of its jump host, takes few logins at once (`MaxStartups`), or something on the way "
            "counts connections",
            "`MaxStartups 200` in `/etc/ssh/sshd_config` there, and `systemctl reload ssh`; where all go through one "
            "jump host, `ControlMaster auto` and `ControlPersist 1m` for it in `~/.ssh/config`",
        ),
        (
            _CHANGED.search(stderr_text),
            "host-key-changed",
            f"the host key of {host} is not the one that is known",
            "the host was reinstalled, or another machine answers in its place; ssh refuses to connect",
            f"ask its administrator for the fingerprint; if it is right, `{forget}` and `{login}` once",
        ),
        (
            _UNKNOWN_KEY.search(stderr_text),
            "host-key-unknown",
            f"the host key of {host} is not known",
            "ssh would ask whether to trust it, and nobody is there to answer",
            f"`{login}` once, and compare the fingerprint that it shows",
        ),
        (
            _NO_NAME.search(stderr_text),
            "host-name-unresolvable",
            f"the name {host} cannot be resolved",
            last,
            "correct the name, or give it a `HostName` in `~/.ssh/config`",
        ),
        (
            denied,
            "host-login-denied",
            f"{host} does not let this user in",
            f"{denied}; passwords are not asked for, since nobody may be there to type them",
            f"`ssh-copy-id {shlex.quote(host)}`, or `ssh-add` for a key with a passphrase; then `{login} true` works",
        ),
        (
            _CLOSED.search(stderr_text),
            "host-unreachable",
            f"{host} cannot be reached",
            last,
            f"`{login} true` has to work first",
        ),
        (
            status is None,
            "host-unreachable",
            f"{host} did not answer in time",
            last or "its login, its shell's start-up files or its file system hang",
            f"`{login} true` has to be quick and silent; `--join-timeout` for more time",
        ),
        (
            status == 255 and not last,  # ssh's own status; it prints nothing when its server stops answering
            "host-unreachable",
            f"the connection to {host} broke off",
            "ssh gave no reason, as when the host or the network goes away in the middle",
            f"`{login} true` has to work first",
        ),
        (
            True,
            "host-session-failed",
            f"the session on {host} ended with status {status}" + (f": {last}" if last else ""),
            "ddplaunch could not start there",
            f"`{login} true` has to work first",
        ),
    )
    code, what, why, fix = next(words for applies, *words in cases if applies)
    return error(code, what, why=why, fix=fix, where=host)


def _installing(host: str, python: str, module: str) -> str:
    """Return the command that installs ``module`` on ``host`` in this machine's version.

    ddplaunch itself is copied from here, with its metadata, so that neither an index nor pip is needed.
    """
    from importlib import metadata

    ssh, python = f"ssh {shlex.quote(host)}", shlex.quote(python)
    if module != "ddplaunch":
        for name in metadata.packages_distributions().get(module, ()):
            module = f"{name}=={metadata.version(name).partition('+')[0]}"  # an index has no local versions
        return f"{ssh} {shlex.quote(f'{python} -m pip install {module}')}"
    folders = [Path(__file__).parents[1]]
    for file in metadata.files("ddplaunch") or ():
        if file.name == "METADATA":
            folders.append(Path(str(file.locate())).parent)
    packed = " ".join(f"-C {shlex.quote(str(folder.parent))} {folder.name}" for folder in folders)
    place = f'{python} -c "import sysconfig; print(sysconfig.get_path(\\"purelib\\"))"'
    return f"tar -cz --exclude __pycache__ {packed} | {ssh} {shlex.quote(f'tar -xzC $({place})')}"


def alike(missing: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings; hosts that lack the same module get one fix, a loop over all of them."""
    lacking: dict[str, list[str]] = {}
    for finding in missing:
        if finding.code == "host-without-ddplaunch":
            lacking.setdefault(finding.what, []).append(finding.where[0])

    def one(finding: Finding) -> Finding:
        hosts = lacking.get(finding.what, [])
        if finding.fix is None or finding.where[0] not in hosts or len(hosts) < 2:
            return finding
        _, typed, rest = finding.fix.split("`", 2)
        typed = typed.replace(f"ssh {shlex.quote(finding.where[0])} ", "ssh $host ")
        loop = f"for host in {shlex.join(hosts)}; do {typed}; done"
        return replace(finding, fix=f"`{loop}`{rest}")

    return tuple(one(finding) for finding in missing)


def ssh_missing() -> Finding:
    """Return the finding for a machine without ssh."""
    return error(
        "ssh-missing",
        "there is no `ssh` on PATH",
        why="hosts are reached by OpenSSH's own client",
        fix="install it: `apt-get install openssh-client`, `dnf install openssh-clients`",
    )


def misunderstood(host: str, problem: str) -> Finding:
    """Return the finding for a host whose answer is not understood; ``problem`` is a clause."""
    return error(
        "host-answer-unknown",
        f"{host} gave an answer that this ddplaunch does not understand: {problem}",
        why="the ddplaunch there is another version, or failed",
        fix="install the same version on all hosts",
        where=host,
    )


def why_lost(status: int | None, stderr_text: str) -> str:
    """Return why a session ended, as a clause: ssh's last message about it, else how ssh itself ended."""
    if status is not None and status < 0:
        return f"the ssh to it was killed by {signal_name(-status)}"
    words = _last_line(stderr_text, _ENDS).rstrip(".")
    return words or "its session ended without a word, as when ddplaunch there is killed"


def _last_line(stderr_text: str, pattern: re.Pattern[str] = _ANYTHING) -> str:
    """Return the last line that matches; after a jump host's message come others."""
    return next((line.strip() for line in reversed(stderr_text.splitlines()) if pattern.search(line)), "")
