"""Which number of the plan an option stands for: by its name, its help, and what the script does with its value."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ddplaunch.script.constants import LOADERS, constant, handed_on, numbers_in, without_effect
from ddplaunch.script.flow import UNREAD_DEVICES, Flow, Use
from ddplaunch.script.known import UNKNOWN
from ddplaunch.script.names import at, is_number, is_one_of_names, last, last_word, meaning_of, string
from ddplaunch.script.script_report import LOCAL_WORLD, WORLD, DeclaredAt, DeclaredOption, LrRule, Meaning

_UNSURE = frozenset(
    {"batch", "b", "bs", "warmup", "t-warmup", "accumulate", "accumulation", "batch-split"}
)  # the type must fit too
#: Names that say themselves that they count one rank's samples.
RANK_NAME = re.compile(r"per-(?:gpu|device|proc|rank|replica)|^device-|^local-|^micro|samples-per|-gpu$")
_TOTAL_HELP = re.compile(
    r"(?i)\b(?:total|global|effective|overall)\b[^.;(]{0,24}\bbatch|\bbatch[^.;]{0,30}\b(?:in total|globally)\b"
    r"|\b(?:across|over|of|for|on|among|by)(?: all)?(?: the)? (?:gpus|devices|ranks|processes|workers|cards)\b"
    r"|\ball gpus\b"
)
_RANK_HELP = re.compile(
    r"(?i)\bper[- _](?:gpu|device|process|proc|rank|worker|card|core|replica)\b|\b(?:each|every|a single|one) "
    r"(?:gpu|device|process|rank|worker|card)\b|\blocal batch"
)
_NODE_HELP = re.compile(r"(?i)\bper[- _](?:node|machine|host)\b|\b(?:each|every|a single) (?:node|machine|host)\b")
# Keys of DeepSpeed's configuration beside `train_batch_size`.
_DEEPSPEED = frozenset({"gradient_accumulation_steps", "zero_optimization", "fp16", "bf16", "steps_per_print"})
# A batch size that only a learning rate is scaled from.
_FOR_RATES = re.compile(r"(?i)\bfor (?:auto[- ]?)?(?:re)?scal(?:e|ing) (?:of )?(?:the )?(?:lr\b|learning[- ]rate)")
_NOT_SAMPLES = re.compile(r"(?i)\btokens?\b")
_SET_ITSELF = re.compile(r"(?i)\b(?:set|updated|computed) automatically|automatically (?:set|updated|computed)")
_DEPRECATED = re.compile(r"(?i)\bdeprecated\b|\bobsolete\b|\b(?:do not|don't) use\b|\bno longer used\b")
# A whole help that says what an option is whose name does not.
_HELP_ALONE: dict[Meaning, re.Pattern[str]] = {
    "accum": re.compile(r"(?i)(?:the )?(?:number of )?grad(?:ient)?[- ]accumulation(?: steps| iterations| iters)?"),
    "lr": re.compile(r"(?i)(?:the )?(?:(?:base|initial|peak|max|maximum) )?(?:lr|learning[- ]rate)"),
    "batch_size": re.compile(
        r"(?i)(?:the )?(?:train(?:ing)? )?(?:mini-?)?batch[- ]size(?: per (?:gpu|device|process))?"
    ),
}
_STEPS = re.compile(r"(?i)steps?\b|iterations|iters|updates")
_EPOCHS_HELP = re.compile(r"(?i)\bepochs?\b")
_RATIO_HELP = re.compile(r"(?i)\b(?:ratio|fraction|proportion|percent\w*)\b")


def candidate(option: DeclaredOption) -> Meaning | None:
    """Return the number that the option's name, type and help speak of, or None.

    None also for one that its help advises against, for a count whose type or default is a fraction, and for text.
    """
    if not option.fillable or not option.takes_value or _SET_ITSELF.search(option.help):
        return None
    if _DEPRECATED.search(option.help):
        return None
    for flag in option.flags:
        name = last_word(flag)
        meaning = meaning_of(name) if flag.startswith("--") or len(name) > 1 else None
        if meaning is None:
            continue
        if not _fits(name, meaning, option):
            ratio = meaning == "warmup_steps" and (option.kind == "float" or is_number(option.default or ""))
            return "warmup_ratio" if ratio else None
        return _by_help(name, meaning, option)
    return None


def _fits(name: str, meaning: str, option: DeclaredOption) -> bool:
    default = option.default
    integral = default is not None and default.replace("_", "").lstrip("+-").isdigit()
    if option.kind in ("str", "bool", "Path"):
        return False
    if meaning in ("lr", "warmup_ratio"):
        return option.kind != "int"
    if name in _UNSURE or (not is_one_of_names(name) and not re.search("size|bs|lr|rate|warm|acc", name)):
        return option.kind == "int" or (option.kind is None and integral)
    fraction = default is not None and is_number(default) and not integral
    return meaning == "warmup_epochs" or (option.kind != "float" and not fraction)


def _by_help(name: str, meaning: str, option: DeclaredOption) -> Meaning | None:
    if meaning == "warmup_steps" and not _STEPS.search(name) and not _STEPS.search(option.help):
        if _EPOCHS_HELP.search(option.help):
            return "warmup_epochs"
        return "warmup_ratio" if _RATIO_HELP.search(option.help) else "warmup_steps"
    if meaning in ("batch_size", "global_batch_size") and (
        _NOT_SAMPLES.search(option.help) or _FOR_RATES.search(option.help)
    ):
        return None
    return meaning  # type: ignore[return-value]  # a meaning


def understood(options: Sequence[DeclaredOption], flow: Flow) -> Iterator[DeclaredOption]:
    """Yield each option with what it stands for."""
    candidates = _by_help_alone(options, [candidate(option) for option in options])
    candidates = handed_on(options, candidates, flow, _fits)
    numbers = [option for option, meaning in zip(options, candidates, strict=True) if meaning is not None]
    if any(meaning in _BATCHES for meaning in candidates) and unit_of_batches(flow):
        candidates = [None if meaning in _BATCHES else meaning for meaning in candidates]
    made = {option.dest for option in options if _SET_ITSELF.search(option.help)}
    for index, option in enumerate(options):
        meant = candidates[index]
        if meant is not None and without_effect(option, meant, flow, numbers):
            candidates[index] = None
            made.add(option.dest)
    names = {option.dest: meaning for option, meaning in zip(options, candidates, strict=True) if meaning is not None}
    rates = tuple(dest for dest, meaning in names.items() if meaning == "lr")
    batches = tuple(dest for dest, meaning in names.items() if meaning in ("batch_size", "global_batch_size"))
    accums = tuple(dest for dest, meaning in names.items() if meaning == "accum")
    uses = [
        use
        for use in (flow.uses((*rates, *batches, *accums)) if rates or batches or accums else ())
        if not any(use.product.power(each) for each in made)
    ]
    micros = {option.dest for option in options if option.dest in batches and RANK_NAME.search(_name(option))}
    wholes = _handed_to_deepspeed(flow) if batches else {}
    for option, own_meaning in zip(options, candidates, strict=True):
        meaning = None if own_meaning is None else names[option.dest]  # of those with one destination, the last one's
        own = [use for use in uses if use.product.power(option.dest) == 1 and option.dest not in use.without]
        if meaning == "lr":
            yield replace(option, meaning=meaning, rule=_rule(own, batches, accums))
        elif option.dest in batches and meaning is not None:
            samples = [use for use in own if not any(use.product.power(rate) for rate in rates)]
            others = tuple(each for each in batches if each != option.dest)
            found = _Batch(option, samples, others, accums, micros - {option.dest}).meaning()
            if option.dest in wholes:
                found = "global_batch_size", f"{wholes[option.dest]} hands it to DeepSpeed as `train_batch_size`"
            yield replace(option, meaning=found[0], because=found[1])
        elif meaning == "accum":
            shared = ((option.dest, 1.0), (WORLD, -1.0))
            divided = next((use for use in own if use.runs and sorted(use.product.powers) == sorted(shared)), None)
            because = "" if divided is None else f"{divided.at} divides it by the {WORLD}"
            yield replace(option, meaning="accum" if divided is None else "total_accum", because=because)
        else:
            yield replace(option, meaning=meaning)


_BATCHES = frozenset({"batch_size", "global_batch_size"})
#: What says in which unit a batch is counted.
UNIT_NAME = re.compile(r"batch_(?:size_)?(?:type|unit)")
_SAMPLES = re.compile(
    r"(?i)samples?|sentences?|sents?|examples?|sequences?|seqs?|utt(?:erance)?s?|static|(?:un)?sorted"
)


def unit_of_batches(flow: Flow) -> str:
    """Return what says that batches are counted in another unit than samples, with its value; empty if nothing does."""
    for part in flow.parts:
        if not UNIT_NAME.search(part.source.text):
            continue
        for node in part.of(ast.Attribute, ast.Constant, ast.keyword):
            name = node.arg if isinstance(node, ast.keyword) else string(node) or last(node)
            if name is not None and UNIT_NAME.fullmatch(name):
                value = flow.known.option(name)
                if not (isinstance(value, str) and _SAMPLES.fullmatch(value)):
                    return f"`{name}`" if value in (UNKNOWN, None) else f"`{name}`, {value},"
    return ""


def _handed_to_deepspeed(flow: Flow) -> dict[str, DeclaredAt]:
    """Return the options that are DeepSpeed's ``train_batch_size``, the samples of an optimizer step, with the place.

    https://www.deepspeed.ai/docs/config-json/#batch-size-related-parameters
    """
    found = {}
    for part in flow.parts:
        for node in part.of(ast.Dict) if "train_batch_size" in part.source.text else ():
            assert isinstance(node, ast.Dict)
            items = {string(key): value for key, value in zip(node.keys, node.values, strict=True)}
            value = items.get("train_batch_size")
            made = flow.made_of(value, part) if value is not None and not _DEEPSPEED.isdisjoint(items) else None
            if value is not None and made is not None and len(made) == 1:
                found[next(iter(made))] = at(value, part.source)
    return found


def _by_help_alone(options: Sequence[DeclaredOption], candidates: Sequence[Meaning | None]) -> list[Meaning | None]:
    """Return the candidates, and for a number that no name speaks of the one option whose help does."""
    found = list(candidates)
    for meaning, pattern in _HELP_ALONE.items():
        family = (meaning, "global_batch_size") if meaning == "batch_size" else (meaning,)
        helped = [
            index
            for index, option in enumerate(options)
            if candidates[index] is None and option.takes_value and option.fillable
            if pattern.fullmatch(option.help.partition("[")[0].strip(" .")) and _fits("", meaning, option)
        ]
        if len(helped) == 1 and not any(each in family for each in candidates):
            found[helped[0]] = meaning
    return found


def _rule(uses: Sequence[Use], batches: Sequence[str], accums: Sequence[str]) -> LrRule | None:
    """Return how the script multiplies its learning rate, from the product with the most factors that runs."""
    best: LrRule | None = None
    names = (WORLD, LOCAL_WORLD, *batches, *accums)
    for use in uses:
        powers = tuple((name, power) for name, power in use.product.powers if name in names or _is_unread(name))
        scales = any(power > 0 for name, power in powers if name not in accums)
        if use.runs and scales and (best is None or _rank(powers) > _rank(best.powers)):
            best = LrRule(use.product.constant, powers, use.at)
    return best


def _is_unread(name: str) -> bool:
    """Return whether a symbol is a name of samples, accumulation or devices whose value was not found."""
    if not name.startswith("?"):
        return False
    return name == UNREAD_DEVICES or meaning_of(name[1:].replace("_", "-").lower()) in (
        "batch_size",
        "global_batch_size",
        "accum",
    )


def _rank(powers: Sequence[tuple[str, float]]) -> tuple[int, int]:
    return len(powers), -sum(name.startswith("?") for name, _ in powers)


class _Batch:
    """Decides whose samples one option counts, from evidence in this order: arithmetic, name, data loader, help."""

    def __init__(
        self,
        option: DeclaredOption,
        uses: Sequence[Use],
        others: Sequence[str],
        accums: Sequence[str],
        micros: Collection[str],
    ) -> None:
        self.option, self.others, self.accums, self.micros = option, others, accums, micros
        self.running = [use for use in uses if use.runs]
        self.idle = [use for use in uses if not use.runs]

    def meaning(self) -> tuple[Meaning, str]:
        """Return the meaning and what it was read from, as a clause that is empty for the name alone."""
        found = self._divided() or self._as_it_is() or self._described()
        small = next((name for name in self.micros if name.startswith("micro")), None)
        if found[0] == "batch_size" and small is not None and not RANK_NAME.search(_name(self.option)):
            return "step_batch_size", f"it stands beside `{small}`"
        return found

    def _divided(self) -> tuple[Meaning, str] | None:
        # where the accumulation is multiplied in, it is what was divided
        divided = [
            use
            for use in self.running
            if _divisor(use) and self._is_of_samples(use) and all(use.product.power(each) <= 0 for each in self.accums)
        ]
        if divided:
            divisor = _divisor(divided[0])
            because = f"{divided[0].at} divides it by the {divisor}"
            if divisor == LOCAL_WORLD:
                return "node_batch_size", because
            parts_of_it = (*self.accums, *self.others)
            whole = any(use.product.power(each) == -1 for use in divided for each in parts_of_it)
            return ("global_batch_size" if whole or self.micros else "total_batch_size"), because
        for use in self.running:
            parts = dict(use.product.powers)
            if len(parts) == 2 and any(parts.get(name) == -1 for name in (*self.accums, *self.micros)):
                return "step_batch_size", f"{use.at} divides it by the accumulation"
        return None

    def _is_of_samples(self, use: Use) -> bool:
        """Return whether no other option is in a product: ``heads // tensor_parallel * batch`` counts no samples."""
        own = (self.option.dest, *self.others, *self.accums, WORLD, LOCAL_WORLD)
        return all(name in own or name.startswith("?") for name, _ in use.product.powers)

    def _as_it_is(self) -> tuple[Meaning, str] | None:
        if RANK_NAME.search(_name(self.option)):
            return "batch_size", ""
        for use in self.running:
            if use.product.power(WORLD) == 1:
                return "batch_size", f"{use.at} multiplies it by the {WORLD}"
        for use in self.idle:
            if _divisor(use) is not None and self._is_of_samples(use):
                return "batch_size", f"{use.at} does not divide it in this launch"
        for use in self.running:
            alone = use.product.powers == ((self.option.dest, 1.0),) and use.product.constant == 1
            if alone and use.name == "batch_size" and LOADERS.search(use.sink) and not self._is_total():
                return "batch_size", f"{use.at} hands it to {use.sink}"
        return None

    def _described(self) -> tuple[Meaning, str]:
        text, because = self.option.help, f"its help at {self.option.at}"
        if _RANK_HELP.search(text):
            return "batch_size", because
        if _NODE_HELP.search(text):
            return "node_batch_size", because
        whole: Meaning = "global_batch_size" if self.micros else "total_batch_size"
        if self._is_total():
            return ("global_batch_size" if self.accums else whole), "its name"
        if _TOTAL_HELP.search(text):
            return whole, because
        return "batch_size", ""

    def _is_total(self) -> bool:
        return candidate(self.option) == "global_batch_size"


def _divisor(use: Use) -> str | None:
    return next((symbol for symbol in (WORLD, LOCAL_WORLD) if use.product.power(symbol) == -1), None)


def _name(option: DeclaredOption) -> str:
    return last_word(option.flags[0])


_SECONDS_OR_TOKENS = re.compile(
    r"max-(?:duration|tokens)|(?:train-)?batch-(?:duration|tokens|size-tokens)|tokens-per-\S+"
)
_CONSTANTS: tuple[Meaning, ...] = ("batch_size", "lr", "accum", "warmup_steps")


def instead(options: Sequence[DeclaredOption], flow: Flow, script: str) -> Iterator[tuple[Meaning, str]]:
    """Yield what the file ``script`` or its program has for a number that no option stands for, as a clause."""
    have = {option.meaning for option in options}
    batch = not have.isdisjoint(
        ("batch_size", "step_batch_size", "node_batch_size", "total_batch_size", "global_batch_size")
    )
    declared = {option: meaning for option in options if (meaning := candidate(option)) is not None}
    for option, meaning in declared.items():
        unit = unit_of_batches(flow) if meaning in _BATCHES and meaning not in have else ""
        counted_in = f"`{option.flags[0]}` counts what {unit} says" if unit else ""
        if meaning not in have and (clause := counted_in or without_effect(option, meaning, flow, declared)):
            yield ("batch_size" if unit else meaning), clause
            have.add(meaning)
            batch = batch or meaning in ("batch_size", "global_batch_size")
    counted = next((option for option in options if not batch and _counts_no_samples(option)), None)
    if counted is not None:
        unit = "tokens" if _NOT_SAMPLES.search(f"{counted.help} {_name(counted)}") else "seconds"
        yield "batch_size", f"`{counted.flags[0]}` counts {unit} instead of samples ({counted.at})"
    have |= {"batch_size"} if batch or counted is not None else set()
    left = [wanted for wanted in _CONSTANTS if wanted not in have]
    numbers = numbers_in(flow) if left else {}
    for wanted in left:
        found = constant(wanted, numbers.get(wanted, ()), script)
        if found is not None:
            yield wanted, found


def _counts_no_samples(option: DeclaredOption) -> bool:
    name = _name(option)
    batch = meaning_of(name) in ("batch_size", "global_batch_size")
    return bool(_SECONDS_OR_TOKENS.fullmatch(name) or (batch and _NOT_SAMPLES.search(option.help)))
