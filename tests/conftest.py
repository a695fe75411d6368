"""Options and markers that all tests share."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from scripts.signatures import write as write_signatures
from tests.golden import compare

Golden = Callable[[str, str], None]
#: Where fixtures stand that tests of several rooms use.
pytest_plugins = ("tests.cli.cli_calls", "tests.machine.fake_nvml", "tests.records.fake_runs")

# An example may take as long as it likes: on a shared machine the first one can wait for seconds.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

# A suite of some five hundred interpreters takes twice as long if each compiles everything anew; that also holds for
# the tests themselves, which pytest rewrites in each worker.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What is started in the background, or by nohup, ignores these, and hands that on to every launch of a test.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)


# What is imported and collected stays to the end; a collector that looks through all of it costs a fifth of the tier.
gc.set_threshold(50_000, 20, 20)


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept-golden", action="store_true", help="write tests/golden/*.txt from what the code says now"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Signatures are compiled anew before any test reads them, so that one command accepts what they say now."""
    if config.getoption("--accept-golden") and not hasattr(config, "workerinput"):
        write_signatures()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file of slow tests alone is not imported for the others: torch would take seconds of each worker."""
    if config.option.markexpr != "not slow" or not collection_path.match("test_*.py"):
        return None
    all_slow = re.search(r"(?m)^pytestmark = .*\bmark\.slow\b", collection_path.read_text(encoding="utf-8"))
    return True if all_slow else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of many slow tests come first, so that no worker is left with one of them when the others are done.

    Those for which hosts are made mostly wait. They lie evenly among the others, which leave no CPU idle meanwhile.
    """
    slow = [item for item in items if item.get_closest_marker("slow") is not None]
    lengths = Counter(item.path for item in slow)
    computing = {item.path for item in slow if item.get_closest_marker("root") is None}
    paths = [path for path, _ in lengths.most_common()]
    kinds = ([path for path in paths if path in computing], [path for path in paths if path not in computing])
    places = {path: number / len(kind) for kind in kinds for number, path in enumerate(kind)}
    items.sort(key=lambda item: places.get(item.path, 1.0))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """``golden(name, text)`` compares with tests/golden/NAME.txt, or writes it with ``--accept-golden``."""
    accept = bool(request.config.getoption("--accept-golden"))
    return lambda name, text: compare(name, text, accept=accept)


#: Waits until the process of the tests is gone, however it went, and then kills what has inherited a variable of it.
_SWEEPER = """
import os, select, sys
select.select([int(sys.argv[2])], [], [])
killed = True
while killed:
    killed = False
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if sys.argv[1].encode() in file.read().split(bytes(1)):
                    killed = os.kill(int(pid), 9) is None
        except OSError:
            pass
"""


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The key of the user who runs the tests is not made or touched by them, and no process of theirs outlives them."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    own = os.pidfd_open(os.getpid())  # not opened by the sweeper: this process may be gone before it gets that far
    words = [sys.executable, "-IS", "-c", _SWEEPER, f"XDG_STATE_HOME={os.environ['XDG_STATE_HOME']}", str(own)]
    none = subprocess.DEVNULL
    subprocess.Popen(words, stdin=none, stdout=none, stderr=none, env={}, start_new_session=True, pass_fds=(own,))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") is None or os.geteuid() == 0:
        return
    skip("needs root: network namespaces and mounts are made for real")


def skip(reason: str) -> None:
    """Skip the test, or fail where nothing may be left out."""
    if os.environ.get("DDPLAUNCH_REQUIRE_ALL") == "1":
        pytest.fail(f"{reason}; DDPLAUNCH_REQUIRE_ALL=1 lets nothing be skipped", pytrace=False)
    pytest.skip(reason)
