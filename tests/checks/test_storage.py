"""The storage family, on described paths and on real ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.checks.storage import CHECKS, is_remote
from ddplaunch.machine.facts import Facts, PathFact
from ddplaunch.machine.paths import Role, begin_looks
from ddplaunch.values.finding import Finding, Severity
from tests.checks.cases import NO_LAUNCH, NO_SCRIPT, found, silent_when_healthy
from tests.checks.healthy import GIB, healthy_facts

MIB = 1024**2
GOOD = PathFact("/data/my text", "directory", True, True, False, 800 * GIB, 1000 * GIB, 10**7, "ext4")


def data(**replace: Any) -> Facts:
    return healthy_facts(data_paths=(dataclasses.replace(GOOD, **replace),))


def output(**replace: Any) -> Facts:
    return healthy_facts(output_paths=(dataclasses.replace(GOOD, **replace),))


FIRES = [
    ("data-missing", data(kind="missing", readable=False), Severity.ERROR, "'/data/my text' does not exist"),
    ("data-unreadable", data(readable=False, owner="eve"), Severity.ERROR, "of eve is not readable"),
    ("data-empty", data(empty=True), Severity.ERROR, "is an empty directory"),
    ("data-empty", data(kind="file", empty=True), Severity.ERROR, "is an empty file"),
    ("data-unreachable", data(kind="unreachable", filesystem="nfs4"), Severity.ERROR, "did not answer (nfs4)"),
    ("data-on-slow-storage", data(filesystem="nfs4"), Severity.WARNING, "on a network mount (nfs4)"),
    ("data-on-slow-storage", data(filesystem="fuse.sshfs"), Severity.WARNING, "(fuse.sshfs)"),
    ("output-not-writable", output(writable=False, owner="root"), Severity.ERROR, "it belongs to root"),
    ("output-unreachable", output(kind="unreachable"), Severity.ERROR, "did not answer"),
    ("disk-nearly-full", output(free_bytes=50 * MIB), Severity.ERROR, "50 MiB of 1000 GiB free"),
    ("disk-nearly-full", output(free_bytes=500 * MIB), Severity.WARNING, "500 MiB of 1000 GiB free"),
    ("disk-nearly-full", output(free_bytes=15 * GIB), Severity.WARNING, "15 GiB of 1000 GiB free"),
    ("output-inodes", output(free_inodes=12), Severity.WARNING, "12 inodes free"),
    ("output-inodes", output(free_inodes=0), Severity.ERROR, "0 inodes free"),
]
SILENT = [
    ("data-missing", data()),
    ("data-unreadable", data(kind="missing", readable=False)),
    ("data-unreadable", data(kind="unreachable", readable=False)),
    ("data-empty", data(empty=True, readable=False)),
    ("data-unreachable", data(filesystem="nfs4")),
    ("data-on-slow-storage", data(filesystem="lustre")),
    ("data-on-slow-storage", data(filesystem="overlay")),
    ("data-on-slow-storage", data(kind="missing", filesystem="nfs4")),
    ("output-not-writable", output(kind="unreachable", writable=False)),
    ("output-not-writable", output(kind="missing", writable=True)),
    ("output-unreachable", output(kind="missing")),
    ("disk-nearly-full", output(free_bytes=5 * GIB, total_bytes=100 * GIB)),
    ("disk-nearly-full", output(free_bytes=300 * GIB, total_bytes=20_000 * GIB)),
    ("disk-nearly-full", output(free_bytes=None, total_bytes=None)),
    ("output-inodes", output(free_inodes=None, filesystem="btrfs")),
]


@pytest.mark.parametrize(("code", "facts", "severity", "words"), FIRES)
def test_fires_in_a_launch_and_in_doctor(code: str, facts: Facts, severity: Severity, words: str) -> None:
    for finding in (found(CHECKS, code, facts), found(CHECKS, code, facts, NO_LAUNCH, NO_SCRIPT)):
        assert finding and finding.severity is severity
        assert words in finding.what


@pytest.mark.parametrize(("code", "facts"), SILENT)
def test_silent(code: str, facts: Facts) -> None:
    assert found(CHECKS, code, facts) is None


def test_healthy() -> None:
    silent_when_healthy(CHECKS)


def test_one_bad_path_gives_one_finding() -> None:
    """A path that is not there must not also be called unreadable, empty and slow."""
    for kind in ("missing", "unreachable"):
        bad = data(kind=kind, readable=False, empty=True, filesystem="nfs4")
        findings = [check.code for check in CHECKS if check.code.startswith("data-") and found(CHECKS, check.code, bad)]
        assert findings == [f"data-{kind}"]


@pytest.mark.parametrize(
    ("path", "listing"), [("/nope", "`ls /`"), ("text", "`ls .`"), ("/my data/text/", "`ls '/my data'`")]
)
def test_data_missing_says_where_to_look(path: str, listing: str) -> None:
    finding = found(CHECKS, "data-missing", data(path=path, kind="missing", readable=False))
    assert finding and f"; {listing} shows" in finding.fix


@pytest.mark.parametrize("kind", [None, "ext4", "xfs", "lustre", "gpfs", "beegfs", "fuse.juicefs", "tmpfs"])
def test_built_for_training_is_not_slow(kind: str | None) -> None:
    assert not is_remote(kind)


def test_real_paths(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("to be")
    data: list[tuple[str, Role]] = [(str(tmp_path / name), "data") for name in ("empty", "text", "missing")]
    empty, text, missing, output = begin_looks([*data, (str(tmp_path / "missing" / "deep"), "output")], 20)()
    assert found(CHECKS, "data-empty", healthy_facts(data_paths=(text,))) is None
    assert found(CHECKS, "data-empty", healthy_facts(data_paths=(empty,)))
    assert found(CHECKS, "data-missing", healthy_facts(data_paths=(missing,)))
    assert found(CHECKS, "output-not-writable", healthy_facts(output_paths=(output,))) is None


def test_record_not_writable() -> None:
    def of(**changes: Any) -> Finding | None:
        path = dataclasses.replace(GOOD, **{"path": ".ddplaunch", **changes})
        return found(CHECKS, "record-not-writable", healthy_facts(record_paths=(path,)))

    assert of() is None and found(CHECKS, "record-not-writable", healthy_facts()) is None
    refused = of(writable=False)
    assert refused and refused.severity is Severity.ERROR and "cannot be written: .ddplaunch" in refused.what
    full, nearly = of(free_bytes=4096), of(free_bytes=50 * MIB)
    assert full and full.severity is Severity.ERROR and full.what.startswith("the record of the run has 4 KiB left")
    assert nearly and nearly.severity is Severity.WARNING
