"""The ssh command that starts a session on one host, and findings that explain how such a session ended.

It is the user's own OpenSSH, with their configuration, keys, agent and jump hosts: https://man.openbsd.org/ssh_config
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.hosts.json_lines import OF_SSH
from ddplaunch.values.codec import toml_beside
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.variable_names import own_command
from ddplaunch.values.words import listed, signal_name

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
    # a host's PATH and PYTHONHOME may be wrong for this interpreter
    return ["ssh", "-T", *options, "--", host, f"exec /usr/bin/env -u PYTHONHOME PYTHONSAFEPATH=1 {shlex.join(words)}"]


def environment() -> dict[str, str]:
    """Return the environment for ssh: this one, with password windows turned off, also for jump hosts.

    BatchMode does not apply to the ssh that connects to a jump host. OpenSSH before 8.4 ignores the first variable; the
    second names a program that fails instead of asking: https://man.openbsd.org/ssh#ENVIRONMENT
    """
    return {**os.environ, "SSH_ASKPASS_REQUIRE": "never", "SSH_ASKPASS": "false"}


_ANYTHING = re.compile(r"\S")
_DROPPED = re.compile(r"(?:kex|ssh)_exchange_identification|Connection (?:closed|reset) by UNKNOWN port")
_REFUSED_BEHIND = re.compile(
    r"open failed|stdio forwarding failed|Could not resolve|timed out|Connection refused|Permission denied|verification"
)
_ENDS = re.compile(
    r"^(?:ddplaunch there heard|client_loop|ssh|packet_write_\w+|Write failed|Received disconnect|Disconnected"
    r"|Timeout, server|(?:Shared )?[Cc]onnection (?:to|closed|reset|refused|timed out))\b"
)
_REMOVAL = re.compile(r"^[^\S\n]*(ssh-keygen -f .+ -R .+?)\s*$", re.MULTILINE)
_OPEN_KEY = re.compile(r"Permissions [0-7]+ for '(.+)' are too open")
_NO_PYTHON = re.compile(r"(?:No such file or directory|not found|Permission denied|Unknown command)")
_NO_MODULE = re.compile(
    r"No module named '?(ddplaunch[\w.]*|psutil|torch)'?|ModuleNotFoundError: No module named '(\w+)'"
)


def was_dropped(status: int | None, stderr_text: str) -> bool:
    """Return whether a connection closed before either side identified itself: there were too many, so try again."""
    return status == 255 and _DROPPED.search(stderr_text) is not None and _REFUSED_BEHIND.search(stderr_text) is None


def failure(
    host: str, python: str, status: int | None, stderr_text: str, tries: int = 1, limit_s: float = 0.0
) -> Finding:
    """Return the finding for a session on ``host`` that ended, or did not begin within ``limit_s`` (``status`` None).

    ``stderr_text`` is the session's stderr, ``tries`` the number of attempts.
    """
    last, quoted = _last_line(stderr_text), shlex.quote(host)
    removal, module, key = (pattern.search(stderr_text) for pattern in (_REMOVAL, _NO_MODULE, _OPEN_KEY))
    missing = (module[1] or module[2]).partition(".")[0] if module else ""
    applies = {
        "": True,
        "module missing": bool(missing),
        "no interpreter": status in (126, 127)
        or (status != OF_SSH and python in stderr_text and _NO_PYTHON.search(stderr_text) is not None),
        "dropped": tries > 1 and was_dropped(OF_SSH, stderr_text),
        "silent": status is None,
        "broke off": status == OF_SSH and not last,  # ssh prints nothing when its server stops answering
        "left well": status == 0,
    }
    words = {
        "host": quoted,
        "python": python,
        "module": missing,
        "install": _installing(host, python, missing) if missing else "",
        "tries": str(tries),
        "forget": removal[1] if removal else f"ssh-keygen -R {shlex.quote(host.rpartition('@')[2])}",
        "key": shlex.quote(key[1]) if key else "",
        "last": last,
        "last_or_hangs": last
        or "no address of it answers, its login, its shell's start-up files or its file system hang, or the way there "
        "loses large packets",
        "limit": f"{limit_s:.0f}",
        "status": status,
    }
    for end in _ends():
        line = _last_line(stderr_text, re.compile(end.get("pattern", ""), re.IGNORECASE)).rstrip(".")
        if applies[end.get("when", "")] and (line or "pattern" not in end):
            what, why, fix = (end[part].format_map({**words, "line": line}) for part in ("what", "why", "fix"))
            return error(end["code"], what, why=why, fix=fix, where=host)
    raise AssertionError("the last row applies to every end")


def _ends() -> list[dict[str, str]]:
    ends: list[dict[str, str]] = toml_beside(__file__, "ssh_ends.toml")["ends"]
    return ends


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


def alike(problems: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return one finding for all hosts that have the same problem; what is typed is then a loop over these hosts."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in problems:
        host = shlex.quote(finding.where[0])
        key = (finding.code, finding.what.removeprefix(host), _for_each(finding.fix or "", host))
        groups.setdefault(key, []).append(finding)
    return tuple(group[0] if len(group) == 1 else _of_all(group, *key[1:]) for key, group in groups.items())


def _of_all(group: Sequence[Finding], what: str, fix: str) -> Finding:
    hosts = [finding.where[0] for finding in group]
    if what != group[0].what:
        what = listed(hosts, 8, " and ") + what
    loop = f"for host in {shlex.join(hosts)}; do {{}}; done"
    fix = "`".join(loop.format(part) if "$host" in part else part for part in fix.split("`"))
    return replace(group[0], what=what, fix=fix, where=tuple(hosts))


def _for_each(fix: str, host: str) -> str:
    """Return ``fix`` with ``$host`` in the place of ``host`` where a command in backticks has it as a word."""
    word = re.compile(rf"(?<= ){re.escape(host)}(?![^ :])")
    return "`".join(word.sub("$host", part) if odd % 2 else part for odd, part in enumerate(fix.split("`")))


def ssh_missing() -> Finding:
    """Return the finding for a machine without ssh."""
    return error(
        "ssh-missing",
        "there is no `ssh` on PATH",
        why="hosts are reached by OpenSSH's own client",
        fix="install it: `apt-get install openssh-client`, `dnf install openssh-clients`",
    )


def misunderstood(host: str, problem: object) -> Finding:
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
