"""Options that no number is passed to: the script sets their value itself, or counts it in other units than samples."""

from __future__ import annotations

import ast
import re

from ddplaunch.script.flow import Flow
from ddplaunch.script.known import UNKNOWN
from ddplaunch.script.names import FunctionNodes, at, dotted, last, last_word, meaning_of, string
from ddplaunch.script.program import Program, is_main_guard
from ddplaunch.script.script_report import FRAMEWORKS, DeclaredOption, Meaning

# The variables that the result of parsing arguments goes by.
_NAMESPACES = frozenset({"args", "opt", "opts", "options", "hparams", "params", "FLAGS", "flags", "arguments"})
_NAMESPACES |= {"cfg", "config", "conf"}
#: Functions that take a batch size for training.
LOADERS = re.compile(r"(?i)loader|batchsampler|sampler$|^dataset$")
#: What says in which unit a batch is counted.
UNIT_NAME = re.compile(r"batch_(?:size_)?(?:type|unit)")
# Keys of DeepSpeed's configuration beside `train_batch_size`.
_DEEPSPEED = frozenset({"gradient_accumulation_steps", "zero_optimization", "fp16", "bf16", "steps_per_print"})
_TOKENS = re.compile(r"(?i)\btokens?\b")
_OTHER_UNITS = re.compile(r"max-(?:duration|tokens)|(?:train-)?batch-(?:duration|tokens|size-tokens)|tokens-per-\S+")
_OF_BATCH = ("batch_size", "global_batch_size")
_SAMPLES = re.compile(
    r"(?i)samples?|sentences?|sents?|examples?|sequences?|seqs?|utt(?:erance)?s?|static|(?:un)?sorted"
)


def without_effect(option: DeclaredOption, meaning: Meaning, flow: Flow) -> str:
    """Return why a value of the option changes nothing, as a clause; empty if it may.

    The script sets it under no condition, to a constant or other options; or it is an accumulation that no file names.
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
    if meaning == "accum" and option.parser == "argparse" and _is_named_nowhere(option.dest, flow.program):
        return f"nothing reads `{option.flags[0]}` ({option.at}); the effective batch is without it"
    return ""


def _is_named_nowhere(dest: str, program: Program) -> bool:
    """Return whether a program computes gradients by itself, and none of its files says the name of a value."""
    named = re.compile(rf"(?<![\w-]){re.escape(dest)}\b")

    def is_named() -> bool:
        return any(named.search(file.text) for file in program.files.values())

    own = any(".backward(" in file.text for file in program.files.values())
    trained = any(record.package in FRAMEWORKS for _, record in program.foreign)
    return own and not trained and not is_named() and program.whole() and not is_named()


def handed_to_deepspeed(flow: Flow) -> dict[str, str]:
    """Return the options that are DeepSpeed's ``train_batch_size``, the samples of an optimizer step, with the place.

    https://www.deepspeed.ai/docs/config-json/#batch-size-related-parameters
    """
    places = {}
    for part in flow.parts:
        for node in part.of(ast.Dict) if "train_batch_size" in part.source.text else ():
            assert isinstance(node, ast.Dict)
            items = {string(key): value for key, value in zip(node.keys, node.values, strict=True)}
            value = items.get("train_batch_size")
            made = flow.made_of(value, part) if value is not None and not _DEEPSPEED.isdisjoint(items) else ()
            if value is not None and len(made) == 1:
                places[next(iter(made))] = f"{at(value, part.source)} hands it to DeepSpeed as `train_batch_size`"
    return places


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
