"""torch read from its files, torch imported by a child, and whose torchrun is on PATH."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ddplaunch.machine import torch_child
from ddplaunch.machine.facts import TorchFacts, TorchImport
from ddplaunch.machine.software import probe_torch, torchrun_flags
from ddplaunch.values.resolved import Unavailable
from tests.agent.guarded import runs, until

VERSION = "from typing import Optional\n__version__ = '2.7.1+cu126'\ndebug = False\ncuda: Optional[str] = '12.6'\n"
OLD_VERSION = "__version__ = \"2.3.0+rocm6.0\"\ncuda = None\nhip = '6.0.32830'\n"


def fake_torch(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch, init: str = "") -> None:
    package = folder / "torch"
    (package / "distributed").mkdir(parents=True)
    (package / "__init__.py").write_text(init or "raise SystemExit('this torch must not be imported')")
    (package / "version.py").write_text(version)
    (package / "distributed/run.py").write_text('def get_args_parser():\n    p.add_argument("--nproc_per_node")\n')
    (folder / "nvidia_nccl_cu12-2.26.2.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def test_builds_and_what_only_looks_like_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(tmp_path, VERSION, monkeypatch)
    source = '"""parser.add_argument("--local-rank")"""\ndef get_args_parser():\n    a("--tee", "--log_dir")\n'
    assert torchrun_flags(source + 'def main(): "--arg1"\n') == {"--tee", "--log-dir"}, "the parser's alone"
    flags = frozenset({"--nproc-per-node"})
    assert probe_torch() == TorchFacts("2.7.1+cu126", f"{tmp_path}/torch", "12.6", None, flags, "2.26.2")
    (tmp_path / "torch" / "version.py").write_text(OLD_VERSION)
    rocm = probe_torch()
    assert isinstance(rocm, TorchFacts) and (rocm.version, rocm.cuda, rocm.hip) == ("2.3.0+rocm6.0", None, "6.0.32830")
    (tmp_path / "torch" / "version.py").write_text("")
    looks = probe_torch()
    assert isinstance(looks, Unavailable) and f"would load {tmp_path}/torch" in looks.reason
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert probe_torch() == Unavailable(f"torch is not installed in {sys.executable}")


@pytest.mark.slow
def test_the_installed_torch_imports() -> None:
    facts = probe_torch()
    if isinstance(facts, Unavailable):
        pytest.skip(facts.reason)
    found = torch_child.finish(torch_child.start_import())
    assert isinstance(facts, TorchFacts) and isinstance(found, TorchImport)
    assert {"--nproc-per-node", "--rdzv-conf", "--logs-specs"} <= facts.torchrun_flags
    assert found.version == facts.version
    assert found.cuda_available is (found.cuda_error is None)
    if facts.cuda is None and facts.hip is None:
        assert found.cuda_error == "Torch not compiled with CUDA enabled"


def child_with(folder: Path, init: str, monkeypatch: pytest.MonkeyPatch, hangs_at: Path | None = None) -> Unavailable:
    """Return what is known of a torch whose import does ``init``; one that hangs has written ``hangs_at`` then."""
    fake_torch(folder, VERSION, monkeypatch, init)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))
    child = torch_child.start_import()
    if hangs_at is not None:
        until(lambda: hangs_at.exists() and hangs_at.read_text(), "it hangs")
    found = torch_child.finish(child, 60 if hangs_at is None else 0.5)
    assert isinstance(found, Unavailable)
    return found


@pytest.mark.parametrize(
    ("init", "reason"),
    [
        ("raise ImportError('libcudnn.so.9: cannot open')", "ImportError: libcudnn.so.9: cannot open"),
        ("import os; os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
    ],
)
def test_an_import_that_fails_tells_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: str, reason: str
) -> None:
    assert child_with(tmp_path, init, monkeypatch).reason.endswith(reason)


def test_an_import_that_hangs_is_ended_with_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    init = f"import os, time\npid = os.fork()\nif pid: open({str(pid_file)!r}, 'w').write(str(pid))\ntime.sleep(600)"
    found = child_with(tmp_path, init, monkeypatch, pid_file)
    assert found.reason.endswith("did not finish within 0.5 s")
    until(lambda: not runs(int(pid_file.read_text())), "nothing is left of the import")
