"""Fixtures that put made-up GPUs under the real pynvml."""

from __future__ import annotations

import base64
import json
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

#: Answers for each environment of a list; the fake reads these variables again whenever NVML starts.
PROBE = """
import base64, json, os, pickle, sys
from ddplaunch.machine.nvml import probe_nvml
answers = []
for variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    answers.append(probe_nvml())
print(base64.b64encode(pickle.dumps(answers)).decode())
"""
Answer = tuple[NvmlFacts | Unavailable, str | None]


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

    def probes(self, *machines: tuple[int, Iterable[str]]) -> list[Answer]:
        """Return what ``probe_nvml`` returns for each machine, a number of GPUs and their state, in one new process."""
        variables = []
        for number, (count, state) in enumerate(machines):
            path = self.scratch / f"nvml-state-{number}"
            path.write_text("".join(f"{line}\n" for line in state))
            variables.append({"FAKE_NVML_COUNT": str(count), "FAKE_NVML_STATE": str(path)})
        return self.probes_in(self.environment(0), variables)

    @staticmethod
    def probes_in(environment: dict[str, str], variables: list[dict[str, str]]) -> list[Answer]:
        """Run ``probe_nvml`` in a new process with this environment, once with each of ``variables``."""
        command = [sys.executable, "-c", PROBE, json.dumps(variables)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, result.stderr
        answers: list[Answer] = pickle.loads(base64.b64decode(result.stdout))
        return answers


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
