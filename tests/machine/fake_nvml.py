"""Fixtures that put made-up GPUs under the real pynvml."""

from __future__ import annotations

import base64
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddplaunch.machine.facts import NvmlFacts
from ddplaunch.values.resolved import Unavailable

SOURCE = (Path(__file__).parents[1] / "fakenvml") / "fakenvml.c"

PROBE = """
import base64, pickle
from ddplaunch.machine.nvml import probe_nvml
print(base64.b64encode(pickle.dumps(probe_nvml())).decode())
"""


@dataclass(frozen=True)
class FakeNvml:
    """A directory with a ``libnvidia-ml.so.1`` of ours; state files go to ``scratch``."""

    library_directory: Path
    scratch: Path

    def environment(self, count: int, state: Iterable[str] = ()) -> dict[str, str]:
        """Return an environment in which a new process sees ``count`` GPUs; ``state`` as fakenvml.c describes it.

        The dynamic linker reads LD_LIBRARY_PATH at the start of a process only, hence never in this one.
        """
        path = self.scratch / "nvml-state"
        path.write_text("".join(f"{line}\n" for line in state))
        others = os.environ.get("LD_LIBRARY_PATH")
        return {
            **os.environ,
            "LD_LIBRARY_PATH": f"{self.library_directory}:{others}" if others else str(self.library_directory),
            "FAKE_NVML_COUNT": str(count),
            "FAKE_NVML_STATE": str(path),
        }

    def probe(self, count: int, state: Iterable[str] = ()) -> tuple[NvmlFacts | Unavailable, str | None]:
        """Return what ``probe_nvml`` returns in a process that sees these GPUs."""
        return self.probe_in(self.environment(count, state))

    def facts(self, count: int, state: Iterable[str] = ()) -> NvmlFacts:
        """Like ``probe``, where NVML works."""
        facts, error = self.probe(count, state)
        assert isinstance(facts, NvmlFacts), facts
        assert error is None
        return facts

    @staticmethod
    def probe_in(environment: dict[str, str]) -> tuple[NvmlFacts | Unavailable, str | None]:
        """Run ``probe_nvml`` in a new process with this environment."""
        command = [sys.executable, "-c", PROBE]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, result.stderr
        answer: tuple[NvmlFacts | Unavailable, str | None] = pickle.loads(base64.b64decode(result.stdout))
        return answer


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the library once and return its directory."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        reason = "no C compiler (cc, gcc, clang) to build the fake libnvidia-ml.so.1"
        if os.environ.get("DDPLAUNCH_REQUIRE_ALL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("fakenvml")
    target = directory / "libnvidia-ml.so.1"
    options = ["-shared", "-fPIC", "-O1", "-Wall", f"-Wl,-soname,{target.name}", "-o", str(target)]
    result = subprocess.run([compiler, *options, str(SOURCE)], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return directory


@pytest.fixture
def fake_nvml(fake_nvml_library: Path, tmp_path: Path) -> FakeNvml:
    """Return the fake, with an empty state file of this test's own."""
    return FakeNvml(fake_nvml_library, tmp_path)
