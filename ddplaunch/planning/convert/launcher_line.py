"""One line of another launcher as the command of ddplaunch that starts the same processes; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddplaunch.planning.convert.launch_words import Word, attached, divided, endpoint, find_launcher, known, option_of
from ddplaunch.planning.convert.launcher_options import FLAGS, LAUNCHERS, Meaning, canonical
from ddplaunch.planning.convert.srun_line import step_of
from ddplaunch.planning.convert.translation import CannotSay, Note, Translation, literal, of_container, unsure

_ONE = ("1", "1:1")
_BY_DEFAULT = Note(
    "how many processes accelerate starts",
    "its default_config.yaml says so where `accelerate config` wrote one, or it is one for each GPU, as `auto` is",
)
#: Launchers whose lines stay, and why.
_STAY = {
    "torchx": Note("an app of TorchX", "convert the line of torchrun that `torchx run --dryrun` prints for it"),
    "deepspeed": Note(
        "a launch of DeepSpeed's",
        "torchrun starts its ranks too: `ddplaunch run 4 -- train.py '--local_rank=${local_rank}'`",
    ),
    "mpirun": Note(
        "processes of MPI",
        "with RANK and LOCAL_RANK in place of MPI's variables it is `ddplaunch run 4 -- train.py`; "
        "over hosts, `ddplaunch run --hosts a,b -- train.py`",
    ),
}
#: All words that a shell script or function was called with.
ALL_WORDS = ("$@", "$*", "${@}", "${*}")
_LOCAL = ("localhost", "127.0.0.1")


def translate(words: Sequence[Word], job: Mapping[str, Word] | None = None) -> Translation | None:
    """Return what ddplaunch says for a line, None if no launcher starts ranks in it.

    ``job`` are the sizes of the Slurm job around it.
    """
    place = find_launcher(words)
    if place is None:
        return None
    if place.launcher == "srun":
        return step_of(words, place, job or {})
    if place.launcher in _STAY:
        return Translation(place.launcher, place.start, unknown=(_STAY[place.launcher],))
    line = LauncherLine(place.launcher)
    try:
        rest = line.read(words[place.options :])
        program = [known("ddplaunch")] if place.python is None else [place.python, known("-m"), known("ddplaunch")]
        command = [*program, *line.command(rest)]
        line.unknown += of_container(words[: place.start])
    except CannotSay as cannot:
        return Translation(place.launcher, place.start, unknown=(cannot.note,))
    return Translation(place.launcher, place.start, tuple(command), tuple(line.dropped), tuple(line.unknown))


class LauncherLine:
    """What the options of one line say, collected word by word."""

    def __init__(self, launcher: str) -> None:
        self.launcher = launcher
        self.said: dict[str, Word] = {}
        self.flags: list[Word] = []
        self.env: dict[str, Word] = {}
        self.switches: set[str] = set()
        self.dropped: list[Note] = []
        self.unknown: list[Note] = []

    def read(self, words: Sequence[Word]) -> list[Word]:
        """Take the launcher's options; return the words behind them: what the ranks run. Raises CannotSay."""
        at = 0
        words = list(words)
        while at < len(words):
            word = words[at]
            if word.parts and option_of(word.parts[0])[0]:
                words[at : at + 1] = word.parts
                continue
            if word.text == "--":
                return list(words[at + 1 :])
            name, value = option_of(word)
            if not name:
                self._refuse_hidden_options(words[at:])
                break
            key = canonical(self.launcher, name)
            if key is None and name[:2] in LAUNCHERS[self.launcher] and not name.startswith("--"):
                key, value = name[:2], known(name[2:])  # `-r3`
            if key is None:
                raise CannotSay(f"`{name}`", f"it is no option of {self.launcher} that ddplaunch knows")
            meaning = LAUNCHERS[self.launcher][key]
            value_count = meaning.values if value is None else 0
            if at + value_count >= len(words):
                raise CannotSay(f"`{word.source}`", "a value is missing behind it")
            values = [*([] if value is None else [value]), *words[at + 1 : at + 1 + value_count]]
            self.take(key, meaning, values)
            at += 1 + value_count
        if at >= len(words):
            raise CannotSay(f"`{self.launcher}` without a script", "the line starts nothing")
        return list(words[at:])

    def _refuse_hidden_options(self, rest: Sequence[Word]) -> None:
        """Raise CannotSay if a variable stands before what is plainly the script: options of the launcher are in it."""
        if rest[0].value is not None:
            return
        several = rest[0].source.strip('"') in ALL_WORDS or "[@]" in rest[0].source or "[*]" in rest[0].source
        unsized = not {"nproc", "total", "nnodes"} & self.said.keys()
        if unsized and (several or LAUNCHERS[self.launcher] is LAUNCHERS["torchrun"]):
            raise CannotSay(f"`{rest[0].source}`", f"the options of {self.launcher} may be in it: the line says none")
        table = LAUNCHERS[self.launcher]
        for word in rest[1:]:
            name = option_of(word)[0]
            means = table.get(canonical(self.launcher, name) or "") if name else None
            if (word.text or "").endswith(".py") or (means and means.kind in ("nproc", "nnodes", "node_rank", "total")):
                why = f"options of {self.launcher} may be in it, and the text of the script does not say which"
                raise CannotSay(f"`{rest[0].source}`", why)
            if not name and word.text is not None:
                return

    def take(self, key: str, meaning: Meaning, values: Sequence[Word]) -> None:
        """Note what one option says. Raises CannotSay."""
        kind, typed = meaning.kind, " ".join([key, *(word.source for word in values)])
        if kind == "drop":
            self.dropped.append(Note(f"`{typed}`", meaning.detail))
        elif kind == "cannot":
            raise CannotSay(f"`{typed}`", meaning.detail)
        elif kind == "torchrun":
            self.flags.append(attached(f"--torchrun-arg={meaning.detail or key}=", values[0]))
        elif kind == "env":
            if (values[0].text or "").lower() != "no":
                self.env[meaning.detail] = values[0]
        elif kind == "switch":
            name, _, value = meaning.detail.partition("=")
            self.env[name] = known(value)
        elif values:
            self.said[kind] = values[0]
        else:
            self.switches.add(kind)

    def command(self, rest: Sequence[Word]) -> list[Word]:
        """Return ``run NPROC FLAGS -- TARGET``. Raises CannotSay."""
        if self.launcher == "accelerate" and not {"nproc", "total", "gpus"} & self.said.keys():
            self.unknown.append(_BY_DEFAULT)
        nproc, nnodes = self._size()
        one = nnodes.value in _ONE
        counts = [nproc]
        if not one and nproc.text is not None and nnodes.number() is not None:
            counts = [known(f"{nnodes.text}x{nproc.text}")]
        elif not one:
            counts += [known("--nnodes"), nnodes]
        words = [known("run"), *counts, *self._rendezvous(one)]
        if self.said.get("gpus", known("all")).text != "all":
            words += [known("--gpus"), self.said["gpus"]]
        if "max_restarts" in self.said and self.said["max_restarts"].text != "0":
            words += [known("--max-restarts"), self.said["max_restarts"]]
        for name, value in self.env.items():
            words += [known("--env"), attached(f"{name}=", value)]
        return [*words, *self.flags, known("--"), *self._target(list(rest))]

    def _size(self) -> tuple[Word, Word]:
        """Return processes per node and nodes."""
        nnodes = self.said.get("nnodes", known("1"))
        total, nproc = self.said.get("total"), self.said.get("nproc")
        if total is not None:
            nproc = divided(total, nnodes)
            if nproc is None:
                raise CannotSay(f"{total.source} processes on {nnodes.source} nodes", "every node runs the same number")
        if nproc is None:
            devices = self.said.get("gpus")
            if self.launcher == "accelerate" and devices is not None and devices.text not in (None, "all"):
                nproc = known(str(len((devices.text or "").split(","))))
            else:
                nproc = known("1" if LAUNCHERS[self.launcher] is LAUNCHERS["torchrun"] else "auto")
        counted = {"gpu": known("auto"), "cpu": Word("$(nproc --all)")}
        return counted.get(nproc.text or "", nproc), nnodes

    def _rendezvous(self, one: bool) -> list[Word]:
        """Return the flags that say where nodes meet and which one this is."""
        self._split_endpoint()
        words = []
        why = "on one node ranks meet at localhost, and its node rank is 0"
        for kind in ("node_rank", "addr"):
            if kind in self.said and one:
                self.dropped.append(Note(f"`{FLAGS[kind]} {self.said[kind].source}`", why))
            elif kind in self.said:
                words += [known(FLAGS[kind]), self.said[kind]]
        port = self.said.get("port")
        if port is not None and port.text == "0":
            self.dropped.append(Note("port 0", "one node finds a free port by itself"))
        elif port is not None:
            words += [known("--master-port"), port]
        if not one and "node_rank" not in self.said:
            why = "Slurm says it in a job; elsewhere add `--node-rank 0` on the node of the address, 1 on the next"
            self.unknown.append(Note("the rank of each node", why))
        return words

    def _split_endpoint(self) -> None:
        """``--rdzv-endpoint HOST:PORT`` says the address and the port; c10d's own port is 29400."""
        word = self.said.pop("endpoint", None)
        if word is None:
            return
        split = endpoint(word, "29400")
        if split is None:
            raise CannotSay(f"`--rdzv-endpoint {word.source}`", "address and port cannot be told apart in it")
        address, number = split
        if (
            address.text in _LOCAL
            and number.text in ("0", "29400")
            and self.said.get("nnodes", known("1")).value in _ONE
        ):
            self.dropped.append(Note(f"`--rdzv-endpoint {word.source}`", "one node finds a free port by itself"))
            return
        self.said.setdefault("addr", address)
        self.said.setdefault("port", number)

    def _target(self, rest: list[Word]) -> list[Word]:
        """Return what every rank runs, with the option of its local rank where the launcher appended one."""
        local = self.launcher == "torch.distributed.launch" and "use_env" not in self.switches
        passed = [known("--local-rank=${local_rank}")] if local else []
        args = [*passed, *map(literal, rest[1:])]
        if "module" in self.switches:
            return [known("-m"), rest[0], *args]
        text = rest[0].value
        if "no_python" in self.switches:
            return [*([known("env")] if (text or "").endswith(".py") else []), rest[0], *args]
        if text is None:
            self.unknown.append(unsure(rest[0]))
        as_script = text is None or text.endswith(".py")
        return [*([] if as_script else [known("python"), known("-u")]), rest[0], *args]
