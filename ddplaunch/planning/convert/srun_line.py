"""Translates a Slurm step with one task per rank into a step that starts ddplaunch once on each node."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ddplaunch.planning.convert.launch_words import (
    LauncherPlace,
    Word,
    attached,
    divided,
    in_arithmetic,
    known_word,
    option_of,
    starts_python,
)
from ddplaunch.planning.convert.launcher_options import PORT
from ddplaunch.planning.convert.translation import CannotSay, Note, Translation, rank_program

_SWITCHES = ("--exclusive", "--label", "-l", "--unbuffered", "-u", "--overlap", "--verbose", "-v", "-K", "-O", "-Z")
_SIZES = {
    "-N": "--nodes",
    "-n": "--ntasks",
    "-c": "--cpus-per-task",
    **{name: name for name in ("--nodes", "--ntasks", "--ntasks-per-node", "--cpus-per-task", "--gpus-per-task")},
    "--tasks-per-node": "--ntasks-per-node",
}
# A variable before a command, like `${SRUN_ARGS}`, whose name says that it holds options.
_OPTIONS_KEPT = re.compile(r"\"?\$\{?\w*(?:ARG|OPT|FLAG)S?(?:_\w*)?(?::-)?\}?\"?", re.IGNORECASE)
_OF_RANKS = Note("how the script finds its rank", "torchrun sets RANK and LOCAL_RANK; SLURM_PROCID is the node's")


def sizes_of_job(script: bytes) -> dict[str, Word]:
    """Return the sizes in the ``#SBATCH`` lines, which apply to every step that gives none itself.

    ``PORT`` is among them if the script names that variable, because the script may set it.

    https://slurm.schedmd.com/sbatch.html: these lines end at the first line that is neither a comment nor empty.
    """
    sizes = {PORT: known_word("0")} if PORT.encode() in script else {}
    for line in script.decode("utf-8", "replace").splitlines():
        if line.startswith("#SBATCH"):
            words = line.removeprefix("#SBATCH").split("#")[0].split()
            sizes.update(sizes_and_rest([Word(word, word) for word in words])[0])
        elif line.strip() and not line.startswith("#"):
            break
    return sizes


def sizes_and_rest(words: Sequence[Word]) -> tuple[dict[str, Word], list[Word], list[Word]]:
    """Return the sizes in options of srun or sbatch, the other options, and the words after the options."""
    sizes: dict[str, Word] = {}
    step_words: list[Word] = []
    at = 0
    while at < len(words):
        if _OPTIONS_KEPT.fullmatch(words[at].source) and at + 1 < len(words):
            step_words.append(words[at])
            at += 1
            continue
        if not (name := option_of(words[at])[0]):
            break
        value, word_count = option_of(words[at])[1], 1
        if value is None and not name.startswith("--") and len(name) > 2:
            name, value = name[:2], known_word(name[2:])
        if value is None and name not in _SWITCHES and "=" not in words[at].source and at + 1 < len(words):
            value, word_count = words[at + 1], 2
        if name in _SIZES and value is not None:
            sizes[_SIZES[name]] = value
        else:
            step_words += words[at : at + word_count]
        at += word_count
    return sizes, step_words, list(words[at:])


def step_of(words: Sequence[Word], place: LauncherPlace, job: Mapping[str, Word]) -> Translation | None:
    """Return ``srun --ntasks-per-node=1 … ddplaunch run K -- …`` for a step of K tasks per node.

    None if the line does not give the number of tasks, unless it runs Python and its ``job`` has several tasks per
    node: any other step may be anything.
    """
    sizes, step_words, rest = sizes_and_rest(words[place.options :])
    if not {"--ntasks", "--ntasks-per-node"} & sizes.keys():
        of_job = job.get("--ntasks-per-node")
        if of_job is None or of_job.text == "1" or not rest or not starts_python(rest[0]):
            return None
        job_sizes = {name: size for name, size in job.items() if name not in ("--ntasks", "--nodes")}
        sizes = {**job_sizes, **sizes}
    try:
        tasks, nodes = _tasks(sizes)
        if tasks is None or not rest:
            return None
        unknown = [_OF_RANKS]
        target = rank_program(rest, unknown)
        step = [*step_words, *([attached("--nodes=", nodes)] if nodes else []), known_word("--ntasks-per-node=1")]
        step.append(attached("--ntasks=", nodes) if nodes else Word('--ntasks="$SLURM_JOB_NUM_NODES"'))
        for option, of_node in (("--cpus-per-task", "--cpus-per-task"), ("--gpus-per-task", "--gpus-per-node")):
            if option in sizes:
                step.append(attached(f"{of_node}=", _times(sizes[option], tasks, option)))
    except CannotSay as cannot:
        return Translation("srun", place.start, unknown=(cannot.note,))
    command = [words[place.start], *step, known_word("ddplaunch"), known_word("run"), tasks, known_word("--"), *target]
    return Translation("srun", place.start, tuple(command), (), tuple(unknown))


def _tasks(sizes: dict[str, Word]) -> tuple[Word | None, Word | None]:
    """Return tasks per node, and nodes; None for each that is not known. Raises CannotSay."""
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
    """Return the total for all tasks of a node, from what ``one`` task gets. Raises CannotSay."""
    numbers = one.number(), tasks.number()
    if numbers[0] is not None and numbers[1] is not None:
        return known_word(str(numbers[0] * numbers[1]))
    sides = [in_arithmetic(word) for word in (one, tasks)]
    if None in sides:
        raise CannotSay(f"`{option}={one.source}`", "it is no number that the text of the line tells")
    return Word(f"$(({sides[0]} * {sides[1]}))")
