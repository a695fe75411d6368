"""Options that no number is passed to: the script sets their value itself, or counts it in other units than samples."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence

from ddplaunch.script.flow import LOADERS, SCHEDULES, Flow, Use
from ddplaunch.script.known import UNKNOWN
from ddplaunch.script.names import FunctionNodes, at, dotted, last, last_word, meaning_of, string
from ddplaunch.script.program import is_main_guard
from ddplaunch.script.script_report import WORLD, DeclaredOption

# The variables that the result of parsing arguments goes by.
_NAMESPACES = frozenset({"args", "opt", "opts", "options", "hparams", "params", "FLAGS", "flags", "arguments"})
_NAMESPACES |= {"cfg", "config", "conf"}
#: What says in which unit a batch is counted.
UNIT_NAME = re.compile(r"batch_(?:size_)?(?:type|unit)")
_TOKENS = re.compile(r"(?i)\btokens?\b")
_OTHER_UNITS = re.compile(r"max-(?:duration|tokens)|(?:train-)?batch-(?:duration|tokens|size-tokens)|tokens-per-\S+")
_OF_BATCH = ("batch_size", "global_batch_size")
_SAMPLES = re.compile(
    r"(?i)samples?|sentences?|sents?|examples?|sequences?|seqs?|utt(?:erance)?s?|static|(?:un)?sorted"
)


def without_effect(option: DeclaredOption, flow: Flow) -> str:
    """Return why a value of the option changes nothing, as a clause; empty if it may.

    The script sets it under no condition, to a constant or other options.
    """
    for value, part in flow.assigned(option.dest):
        statement = part.source.parents.get(value)
        others = flow.made_of(value, part)
        if not isinstance(statement, ast.Assign) or not (_is_number(value) or (others and option.dest not in others)):
            continue
        target, around = statement.targets[0], part.source.parents.get(statement)
        owners = {dotted(target, {}).partition(".")[0], last(getattr(target, "value", None))}
        plain = isinstance(around, (ast.Module, *FunctionNodes)) or (around is not None and is_main_guard(around))
        if owners & _NAMESPACES and plain and option.parser != "yacs":
            return f"{at(statement, part.source)} sets `{option.dest}` to {ast.unparse(value)} itself"
    return ""


# Libraries that take these keys of their configuration without the script's help.
_CONFIGURED = frozenset({"mmengine", "yacs"})
_OF_LIBRARY = re.compile(r"(?i)(?:Arguments|Config) |^dict .*batch")


def doubt_of(option: DeclaredOption, uses: Sequence[Use], flow: Flow, others: Collection[str]) -> str:
    """Return why what is passed for a number may not be what trains, as a clause; empty where it was followed.

    ``uses`` are those of the option, ``others`` what a batch may be divided by.
    """
    flag = option.flags[0]
    if option.kind == "Trainer":
        return ""
    if option.parser in ("argparse", "click"):
        if any(option.kind in part.source.definitions for part in flow.parts):
            return f"`{option.kind}` makes its value of what `{flag}` gets ({option.at})"
        overwritten = _overwritten(flow)
        if overwritten:
            return f"{overwritten} may overwrite `{flag}`"
    if not flow.is_read(option) and option.parser not in _CONFIGURED:
        return f"nothing that runs was seen to read `{flag}` ({option.at})"
    if option.meaning == "warmup_steps":
        return _doubt_of_warmup(option, uses, flow)
    if option.meaning is None or not option.meaning.endswith("batch_size"):
        return ""
    handed = [
        use for use in uses if use.runs and (LOADERS.search(use.sink) or _OF_LIBRARY.search(f"{use.sink} {use.name}"))
    ]
    whole = [use for use in handed if {*dict(use.product.powers)} <= {*others} and use.product.constant == 1]
    if whole or option.parser in _CONFIGURED:
        return ""
    return f"{handed[0].at} makes another number of it" if handed else f"no DataLoader was seen to get `{flag}`"


def _overwritten(flow: Flow) -> str:
    """Return where all options may get other values after they were parsed, empty for nowhere."""
    for part in flow.parts:
        for call in part.calls_of("update", "setattr"):
            owner = call.func.value if isinstance(call.func, ast.Attribute) else next(iter(call.args), call)
            text = ast.unparse(owner)
            name = text.removeprefix("vars(").removesuffix(")").removesuffix(".__dict__")
            every = name != text if last(call.func) == "update" else string(next(iter(call.args[1:]), None)) is None
            fills = any("None" in ast.unparse(test) for test, _ in flow.known.conditions(call, part))
            if every and name in _NAMESPACES and not fills and flow.known.runs(call, part):
                return str(at(call, part.source))
    return ""


def _doubt_of_warmup(option: DeclaredOption, uses: Sequence[Use], flow: Flow) -> str:
    """Return why a schedule does not count the warmup in optimizer steps, or ignores it; accelerate's step per rank."""
    per_rank = any(record.package == "accelerate" for _, record in flow.program.foreign)
    for use in uses:
        if use.runs and SCHEDULES.search(use.sink):
            if use.first == "constant":
                return f"{use.at} makes the schedule `constant`, which has no warmup"
            factors = [item for item in use.product.powers if item[0] != option.dest]
            if use.product.constant != 1 or factors != [(WORLD, 1.0)] * per_rank:
                return f"{use.at} gives the schedule another number of steps"
    return ""


def counted_in(option: DeclaredOption, flow: Flow, is_batch: bool) -> str:
    """Return what an option counts instead of samples, as a clause; empty if nothing says so."""
    name, flag = last_word(option.flags[0]), option.flags[0]
    if _OTHER_UNITS.fullmatch(name) or (meaning_of(name) in _OF_BATCH and _TOKENS.search(option.help)):
        unit = "tokens" if _TOKENS.search(f"{option.help} {name}") else "seconds"
        return f"`{flag}` counts {unit} instead of samples ({option.at})"
    for part in flow.parts if is_batch else ():
        for node in part.of(ast.Attribute, ast.Constant, ast.keyword) if UNIT_NAME.search(part.source.text) else ():
            word = node.arg if isinstance(node, ast.keyword) else string(node) or last(node)
            value = flow.known.option(word) if word is not None and UNIT_NAME.fullmatch(word) else "samples"
            if not (isinstance(value, str) and _SAMPLES.fullmatch(value)):
                unit = f"`{word}`" if value in (UNKNOWN, None) else f"`{word}`, {value},"
                return f"`{flag}` counts what {unit} says"
    return ""


def _is_number(node: ast.AST | None) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
