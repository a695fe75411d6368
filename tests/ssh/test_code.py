"""Hosts that have other code than each other, or than the launcher: named before the start."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.hosts.launching import clean_environment, ddplaunch
from tests.ssh.lab import Lab, lab
from tests.ssh.launched import TRAIN

pytestmark = [pytest.mark.root, pytest.mark.slow]

MODEL = "import torch\nWIDTH = {width}\n"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts with a package each, and a repository where launches are typed."""
    with lab(2, tmp_path_factory.mktemp("code")) as made:
        made.write("train.py", "from net.model import WIDTH\n" + TRAIN)
        for folder in (made.work, *map(made.own, made.hosts)):
            (folder / "net").mkdir()
            (folder / "net" / "model.py").write_text(MODEL.format(width=8))
        yield made


def said(made: Lab, *words: str, status: int) -> str:
    argv = ddplaunch("run", "2x1", "--device", "cpu", "--hosts", made.names, *words, "--dry-run", "--", "train.py")
    done = made.login.run(argv, made.work, clean_environment())
    assert done.returncode == status, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


def test_other_code_is_named(two: Lab) -> None:
    second = two.own(two.hosts[1])
    assert "hosts-differ" not in said(two, status=0)
    (second / "net" / "model.py").write_text(MODEL.format(width=9))
    found = said(two, status=4)
    assert "error[hosts-differ-sources]: what the script imports differs: `net/model.py` on alpha1" in found
    (second / "net" / "model.py").unlink()
    assert "`net/model.py` (missing) on alpha1" in said(two, status=4)
    (second / "net" / "model.py").write_text(MODEL.format(width=8))
    (two.work / "net" / "model.py").write_text(MODEL.format(width=11))
    assert "warning[hosts-differ-from-here]: the hosts do not have this directory's `net/model.py`" in said(
        two, status=0
    )


def test_a_plan_of_several_hosts(two: Lab) -> None:
    words = ddplaunch("plan", "2", "--device", "cpu", "--batch-size", "4", "--hosts", two.names)
    done = two.login.run([*words, "--json", "--", "train.py"], two.work, clean_environment())
    hosts = json.loads(done.stdout)["hosts"]
    assert [each["host"] for each in hosts] == ["alpha0", "alpha1"], done.stderr
    assert [each["topology"]["nproc_per_node"]["value"] for each in hosts] == [2, 2]
    assert {each["topology"]["world_size"] for each in hosts} == {4}
    done = two.login.run([*words, "--", "train.py"], two.work, clean_environment())
    assert done.returncode == 0 and "4 processes, 2 nodes of 2, this is node 1" in " ".join(done.stdout.split())
    assert done.stdout.startswith("alpha0\n") and "\nalpha1\n" in done.stdout
    assert done.stdout.count("torch.distributed.run") == 2, done.stdout
    less = ddplaunch("plan", "2x1", "--device", "cpu", "--hosts", two.names, "--exclude", "alpha0", "--", "train.py")
    done = two.login.run(less, two.work, clean_environment())
    assert done.returncode == 0 and done.stdout.startswith("alpha1\n"), done.stdout + done.stderr
