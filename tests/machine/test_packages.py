"""Installed packages by the names of their folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddplaunch.machine import gather
from ddplaunch.machine.facts import NOT_ASKED, Facts, PackageFacts, ProbeRequest
from ddplaunch.machine.software import probe_packages
from ddplaunch.values import codec


def test_folders_name_what_is_installed(tmp_path: Path) -> None:
    first, second = tmp_path / "user", tmp_path / "site"
    for folder in (
        first / "numpy-1.26.4.dist-info",
        second / "numpy-2.0.0.dist-info",
        second / "huggingface_hub-0.24.1.dist-info",
        second / "torch-2.13.0+cpu.dist-info",
        second / "zope.interface-6.1.dist-info",
        second / "PyYAML-6.0-py3.11.egg-info",
        second / "source_tree.egg-info",  # no version in its name
        second / "~umpy-1.0.dist-info",  # pip's left-over of an interrupted uninstall
        second / "numpy",
    ):
        folder.mkdir(parents=True)
    found = probe_packages(["", str(first), str(second), str(first), str(tmp_path / "none")])
    expected = {"numpy": "1.26.4", "huggingface-hub": "0.24.1", "torch": "2.13.0+cpu"}
    assert found.versions == expected | {"zope-interface": "6.1", "pyyaml": "6.0"}


def test_packages_are_looked_at_only_where_they_are_asked_for() -> None:
    assert gather.gather(ProbeRequest()).packages == NOT_ASKED
    facts = gather.gather(ProbeRequest(packages=True))
    assert isinstance(facts.packages, PackageFacts)
    assert codec.from_json(codec.to_json(facts), Facts).packages == facts.packages


@pytest.mark.parametrize(("drivers", "imports"), [((), False), (("/dev/null",), True)])
def test_torch_is_imported_for_its_gpus(
    drivers: tuple[str, ...], imports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr("ddplaunch.machine.gather._DRIVERS", drivers)
    monkeypatch.setattr("ddplaunch.machine.torch_child.start_import", lambda: started.append(1))
    monkeypatch.setattr("ddplaunch.machine.torch_child.finish", lambda _: NOT_ASKED)
    gather.gather(ProbeRequest(import_torch=True, torch_needs_gpu=True))
    assert bool(started) is imports
    gather.gather(ProbeRequest(import_torch=True))
    assert len(started) == 1 + imports
