"""Which number of the plan an option stands for: by its name, its help, and what the script does with its value.

Five numbers are read: the batch of a rank, the batch of all ranks, accumulation, learning rate and warmup. An option
that counts something else gets none: the report says so, and what to type instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ddplaunch.script.doubts import BATCHES, TOKENS, doubt_of, without_effect
from ddplaunch.script.flow import LOADERS, UNREAD, Flow, Product, Use, is_of_samples
from ddplaunch.script.names import is_number, last_word, meaning_of
from ddplaunch.script.script_report import LOCAL_WORLD, WORLD, DeclaredOption, Instead, LrRule, Meaning
from ddplaunch.values.frozen import dataclass

# Names that count only if the type of the option fits.
_UNSURE = frozenset({"batch", "b", "bs", "warmup", "t-warmup", "accumulate", "accumulation", "batch-split"})
# Names of options that count one rank's samples.
_RANK_NAME = re.compile(r"per-(?:gpu|device|proc|rank|replica)|^device-|^local-|^micro|samples-per|-gpu$")
_SEVERAL_HELP = re.compile(
    r"(?i)\b(?:total|global|effective|overall)\b[^.;(]{0,24}\bbatch|\bbatch[^.;]{0,30}\b(?:in total|globally)\b"
    r"|\b(?:across|over|of|for|on|among|by)(?: all)?(?: the)? (?:gpus|devices|ranks|processes|workers|cards)\b"
    r"|\ball gpus\b|\bper[- _](?:node|machine|host)\b|\b(?:each|every|a single) (?:node|machine|host)\b"
)
_RANK_HELP = re.compile(
    r"(?i)\bper[- _](?:gpu|device|process|proc|rank|worker|card|core|replica)\b|\b(?:each|every|a single|one) "
    r"(?:gpu|device|process|rank|worker|card)\b|\blocal batch"
)
# A batch size that only a learning rate is scaled from.
_FOR_RATES = re.compile(r"(?i)\bfor (?:auto[- ]?)?(?:re)?scal(?:e|ing) (?:of )?(?:the )?(?:lr\b|learning[- ]rate)")
_NOT_TO_SET = re.compile(
    r"(?i)\b(?:set|updated|computed) automatically|automatically (?:set|updated|computed)"
    r"|\bdeprecated\b|\bobsolete\b|\b(?:do not|don't) use\b|\bno longer used\b"
)
_STEPS = re.compile(r"(?i)steps?\b|iterations|iters|updates")
_EPOCHS_HELP = re.compile(r"(?i)\bepochs?\b")
_RATIO_HELP = re.compile(r"(?i)\b(?:ratio|fraction|proportion|percent\w*)\b")
_TOTALS = ("total_batch_size", "global_batch_size")


@dataclass(frozen=True)
class Understood:
    """The options with their meanings, meanings that several could have, and what there is instead of an option."""

    options: tuple[DeclaredOption, ...]
    ambiguous: tuple[tuple[Meaning, tuple[str, ...]], ...]
    instead: tuple[Instead, ...]


def candidate(option: DeclaredOption) -> Meaning | None:
    """Return the number that the option's name, type and help stand for, or None.

    None also for one that its help advises against, for a count whose type or default is a fraction, and for text.
    """
    if not option.fillable or not option.takes_value or _NOT_TO_SET.search(option.help):
        return None
    for flag in option.flags:
        name = last_word(flag)
        meaning = meaning_of(name) if flag.startswith("--") or len(name) > 1 else None
        if meaning is not None and not fits(name, meaning, option):
            ratio = meaning == "warmup_steps" and (option.kind == "float" or is_number(option.default or ""))
            if ratio and _EPOCHS_HELP.search(option.help):
                return "warmup_epochs"
            return "warmup_ratio" if ratio and 0 < float(option.default or 0) < 1 else None
        if meaning == "warmup_steps" and not _STEPS.search(name) and not _STEPS.search(option.help):
            by_ratio: Meaning = "warmup_ratio" if _RATIO_HELP.search(option.help) else "warmup_steps"
            return "warmup_epochs" if _EPOCHS_HELP.search(option.help) else by_ratio
        if meaning in BATCHES and (TOKENS.search(option.help) or _FOR_RATES.search(option.help)):
            return None
        if meaning is not None:
            return meaning  # type: ignore[return-value]  # a meaning
    return None


def fits(name: str, meaning: str, option: DeclaredOption) -> bool:
    """Return whether an option's type and default fit the number that ``name`` stands for."""
    default = option.default
    integral = default is not None and default.replace("_", "").lstrip("+-").isdigit()
    if option.kind in ("str", "bool", "Path"):
        return False
    if meaning in ("lr", "warmup_ratio"):
        return option.kind != "int"
    if name in _UNSURE or not re.search("size|bs|lr|rate|warm|acc|per|gpu|freq|global|total", name):
        return option.kind == "int" or (option.kind is None and integral)
    fraction = default is not None and is_number(default) and not integral
    return meaning == "warmup_epochs" or (option.kind != "float" and not fraction)


def understood(options: Sequence[DeclaredOption], flow: Flow) -> Understood:
    """Return what each option stands for, and why some get no number."""
    candidates = [candidate(option) for option in options]
    instead: list[Instead] = []
    computed = {option.dest for option in options if _NOT_TO_SET.search(option.help)}
    for index, option in enumerate(options):
        meaning = candidates[index]
        if meaning is not None and (clause := without_effect(option, flow)):
            candidates[index] = None
            computed.add(option.dest)
            instead.append(Instead(meaning, clause, no_option=True))
    reader = _Reader(options, candidates, flow, computed)
    meant = [reader.meaning_of(option, meaning) for option, meaning in zip(options, candidates, strict=True)]
    instead = [*reader.doubts, *instead]
    plain = _without_ambiguous(meant, {doubt.meaning for doubt in reader.doubts})
    chosen = tuple(replace(option, doubt=doubt_of(option, reader.uses, flow, reader.counting)) for option in plain)
    have = {_family(option.meaning) for option in chosen} | {_family(meaning) for meaning in _shared(meant)}
    instead = [each for each in instead if each in reader.doubts or _family(each.meaning) not in have]
    return Understood(chosen, tuple(_ambiguous(meant, chosen)), tuple(instead))


def _family(meaning: Meaning | None) -> Meaning | None:
    return "batch_size" if meaning and meaning.endswith("batch_size") else meaning


class _Reader:
    """Reads from arithmetic what options stand for; ``doubts`` are about those that count something else."""

    def __init__(
        self,
        options: Sequence[DeclaredOption],
        candidates: Sequence[Meaning | None],
        flow: Flow,
        computed: Collection[str],
    ) -> None:
        named = [(option, meaning) for option, meaning in zip(options, candidates, strict=True) if meaning is not None]
        self.flow = flow
        self.by_deepspeed = any(record.package == "deepspeed" for _, record in flow.program.foreign)
        self.rates, self.batches, self.accums, warmups = (
            {option.dest for option, meaning in named if meaning in family}
            for family in (("lr",), BATCHES, ("accum",), ("warmup_steps",))
        )
        self.others = {option.dest for option in options} - self.rates
        self.micros = {o.dest for o, _ in named if o.dest in self.batches and _RANK_NAME.search(last_word(o.flags[0]))}
        self.counting = {*self.batches, *self.accums, WORLD, LOCAL_WORLD}
        self.doubts: list[Instead] = []
        uses = flow.uses(self.rates | self.batches | self.accums | warmups) if named else ()
        self.uses = [use for use in uses if not any(use.product.power(dest) for dest in computed)]

    def meaning_of(self, option: DeclaredOption, meaning: Meaning | None) -> DeclaredOption:
        """Return the option with its meaning, and with the rule of a learning rate that the script scales."""
        own = [use for use in self.uses if use.product.power(option.dest) == 1] if meaning is not None else []
        if meaning == "lr":
            return replace(option, meaning=meaning, rule=self._rule(own))
        if meaning in BATCHES:
            own = [use for use in own if not any(use.product.power(rate) for rate in self.rates)]
            read, because = self._batch(option, meaning, own)
            return replace(option, meaning=read, because=because)
        divided = self._divided(option, own, (WORLD, LOCAL_WORLD), {WORLD, LOCAL_WORLD}) if meaning == "accum" else None
        if divided is not None:
            self._doubt(option, "accum", divided)
            return replace(option, meaning=None)
        return replace(option, meaning=meaning)

    def _doubt(self, option: DeclaredOption, meaning: Meaning, clause: str, *words: str) -> None:
        """Note that an option does not count what the plan passes, with the words that state its unit."""
        name = option.flags[0]
        fix = " or ".join(f"`--batch-option={name}:{word}`" for word in words)
        self.doubts.append(
            Instead(
                meaning, clause, fix or f"pass `{option.after_flag} {name}`".replace("` ", "`") + " yourself after `--`"
            )
        )

    def _divided(
        self, option: DeclaredOption, own: Sequence[Use], divisors: Sequence[str], only: set[str] | None = None
    ) -> str | None:
        """Return where the option is divided by one of the numbers, as a clause; ``only`` limits the other factors."""
        for use in own:
            names = {name for name, _ in use.product.powers} - {option.dest}
            by = next((name for name in divisors if use.product.power(name) == -1), None)
            if by is not None and use.runs and use.product.constant == 1 and (only is None or names <= only):
                return f"{use.at} divides it by the {by if by in (WORLD, LOCAL_WORLD) else 'accumulation'}"
        return None

    def _batch(self, option: DeclaredOption, named: Meaning, own: Sequence[Use]) -> tuple[Meaning | None, str]:
        """Decide whose samples an option counts, from evidence in this order: arithmetic, name, data loader, help."""
        alone = Product(1.0, ((option.dest, 1.0),))
        for use in own:  # https://www.deepspeed.ai/docs/config-json/#batch-size-related-parameters
            if use.product == alone and (use.name, use.sink) == ("train_batch_size", "dict") and self.by_deepspeed:
                return "global_batch_size", f"{use.at} hands it to DeepSpeed as `train_batch_size`"
        others = self.batches - {option.dest}
        parts = self.accums | others
        counting = {*parts, option.dest, WORLD, LOCAL_WORLD}
        # a product with the accumulation is the batch before its division
        counted = [
            use
            for use in own
            if all(name in counting or (name[0] == "?" and power < 0) for name, power in use.product.powers)
            and all(use.product.power(name) <= 0 for name in self.accums)
        ]
        micros = self.micros - {option.dest}
        divided = self._divided(option, counted, (WORLD,))
        parted = {use.at for use in own if _divided_by_ranks(use)}
        loaded = (
            use
            for use in own
            if use.runs and use.product == alone and use.at not in parted and use.name == "batch_size"
        )
        sinks = [use for use in loaded if LOADERS.search(use.sink) and not self.flow.is_own(use.sink)]
        whole = f"{sinks[0].at} hands it to {sinks[0].sink}" if sinks else ""
        if divided is not None and whole:
            self._doubt(option, "batch_size", f"{divided}, and {whole} undivided", "rank", "total")
            return None, ""
        if divided is not None:
            in_passes = bool(micros) or self._divided(option, counted, tuple(parts)) is not None
            return ("global_batch_size" if in_passes else "total_batch_size"), divided
        in_part = self._divided(option, counted, (LOCAL_WORLD,)) or self._divided(
            option, own, tuple(self.accums | micros), self.accums | micros
        )
        if in_part is not None:
            self._doubt(option, "batch_size", in_part, "node" if LOCAL_WORLD in in_part else "step")
            return None, ""
        multiplied = any(use.runs and use.product.power(WORLD) == 1 for use in own)
        elsewhere = any(not use.runs and _divided_by_ranks(use) for use in counted)  # not in this launch
        if (
            multiplied
            or elsewhere
            or (whole and named == "batch_size")
            or _RANK_NAME.search(last_word(option.flags[0]))
        ):
            return "batch_size", whole
        return self._undivided(option, named)

    def _undivided(self, option: DeclaredOption, named: Meaning) -> tuple[Meaning | None, str]:
        """Decide by name; a help that counts other samples than one rank's is not believed, and leaves it open."""
        passes = self.micros - {option.dest} or (self.accums if named == "global_batch_size" else ())
        if named == "global_batch_size":
            return ("global_batch_size" if passes else "total_batch_size"), "its name"
        if _RANK_HELP.search(option.help) or not _SEVERAL_HELP.search(option.help):
            return "batch_size", ""
        clause = f"`{option.flags[0]}` counts the samples of several ranks by its help alone ({option.at})"
        self._doubt(option, "batch_size", clause, "rank", "node", "total")
        return None, ""

    def _rule(self, own: Sequence[Use]) -> LrRule | None:
        """Return how the script multiplies its learning rate, from the product with the most factors that runs."""
        parts = self.batches | self.accums
        rules = []
        for use in own:
            counting = tuple(item for item in use.product.powers if item[0] in parts or is_of_samples(item[0]))
            if use.runs and any(power > 0 and name not in self.accums for name, power in counting):
                steady = tuple(item for item in use.product.powers if item[0] in self.others or item in counting)
                schedule = any(name[0] == "?" for name, _ in use.product.powers)  # may have options for its length
                rules.append(LrRule(use.product.constant, counting if schedule else steady, use.at))
        best = max(rules, key=lambda rule: len(rule.powers), default=None)
        if best is None:
            return None
        by_batch = [dest for dest in self.batches if dest in dict(best.powers)]
        shared = any(
            use.product.power(dest) == 1 and use.product.power(WORLD) == -1 for use in self.uses for dest in by_batch
        )
        worlds = {dict(rule.powers).get(WORLD) for rule in rules if rule.at == best.at}
        # the batch may be that before its division, or the script chooses one of several rules when it runs
        # ``best``, or no other factors: a step towards it, or its schedule
        part = all(rule.at == best.at or set(rule.powers) <= set(best.powers) for rule in rules)
        if (shared and len(worlds) > 1) or not part:
            return replace(best, powers=(*best.powers, (UNREAD, 1.0)))
        return best


def _divided_by_ranks(use: Use) -> bool:
    return min(use.product.power(WORLD), use.product.power(LOCAL_WORLD)) < 0


def _shared(options: Sequence[DeclaredOption]) -> dict[Meaning, list[DeclaredOption]]:
    """Return the options of each meaning that several have; one number can go to one of them."""
    by_meaning: dict[Meaning, list[DeclaredOption]] = {}
    for option in options:
        if option.meaning is not None:
            by_meaning.setdefault(option.meaning, []).append(option)
    return {meaning: group for meaning, group in by_meaning.items() if len({o.flags[0] for o in group}) > 1}


def _without_ambiguous(options: Sequence[DeclaredOption], doubtful: Collection[Meaning]) -> Iterator[DeclaredOption]:
    """Yield the options; of several with one meaning, only one that is plainly meant keeps it.

    If the batch of one rank is in doubt, that of all ranks gets none either: alone it would not make the planned batch.
    """
    shared = _shared(options)
    plain = {meaning: _plain(meaning, group) for meaning, group in shared.items()}
    rank_in_doubt = "batch_size" in doubtful or plain.get("batch_size", "") is None
    seen: set[tuple[str, ...]] = set()
    for option in options:
        left_out = option.meaning in shared and option.flags[0] != plain[option.meaning]
        again = option.meaning is not None and option.flags in seen  # declared in two branches, or by two parsers
        partial = rank_in_doubt and option.meaning in (("batch_size", *_TOTALS) if doubtful else _TOTALS)
        seen |= {option.flags} if option.meaning is not None else set()
        yield replace(option, meaning=None) if left_out or again or partial else option


def _plain(meaning: Meaning, options: Sequence[DeclaredOption]) -> str | None:
    """Return the first flag of the option that is plainly meant among several of one meaning, or None.

    Of learning rates that is the only one that the script does not scale, if it scales others, or the only one called
    just ``lr`` or ``learning-rate``; of others, as of the batches of several stages, none.
    """
    if meaning != "lr":
        return None
    scaled = any(option.rule for option in options)
    named = [option for option in options if last_word(option.flags[0]) in ("lr", "learning-rate")]
    plain = [option for option in options if option.rule is None] if scaled else named
    return plain[0].flags[0] if len(plain) == 1 else None


def _ambiguous(
    meant: Sequence[DeclaredOption], chosen: Sequence[DeclaredOption]
) -> Iterator[tuple[Meaning, tuple[str, ...]]]:
    """Yield the meanings that are left to no option, with the first flags of those that could have it."""
    have = {option.meaning for option in chosen}
    shared = {meaning: group for meaning, group in _shared(meant).items() if meaning not in have}
    for meaning, group in shared.items():
        yield meaning, tuple(dict.fromkeys(option.flags[0] for option in group))
