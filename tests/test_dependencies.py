"""Every declared dependency is used, and none is loaded on the way to torchrun."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.matrix import PAIRS, PYTHONS
from tests.hosts.launching import clean_environment
from tests.source import PACKAGE, nodes, trees

ROOT = Path(__file__).resolve().parent.parent
#: Where the module's name is not the package's.
MODULES = {"nvidia-ml-py": "pynvml", "pyyaml": "yaml"}


def _declared() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = text.partition("\ndependencies = [")[2].partition("\n]")[0]
    names = re.findall(r'^\s*"([A-Za-z0-9-]+)', block, re.MULTILINE)
    return {MODULES.get(name, name).replace("-", "_") for name in names}


def _imported() -> set[str]:
    found = set()
    for path, tree in trees().items():
        guards = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        unseen = {id(node) for guard in guards for node in guard.body}  # type checkers bring what these name
        for node in nodes()[path]:
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and id(node) not in unseen:
                found.add(node.module.partition(".")[0])
    return found


def test_every_declared_dependency_is_imported_and_no_other() -> None:
    imported = _imported()
    assert _declared() <= imported
    in_ranks = {path.stem for path in (PACKAGE / "agent" / "rank_site").glob("*.py")}
    library = {*sys.stdlib_module_names, "tomllib"}  # a part of it since Python 3.11; tomli has its place before
    assert imported - _declared() - library <= in_ranks | {"ddplaunch", "debugpy"}  # which `--debug` asks for


def test_a_launch_loads_none_of_the_heavy_ones(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import argparse\n")
    words = ["run", "2", "--device", "cpu", "--dry-run", "--", "train.py"]
    code = f"import sys; from ddplaunch.cli.main import main\ntry: main({words})\n"
    heavy = "{'rich', 'psutil', 'yaml', 'typer', 'torch', 'tree_sitter', 'tomllib', 'datetime', 'shutil', 'difflib'}"
    child = [sys.executable, "-c", f"{code}finally: print(sorted({heavy} & sys.modules.keys()), file=sys.stderr)"]
    done = subprocess.run(child, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False)
    assert "torch.distributed.run" in done.stdout, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_pythons_that_are_promised_are_those_that_are_tried() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    assert tuple(promised) == PYTHONS and f'requires-python = ">={promised[0]}"' in text
    assert f'python_version = "{promised[0]}"' in text  # of mypy
    assert {each.partition(":")[0] for each in PAIRS} <= set(PYTHONS)
    jobs = [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()]
    pairs = [tuple(job["strategy"]["matrix"]["pair"]) for job in jobs if "strategy" in job]
    assert pairs == ([PAIRS] if WORKFLOWS else [])


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))  # an sdist has none


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_is_pinned_with_few_rights(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    used = re.findall(r"uses: (.+)", text)
    assert (
        used and [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []
    )
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            assert "${{" not in step.get("run", ""), "a value becomes part of the command"
            for script in re.findall(r"\bscripts/[\w.]+", step.get("run", "")):
                assert os.access(ROOT / script, os.X_OK)
            for module in re.findall(r"-m (benchmarks\.\w+)", step.get("run", "")):
                assert (ROOT / f"{module.replace('.', '/')}.py").is_file()
