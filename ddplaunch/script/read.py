"""Reads a training script and the local modules that it imports into a report, without importing or running them."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from ddplaunch.script.configuration.config_files import ENDINGS
from ddplaunch.script.configuration.overrides import configuration
from ddplaunch.script.declared import as_one_word, given
from ddplaunch.script.doubts import not_one_pass, past_wrapper
from ddplaunch.script.flow import PLACES, Flow, places_of
from ddplaunch.script.known import UNKNOWN, known_value
from ddplaunch.script.meaning import candidate, understood
from ddplaunch.script.mistake_rules import mistakes_of
from ddplaunch.script.names import ImportRecord, at, dotted, last, last_word, meaning_of, string
from ddplaunch.script.options.calls import argparse_options, has_positional
from ddplaunch.script.options.commands import click_options
from ddplaunch.script.options.fields import configured_options
from ddplaunch.script.process_groups import (
    Outside,
    current_numbers,
    device_from_option,
    devices_of,
    ranks_of,
)
from ddplaunch.script.program import Program, follow, show
from ddplaunch.script.reachable import ReachablePart, calls_in, environment_names, reachable_parts
from ddplaunch.script.script_report import (
    FRAMEWORKS,
    GROUP_NOT_FOLLOWED,
    KNOWN_PACKAGES,
    NO_GROUP,
    OWN_WAYS,
    DeclaredAt,
    DeclaredOption,
    Instead,
    ScriptReport,
)
from ddplaunch.script.source import ParsedFile, SyntaxProblem, parse, read_text

_LOCAL_RANK = frozenset({"--local-rank", "--local_rank"})
# Calls that declare options, or set up a process group, in ways that the source does not show.
_CALLS = "exec runpy.run_path runpy.run_module hydra.main deepspeed.add_config_arguments"
_METHODS = """
    parse_known_args parse_known_intermixed_args from_cli LightningCLI add_argparse_args gen_parser_from_dataclass
    ConfigManager apply_overrides HParams DEFINE_integer DEFINE_float
"""
_DYNAMIC_CALLS, _DYNAMIC_METHODS = _CALLS.split(), _METHODS.split()
_DYNAMIC = (*(name.rpartition(".")[2] for name in _DYNAMIC_CALLS), *_DYNAMIC_METHODS)
# The script's own name, or the words that a parser would read anyway.
_HANDED_ON = re.compile(r"argv\[0\]|\b(?:parse_args\w*|run|cli|main)\(.*argv\[1:\]")


def read_script(path: Path, cwd: Path, search: Sequence[Path] = (), args: Sequence[str] = ()) -> ScriptReport:
    """Return the report about the script at ``path``; never raises.

    ``args`` are its arguments, which decide conditions in it.

    ``search`` are the entries of ``sys.path``, of which only those below ``cwd`` are followed. ``complete`` is False if
    some part cannot be read.
    """
    shown = show(path, cwd)
    text = read_text(path)
    if text is None:
        return ScriptReport(shown, complete=False)
    parsed = parse(path, shown, text.text)
    if text.problem is not None and path.suffix == ".py":
        line = parsed.line if isinstance(parsed, SyntaxProblem) else 1
        return ScriptReport(shown, syntax_error=f"{shown}:{line}: {text.problem}", complete=False)
    if isinstance(parsed, SyntaxProblem):
        refused = parsed.refused and text.problem is None
        message = f"{shown}:{parsed.line}: {parsed.message}" if refused else None
        return ScriptReport(shown, syntax_error=message, complete=False)
    collects = gc.isenabled()
    gc.disable()  # trees are many objects in no circles; looking through them for some costs a third of the time
    try:
        return _report(follow(parsed, cwd, search), parsed, cwd, args)
    except (RecursionError, OSError):  # names nested too deep to follow, a directory that may not be entered
        return ScriptReport(shown, complete=False)
    finally:
        if collects:
            gc.enable()


def _report(program: Program, script: ParsedFile, cwd: Path, args: Sequence[str]) -> ScriptReport:
    parts = reachable_parts(program)
    found = [option for part in parts for option in _declared(program, part)]
    alone = _read_alone(parts, args)
    known = dict.fromkeys(each for each in found if each and not (alone and each.parser == "transformers"))
    declared = tuple(as_one_word(known, args, has_positional(parts) and any(calls_in(parts, "parse_known_args"))))
    flow = Flow(program, parts)
    config = configuration(flow, program, declared, args, cwd)
    options = (*(config.unknown or declared), *config.options)
    flow.forget(config.settled)
    values = {**dict(config.facts), **_known_values(options, args, parts)}
    flow.use_conditions(options, values)
    local = next((option for option in options if _LOCAL_RANK & set(option.flags)), None)
    outside = Outside(flow)
    reads_env = tuple(dict.fromkeys(name for part in parts for name in environment_names(part)))
    ranks = ranks_of(outside, (*options, *config.switches), reads_env)
    switched = not _LOCAL_RANK.isdisjoint(ranks.switches)
    if local and switched:  # a finding has the command with each rank's own, and with these numbers
        flow.use_conditions(options, values | {local.dest: UNKNOWN})
    numbers = understood(options, flow)
    decided = {option.meaning for option in numbers.options} | {instead.meaning for instead in numbers.instead}
    accumulated = () if "accum" in decided else tuple(islice(_accumulation_in(flow, args, cwd), 1))
    unknown = list(_unknown_imports(program))
    frameworks = FRAMEWORKS.intersection(record.package for _, record in program.foreign)
    own_group = any("init_process_group" in file.text for file in program.files.values())
    dynamic = [place for part in parts for place in _dynamic(part)]
    dynamic += [place for place, record in unknown if record.package in OWN_WAYS]
    loads = any(
        not (call.args and string(call.args[0])) for call, _ in calls_in(parts, "import_module", "__import__", "system")
    )
    mistakes = () if outside.spawns or switched else tuple(mistakes_of(outside))
    devices = list(devices_of(outside))
    needed = tuple(outside.needed_variables())
    of_another = any(re.match("SLURM_|OMPI_", name) for name, _ in needed)
    apart = _apart(
        ranks.joined and not of_another,
        None if switched else ranks.off,
        [each.at for each in devices if not each.number],
        frameworks or own_group,
    )
    passes = "" if "accum" in decided or accumulated else not_one_pass(flow)
    doubts = [("world_size", apart or past_wrapper(flow)), ("accum", passes)]
    doubts += [(name, alone) for name in ("batch_size", "lr", "warmup_steps")]
    return ScriptReport(
        path=script.shown,
        options=numbers.options,
        spawns=ranks.spawns,
        spawns_alone=ranks.alone,
        switched_off=ranks.off,
        switches=ranks.switches,
        demands_local_rank=local.at if local and local.required and local.default is None else None,
        takes_local_rank=None
        if local is None or switched or (frameworks - {"deepspeed"} and not own_group)
        else device_from_option(flow, local),
        early=next(_named_early(program), ""),
        reads_env=reads_env,
        needs_env=needed,
        asks_for=current_numbers(flow),
        ambiguous=numbers.ambiguous,
        instead=(*numbers.instead, *accumulated),
        by_file=alone,
        doubts=tuple(each for each in doubts if each[1]),
        devices=next((each for each in devices if each.number and ranks.joined), None),
        configs=config.files,
        complete=program.complete and not (None in found or config.unknown or dynamic or unknown or loads),
        unread=next(iter(dynamic), None),
        code=program.digests(),
        mistakes=mistakes,
    )


# A key of a configuration with another value than 1.
_KEY = re.compile(r"[\s\"'{-]*([\w.-]+)[\"']?\s*[:=](?!\s*[\"']?(?:1|None|null|true|false|auto)\b)", re.IGNORECASE)


def _apart(joined: bool, off: DeclaredAt | None, devices: Sequence[DeclaredAt], named: object) -> str:
    """Return why the ranks of a launch may not train together, as a clause; empty if a group of theirs was followed.

    ``named``: the source names a process group or a framework that sets one up.
    """
    if off:
        return f"each rank trains alone ({off})"
    if devices:
        return f"{devices[0]} may decide how many devices train"
    return "" if joined else GROUP_NOT_FOLLOWED if named else NO_GROUP


def _read_alone(parts: Sequence[ReachablePart], args: Sequence[str]) -> str:
    """Return where a parser of Hugging Face's reads a file, and no option, as a clause; empty if nowhere."""
    for call, part in calls_in(parts, "parse_json_file", "parse_yaml_file", "parse_dict"):
        beside = len(args) > 1 and "argv) == 2" in part.source.text
        if "parse_args_" not in part.source.text or (args and args[0].endswith(ENDINGS) and not beside):
            return f"only a file is read ({at(call, part.source)})"
    return ""


def _accumulation_in(flow: Flow, args: Sequence[str], cwd: Path) -> Iterator[Instead]:
    """Yield what gives an accumulation of the script's own: files in its arguments, and code that can run."""
    named = [cwd / arg.rpartition("=")[2] for arg in args if arg.endswith((*ENDINGS, ".toml", ".py"))]
    for path in named:
        text = read_text(path)
        for number, line in enumerate(text.text.splitlines() if text else (), 1):
            key = _KEY.match(line)
            if key is not None and meaning_of(last_word(key[1])) == "accum":
                yield Instead("accum", f"{DeclaredAt(show(path, cwd), number)} may decide the accumulation")
    for part in flow.parts:
        for node in part.of(*PLACES):
            for name, _, value in places_of(node):
                one = isinstance(value, ast.Constant) and value.value in (1, None, "auto")
                if not one and meaning_of(last_word(name)) == "accum" and flow.known.runs(node, part):
                    yield Instead("accum", f"{at(node, part.source)} may decide the accumulation")


def _known_values(
    options: Sequence[DeclaredOption], args: Sequence[str], parts: Sequence[ReachablePart]
) -> dict[str, object]:
    """Return the values that options will have, as far as they show: what is passed, or a literal default.

    An option that a number of the plan may be passed to, and that has no number by default or an accumulation of 1, can
    have any value.
    """
    values: dict[str, object] = {}
    passed: set[str] = set()
    for option in options:
        words = given(args, option, options)
        if words or (option.dest not in values and not option.computed):  # of one destination the first default holds
            values[option.dest] = known_value(option.default, words, option.takes_value)
        passed.update({option.dest} if words else ())
    for item in (each for call, _ in calls_in(parts, "set_defaults") for each in call.keywords):
        if item.arg in values and item.arg not in passed:
            values[item.arg] = item.value.value if isinstance(item.value, ast.Constant) else UNKNOWN
    for option in options:
        value, meaning = values.get(option.dest), candidate(option)
        empty = value is None or (isinstance(value, (int, float)) and value <= (meaning == "accum"))
        if empty and option.dest not in passed and meaning is not None:
            values[option.dest] = UNKNOWN
    return values


def _declared(program: Program, part: ReachablePart) -> Iterator[DeclaredOption | None]:
    # an imported file that is a program too has a parser of its own, which reads nothing in this launch
    idle = part.source is not program.root.source and ".parse_args(" in part.source.text
    yield from argparse_options(part, idle=idle and not part.calls_of("parse_args"))
    yield from click_options(part)
    yield from configured_options(program, part)


def _named_early(program: Program) -> Iterator[str]:
    """Yield a clause for each variable of ``read_at_import.txt`` named in a file before it imports torch."""
    names = Path(__file__).with_name("read_at_import.txt").read_text("ascii").split()
    for file in program.files.values():
        early = re.split(r"(?m)^[^\S\n]*(?:import|from)\s+torch\b", file.text, maxsplit=1)[0]
        for name in names if "environ" in early else ():
            if name in early:
                yield f"{file.shown} names {name} before it imports torch"


def _unknown_imports(program: Program) -> Iterator[tuple[DeclaredAt, ImportRecord]]:
    """Yield where the program imports a package that is neither followed nor known."""
    for file, record in program.foreign:
        of_cli = "cli" in record.module.split(".") and record.package in ("lightning", "pytorch_lightning")
        if record.level or of_cli or record.package in OWN_WAYS or record.package not in KNOWN_PACKAGES:
            yield DeclaredAt(file.shown, record.line), record


def _dynamic(part: ReachablePart) -> Iterator[DeclaredAt]:
    """Yield where a part gets options in ways that the source does not show, or reads the arguments itself."""
    for call in part.calls_of(*_DYNAMIC):
        name = dotted(call.func, part.aliases)
        if name in _DYNAMIC_CALLS or last(call.func) in _DYNAMIC_METHODS:
            yield at(call, part.source)
    for node in part.of(ast.Attribute, ast.Name) if "argv" in part.source.text else ():
        if dotted(node, part.aliases) == "sys.argv" and not _HANDED_ON.search(part.source.lines[node.lineno - 1]):
            yield at(node, part.source)
