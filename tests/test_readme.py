"""README.md and CONTRIBUTING.md say what is true: their output is printed anew, their names exist, their code runs."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.checks.all_checks import by_code, families
from ddplaunch.checks.check import available, run_check
from ddplaunch.cli.flags import OWN, flags_of
from ddplaunch.current import Current
from ddplaunch.errors import ExitStatus
from ddplaunch.launch.forward import NAMES
from tests.checks.healthy import healthy_facts, healthy_launch, healthy_script
from tests.readme_blocks import BLOCK, Block, blocks, comparable, run, shown

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = {
    name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
}
STARTS_TORCH = ("ddplaunch run 2 --device cpu --batch-size 8 --base-lr 0.01 --run-id first -- ", "ddplaunch doctor")
OUR_FLAGS = {
    spelling
    for command in OWN
    for flag in flags_of(command)
    for spelling in (flag.flag, "--no-" + flag.name.replace("_", "-"))
}


def slow(block: Block) -> bool:
    """Return whether torch is imported or ranks are started."""
    return any(command.startswith(STARTS_TORCH) for command in block.commands)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=[pytest.mark.slow] if slow(block) else [], id=str(block))
        for number, block in enumerate(blocks(DOCUMENTS["README.md"]))
    ],
)
def test_output_is_what_the_commands_print(number: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    document = README.read_text(encoding="utf-8")
    block = blocks(document)[number]
    assert block.commands
    printed = run(block, document, tmp_path)
    if request.config.getoption("--accept-golden"):
        match = list(BLOCK.finditer(document))[number]
        README.write_text(document[: match.start("text")] + printed + document[match.end("text") :], encoding="utf-8")
        return
    assert comparable(block, printed) == comparable(block, block.text), "pytest --accept-golden writes it anew"


def test_every_output_block_is_found() -> None:
    document = DOCUMENTS["README.md"]
    assert len(blocks(document)) == document.count("<!-- output:") >= 5
    assert document.count("```console\n") == len(blocks(document)), "a console block without a marker is not checked"


def test_another_machine_prints_the_same_but_another_word_differs() -> None:
    block = Block("stdout", "$ x\n  OMP_NUM_THREADS=4 # 8 usable CPUs\n  lr 0.02\n")
    there = block.text.replace("=4", "=16").replace("8 usable", "32 usable")
    assert comparable(block, there) == comparable(block, block.text)
    assert comparable(block, block.text.replace("0.02", "0.04")) != comparable(block, block.text)
    noise = "warning[cpus-short]: 2 processes share 1 usable CPUs of 1\n  why: a\n  fix: b\n\n"
    assert shown(noise + block.text) == block.text
    kept = noise.replace("cpus-short", "ineffective-variable")
    assert shown(kept + block.text) == kept + block.text


def test_doctor_has_to_agree_in_families_and_in_ending_with_a_verdict() -> None:
    block = Block("doctor", "$ d\n  torch  7 passed\n  gpu    14 skipped\n\nhealthy: 7 checks passed, 14 skipped\n")
    there = block.text.replace("7 passed", "1 error, 6 passed").replace("healthy: 7", "1 error: 6")
    assert comparable(block, there) == comparable(block, block.text)
    assert comparable(block, there.replace("  gpu ", "  tpu ")) != comparable(block, block.text)
    assert comparable(block, there.replace("checks passed", "")) != comparable(block, block.text)


def test_flags_in_the_documents_exist() -> None:
    for name, document in DOCUMENTS.items():
        lines = re.findall(r"`(ddplaunch [^`]+)`", document) + re.findall(r"^\$? ?(ddplaunch [^\n]+)", document, re.M)
        for line in lines:
            for word in line.split(" -- ")[0].split():
                flag = word.partition("=")[0]
                assert not flag.startswith("--") or flag in {*OUR_FLAGS, "--", "--help"}, f"{name}: {line}"


def test_codes_in_the_documents_exist() -> None:
    for name, document in DOCUMENTS.items():
        for code in re.findall(r"\bcheck `([a-z0-9-]+)`", document):
            assert by_code(code), f"{name}: {code}"


def test_placeholders_are_those_of_the_program() -> None:
    (line,) = re.findall(r"^Placeholders: (.*)$", DOCUMENTS["README.md"], re.M)
    assert re.findall(r"`\{(\w+)\}`", line) == list(NAMES)


def test_fields_of_current_are_those_of_the_program() -> None:
    (line,) = re.findall(r"^Fields of `ddplaunch.current\(\)`: (.*)$", DOCUMENTS["README.md"], re.M)
    assert re.findall(r"`(\w+)`", line) == [field.name for field in fields(Current)]


def test_exit_statuses_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| (\d+) \|", DOCUMENTS["README.md"], re.M)
    assert [int(row) for row in rows] == sorted(ExitStatus)


def test_links_and_files_exist() -> None:
    for name, document in DOCUMENTS.items():
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)\)", document) + re.findall(
            r"`((?:scripts|tests)/[\w./]+)`", document
        ):
            assert (ROOT / target).exists(), f"{name}: {target}"


def test_import_order_is_the_contract() -> None:
    contract = re.search(r"^layers = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    assert contract
    layers = [layer for layer in re.findall(r'"([^"]+)"', contract[1]) if layer != "__main__"]
    assert " > ".join(layers) in " ".join(DOCUMENTS["CONTRIBUTING.md"].split())
    rooms = re.findall(r"^\| `(\w+)[/.py]*` \|", DOCUMENTS["CONTRIBUTING.md"], re.M)
    assert sorted(rooms) == sorted([*re.split(r" > | \| ", " > ".join(layers)), "current", "examples"])


def test_families_are_named() -> None:
    assert all(f"`{family}`" in DOCUMENTS["CONTRIBUTING.md"] for family in families())


def python_blocks() -> list[str]:
    section = DOCUMENTS["CONTRIBUTING.md"].partition("## Add a check in ten lines")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def example() -> dict[str, Any]:
    """Execute the code of "Add a check in ten lines" as one module, and return its names."""
    namespace: dict[str, Any] = {"__name__": "example"}
    for code in python_blocks():
        exec(compile(code, "CONTRIBUTING.md", "exec"), namespace)
    return namespace


def test_the_example_of_a_check_has_ten_lines() -> None:
    (start,) = re.findall(r"^def output_in_memory.*?\n\n\n", python_blocks()[0], re.M | re.S)
    assert len(start.strip().splitlines()) <= 10


@pytest.mark.parametrize(("filesystem", "fires"), [("tmpfs", True), ("ext4", False), ("nfs4", False), (None, False)])
def test_the_example_of_a_check_works(filesystem: str | None, fires: bool) -> None:
    (check,) = example()["CHECKS"]
    (healthy,) = healthy_facts().output_paths
    facts = healthy_facts(output_paths=(replace(healthy, filesystem=filesystem),))
    outcome = run_check(check, available(facts, healthy_launch(), healthy_script()))
    assert outcome.status == ("found" if fires else "passed"), outcome.reason
    assert check.family in families() and check.title and check.explanation
    assert [finding.code for finding in outcome.findings] == ([check.code] if fires else [])


def test_the_example_of_its_test_passes() -> None:
    tests = {name: test for name, test in example().items() if name.startswith("test_") and inspect.isfunction(test)}
    assert tests
    for test in tests.values():
        test()
