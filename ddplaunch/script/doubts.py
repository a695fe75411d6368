"""Reasons to pass no number to an option, and reasons to doubt that the script trains with what is passed."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence

from ddplaunch.script.flow import LOADERS, OPTIMIZERS, UNFOLLOWED, Flow, Use
from ddplaunch.script.known import NAMESPACES, UNKNOWN
from ddplaunch.script.names import FunctionNodes, at, dotted, is_number, keyword, last
from ddplaunch.script.program import is_main_guard
from ddplaunch.script.reachable import ReachablePart, calls_in
from ddplaunch.script.script_report import DeclaredOption

# Calls that return the options that they get.
_COPIES = re.compile(r"(?i)pars|copy|vars|dict$|(?<!_)Namespace|create|container|wrap|munch|prepare")
_OVERWRITES = re.compile(
    r"(vars\(N\)|N\.__dict__)\.update|setattr\(N, (?!['\"]|self\.dest)".replace(
        "N", f"({'|'.join(NAMESPACES)}|namespace)"
    )
)
#: What counts no samples, in the help of an option.
TOKENS = re.compile(r"(?i)\btokens?\b")
BATCHES = ("batch_size", "global_batch_size")


def without_effect(option: DeclaredOption, flow: Flow) -> str:
    """Return why passing the option has no effect, as a clause; empty if it may have one.

    It has none if the script unconditionally assigns a constant, or the values of other options, to it, or if nothing
    reads the command line.
    """
    parsing = calls_in(flow.parts, "parse_args", "parse_known_args")
    calls = [place for place in parsing if isinstance(place[0].func, ast.Attribute)]
    lists = [(keyword(call, "args") or next(iter(call.args), call.func), part) for call, part in calls]
    if lists and option.parser == "argparse" and all(_is_own_list(*place, flow) for place in lists):
        return f"`parse_args` reads a list of its own ({at(calls[0][0], calls[0][1].source)})"
    for value, part in flow.assigned(option.dest):
        statement = part.parent(value)
        inside = value.args if isinstance(value, ast.Call) else ()  # a namespace as a whole may be read by a call
        reads = {option.dest, "vars"} & {last(node) for node in ast.walk(value)} or NAMESPACES & {*map(last, inside)}
        literal = isinstance(value, ast.Constant) and not (isinstance(value.value, (int, float)) and value.value > 0)
        reads = reads or {option.dest} & flow.known.options_behind(value, part, 1)  # `args.lr = scaled`
        if reads or literal or not isinstance(statement, ast.Assign):
            continue
        target, around = statement.targets[0], part.parent(statement)
        owners = {dotted(target, {}).partition(".")[0], last(getattr(target, "value", None))}
        plain = isinstance(around, (ast.Module, *FunctionNodes)) or (around is not None and is_main_guard(around))
        if owners & NAMESPACES and plain and option.parser != "yacs":
            return f"{at(statement, part.source)} sets `{option.dest}` to {ast.unparse(value)} itself"
    return ""


def _is_own_list(node: ast.AST, part: ReachablePart, flow: Flow, depth: int = 5) -> bool:
    """Return whether nothing in a list of words comes from outside the source, as ``sys.argv`` or a parameter may."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        values = flow.bound(node, part)
        return depth > 0 and values != [] and all(_is_own_list(*place, flow, depth - 1) for place in values)
    if isinstance(node, ast.Constant):
        return node.value is not None
    kind = ast.Starred if isinstance(node, (ast.List, ast.Tuple)) else ast.expr  # its other items are one word each
    return all(_is_own_list(each, part, flow, depth) for each in ast.iter_child_nodes(node) if isinstance(each, kind))


# Libraries that themselves train with the keys of their configuration.
_CONFIGURED = frozenset({"mmengine", "mmcv", "detectron2"})
#: For each number a pattern of "FUNCTION PARAMETER" that trains with it, and what that is in words.
ENDS = {
    "accum": (
        r"^(?:[A-Z]\w*|dict|\w*config) (?:gradient_accumulation_steps|accumulate_grad_batches)$|Plugin num_steps$",
        "what steps the optimizer",
    ),
    "lr": (
        rf"^(?!dict |Dummy)\S+ (?:lr|learning_rate)$|{OPTIMIZERS.pattern}\w* $",
        "an optimizer",
    ),
    "warmup_steps": (
        r"(?:Arguments|Config) warmup_steps$",
        "a Trainer of transformers",
    ),
}
_BATCH_ENDS = (rf"{LOADERS.pattern}\w* |^[A-Z]\w*(?:Arguments|Config) |^dict .*batch", "a DataLoader")


# A trainer of a library; without one a loop of the script's own reads the arguments that are made for it.
_TRAINERS = re.compile(
    r"from (?:transformers|sentence_transformers|trl|unsloth|optimum|swift)[\w.]* import (?:\([^)]*|[^\n]*)Trainer\b"
    r"|\btransformers\.trainer\b|\b\w+\.(?:Seq2Seq)?Trainer\b"
)
# A class on a library's trainer whose step does not call that of the library.
_OWN_STEP = (
    r"(?ms)^class \w+\((?:\w+\.)?(?:Seq2Seq|SFT|DPO|GRPO)?Trainer\b(?:(?!^class ).)*?"
    r"^ +def training_step\((?:(?!super\(|^ +def ).)*(?:^ +def |\Z)"
)
_ONE_RANKS_SCHEDULE = r"if [^\n]*(?:is_(?:local_)?main_process|rank\w*(?:\(\))? == 0)[^\n]*:\n\s+[\w.]*sched\w*\.step\("
_OWN_LOADER = r"def get_train_dataloader\((?:(?!\n +def |prepare\(|Distributed)[\s\S])*?\bDataLoader\("
_STREAM = (
    r"(?ms)\A(?!.*(?:prepare\(|split_dataset_by_node))(?:.*^)?[ \t]*class \w+\((?:\w+\.)*IterableDataset\)"
    r"(?:(?!^\S|rank|world|shard|split|replica|process_).)*(?:^\S|\Z)"
)
# For kinds of numbers a pattern of what keeps them from arriving, wherever it stands, and what that does.
_ANYWHERE = (
    (".*batch", _STREAM, "has a stream of samples that it may not divide among ranks"),
    (".", r"\b(?:fromfile_prefix_chars|args_file(?:name|_flag))=", "may read options from a file"),
    (".", r"\bsys\.argv(?: *\+=|\.(?:append|extend|insert)\()", "adds to `sys.argv`"),
    ("lr|warmup", r"\boptimizers=(?!None|\(None|optimizers)", "hands a Trainer an optimizer of its own"),
    ("lr|warmup", _ONE_RANKS_SCHEDULE, "steps a schedule on one rank alone"),
    (".*batch", _OWN_LOADER, "has a `get_train_dataloader` of its own, which may give all ranks the same"),
    ("accum", r"\bassert self\.[\w.]*accum\w* == 1\b", "asserts that nothing accumulates"),
    ("accum", _OWN_STEP, "may replace the `training_step` that divides the loss"),
    (".*batch", r"\bbatch_(?:size_)?(?:type|unit)\b", "chooses the unit of the batch"),
    (".*batch", r"GRPO(?:Config|Trainer)|\bnum_generations\b", "takes only groups of `num_generations`"),
)


def doubt_of(option: DeclaredOption, uses: Sequence[Use], flow: Flow, others: Collection[str]) -> str:
    """Return why the script might not train with the number that is passed, as a clause; empty if it certainly does.

    ``uses`` are all uses of options, ``others`` the numbers by which a batch may be multiplied or divided.
    """
    flag, meaning = option.flags[0], option.meaning or ""
    kept_out = _kept_out(meaning, flow)
    if kept_out:
        return kept_out
    if option.kind == "Trainer" and any(_TRAINERS.search(file.text) for file in flow.program.files.values()):
        constant = meaning == "warmup_steps" and flow.known.option("lr_scheduler_type") in ("constant", UNKNOWN)
        return "the schedule may be `constant`, which has no warmup" if constant else ""
    if not meaning.endswith("batch_size") and meaning not in ENDS:
        return ""
    changed = _changed(option, flow) or (_refused(option, flow) or _cleared(flow) if meaning == "accum" else "")
    packages = {record.package for _, record in flow.program.foreign}
    if changed or (option.parser in ("mmengine", "yacs") and packages & _CONFIGURED):
        return changed
    pattern, end = ENDS.get(meaning, _BATCH_ENDS)
    running = [
        use for use in uses if use.runs and use.product.power(option.dest) == 1 and not use.product.power(UNFOLLOWED)
    ]
    ending = [use for use in running if re.search(pattern, f"{use.sink} {use.name}")]
    # a function of the program's own is followed; what takes a rate may show it, or train few parameters with it
    kind = OPTIMIZERS if meaning == "lr" else re.compile("")
    ending = [use for use in ending if not flow.is_own(use.sink) or (use.sink[0].isupper() and kind.search(use.sink))]
    if not any(calls_in(flow.parts, "accumulate")):  # without it accelerate steps after each pass
        ending = [use for use in ending if use.sink not in ("Accelerator", "GradientAccumulationPlugin")]
    for use in running:
        if f"{use.sink} {use.name}" == "dict lr" and not _trains(option, use, flow, others):
            return f"{use.at} has another rate for some parameters"
    if any(_trains(option, use, flow, others) for use in ending) or (
        meaning == "accum" and _steps_by(option.dest, flow)
    ):
        return ""
    if ending:
        return f"{ending[0].at} may change the value"
    return f"`{flag}` was followed to {running[-1].at if running else option.at}, not to {end}"


def _kept_out(meaning: str, flow: Flow) -> str:
    """Return what in any file keeps a number from arriving, as a clause; empty if nothing does."""
    return next(
        (
            f"{file.shown} {clause}"
            for kind, pattern, clause in _ANYWHERE
            for file in flow.program.files.values()
            if re.match(kind, meaning) and re.search(pattern, file.text)
        ),
        "",
    )


def _trains(option: DeclaredOption, use: Use, flow: Flow, others: Collection[str]) -> bool:
    """Return whether ``use`` trains with exactly the option's number."""
    factors = dict(use.product.powers)
    del factors[option.dest]
    if option.meaning == "lr":
        return bool(option.rule or factors) or use.product.constant == 1
    if option.meaning == "warmup_steps":
        others = ()
    return factors.keys() <= {*others} and use.product.constant == 1


def _steps_by(dest: str, flow: Flow) -> bool:
    """Return whether a condition or loop on the option is around a step, a pass or ``continue``."""
    for part in flow.parts:
        for call in (*part.calls_of("step", "backward", "zero_grad"), *part.of(ast.Continue)):
            node = part.parent(call)
            while node is not None and not isinstance(node, FunctionNodes):
                test = node.iter if isinstance(node, ast.For) else getattr(node, "test", None)
                if test is not None and dest in flow.known.options_behind(test, part, 1):  # not `range(epochs)`
                    by_turns = isinstance(call, ast.Continue) or not_one_pass(flow) != ""
                    return by_turns and flow.known.runs(call, part) and not _cuts(node)
                node = part.parent(node)
    return False


# What steps an optimizer, by its name.
_STEPPED = re.compile(r"(?i)(?!.*sched).*(?:opt|scaler|adam|sgd|muon)")


def _is_of_optimizer(step: ast.expr, part: ReachablePart, flow: Flow) -> bool:
    """Return whether ``o.step`` is an optimizer's, by its name or by what made ``o``."""
    owner = getattr(step, "value", step)
    made = (last(value.func) for value, _ in flow.bound(owner, part) if isinstance(value, ast.Call))
    return _STEPPED.match(ast.unparse(owner)) is not None or any(map(OPTIMIZERS.search, made))


# A condition of a step that does not hold after each backward pass: a remainder, a counter, a name for it.
_BY_TURNS = re.compile(r"(?i)%|acc|sync|updat|step|iter|count|every|last|final|flush|batch|\(")


def not_one_pass(flow: Flow) -> str:
    """Return why a step of the optimizer may take several backward passes, as a clause; empty where each takes one."""
    calls = calls_in(flow.parts, "backward", "manual_backward")
    passes = [place for place in calls if flow.known.runs(*place)]
    for call, part in passes:
        if not any(_steps_after(call, step, part, flow) for step in part.calls_of("step")):
            return f"no step was read for each pass at {at(call, part.source)}"
    return "" if passes or _steps_itself(flow) else "no training loop was read"


def _steps_after(call: ast.Call, step: ast.Call, part: ReachablePart, flow: Flow) -> bool:
    tests = _own_tests(call, step, part, flow) if _is_of_optimizer(step.func, part, flow) else None
    return tests is not None and not any(_BY_TURNS.search(ast.unparse(test)) for test in tests)


def _own_tests(call: ast.Call, other: ast.Call, part: ReachablePart, flow: Flow) -> list[ast.expr] | None:
    """Return the conditions of ``other`` that the pass does not have, None outside the same turn of a loop."""
    around = flow.known.conditions(call, part)
    tests = [test for test, wanted in flow.known.conditions(other, part) if (test, wanted) not in around]
    return tests if _turn_of(call, part) is _turn_of(other, part) and flow.known.runs(other, part) else None


def _cleared(flow: Flow) -> str:
    """Return what clears the gradients of each pass, so that none accumulate, as a clause; empty if nothing does."""
    for call, part in calls_in(flow.parts, "backward"):
        if not any(_steps_after(call, step, part, flow) for step in part.calls_of("step")):
            for clear in part.calls_of("zero_grad"):
                if _own_tests(call, clear, part, flow) == []:
                    return f"{at(clear, part.source)} clears the gradients of each pass"
    return ""


def _turn_of(node: ast.AST | None, part: ReachablePart) -> ast.AST | None:
    """Return the innermost loop or function around ``node``, other than a loop over optimizers."""
    node = part.parent(node) if node is not None else None
    loop = isinstance(node, ast.For) and not _STEPPED.match(ast.unparse(node.iter))
    return node if node is None or loop or isinstance(node, (ast.While, *FunctionNodes)) else _turn_of(node, part)


def _steps_itself(flow: Flow) -> bool:
    """Return whether a trainer of a library steps after each pass, as it does unless it is configured otherwise."""
    made = [
        call
        for call, part in calls_in(flow.parts, "Trainer", "TrainingArguments", "Seq2SeqTrainingArguments")
        if re.match("lightning|pytorch_lightning|transformers", dotted(call.func, part.aliases))
    ]
    plain = made != [] and all(item.arg for call in made for item in call.keywords)
    return plain and not any("automatic_optimization" in file.text for file in flow.program.files.values())


# What accelerate has under its own launcher, unless the script makes it.
_OF_LAUNCHER = re.compile(
    r"(?ms)\A(?!.*DeepSpeedPlugin\().*^[ \t]+(?:\w+ = (?=Dummy))?"
    r"([\w.]+\.deepspeed_plugin(?=\.deepspeed_config\[)|DummyOptim(?=\())"
)
# A loss from a method of the module that a wrapper holds, or of a model: a wrapper has none.
_INSIDE = re.compile(
    r"(?m)^[ \t]+(?!val|eval|test)\w*loss[^=\n]*= *"
    r"(([\w.]+(?=\.module\.)|[\w.]*model)(?:\.module)?\.(?!module\b|forward\b)\w+)\("
)
# What averages the gradients of ranks, by its name or by what it gets.
_AVERAGES = re.compile(
    r"(?m)^(?![ \t]*(?:from|import)\b(?!.* as )).*"  # a name that is imported may never be used
    r"(?:DistributedDataParallel|DDP\b|FSDP|[Ff]ully_?[Ss]hard|parallelize|replicate|[Dd]eepspeed|[Hh]orovod|apex|Trainer"
    r"|Accelerator|Fabric|(?i:reduce\w*\([^\n]*grad|(?:reduce|sync|average)\w*grad))"
)
_WRAPPERS = "DistributedDataParallel DDP FullyShardedDataParallel FSDP fully_shard prepare initialize setup Trainer"
# What shares the samples of one batch among ranks, as the pieces of long ones.
_SHARES = re.compile(r"(?i)\b\w*(?:seq(?:uence)?|context)_?parallel\w*|\b\w*(?:ring|ulysses)_att\w*")


def past_wrapper(flow: Flow) -> str:
    """Return where a step is taken without what joins the ranks' gradients, as a clause; empty if nowhere."""
    for part in flow.parts:
        text = part.source.text
        if launched := _OF_LAUNCHER.search(text):
            return f"`{launched[1]}` in {part.source.shown} is there under `accelerate launch` alone"
        inside, shares = (part.calls_of("backward") and each.search(text) for each in (_INSIDE, _SHARES))
        if inside and f"= {inside[2]}(" not in text:
            return f"`{inside[1]}` in {part.source.shown} may go past the wrapper that joins gradients"
        if shares:
            return f"`{shares[0]}` in {part.source.shown} may share one batch among ranks"
    wrappers = [*calls_in(flow.parts, *_WRAPPERS.split())]
    for call, part in wrappers[:1]:
        if not any(flow.known.runs(*place) for place in wrappers):
            return f"a condition keeps {at(call, part.source)} from wrapping the model"
    passes = any(calls_in(flow.parts, "backward"))
    averaged = any(_AVERAGES.search(file.text) for file in flow.program.files.values())
    return "nothing was read that averages the ranks' gradients" if passes and not averaged else ""


def _cuts(loop: ast.AST) -> bool:
    """Return whether each turn of a loop takes a slice that its number decides: of one batch, which is no larger."""
    turn = last(getattr(loop, "target", None))
    return turn != "" and any(
        turn in map(last, ast.walk(node)) for node in ast.walk(loop) if isinstance(node, ast.Slice)
    )


def _changed(option: DeclaredOption, flow: Flow) -> str:
    """Return what changes the value that is passed for an option, as a clause; empty if nothing does."""
    flag, own = option.flags[0], option.parser in ("argparse", "click")
    if own and flow.is_own(option.kind or ""):
        return f"`{option.kind}` converts the value of `{flag}` ({option.at})"
    if option.parser == "argparse" and option.kind is None and is_number(option.default or "0"):
        return f"`{flag}` has no type, its value stays text ({option.at})"
    for part in flow.parts:
        for node in (*(part.calls_of("update", "setattr") if own else ()), *part.of(ast.Assign)):
            if isinstance(node, ast.Assign):
                overwrites = _replaces(node, option.dest, part, flow)
            else:
                overwrites = _OVERWRITES.match(ast.unparse(node)) is not None
            fills = overwrites and any("None" in ast.unparse(test) for test, _ in flow.known.conditions(node, part))
            if overwrites and not fills and flow.known.runs(node, part):
                return f"{at(node, part.source)} may overwrite `{flag}`"
    return ""


def _refused(option: DeclaredOption, flow: Flow) -> str:
    """Return what may refuse more than one for an option, as a clause; empty if nothing does."""
    for part in flow.parts:
        for node in part.of(ast.Raise):
            tests = " ".join(ast.unparse(test) for test, _ in flow.known.conditions(node, part))
            if re.search(rf"\b{option.dest} (?:>|!=) 1\b", tests) and flow.known.runs(node, part):
                return f"{at(node, part.source)} may refuse it"
    return ""


def _replaces(node: ast.Assign, dest: str, part: ReachablePart, flow: Flow) -> bool:
    """Return whether an option may get another value.

    ``hyp[name] = value``, ``args = library.update(args)``, and ``args.lr = 1e-4`` that a condition may let run.
    """
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Attribute):
        own = target.attr == dest and last(target.value) in NAMESPACES
        return own and dest not in flow.known.options_behind(value, part, 1)
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Name):
        return re.search(rf"\b(?!\w*log){last(target.value)}\[.{dest}.\]", part.source.text) is not None
    if not isinstance(target, ast.Name) or target.id not in NAMESPACES or not isinstance(value, ast.Call):
        return False
    return (
        target.id in map(last, value.args)
        and not flow.is_own(last(value.func))
        and not _COPIES.search(ast.unparse(value.func))
    )
