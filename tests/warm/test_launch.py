"""Real torchrun, real torch: warm ranks are like cold ones, and give way where they must."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.warm.launching import PROGRAMS, environment, launch, plugin, torchrun

pytestmark = pytest.mark.slow
_RANK_VARIABLES = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "PROBE")


@pytest.fixture(scope="module")
def plugged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plugin(tmp_path_factory.mktemp("plugin"))


def _both(plugged: Path, folder: Path, *script: str) -> dict[bool, list[dict[str, Any]]]:
    """Run a script as two ranks both ways; return what it wrote into $PROBE, by rank."""
    seen = {}
    for warm in (False, True):
        answers = folder / str(warm)
        answers.mkdir()
        env = environment(plugged, PROBE=str(answers))
        result = launch(torchrun(warm, 2, *script), env, PROGRAMS, "typed by somebody\n")
        assert result.returncode == 0, result.stderr
        assert "cold start" not in result.stderr
        seen[warm] = [json.loads((answers / f"{rank}.json").read_text()) for rank in range(2)]
    return seen


def _comparable(seen: dict[str, Any]) -> dict[str, Any]:
    """Without what two launches never share, and the known differences: the stack beneath ``-m``, torch's filters."""
    environ = [pair for pair in seen["process"]["os.environ"] if pair[0] not in _RANK_VARIABLES]
    start = [word for word in seen["process"]["environ"] if not word.startswith(_RANK_VARIABLES)]
    process = {**seen["process"], "os.environ": environ, "environ": start}
    finders = [kind for kind in seen["interpreter"]["finders"] if "FirstImport" not in kind]  # until torch is imported
    interpreter = {**seen["interpreter"], "finders": finders, "stack": None}
    libraries = {**seen["libraries"], "warnings": None}
    loggers = {name: told for name, told in seen["torch"]["loggers"].items() if not name.startswith("torch.")}
    torch = {**seen["torch"], "seed": None, "loggers": loggers, "handlers at exit": None}
    return {"process": process, "interpreter": interpreter, "libraries": libraries, "torch": torch}


def test_a_module_sees_the_same_world(plugged: Path, tmp_path: Path) -> None:
    """The programs of ``test_equal.py`` are scripts."""
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as a shell's `&` does
    try:
        seen = _both(plugged, tmp_path, "-m", "probe", "torch", "--flag")
    finally:
        signal.signal(signal.SIGQUIT, before)
    for rank in range(2):
        cold, warm = seen[False][rank], seen[True][rank]
        assert cold["frozen"] < 1000 < warm["frozen"], "the rank was not forked"
        expected, found = (_comparable(one["seen"]) for one in (cold, warm))
        for part, values in expected.items():
            different = [
                (name, value, found[part][name]) for name, value in values.items() if found[part][name] != value
            ]
            assert different == [], part
        handlers = [one["seen"]["torch"]["handlers at exit"] for one in (cold, warm)]
        assert handlers[1] - handlers[0] in (0, 1), "the emptied entry of a handler that is registered anew counts"
        assert {*cold["seen"]["libraries"]["warnings"]} <= {*warm["seen"]["libraries"]["warnings"]}
        assert cold["seen"]["torch"]["loggers"].items() <= warm["seen"]["torch"]["loggers"].items()
    ranks = seen[True]
    for name, value in ranks[0]["chance"].items():
        assert value != ranks[1]["chance"][name], name
    assert ranks[0]["seen"]["torch"]["seed"] != ranks[1]["seen"]["torch"]["seed"]


def test_a_restart_is_cold(plugged: Path, tmp_path: Path) -> None:
    ranks, forks = tmp_path / "ranks", tmp_path / "forks"
    ranks.mkdir()
    forks.mkdir()
    changes = {"PROBE": str(ranks), "WARM_FORKS": str(forks), "WARM_PRELOAD": "package.heavy"}
    result = launch(
        torchrun(True, 2, "--max-restarts=1", "--", "restarted.py"), environment(plugged, **changes), PROGRAMS
    )
    assert result.returncode == 0, result.stderr
    assert "ddplaunch" not in result.stderr
    starts = {path.name: path.read_text().split() for path in ranks.iterdir()}
    assert {starts[name][0] for name in ("1-0", "1-1")} == {"False"}
    assert starts["0-1"][0] == "True"
    assert len({parent for _, parent in starts.values()}) == 1
    forked = [path.name.split("-") for path in forks.iterdir()]
    assert {threads for _, _, threads in forked} == {"1"}, "Python 3.12 warns of forks in processes with threads"


def test_a_cold_start_says_why(plugged: Path) -> None:
    env = {name: value for name, value in environment(plugged).items() if name != "OMP_NUM_THREADS"}
    result = launch(torchrun(True, 2, str(PROGRAMS / "forked.py")), env, PROGRAMS)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split("\n")) == ["", "0 0", "0 1"]
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("ddplaunch:")]
    assert line.startswith("ddplaunch: cold start: ") and "OMP_NUM_THREADS was set after" in line
