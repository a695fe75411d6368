"""torch is imported without the garbage collector, and nothing of that stays behind."""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import sys
from pathlib import Path

import pytest

from ddplaunch.agent.rank_site import ddplaunch_marks


def test_an_import_without_the_collector_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The collector is as before, also behind an import that fails, and whose traceback shows the importer alone."""
    monkeypatch.syspath_prepend(tmp_path)
    finders, frozen = [*sys.meta_path], gc.get_freeze_count()
    request.addfinalizer(gc.enable)
    for name, raises, on in (("quick_a", False, True), ("quick_b", True, True), ("quick_c", False, False)):
        text = "import gc\nassert not gc.isenabled()\n"
        (tmp_path / f"{name}.py").write_text(f"{text}raise ImportError('no library')\n" if raises else text)
        (gc.enable if on else gc.disable)()
        ddplaunch_marks.import_quickly(name)
        if raises:
            with pytest.raises(ImportError, match="no library") as failed:
                importlib.import_module(name)
            assert not any("ddplaunch_marks" in str(each.path) for each in failed.traceback)
        else:
            module = importlib.import_module(name)
            assert type(module.__spec__) is importlib.machinery.ModuleSpec
        assert (gc.isenabled(), sys.meta_path) == (on, finders)
    assert gc.get_freeze_count() <= frozen  # what is let go of is not counted any more
