"""Sessions, what ssh's failures mean, what a host and its launcher do with signals: real services without a network."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import socket
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.cli.hosts.serve import send_record
from ddplaunch.comm.inbound import connected
from ddplaunch.hosts.json_lines import GREETING, LineReader, json_line, message_in
from ddplaunch.hosts.session import start_hosts
from ddplaunch.hosts.session.answers import Answers, Question, machine, reached
from ddplaunch.hosts.session.collect import ask_all, clock_of, meet
from ddplaunch.hosts.session.links import Link, Links
from ddplaunch.hosts.session.start_hosts import HostEnd, LaunchOnHosts
from ddplaunch.hosts.ssh import alike, command, failure, why_lost
from ddplaunch.machine.facts import Interface, PackageFacts, ProbeRequest
from ddplaunch.planning.hosts_plan import Meeting
from ddplaunch.records.hosts_record import Pieces
from tests.agent.guarded import runs, until
from tests.hosts.launching import SERVICE, stand_in


def printing(links: Links, data: bytes) -> Link:
    """Return a session with a host that prints ``data`` byte by byte, and then says nothing."""
    program = "import sys, time\nfor byte in sys.stdin.buffer.read(int(sys.argv[1])):\n"
    program += "    sys.stdout.buffer.write(bytes([byte]))\n    sys.stdout.flush()\ntime.sleep(600)"
    link = links.open("host", [sys.executable, "-ISc", program, str(len(data))])
    assert link.process.stdin is not None
    os.write(link.process.stdin.fileno(), data)
    return link


def begins(links: Links, link: Link, patience_s: float = 60.0) -> bool:
    return links.run(link.begins(time.monotonic() + patience_s))


def answer(links: Links, link: Link) -> dict[str, Any] | None:
    return links.run(link.ask({}, time.monotonic() + 60))


def test_messages_arrive_in_pieces_and_behind_noise_and_what_comes_without_the_greeting_is_none(links: Links) -> None:
    link = printing(links, b"Welcome to the cluster!\n" + GREETING + json_line({"id": 1}) + b"\n[1]\n")
    assert begins(links, link)
    assert [answer(links, link) for _ in range(3)] == [{"id": 1}, {}, {}]
    forged = json_line({"facts": "forged"})
    link = printing(links, forged * 10 + GREETING[1:] + forged + GREETING + json_line({"id": 1}))
    assert begins(links, link) and answer(links, link) == {"id": 1}
    link = links.open("host", ["echo", "Welcome to the cluster!"])  # is kept
    assert not begins(links, link) and link.status == 0
    assert link.before == b"Welcome to the cluster!\n" and "Welcome" in link.stderr_text


def test_a_line_that_never_ends_is_refused(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddplaunch.hosts.session.links._LONGEST_LINE", 100)
    link = printing(links, GREETING + b"x" * 101)
    assert begins(links, link) and answer(links, link) is None
    assert "sent more than 100 bytes" in link.stderr_text
    reading, writing = os.pipe()
    os.write(writing, b"short\n" + b"y" * 60)
    lines = LineReader(reading, 50)
    assert lines.next(time.monotonic() + 5) == b"short"
    assert lines.next(time.monotonic() + 5) is None and lines.ended


def test_text_that_is_not_utf8_crosses() -> None:
    name = os.fsdecode(b"caf\xe9")
    assert message_in(json_line({"name": name})) == {"name": name}
    assert clock_of({"sent": 100.0, "wall": 160.5}, 101.0) == (60.0, 0.5)


def test_nothing_of_the_launch_is_on_the_ssh_command_line() -> None:
    words = command("gpu-a", "/opt/my env/bin/python")
    assert words[-3:-1] == ["--", "gpu-a"]
    begins = "exec /usr/bin/env -u PYTHONHOME PYTHONSAFEPATH=1 '/opt/my env/bin/python' "
    how = words[-1].removeprefix(begins)
    assert words[-1] != how
    if sys.version_info >= (3, 11):
        assert how == "-m ddplaunch.cli.hosts.serve"
    else:  # a Python that knows no safe path takes the working directory out of its path by itself
        assert how.startswith("-c 'import sys; sys.path[:] = ") and "ddplaunch.cli.hosts.serve" in how
    assert "BatchMode=yes" in words


@pytest.mark.parametrize(
    ("status", "said", "code"),
    [
        (255, "ssh: Could not resolve hostname gpu-x: Name or service not known", "host-name-unresolvable"),
        (255, "@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verif", "host-key-changed"),
        (255, "Host key verification failed.", "host-key-unknown"),
        (255, "me@gate: Permission denied (password).\nConnection closed by UNKNOWN port 65535", "host-login-denied"),
        (255, "ssh: connect to host gpu-x port 22: Connection refused", "host-unreachable"),
        (None, "", "host-unreachable"),
        (None, "gpu-x sent more than 67108864 bytes", "host-session-failed"),
        (255, "", "host-unreachable"),
        (127, "env: '/opt/python': No such file or directory", "host-without-python"),
        (126, "", "host-without-python"),
        (1, "fish: Unknown command: /opt/python", "host-without-python"),
        (1, "/opt/python: Error while finding module specification for 'ddplaunch.cli.hosts.serve' "
            "(ModuleNotFoundError: No module named 'ddplaunch')", "host-without-ddplaunch"),
        (1, "ModuleNotFoundError: No module named 'psutil'", "host-without-ddplaunch"),
        (3, "something else", "host-session-failed"),
        (0, "Welcome", "host-session-failed"),
    ],
)  # fmt: skip
def test_failures_of_ssh(status: int | None, said: str, code: str) -> None:
    found = failure("gpu-x", "/opt/python", status, said)
    assert (found.code, found.where) == (code, ("gpu-x",))
    assert ("hang" in found.why) == ((status, said) == (None, "")) and ("`exit`" in found.why) == (status == 0)


def test_a_key_that_others_can_read_gets_what_helps_and_a_start_that_fails_its_last_word() -> None:
    said = (
        "@@@@@\n@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @\n@@@@@\n"
        "Permissions 0644 for '/home/ada/my key' are too open.\nThis private key will be ignored.\n"
        "ada@gpu-x: Permission denied (publickey)."
    )
    found = failure("gpu-x", "python", 255, said)
    assert found.what == "gpu-x refused this user: ssh ignores the key"
    assert found.fix == "`chmod 600 '/home/ada/my key'`"
    said = "  File ...\nTypeError: zip() takes no keyword arguments\nShared connection to gpu-x closed."
    found = failure("gpu-x", "/opt/python", 1, said)
    assert found.what == "gpu-x has a `/opt/python` in which ddplaunch does not start"
    assert found.why.startswith("TypeError: zip() takes no keyword arguments; it needs Python 3.10")


def test_one_problem_of_several_hosts_is_one_finding() -> None:
    problems = {"a": "a: Permission denied", "gpu-b": "Permission denied", "c": "Connection refused", "d e": "refused"}
    found = alike(failure(host, "python", 255, said) for host, said in problems.items())
    assert [each.where for each in found] == [("a", "gpu-b"), ("c",), ("d e",)]
    assert found[0].what == "a and gpu-b refused this user"
    assert found[0].fix == (
        "`for host in a gpu-b; do ssh-copy-id $host; done`, or its jump host where ssh names that one; `ssh-add` for a "
        "key with a passphrase; then "
        "`for host in a gpu-b; do ssh $host true; done` works; if it does not, `sudo journalctl -u ssh -n 20` there "
        "says why"
    )
    assert "hang" not in failure("a", "python", 1, "").why, "it has ended"


def start(links: Links) -> Any:
    return lambda name: links.open(name, SERVICE if name.startswith("host") else ["sh", "-c", name])


def ask(links: Links, *names: str, deadline_s: float = 60, **more: Any) -> Any:
    question = Question(ProbeRequest(), sys.executable, deadline_s=deadline_s, **more)
    return links.run(ask_all(links, names, start(links), question))


def test_hosts_answer_with_their_facts_and_meet(links: Links, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    sources = (("train.py", "digest here"), ("lacking.py", None))
    asked: dict[str, Any] = {
        "cwd": str(tmp_path),
        "script": "train.py",
        "sources": sources,
        "env": {"NCCL_DEBUG": "INFO"},
    }
    gathered = ask(links, "host-a", "host-b", **asked)
    assert gathered.missing == ()
    assert [report.name for report in gathered.reports] == ["host-a", "host-b"]
    for report in gathered.reports:
        assert report.facts.environment["NCCL_DEBUG"] == "INFO"
        assert isinstance(report.facts.packages, PackageFacts)
        assert report.facts.environment["PATH"] == f"{Path(sys.executable).parent}:/usr/bin:/bin"
        assert report.script not in (None, "missing") and (report.cwd, report.cwd_problem) == (str(tmp_path), None)
        assert report.sources == (("train.py", report.script), ("lacking.py", "missing"))
        assert report.sources_here == sources[:1]
        assert abs(report.clock_ahead_s) <= report.clock_unsure_s + 0.1 < 60
    meeting = links.run(connected(gathered.links, None, "127.0.0.1"))
    assert isinstance(meeting, Meeting) and meeting.local == ("127.0.0.1", "127.0.0.1")
    taken = links.run(meet(gathered.links, meeting.port, "127.0.0.1"))
    assert isinstance(taken, Meeting) and taken.port == meeting.port  # the first meeting gave it back
    (elsewhere,) = ask(links, "host-c", **{**asked, "cwd": "/nowhere"}).reports
    assert (elsewhere.cwd_problem, elsewhere.sources) == ("No such file or directory", ())
    (apart,) = links.run(meet(gathered.links, None, "127.255.0.9 "))  # type: ignore[misc]
    assert (apart.code, apart.where) == ("hosts-not-connected", ("host-b",))


def test_hosts_are_tried_at_once_and_a_port_at_which_another_program_answers_is_not_reached() -> None:
    """No port speaks before both are called. docker0 has the same address on every host; the nonce says who it is."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        places = [(["127.0.0.1"], server.getsockname()[1]) for server in (one, other)]
        for said, routes in ((b"another", []), (b"nonce", [("127.0.0.1",) * 3] * 2)):

            def greet(said: bytes = said) -> None:
                for connection in [server.accept()[0] for server in (one, other)]:
                    connection.sendall(said)

            thread = threading.Thread(target=greet)
            thread.start()
            assert Answers().to({"what": "reach", "places": places, "nonce": "nonce"}) == {"reached": routes}
            thread.join(60)


def test_a_way_that_drops_large_packets_reaches_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        places = [(["127.0.0.1"], server.getsockname()[1])]
        accepted: list[socket.socket] = []

        def greet() -> None:
            accepted.append(server.accept()[0])
            accepted[0].sendall(b"nonce")  # a small packet, after which the large ones are lost

        thread = threading.Thread(target=greet)
        thread.start()
        assert Answers().to({"what": "reach", "places": places, "nonce": "nonce"}) == {"reached": []}
        thread.join(60)


def test_callers_that_large_packets_do_not_reach_keep_nobody_waiting() -> None:
    host = Answers()
    port = host.to({"what": "listen", "port": None, "nonce": "n"})["listening"]["port"]
    with ExitStack() as stack:
        for _ in range(8):  # none of them reads, or closes
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        question = {"what": "reach", "places": [(["127.0.0.1"], port)], "nonce": "n"}
        assert Answers().to(question) == {"reached": [("127.0.0.1",) * 3]}
    host.close_meeting()


def test_a_host_offers_its_fastest_addresses_and_says_why_it_cannot_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    ethernet = Interface("eth0", True, False, ("fe80::1", "fd00::2", "10.0.0.2"), 1000)
    others = (Interface("lo", True, True, ("127.0.0.1",)), Interface("eth1", False, False, ("10.9.0.1",)))
    fast = Interface("ib0", True, False, ("10.1.0.2",), 100_000)
    monkeypatch.setattr("ddplaunch.machine.network.probe_interfaces", lambda: (*others, ethernet, fast))
    first, second = Answers(), Answers()
    heard = first.to({"what": "listen", "port": None, "nonce": "n"})["listening"]
    assert heard["addresses"] == ["10.1.0.2", "10.0.0.2", "fd00::2"] and 29500 <= heard["port"] < 30500
    taken = {"what": "listen", "port": heard["port"], "nonce": "n"}
    assert first.to({"what": "clock"})["wall"] > 0, "which leaves the meeting open"
    assert first.to({"what": "reach", "places": [], "nonce": ""}) == {"reached": []}, "and so does this"
    in_use = {"port": heard["port"], "addresses": [], "problem": "Address already in use"}
    assert second.to(taken)["listening"] == in_use
    with socket.create_connection(("127.0.0.1", heard["port"])):  # and says nothing, nor goes
        assert reached(["127.0.0.1"], heard["port"], "n")
    with pytest.raises(ValueError, match="cannot answer `sing`"):
        first.to({"what": "sing"})
    assert second.to(taken)["listening"].get("problem") is None, "any other question gives the port back"
    second.close_meeting()
    boot_id, *namespaces = machine().split()
    assert boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert namespaces == [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("pid", "net")]


def test_a_dead_host_costs_its_deadline_and_the_others_nothing(links: Links) -> None:
    denied = "echo nonsense; echo 'Permission denied (publickey).' >&2; exit 255"
    answers = f"printf '\\0{GREETING[1:-1].decode()}\\n'; read question; echo '{{\"problem\": \"none\"}}'; sleep 600"
    gathered = ask(links, answers, "sleep 600", denied, deadline_s=2)
    codes = [finding.code for finding in gathered.missing]
    assert codes == ["host-answer-unknown", "host-unreachable", "host-login-denied"]
    assert "did not answer within 2 s" in gathered.missing[1].what and gathered.reports == ()


class Program:
    """The service with an interpreter in which ``on_host`` is ``program``; ``printed`` is by stream."""

    def __init__(self, links: Links, python: str, host_timeout_s: float = 60.0, record: str = "") -> None:
        self._links, self.printed = links, {"out": b"", "err": b"", "end": b""}
        self.link = links.open("host", SERVICE)
        # SIGKILL comes three seconds after the grace
        order = {"run_id": "none-such", "token": "", "grace_s": -2.5, "host_timeout_s": host_timeout_s}
        self.link.hand_over("launch", self._take, **order, record=record, python=python)

    def _take(self, link: Link, kind: str, data: bytes) -> None:
        self.printed[kind] += data

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until ``condition()`` while the sessions go on."""

        def holds() -> bool:
            self._links.run(self._links.arrival(0.1))
            return condition()

        until(holds, what, 60)

    def ended(self) -> tuple[bytes, bytes, int | None]:
        """Return what was printed, behind the greeting, and the status of the session."""
        self.until(lambda: self.link.over, "the program ended")
        return self.printed["out"].removeprefix(GREETING), self.printed["err"], self.link.status


def test_output_and_status_arrive_or_why_nothing_can_be_started(links: Links, tmp_path: Path) -> None:
    program = Program(links, stand_in(tmp_path, "printf 'a\\0b'; echo oops >&2; sleep 0.3; exit 255"))
    for _ in range(5):
        program.link.send({})  # beats are answered, and the answers are not shown
    assert program.ended() == (b"a\0b", b"oops\n", 254), "ssh keeps 255 for itself, and it is not taken for a loss"
    python = stand_in(tmp_path, "cat")
    assert json.loads(Program(links, python).ended()[0])["python"] == python, "it reads its whole order"
    out, err, status = Program(links, str(tmp_path / "none")).ended()
    assert (out, status) == (b"", 126) and b"No such file or directory" in err


def test_a_program_that_ignores_sigterm_is_killed_when_asked_or_when_nothing_is_heard(
    links: Links, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    stubborn = stand_in(tmp_path, f"trap '' TERM; echo $$ > {path}; echo up; while :; do sleep 0.1; done")
    program = Program(links, stubborn)
    program.until(lambda: b"up" in program.printed["out"], "the program runs")
    program.link.send({"signal": signal.SIGKILL})
    assert program.ended()[2] == 128 + signal.SIGKILL
    program = Program(links, stand_in(tmp_path, "echo up; exec sleep 600"))
    program.until(lambda: b"up" in program.printed["out"], "the program runs")
    printed_s = program.link.heard_s
    program.link.send({})
    program.until(lambda: program.link.heard_s > printed_s, "the service answers a beat")
    program.link.process.terminate()
    assert program.ended()[2] == 128 + signal.SIGTERM, "a host that is shut down ends it, and says how it ended"
    _, err, status = Program(links, stubborn, host_timeout_s=1.0).ended()
    assert status == 255, "lost, whatever the program's status was"
    assert why_lost(status, err.decode()) == "ddplaunch there heard nothing of the launcher for 1 s"
    program = Program(links, stand_in(tmp_path, f"echo $$ > {path}; echo up; exec sleep 600"))
    program.until(lambda: b"up" in program.printed["out"], "the program runs")
    program.link.kill()
    until(lambda: not runs(int(path.read_text())), "the program ends with its service")


@pytest.mark.parametrize("told", [False, True])
def test_a_lost_launcher_is_noted_unless_it_had_begun_to_end_the_run(links: Links, tmp_path: Path, told: bool) -> None:
    python = stand_in(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.1; done")
    program = Program(links, python, record=str(tmp_path))
    program.until(lambda: b"up" in program.printed["out"], "the program runs")
    if told:
        program.link.send({"signal": signal.SIGTERM})
    program.link.close()
    program.link.process.wait(60)
    assert (tmp_path / "stop.json").exists() is not told


def test_what_a_program_leaves_behind_ends_with_it_and_another_run_does_not(links: Links, tmp_path: Path) -> None:
    rank = "LOCAL_RANK=0 RANK=0 DDPLAUNCH_RUN_ID={} setsid sleep 120 2> /dev/null & echo $!\n"
    rank += "until grep -qs DDPLAUNCH_RUN_ID /proc/$!/environ; do sleep 0.05; done"  # before, it is told by nothing
    program = Program(links, stand_in(tmp_path, "\n".join(map(rank.format, ("none-such", "another")))))
    program.until(lambda: program.link.process.poll() is not None, "the program and what it left are gone")
    left, another = map(int, program.printed["out"].removeprefix(GREETING).split())
    still = runs(left), runs(another)
    os.kill(another, signal.SIGKILL)
    assert still == (False, True)


def test_sessions_are_kept_alive_and_a_silent_one_is_killed(links: Links) -> None:
    silent, alive = (links.open(name, ["cat"]) for name in ("silent", "alive"))
    silent.heard_s, alive.heard_s = 0.0, float("inf")
    assert links.keep_alive([silent, alive], 10.0) == [silent] and silent.reap(60) == -signal.SIGKILL
    assert silent.silence[1] - silent.silence[0] > 10 and alive.silence == (0.0, 0.0)
    assert links.run(alive.ask({"one": 1}, time.monotonic() + 60)) == {}, "the beat came first"
    links.keep_alive([alive], 10.0)
    assert links.run(alive.ask({"two": 2}, time.monotonic() + 60)) == {"one": 1}, "and was the only one for a while"
    large = {"text": "x" * 1_000_000}  # more than a pipe takes at once
    link = links.open("large", ["cat"])
    assert links.run(link.ask(large, time.monotonic() + 60)) == large
    assert not link._loop.remove_writer(link._input), "nothing waits to be written"
    ends: list[str] = []
    over = links.open("over", ["true"])
    assert not begins(links, over)
    over.hand_over("launch", lambda link, kind, data: ends.append(kind))
    assert ends == ["end"]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    with Links():
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_record_is_packed_and_unpacked(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    here.mkdir()
    for name in ("run.json", "outcome.json", "node-1/attempt-0/rank-1.out", "node-0/launcher.err", ".hidden"):
        path = there / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n" * 1000)
    for node in (0, 1):
        sent = io.BytesIO()
        send_record(there, sent)
        kept = Pieces(here)
        kept.keep(node, sent.getvalue())
        kept.unpack()
    found = sorted(str(path.relative_to(here)) for path in here.rglob("*") if path.is_file())
    assert found == ["node-0/launcher.err", "node-1/attempt-0/rank-1.out", "outcome.json"]
    assert (here / "outcome.json").read_text() == "outcome.json\n" * 1000


def test_of_a_large_file_the_end_is_sent_and_small_files_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddplaunch.cli.hosts.serve._KEPT", 5)
    (tmp_path / "large").write_bytes(b"the long story of its end")
    (tmp_path / "small").write_bytes(b"s")
    sent = io.BytesIO()
    send_record(tmp_path, sent)
    with tarfile.open(fileobj=io.BytesIO(sent.getvalue())) as archive:
        files = [(each.name, archive.extractfile(each).read()) for each in archive]  # type: ignore[union-attr]
    assert files == [("small", b"s"), ("large", b"s end")]


@pytest.mark.parametrize(
    ("node", "names", "written"),
    [
        (1, ("node-1/../../evil", "/evil", "node-2/other", "run.json", "node-1/fine"), {"here/node-1/fine"}),
        (0, ("../evil", "{}/evil", "run.json", "node-0/run.json", "fine"), {"here/fine"}),
    ],
)
def test_archive_cannot_leave_its_place(tmp_path: Path, node: int, names: tuple[str, ...], written: set[str]) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in names:
            info = tarfile.TarInfo(name.format(tmp_path))
            info.size = 2
            archive.addfile(info, io.BytesIO(b"hi"))
    (tmp_path / "here" / "node-1").mkdir(parents=True)
    kept = Pieces(tmp_path / "here")
    kept.keep(node, data.getvalue())
    kept.unpack()
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == written


class Launch:
    """One host with a shell script as its program; ``at`` maps what it prints to the signal that we then get."""

    def __init__(self, folder: Path, program: str, at: dict[bytes, signal.Signals]) -> None:
        self._at = at
        self.said = ""
        self._python = stand_in(folder, program)

    def run(self) -> tuple[HostEnd, int | None]:
        order = {"python": self._python, "run_id": "none-such", "token": "", "grace_s": 60.0, "record": ""}
        with Links() as links:
            host = links.open("host", SERVICE)
            made = LaunchOnHosts(links, [host], self._show, 60.0, 60.0, self._say)
            with made.handling():
                (end,) = made.run([order])
        return end, made.interrupted

    def _show(self, node: int, stream: str, data: bytes) -> None:
        for word in [word for word in self._at if word in data]:
            os.kill(os.getpid(), self._at.pop(word))

    def _say(self, text: str) -> None:
        self.said += text
        if text and (number := self._at.pop(b"told", None)) is not None:
            os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("program", "handler", "status", "interrupted"),
    [
        ("echo up; exec sleep 60", signal.SIG_DFL, 128 + signal.SIGHUP, signal.SIGHUP),
        ("echo up; sleep 0.2", signal.SIG_IGN, 0, None),
    ],
    ids=["a shell", "nohup"],
)
def test_a_closed_terminal_ends_the_hosts_but_not_under_nohup(
    tmp_path: Path, program: str, handler: signal.Handlers, status: int, interrupted: int | None
) -> None:
    """The program does not inherit that the service ignores the signal."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        end, by = Launch(tmp_path, program, {b"up": signal.SIGHUP}).run()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (end.status, by) == (status, interrupted)


def test_what_is_waited_for_is_said_and_a_second_ctrl_c_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_hosts, "_QUIET_S", 0.1)
    stubborn = "trap '' INT; echo up; while :; do sleep 0.1; done"
    launch = Launch(tmp_path, stubborn, {b"up": signal.SIGINT, b"told": signal.SIGINT})
    end, interrupted = launch.run()
    assert launch.said == "the ranks on host get 60 s to end; Ctrl-C again ends them at once"
    assert (end.status, interrupted) == (128 + signal.SIGKILL, signal.SIGINT)
