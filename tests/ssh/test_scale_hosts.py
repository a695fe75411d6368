"""`ddplaunch scale` over hosts that ssh reaches: sizes of several machines, whether or not they share a directory."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cli.test_scale import PLANTED
from tests.hosts.launching import clean_environment, ddplaunch
from tests.ssh.lab import Lab, lab

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(2, tmp_path_factory.mktemp("scale")) as found:
        found.write("train.py", PLANTED)
        yield found


def test_sizes_of_two_machines(made: Lab) -> None:
    shared = ("--run-dir", str(made.folder / "shared"))
    words = ("--hosts", made.names, "--device", "cpu", "--steps", "15", "--json", "--in-place", *shared)
    argv = ddplaunch("scale", "1,2x1", *words, "--batch-size", "8", "--", "train.py")
    done = made.login.run(argv, made.work, clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = json.loads(done.stdout)["sizes"]
    assert [each["size"] for each in (one, two)] == ["1", "2x1"] and len(two["ranks"]) == 2
    assert [each["effective_batch"] for each in (one, two)] == [8, 16] and not two["unwatched"]
    assert 1.2 < two["speed_up"] < 2.8, two
    made.nothing_left("scale-")


def test_hosts_that_share_nothing_are_read_at_the_end(made: Lab) -> None:
    argv = ddplaunch("scale", "2x1", "--hosts", made.names, "--device", "cpu", "--seconds", "5", "--json", "--in-place")
    done = made.login.run([*argv, "--", "train.py"], made.work, clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    (two,) = json.loads(done.stdout)["sizes"]
    assert len(two["ranks"]) == 2 and two["samples_per_s"] > 0 and two["unwatched"]


def test_more_machines_than_hosts(made: Lab) -> None:
    argv = ddplaunch("scale", "3x1", "--hosts", made.names, "--device", "cpu", "--", "train.py")
    done = made.login.run(argv, made.work, clean_environment())
    assert done.returncode == 2 and "error[size-not-here]: size 3x1 is too large for 2 machines" in done.stderr
    assert "`ddplaunch scale 1,2x1 …`" in done.stderr


def test_hosts_without_slots_need_sizes(made: Lab) -> None:
    argv = ddplaunch("scale", "--hosts", made.names, "--device", "cpu", "--", "train.py")
    done = made.login.run(argv, made.work, clean_environment())
    assert done.returncode == 2 and "error[usage]: no SIZES" in done.stderr, done.stderr
