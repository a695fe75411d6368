"""The shape of the package: few and deep modules, one name for each thing; and who writes, and starts Python."""

from __future__ import annotations

import ast
import re
import subprocess
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.source import PACKAGE as ROOT
from tests.source import nodes, trees

#: Tokens of Python in each room, without comments, docstrings and layout: fewer line breaks change nothing. A ceiling
#: goes down with what is removed, and never up: what comes in has to fit, or something goes out. A room that takes code
#: over from another takes its tokens along.
MOST_TOKENS = {
    "explain": 34_123,  # of which cli gave 94: what reads the source around a failure; and records 25
    "cli": 45_685,  # of which 477 are the command of prove, which count in its room; comm gave 96, agent 17
    "prove": 11_522,  # with its command in cli 12,000; cli gave 30 of them
    "script": 34_293,
    "agent": 41_937,  # of which planning gave 18
    "planning": 39_480,  # checks, watch and agent have 231 of what it had
    "hosts": 19_821,
    "watch": 18_406,  # of which agent and hosts gave 150, planning 205
    "records": 20_880,  # the rest went to hosts and cli
    "ui": 17_966,
    "machine": 20_007,  # of which agent gave 75
    "checks": 18_006,  # of which script gave 12, planning 8
    "comm": 2_904,
    "values": 5_128,  # of which planning, checks, hosts and cli gave 40
    "scaling": 4_152,
    "api": 2_813,  # of which values gave 190
    "examples": 3_686,
    "": 181,
}
NO_ROOMS = ("ddplaunch.__main__", "ddplaunch.examples")  # as in the contract of import-linter
MOST_TRACKED_BYTES = 6_000_000
MOST_WORDS = 15_000  # of docs/**/*.md
#: Of all Python below tests/, blank ones too. Rows that are text stand in a file beside the test.
MOST_LINES_OF_TESTS = 35_000
MOST_CHILDREN, MOST_MODULES, MOST_WITH_ONE_IMPORTER, MOST_LINES = 16, 290, 90, 600


@cache
def modules() -> dict[str, ast.Module]:
    """Return every module of the package by its dotted name."""
    return {dotted(path): tree for path, tree in trees().items()}


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


@cache
def nodes_of() -> dict[str, list[ast.AST]]:
    return {dotted(path): walked for path, walked in nodes().items()}


def real() -> list[str]:
    return [name for name in modules() if not (ROOT.parent / Path(*name.split(".")) / "__init__.py").exists()]


@cache
def imports(name: str) -> set[str]:
    """Return the modules of the package that ``name`` imports, anywhere in its text, for type checkers too."""
    found: set[str] = set()
    for node in nodes_of()[name]:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(each if each in modules() else node.module for each in inner)
    return {each for each in found if each in modules() and each != name}


def test_a_name_means_one_thing_in_its_module() -> None:
    """Where two modules become one, the later of two constants of one name would win without a word."""
    twice = []
    for name, tree in modules().items():
        assigned = (node.targets for node in tree.body if isinstance(node, ast.Assign))
        names = Counter(each.id for targets in assigned for each in targets if isinstance(each, ast.Name))
        twice += [f"{name}.{each}" for each, number in names.items() if number > 1]
    assert twice == []


def test_no_folder_is_wide_and_no_module_longer_than_one_reads() -> None:
    children = Counter(name.rpartition(".")[0] for name in modules() if "." in name and name not in NO_ROOMS)
    print("full folders:", sorted(folder for folder, number in children.items() if number >= MOST_CHILDREN))
    wide = {folder: number for folder, number in children.items() if number > MOST_CHILDREN}
    assert not wide, f"more than {MOST_CHILDREN} files and folders: {wide}; put the code into a file of its subject"
    files = [path for path in ROOT.rglob("*.py") if len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES]
    assert files == [], f"more than {MOST_LINES} lines: a part with an idea of its own becomes a file"


def tokens(path: Path) -> int:
    """Return the tokens of code in a file, as ``MOST_TOKENS`` counts them; a docstring counts as one."""
    layout = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING", "ENDMARKER"}
    with path.open("rb") as file:
        return sum(tokenize.tok_name[token.type] not in layout for token in tokenize.tokenize(file.readline))


def test_no_room_has_more_tokens_than_its_budget() -> None:
    counts: Counter[str] = Counter()
    for path in ROOT.rglob("*.py"):
        room, _, inside = path.relative_to(ROOT).as_posix().partition("/")
        counts[room if inside else ""] += tokens(path)
    assert counts.keys() == MOST_TOKENS.keys()
    left = {room: MOST_TOKENS[room] - count for room, count in counts.items()}
    print("tokens left:", left)
    over = {room: -tokens_left for room, tokens_left in left.items() if tokens_left < 0}
    assert not over, (
        f"tokens above the ceiling: {over}. Let what the room does twice, or for nobody, go out, in a commit before; "
        "the same test on main tells what was above it without your change"
    )


def test_the_repository_is_light() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT.parent, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("this is no clone")
    files = [ROOT.parent / name for name in listed.stdout.decode().split("\0") if name]
    assert sum(path.stat().st_size for path in files if path.is_file()) <= MOST_TRACKED_BYTES


def test_the_documentation_is_read_in_an_hour() -> None:
    words = {path.name: len(path.read_text(encoding="utf-8").split()) for path in (ROOT.parent / "docs").rglob("*.md")}
    assert sum(words.values()) <= MOST_WORDS, f"say once what two pages say: {words}"


def test_tests_are_no_longer_than_one_reads() -> None:
    lines = sum(path.read_bytes().count(b"\n") for path in (ROOT.parent / "tests").rglob("*.py"))
    print("lines of tests left:", MOST_LINES_OF_TESTS - lines)
    assert lines <= MOST_LINES_OF_TESTS, "let what two tests assert go out of one, and rows of one shape into a table"


def test_modules_are_few_and_shared() -> None:
    importers = Counter(target for name in modules() for target in imports(name))
    assert len(real()) <= MOST_MODULES
    assert sum(importers[name] == 1 for name in real()) <= MOST_WITH_ONE_IMPORTER


def test_no_two_files_and_no_two_public_classes_have_one_name() -> None:
    names = [name.rpartition(".")[2] for name in real() if not name.endswith("__main__")]
    for tree in modules().values():
        classes = (node.name for node in tree.body if isinstance(node, ast.ClassDef))
        names += [name for name in classes if not name.startswith("_")]
    twice = [name for name, number in Counter(names).items() if number > 1]
    assert twice == [], "two of the package have one name: rename yours"


def test_no_import_goes_in_a_circle() -> None:
    ready: set[str] = set()
    waiting = {name: imports(name) for name in real()}
    while free := [
        name for name, needed in waiting.items() if not {each for each in needed if each in waiting} - ready
    ]:
        ready.update(free)
        for name in free:
            del waiting[name]
    assert sorted(waiting) == []


def test_every_module_says_in_a_sentence_what_it_is() -> None:
    for name, tree in modules().items():
        first, _, _ = (ast.get_docstring(tree) or "").partition("\n\n")
        assert first.endswith((".", ":")), name


def test_what_contributors_read_names_what_exists() -> None:
    text = (ROOT.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.-]+/[\w/.-]*)(?::\w+)?`", text))
    absent = [path for path in named if not ((ROOT.parent / path).exists() or (ROOT / path).exists())]
    assert len(named) > 50 and [path for path in absent if "NAME" not in path] == []
    steps = re.findall(r"`([\w/]+\.py):(\w+)`", text)
    assert len(steps) > 20
    missing = [
        f"{path}:{name}"
        for path, name in steps
        if not (ROOT / path).exists() or not re.search(rf"^(?:def|class) {name}\b", (ROOT / path).read_text(), re.M)
    ]
    assert missing == []


# What the source may do

#: A list of words that starts an interpreter may begin with these: `-I` implies what `-P` does.
SAFE = ("-P", "-I", "-ISE")
#: What may write without ``own_files``, because it is no record: /proc, /dev, folders of its own.
ELSEWHERE = {
    "api/child.py",  # in a temporary folder of its own
    "api/rank_call.py",  # as the one before
    "agent/guard/guard.py",  # /proc/self/comm
    "records/own/output_file.py",  # a file that the user names, with checks of its own
    "agent/rank_site/ddplaunch_observer.py",  # in the rank, which has no ddplaunch; the folder is ours
    "agent/rank_site/ddplaunch_timeline.py",  # as the one before
    "prove/in_rank/recorder.py",  # in the rank; a temporary folder of the proof
    "prove/proof.py",  # makes that folder
    "cli/main.py",  # /dev/null
    "cli/commands/launch/init.py",  # files that the user asks for, of which none exists
    "cli/trials/trial_place.py",  # a folder in the user's cache
    "machine/scratch_tree.py",  # in the folders of one trial
    "cli/streams.py",  # the file that api/child.py has made
    "cli/hosts/serve.py",  # /dev/null
    "planning/current.py",  # in the rank; the folder is ours
    "records/gpu_lock.py",  # a folder of all users, with checks of its own
    "records/own/own_files.py",
    "records/user_key.py",  # the home directory, by O_EXCL and a link
    "cli/parsing/completion.py",  # in the home of whoever asks to install it
    "agent/rank_site/sitecustomize.py",  # in the rank; a new file, through no link
    "ui/terminal.py",  # /dev/null
}
MAKES = {"write_text", "write_bytes", "touch", "mkdir", "makedirs", "symlink_to", "symlink", "rmtree"}
FLAGS = ("O_CREAT", "O_WRONLY", "O_RDWR")


def writes(node: ast.AST) -> bool:
    """Whether a call makes a file or folder, or opens one to write, by its path."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in MAKES:
        return isinstance(node.func, ast.Attribute) and not any(each.arg == "dir_fd" for each in node.keywords)
    if name != "open":
        return False
    modes = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    opened = node.args[0] if node.args else None
    by_descriptor = isinstance(opened, ast.Call) or (isinstance(opened, ast.Name) and opened.id == "descriptor")
    return not by_descriptor and (
        any(re.fullmatch(r"[wax][bt+]*|r[bt]?\+[bt]?", mode) for mode in modes)
        or any(flag in ast.unparse(node) for flag in FLAGS)
    )


def test_nothing_else_writes_by_path() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path, walked in nodes().items()
        if "examples" not in path.parts and any(map(writes, walked))
    }
    assert found == ELSEWHERE


def interpreters() -> list[tuple[str, list[ast.expr]]]:
    """Return the elements of every list or tuple in the source that is a command line of Python."""
    found = []
    for path, walked in nodes().items():
        for node in walked:
            if isinstance(node, ast.List | ast.Tuple) and node.elts and isinstance(node.ctx, ast.Load):
                modules = [each for each in node.elts[1:] if isinstance(each, ast.Constant) and each.value == "-m"]
                first = node.elts[0]
                name = first.attr if isinstance(first, ast.Attribute) else getattr(first, "id", "")
                if modules or name in ("executable", "python"):
                    found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.elts))
    return found


# Command lines that are not started.
NO_START = {
    "agent/warm/why_cold.py": "what torchrun's own command line is compared with",
    "cli/commands/launch/doctor.py": "words behind --, with PYTHONSAFEPATH for the ranks",
    "checks/variables.py": "the text of a command behind --, for whoever typed it",
    "cli/prepare.py": "interpreter(): with -P where there is one",
    "planning/convert/launcher_line.py": "the text of a command, with the interpreter that stood in the line",
    "values/variable_names.py": "own_command",
}


def test_every_interpreter_in_the_source_is_started_safely() -> None:
    """A new start goes through ``own_command`` or ``interpreter()``, or begins with a flag of SAFE."""
    unsafe = []
    for place, words in interpreters():
        texts = [ast.unparse(word) for word in words]
        flags = [word.value for word in words[1:2] if isinstance(word, ast.Constant)]
        by_us = any(text.startswith(("*interpreter()", "*python")) for text in texts)
        if len(words) > 1 and not by_us and place.split(":")[0] not in NO_START and not {*flags} & {*SAFE}:
            unsafe.append(f"{place}: {', '.join(texts)}")
    assert unsafe == []
