"""Apps of TorchX, a line of ``torchx run`` or a component in Python, as the line of torchrun that its replicas run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from ddplaunch.planning.convert.launch_words import Word, known, option_of
from ddplaunch.planning.convert.translation import CannotSay, Note
from ddplaunch.values.frozen import dataclass

_ALONE = ("--dryrun", "--wait", "--log", "--tee_logs", "--stdin")
_SCHEDULERS = ("local", "local_cwd", "local_docker")
_SIZE = re.compile(r"(?:(?P<nodes>\d+(?::\d+)?)x)?(?P<nproc>\d+)\Z")
_RESOURCES = ("cpu", "gpu", "memMB", "h", "image", "name", "mounts", "tee", "rdzv_backend", "metadata")


@dataclass(frozen=True)
class App:
    """What one app runs: the words behind ``torchrun``, its variables, and what was left out or is not known."""

    words: tuple[Word, ...]
    env: Mapping[str, Word]
    dropped: tuple[Note, ...] = ()
    unknown: tuple[Note, ...] = ()


def app_of(words: Sequence[Word]) -> App:
    """Return the app of what stands behind ``torchx run``. Raises CannotSay.

    https://docs.pytorch.org/torchx/latest/components/distributed.html
    """
    dropped: list[Note] = []
    unknown: list[Note] = []
    at = 0
    while at < len(words) and (name := option_of(words[at])[0]):
        value, taken = option_of(words[at])[1], 1
        if value is None and name not in _ALONE and at + 1 < len(words):
            value, taken = words[at + 1], 2
        if name in ("-s", "--scheduler") and value is not None and value.text not in _SCHEDULERS:
            unknown.append(Note(f"`{name} {value.source}`", "`ddplaunch submit` writes a job of Slurm or Kubernetes"))
        else:
            dropped.append(Note(f"`{' '.join(word.source for word in words[at : at + taken])}`", "it is TorchX's own"))
        at += taken
    if at >= len(words):
        raise CannotSay("`torchx run` without a component", "the line starts nothing")
    if words[at].text not in ("dist.ddp", "dist.spmd"):
        raise CannotSay(
            f"`{words[at].source}`", "the component is a program of Python: convert its file, or `dist.ddp`"
        )
    given, rest = _given(words[at + 1 :])
    return _ddp(given, rest, words[at].text == "dist.ddp", dropped, unknown)


def _given(words: Sequence[Word]) -> tuple[dict[str, Word], list[Word]]:
    """Return the arguments of a component by name, and the script's own."""
    given: dict[str, Word] = {}
    at = 0
    while at < len(words) and words[at].text != "--":
        name, value = option_of(words[at])
        if not name:
            break
        if value is None:
            if at + 1 >= len(words):
                raise CannotSay(f"`{name}`", "a value is missing behind it")
            at, value = at + 1, words[at + 1]
        given[name.lstrip("-")] = value
        at += 1
    return given, list(words[at + 1 if at < len(words) and words[at].text == "--" else at :])


def _ddp(
    given: Mapping[str, Word], rest: Sequence[Word], by_default: bool, dropped: list[Note], unknown: list[Note]
) -> App:
    size = given.get("j", known("1x2" if by_default else ""))
    match = _SIZE.match(size.text or "")
    if match is None or (match["nodes"] is None and not by_default):
        raise CannotSay(f"`-j {size.source}`", "it is not NODESxPROCESSES")
    words = [known(f"--nproc_per_node={match['nproc']}")]
    if match["nodes"] not in (None, "1"):
        words.append(known(f"--nnodes={match['nodes']}"))
    if "max_retries" in given:
        words += [known("--max_restarts"), given["max_retries"]]
    for name in given.keys() & set(_RESOURCES):
        dropped.append(Note(f"`{name} {given[name].source}`", "it is what the scheduler of TorchX is asked for"))
    strange = given.keys() - {"j", "max_retries", "script", "m", "env", "rdzv_port", "rdzv_conf", "debug", *_RESOURCES}
    if strange:
        raise CannotSay(f"`{min(strange)}`", "it is no argument of dist.ddp that ddplaunch knows")
    if "m" in given:
        target = [known("-m"), given["m"]]
    elif "script" in given:
        target = [given["script"]]
    else:
        raise CannotSay("`dist.ddp` without `--script` or `-m`", "the app starts nothing")
    return App((*words, *target, *rest), dict(_variables(given.get("env"))), tuple(dropped), tuple(unknown))


def _variables(word: Word | None) -> Iterator[tuple[str, Word]]:
    """Yield the variables of ``A=1,B=2``; a part without a name belongs to the value before it."""
    if word is None:
        return
    if word.text is None:
        raise CannotSay(f"`--env {word.source}`", "which variables it sets is not said")
    pairs: list[list[str]] = []
    for part in re.split("[,;]", word.text):
        name, equals, value = part.partition("=")
        if equals:
            pairs.append([name, value])
        elif pairs:
            pairs[-1][1] += f",{part}"
    yield from ((name, known(value)) for name, value in pairs)


def line_of_component(text: str) -> list[Word] | None:
    """Return the ``torchx run dist.ddp …`` that a component in Python makes, None for a file without one.

    Raises CannotSay for a component whose values are no literals.
    """
    if "torchx" not in text:
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("ddp", "spmd"):
                return [*map(known, ("torchx", "run", f"dist.{name}")), *_of_call(node)]
            if name == "Role":
                return _of_role(node)
    return None


def _literal(node: ast.expr, name: str) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        why = "the component makes it when it runs"
        raise CannotSay(f"line {node.lineno}: `{name}={ast.unparse(node)}`", why) from None


def _of_call(call: ast.Call) -> Iterator[Word]:
    rest = [str(_literal(each, "script_args")) for each in call.args]
    for item in call.keywords:
        if item.arg is None:
            raise CannotSay(f"line {call.lineno}: `**{ast.unparse(item.value)}`", "the component makes it when it runs")
        if item.arg in _RESOURCES:
            continue  # often made when it runs, and the scheduler's
        value = _literal(item.value, item.arg)
        if isinstance(value, dict):
            value = ",".join(f"{name}={each}" for name, each in value.items())
        if value is not None:
            yield known(f"--{item.arg}={value}")
    yield from map(known, ["--", *rest])


def _of_role(call: ast.Call) -> list[Word] | None:
    given = {item.arg: item.value for item in call.keywords if item.arg}
    if "entrypoint" not in given:
        return None
    values = _literal(given["args"], "args") if "args" in given else []
    entry = _literal(given["entrypoint"], "entrypoint")
    return [known(str(entry)), *(known(str(each)) for each in values)] if isinstance(values, (list, tuple)) else None
