"""What becomes of a launch line: the words in its place, what was dropped and what is unknown; a rank's command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ddplaunch.planning.convert.launch_words import (
    LauncherPlace,
    Word,
    attached,
    divided,
    in_arithmetic,
    is_python,
    known,
    option_of,
)
from ddplaunch.planning.convert.launcher_options import PROGRAMS, named_in
from ddplaunch.planning.script_numbers.handed_out import as_literal
from ddplaunch.values.frozen import dataclass

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True)
class Note:
    """One thing of a line that was left out, or that its text does not tell: ``what`` as it was typed, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Translation:
    """What became of a launch line: the ``words`` in its place, from the word ``start`` on.

    No words where it cannot be said at all; ``unknown`` says why then.
    """

    launcher: str
    start: int
    words: tuple[Word, ...] = ()
    dropped: tuple[Note, ...] = ()
    unknown: tuple[Note, ...] = ()

    @property
    def source(self) -> str:
        """The shell text of the words."""
        return " ".join(word.source for word in self.words)


#: Reads a file that is sourced; None for one that cannot be read.
ReadSourced = Callable[[str], "bytes | None"]


@dataclass(frozen=True)
class Sourcing:
    """How sourced files are read, and those within which the text at hand is sourced."""

    read: ReadSourced | None = None
    within: tuple[str, ...] = ()


@dataclass(frozen=True)
class Site:
    """A launch in a script: its line from 1, its text, the bytes that change and what stands there then.

    ``aside`` is True for a line that starts nothing itself, of which there is something to say.
    """

    line: int
    text: str
    said: Translation
    start: int = 0
    end: int = 0
    replacement: bytes = b""
    aside: bool = False


def walk(root: Node) -> Iterator[Node]:
    """Yield all nodes in the order of the text, without recursion: scripts may nest as deep as they like."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending += reversed(node.children)


def named(node: Node, field: str = "name") -> str:
    """Return the text of a part of a node, "" where it has none."""
    part = node.child_by_field_name(field)
    return (part.text or b"").decode("utf-8", "surrogateescape") if part is not None else ""


def plain_text(node: Node) -> str | None:
    """Return what a shell makes of a word without variables, None for any other."""
    kind, source = node.type, (node.text or b"").decode("utf-8", "surrogateescape")
    if kind in ("word", "number", "variable_assignment") and not set(source) & set("$`'\"*?[~"):
        return source.replace("\\\n", "").replace("\\", "")
    if kind == "raw_string" or (kind == "string" and not set(source[1:-1]) & set("$`\\")):
        return source[1:-1]
    if kind == "concatenation":
        parts = [plain_text(child) for child in node.children]
        return None if None in parts else "".join(filter(None, parts))
    return None


def incomplete(root: Node) -> Iterator[Site]:
    """Yield the first lines of a script that are no whole commands to the grammar, which knows less than bash."""
    text = (root.text or b"").rstrip()
    over = len(text.rstrip(b"\\ \t\r\n")) if text.endswith(b"\\") else len(text) + 1  # there bash ends a command
    for node in walk(root) if root.has_error else ():
        if node.start_byte >= over:
            return
        if node.is_missing or (node.type == "ERROR" and not any(child.has_error for child in node.children)):
            lines, end = (each.end_point[0] + (each.end_point[1] > 0) for each in (root, node))
            first = min(node.start_point[0] + 1, lines)
            what = f"what line {first} means" if end <= first else f"what lines {first} to {end} mean"
            why = "no complete command for the grammar that scripts are read with; `bash -n` says whether it is one"
            yield Site(first, "", Translation("", 0, unknown=(Note(what, why),)), aside=True)
            return


_OTHERS = re.compile(r"(.*/)?(python|perl|ruby|node|julia|Rscript)[\d.]*")


def of_interpreter(body: Node) -> bool:
    """Whether a here-document is what an interpreter other than a shell reads."""
    statement = body.parent.parent if body.parent is not None else None
    command = statement.child_by_field_name("body") if statement is not None else None
    return command is not None and _OTHERS.fullmatch(named(command)) is not None


_BETWEEN = re.compile(rb"[\s\"'(),\[\]]+")
_PROGRAMS = frozenset(name.encode() for name in (*PROGRAMS, "accelerate"))


def lines_naming(text: bytes) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text that name a launcher, with their numbers from 0."""
    for number, line in enumerate(text.splitlines() if named_in(text) else ()):
        words = _BETWEEN.split(line.partition(b"#")[0])
        if any(word.rpartition(b"/")[2] in _PROGRAMS or word.startswith(b"torch.distributed.") for word in words):
            yield number, line.strip().decode("utf-8", "replace")


def changed(data: bytes, sites: Sequence[Site]) -> bytes:
    """Return the script with every launch replaced."""
    parts, at = [], 0
    for site in sorted((each for each in sites if each.replacement), key=lambda each: each.start):
        parts += [data[at : site.start], site.replacement]
        at = site.end
    return b"".join([*parts, data[at:]])


class CannotSay(Exception):
    """A line has no equivalent, or its text does not tell which one."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what)
        self.note = Note(what, why)


# What a shell inside of a task would look up: one task is one rank there, and a whole node with torchrun.
_OF_TASKS = re.compile(
    r"\$\{?(?:SLURM_(?:PROCID|LOCALID|NODEID|NTASKS|TASK_PID)|OMPI_COMM_WORLD_\w+|PMI_\w+|PMIX_RANK|MPI_LOCAL\w+|HOROVOD_(?:LOCAL_|CROSS_)?(?:RANK|SIZE))\}?"
)
_ESCAPED = re.compile(rf"(?<=\\){_OF_TASKS.pattern}")
_NO_SYNTAX = re.compile(r"[\w./=:,@%+ -]+")


def _unwrapped(command: list[Word]) -> list[Word]:
    """Return ``python train.py`` for ``bash -c "python train.py"``, whose text has nothing that a shell reads."""
    if len(command) != 3 or command[0].name not in ("bash", "sh", "dash") or command[1].text != "-c":
        return command
    inner = [known(word) for word in (command[2].text or "").split()]
    plain_text = _NO_SYNTAX.fullmatch(command[2].text or "") is not None
    return inner if plain_text and inner and is_python(inner[0]) else command


def of_ranks(command: Sequence[Word], unknown: list[Note]) -> list[Word]:
    """Return what stands behind ``--`` for the program of a rank, ``python train.py``."""
    rest = _unwrapped([literal(word) for word in command])
    for word in rest:
        named = _OF_TASKS.search(word.text or "") or (word.text is None and _ESCAPED.search(word.source))
        if named:
            why = (
                "a rank of torchrun has its node's, or none: write `$RANK`, `$LOCAL_RANK` or `$WORLD_SIZE` there first"
            )
            raise CannotSay(f"`{named[0]}`", why)
    if not rest or not is_python(rest[0]):
        direct = bool(rest) and (rest[0].text or "").endswith(".py")
        return [*([known("env")] if direct else []), *rest]
    behind = rest[1:]
    while behind and behind[0].text == "-u":  # torchrun's ranks get it
        del behind[0]
    if not behind or rest[0].text not in ("python", "python3") or (behind[0].text or "").startswith("-"):
        return behind if behind and behind[0].text == "-m" and rest[0].text in ("python", "python3") else rest
    if behind[0].value is None:
        unknown.append(unsure(behind[0]))
        return behind
    return behind if behind[0].value.endswith(".py") else rest


#: What the text of a line of MPI does not tell.
OF_MPI = Note(
    "how the script finds its rank",
    "torchrun sets RANK, LOCAL_RANK and WORLD_SIZE, not OMPI_COMM_WORLD_RANK, PMI_RANK or Horovod's",
)


_CONTAINERS = ("docker", "podman", "singularity", "apptainer", "enroot", "kubectl")


def of_container(before: Sequence[Word]) -> list[Note]:
    """Return what is to be said of a launch behind the words ``before``, where these start or enter a container."""
    inside = any(word.name in _CONTAINERS or option_of(word)[0].startswith("--container-") for word in before)
    why = "it runs in a container, whose image or environment may not have it: `pip install ddplaunch` there"
    return [Note("whether ddplaunch is installed", why)] if inside else []


def unsure(word: Word) -> Note:
    """Return what is not known of a script that stands in a variable."""
    why = "a script whose name does not end in .py needs `python` in front, behind `--`"
    return Note(f"what `{word.source}` holds", why)


def literal(word: Word) -> Word:
    """Return an argument so that ddplaunch finds no placeholder in it."""
    source = as_literal(word.source)
    return word if source == word.source else Word(source, None if word.text is None else as_literal(word.text))


# A step of Slurm that starts one task per rank, as one that starts ddplaunch on each node

_SWITCHES = ("--exclusive", "--label", "-l", "--unbuffered", "-u", "--overlap", "--verbose", "-v", "-K", "-O", "-Z")
_SIZES = {
    "-N": "--nodes",
    "-n": "--ntasks",
    "-c": "--cpus-per-task",
    **{name: name for name in ("--nodes", "--ntasks", "--ntasks-per-node", "--cpus-per-task", "--gpus-per-task")},
    "--tasks-per-node": "--ntasks-per-node",
}


# A variable in front of a command, as `${SRUN_ARGS}`: by its name it holds options.
_OPTIONS_KEPT = re.compile(r"\"?\$\{?\w*(?:ARG|OPT|FLAG)S?(?:_\w*)?(?::-)?\}?\"?", re.IGNORECASE)


def sizes_of_job(script: bytes) -> dict[str, Word]:
    """Return the sizes that ``#SBATCH`` lines say, which are those of every step that says none itself.

    https://slurm.schedmd.com/sbatch.html: they end at the first line that is neither a comment nor empty.
    """
    sizes: dict[str, Word] = {}
    for line in script.decode("utf-8", "replace").splitlines():
        if line.startswith("#SBATCH"):
            words = line.removeprefix("#SBATCH").split("#")[0].split()
            sizes.update(sizes_and_rest([Word(word, word) for word in words])[0])
        elif line.strip() and not line.startswith("#"):
            break
    return sizes


def sizes_and_rest(words: Sequence[Word]) -> tuple[dict[str, Word], list[Word], list[Word]]:
    """Return the sizes that options of srun or sbatch say, the other options, and the words behind the options."""
    sizes: dict[str, Word] = {}
    kept: list[Word] = []
    at = 0
    while at < len(words):
        if _OPTIONS_KEPT.fullmatch(words[at].source) and at + 1 < len(words):
            kept.append(words[at])
            at += 1
            continue
        if not (name := option_of(words[at])[0]):
            break
        value, taken = option_of(words[at])[1], 1
        if value is None and not name.startswith("--") and len(name) > 2:
            name, value = name[:2], known(name[2:])
        if value is None and name not in _SWITCHES and "=" not in words[at].source and at + 1 < len(words):
            value, taken = words[at + 1], 2
        if name in _SIZES and value is not None:
            sizes[_SIZES[name]] = value
        else:
            kept += words[at : at + taken]
        at += taken
    return sizes, kept, list(words[at:])


def step_of(words: Sequence[Word], place: LauncherPlace, job: Mapping[str, Word]) -> Translation | None:
    """Return ``srun --ntasks-per-node=1 … ddplaunch run K -- …`` for a step of K tasks a node.

    None where neither the line nor, for a program of Python, its ``job`` says that there are several: a step may be
    anything.
    """
    sizes, kept, rest = sizes_and_rest(words[place.options :])
    if not {"--ntasks", "--ntasks-per-node"} & sizes.keys():
        of_job = job.get("--ntasks-per-node")
        if of_job is None or of_job.text == "1" or not rest or not is_python(rest[0]):
            return None
        own = {name: size for name, size in job.items() if name not in ("--ntasks", "--nodes")}
        sizes = {**own, **sizes}
    try:
        tasks, nodes = _tasks(sizes)
        if tasks is None or not rest:
            return None
        unknown = [
            Note("how the script finds its rank", "torchrun sets RANK and LOCAL_RANK; SLURM_PROCID is the node's")
        ]
        target = of_ranks(rest, unknown)
        step = [*kept, *([attached("--nodes=", nodes)] if nodes else []), known("--ntasks-per-node=1")]
        step.append(attached("--ntasks=", nodes) if nodes else Word('--ntasks="$SLURM_JOB_NUM_NODES"'))
        for option, of_node in (("--cpus-per-task", "--cpus-per-task"), ("--gpus-per-task", "--gpus-per-node")):
            if option in sizes:
                step.append(attached(f"{of_node}=", _times(sizes[option], tasks, option)))
    except CannotSay as cannot:
        return Translation("srun", place.start, unknown=(cannot.note,))
    said = [words[place.start], *step, known("ddplaunch"), known("run"), tasks, known("--"), *target]
    return Translation("srun", place.start, tuple(said), (), tuple(unknown))


def _tasks(sizes: dict[str, Word]) -> tuple[Word | None, Word | None]:
    """Return tasks per node and nodes. Raises CannotSay."""
    nodes, total, of_node = (sizes.get(name) for name in ("--nodes", "--ntasks", "--ntasks-per-node"))
    if of_node is not None:
        return of_node, nodes or (divided(total, of_node) if total is not None else None)
    if total is None:
        return None, nodes
    tasks = divided(total, nodes) if nodes is not None else None
    if tasks is None:
        raise CannotSay(f"`--ntasks={total.source}`", "how many tasks each node gets is not said")
    return tasks, nodes


def _times(one: Word, tasks: Word, option: str) -> Word:
    """Return what all tasks of a node get together. Raises CannotSay."""
    numbers = one.number(), tasks.number()
    if numbers[0] is not None and numbers[1] is not None:
        return known(str(numbers[0] * numbers[1]))
    sides = [in_arithmetic(word) for word in (one, tasks)]
    if None in sides:
        raise CannotSay(f"`{option}={one.source}`", "it is no number that the text of the line tells")
    return Word(f"$(({sides[0]} * {sides[1]}))")
