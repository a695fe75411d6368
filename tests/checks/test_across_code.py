"""Checks that compare what hosts run: the files that the script imports, and the launcher's."""

from __future__ import annotations

from dataclasses import replace

from ddplaunch.planning.hosts_plan import HostReport
from ddplaunch.values.finding import Severity
from tests.checks.test_across_hosts import findings, host


def with_sources(name: str, **digests: str) -> HostReport:
    return host(name, sources=tuple((f"net/{file}.py", digest) for file, digest in digests.items()))


def test_files_are_named_with_their_hosts() -> None:
    good = [with_sources(name, model="1", data="1") for name in "abc"]
    assert findings(*good) == []
    (found,) = findings(*good, with_sources("d", model="2", data="missing"), with_sources("e", model="2", data="1"))
    assert found.severity is Severity.ERROR and found.where == ("d", "e")
    assert found.what == (
        "what the script imports differs: `net/model.py`, `net/data.py` (missing) on d; `net/model.py` on e"
    )


def test_a_file_that_most_hosts_lack_is_missing_there() -> None:
    (found,) = findings(*(with_sources(name, model="missing") for name in "ab"), with_sources("c", model="1"))
    assert found.where == ("a", "b") and found.what.endswith("`net/model.py` (missing) on b")


def test_what_was_changed_here_and_not_copied() -> None:
    same = [replace(with_sources(name, model="1"), sources_here=(("net/model.py", "2"),)) for name in "ab"]
    (found,) = findings(*same)
    assert (found.code, found.severity) == ("hosts-differ-from-here", Severity.WARNING)
    assert findings(*(replace(each, sources_here=(("net/model.py", "1"),)) for each in same)) == []
