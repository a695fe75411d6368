"""Checks of the script's source for what cannot work: missing modules, CUDA without GPUs, arguments, mistakes.

Only what is executed under no condition counts, so that nothing is refused that might work. The mistakes are read by
``ddplaunch/script/mistake_rules.py``, which is silent where it cannot be sure.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec

from ddplaunch.checks.check import Findings, checks_in
from ddplaunch.machine.facts import TorchFacts
from ddplaunch.planning.launch import Launch, Needs
from ddplaunch.planning.options import flags_of_options
from ddplaunch.script.declared import given, is_same_value
from ddplaunch.script.known import TORCHRUN_NAMES
from ddplaunch.script.names import FunctionNodes, records_of, records_of_text
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, ScriptReport
from ddplaunch.values.finding import error, warning
from ddplaunch.values.words import listed, nearest

#: Texts of scripts that change where modules are found, or that may do without GPUs.
_FINDS_MODULES = re.compile(
    r"sys\.(?:path|modules|meta_path)|addsitedir|import pip\b|['\"]pip['\"]"
    r"|(?:system|call|run|Popen|output)\([^)\n]*\bpip\b"
)
_MAY_USE_CPU = re.compile(
    r"is_available|device_count|\bcpu\b|gloo|\bif\b.*(?:gpu|cuda|device|dist(?!\w*\.get_))|\bdef (?:cuda|to)\b",
    re.IGNORECASE,
)
#: A call that fails without CUDA, as `ast.unparse` spells it, on the line before the whole text: the last says whether
#: the name in `.to(device)` is assigned `"cuda"` and nothing later.
_TAKES_CUDA = re.compile(
    r"(?m)torch\.cuda\.set_device\(|.*\.cuda\([^()]*\)$|.*\.to\(['\"]cuda|(?:\w+\.)*init_process_group\(.*['\"]nccl['\"]"
    r"|(?:torch\.(?!cuda|amp)|nn\.)[\w.]+\([^()]*\bdevice=['\"]cuda"
    r"|.*\.to\((\w+)[,)](?s:.*)^[ \t]*\1 = (?:torch\.device\()?f?['\"]cuda.*[^,\n]$(?!(?s:.*)^[ \t]*\1\b.* = )"
)
_CONDITIONS = (ast.If, ast.Try, ast.IfExp, ast.BoolOp, ast.Lambda)


def needs_of(text: str, shown: str, search: Sequence[str], *, on_cpu: bool) -> Needs:
    """Return the modules that a script lacks and, ``on_cpu``, where it uses CUDA. ``search`` comes before this
    interpreter's path; nothing is imported.
    """
    names = {record.package for record in records_of_text(text)} - sys.stdlib_module_names - {""}
    missing = set() if _FINDS_MODULES.search(text) else {name for name in names if not _is_found(name, search)}
    may_use_cuda = on_cpu and re.search("cuda|nccl", text) and not _MAY_USE_CPU.search(text)
    if not missing and not may_use_cuda:
        return Needs()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return Needs()
    lacks = ((one.package, DeclaredAt(shown, one.line)) for one in records_of(tree.body) if one.package in missing)
    calls = _surely_made(tree) if may_use_cuda else ()
    line = min((call.lineno for call in calls if _TAKES_CUDA.match(f"{ast.unparse(call)}\n{text}")), default=0)
    return Needs(tuple(lacks), DeclaredAt(shown, line) if line else None)


def _surely_made(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls under no condition: of the module, and of its functions that such a call names."""
    functions = {node.name: node.body for node in tree.body if isinstance(node, FunctionNodes)}
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        if isinstance(node, ast.Call):
            yield node
            nodes += functions.pop(ast.unparse(node.func), ())
        if not isinstance(node, _CONDITIONS) or ast.unparse(node).startswith("if __name__ =="):
            nodes += (each for each in ast.iter_child_nodes(node) if not isinstance(each, FunctionNodes))


def _is_found(name: str, search: Sequence[str]) -> bool:
    try:
        return (PathFinder.find_spec(name, search) or find_spec(name)) is not None
    except (ImportError, ValueError):
        return True


def module_not_found(launch: Launch, environment: dict[str, str]) -> Findings:
    """The script imports a module that the ranks' interpreter lacks.

    Only unconditional imports count. Remedy: install it into this environment, or start ddplaunch in the environment
    that has it.
    """
    active = environment.get("VIRTUAL_ENV", sys.prefix)
    but = "" if active == sys.prefix else f", and the active environment is {active}"
    for name, at in launch.needs.lacks[:1]:
        more = len({other for other, _ in launch.needs.lacks}) - 1
        yield error(
            "module-not-found",
            f"{at.file} imports `{name}`{f' and {more} more' if more else ''}, which this interpreter lacks",
            why=f"every rank would end in ModuleNotFoundError: they run {sys.executable}{but}",
            fix=f"`{sys.executable} -m pip install {name}`, if that is its package; or start ddplaunch where it is",
            where=str(at),
        )


def variable_not_set(script: ScriptReport, launch: Launch) -> Findings:
    """The script reads a variable of the environment that is not set.

    Only `os.environ["NAME"]` counts that each rank reaches, of names that neither the script nor torchrun sets.
    Remedy: `--env NAME=VALUE`.
    """
    names = {*TORCHRUN_NAMES, *(variable.name for variable in launch.environment)}
    unset = [each for each in script.needs_env if each[0] not in names and "DDPLAUNCH_" not in each[0]]
    for name, at in unset[:1]:
        yield error(
            "variable-not-set",
            f"{at.file} reads the variable {name}, which is not set",
            why="every rank would end in KeyError",
            fix=f"`--env {name}=VALUE`, or start it where it is set",
            where=str(at),
        )


def cuda_without_gpus(launch: Launch, torch: TorchFacts) -> Findings:
    """The script uses CUDA unconditionally, but its ranks run on the CPU.

    `.cuda()`, `.to("cuda")`, `torch.cuda.set_device` and the backend `nccl` fail in a torch that was built for CPUs,
    and where `--device cpu` hides the GPUs. Only functions count that are called for certain, and the check is silent
    about a script that speaks of the CPU anywhere.
    Remedy: `torch.device("cuda" if torch.cuda.is_available() else "cpu")`.
    """
    hidden = launch.device.source.kind in ("flag", "profile")
    if launch.needs.cuda is not None and launch.device.value == "cpu" and (hidden or not (torch.cuda or torch.hip)):
        yield error(
            "cuda-without-gpus",
            f"{launch.needs.cuda} uses CUDA, and these ranks run on the CPU",
            why="`--device cpu` hides the GPUs" if hidden else f"torch {torch.version} was built for CPUs",
            fix='`torch.device("cuda" if torch.cuda.is_available() else "cpu")` in the script, and the backend `gloo` '
            "without GPUs; or " + ("leave `--device cpu` out" if hidden else "a torch for CUDA"),
            where=str(launch.needs.cuda),
        )


#: Options of `run` that are no fields of ``Options``.
_OF_RUN = "--dry-run --detach --hosts --hostfile --profile"
#: What argparse calls with a value, for the types that are known.
_TYPES: dict[str | None, type] = {None: str, "str": str, "int": int, "float": float}


def script_arguments(script: ScriptReport, launch: Launch) -> Findings:
    """The script does not know an argument, or refuses its value.

    Where the source shows every option of an argparse, the launch is refused: for an option that is not declared, and
    for a value that is no number where `type=int` or `type=float`, or none of the literal `choices`. Elsewhere only
    options of ddplaunch after `--` are named, unless the script may declare them where it was not read. Remedy: the
    option or value that the finding proposes, the script's own `--help`, or the option before `--`.
    """
    options, target = script.options, launch.target
    if target is None or script.unread or not (script.complete or any(option.at.line for option in options)):
        return  # options that only the user named are no list of what there is
    certain = script.complete and {option.parser for option in options} == {"argparse"}
    words = target.args[: [*target.args, "--"].index("--")]
    flags = ["--help", "--version", *(flag for option in options for flag in option.flags)]
    ours = {*_OF_RUN.split(), *(flag.flag for flag in flags_of_options().values())}
    for name in (word.partition("=")[0] for word in words):
        unknown = name.startswith("--") and not any(flag.startswith(name) for flag in flags)
        if unknown and (certain or name in ours):
            near = nearest(name, flags)
            fix = f"did you mean `{near}`?" if near else f"`python {script.path} --help` lists its options"
            yield (error if certain else warning)(
                "script-arguments",
                f"{script.path} declares no option `{name}`",
                why="argparse ends every rank with `unrecognized arguments`"
                if certain
                else "it is an option of ddplaunch, and has no effect after `--`",
                fix=f"put `{name}` before `--`: it is an option of ddplaunch" if name in ours else fix,
                where=script.path,
            )
    for option in options if certain else ():
        for value in given(words, option, options):
            # which of two parsers reads the words of an option that both declare is not known
            if (accepted := _accepted(option, value)) and max(map(flags.count, option.flags)) == 1:
                yield error(
                    "script-arguments",
                    f"`{option.flags[0]} {value}` is not {accepted}",
                    why="argparse ends every rank with a usage error",
                    fix=f"`python {script.path} --help` lists what it accepts",
                    where=str(option.at),
                )


def _accepted(option: DeclaredOption, value: str) -> str:
    """Return what an option accepts where that is not ``value``, else nothing."""
    try:
        _TYPES[option.kind](value)
    except KeyError:  # it may accept anything
        return ""
    except ValueError:
        return f"of `type={option.kind}`"
    fit = any(one is None or is_same_value(value, one) for one in option.choices or [None])
    return "" if fit else f"one of {listed(option.choices, 8)}"


def rendezvous_in_script(script: ScriptReport, launch: Launch) -> Findings:
    """The script sets its own address or port, where nothing listens.

    torchrun itself starts the store at MASTER_ADDR:MASTER_PORT and tells the ranks so (TORCHELASTIC_USE_AGENT_STORE).
    With another port, or `init_method="tcp://…"`, all ranks connect to a port that is not open, and fail after the
    timeout. Remedy: `init_process_group()` without address and port; `os.environ.setdefault` for runs without a
    launcher.
    """
    topology, port = launch.topology, launch.topology.master_port
    if topology.world_size == 1 and launch.options.nproc is not None:
        return
    for mistake in script.mistakes:
        if port is None or not mistake.detail.endswith((f"={port.value}", f":{port.value}")):
            yield warning(
                "rendezvous-in-script",
                f"the script meets at its own {mistake.detail}, not at torchrun's address",
                why="torchrun holds the store at a port that it chose, and ranks would wait at another one until the "
                "time-out",
                fix=f"`{mistake.corrected}`",
                where=str(mistake.at),
            )


CHECKS = checks_in(globals(), "mistakes")
