"""Translates one line of another launcher into the ddplaunch command that starts the same processes; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddplaunch.planning.convert.launch_words import (
    Word,
    address_and_port,
    attached,
    divided,
    find_launcher,
    known_word,
    option_of,
)
from ddplaunch.planning.convert.launcher_options import LAUNCHERS, PORT, Meaning, canonical
from ddplaunch.planning.convert.srun_line import step_of
from ddplaunch.planning.convert.translation import (
    CannotSay,
    Note,
    Translation,
    unsure,
    without_placeholders,
)

_ONE = ("1", "1:1")
_BY_DEFAULT = Note(
    "how many processes accelerate starts",
    "its default_config.yaml says so where `accelerate config` wrote one, or it is one for each GPU, as `auto` is",
)
#: Launchers whose lines are not translated, and why.
_STAY = {
    "torchx": Note("an app of TorchX", "convert the line of torchrun that `torchx run --dryrun` prints for it"),
    "mpirun": Note(
        "processes of MPI",
        "with RANK and LOCAL_RANK in place of MPI's variables it is `ddplaunch run 4 -- train.py`; "
        "over hosts, `ddplaunch run --hosts a,b -- train.py`",
    ),
}
_LOCAL = ("localhost", "127.0.0.1")
#: The option for its local rank that a launcher passes to the script.
_LOCAL_RANK = {"torch.distributed.launch": "--local-rank", "deepspeed": "--local_rank"}


def translate(words: Sequence[Word], job: Mapping[str, Word] | None = None) -> Translation | None:
    """Return the translation of a line, None if no launcher starts ranks in it.

    ``job`` holds the sizes of the Slurm job around the line, and ``PORT`` if the script may set that variable.
    """
    place = find_launcher(words)
    if place is None:
        return None
    if place.launcher == "srun":
        return step_of(words, place, job or {})
    if place.launcher in _STAY:
        return Translation(place.launcher, place.start, unknown=(_STAY[place.launcher],))
    line = LauncherLine(place.launcher)
    if any(PORT in word.source for word in words) or PORT in (job or {}):
        line.switches.add(PORT)
    try:
        rest = line.read(words[place.options :])
        python = [place.python, known_word("-m")] if place.python else []
        command = [*python, known_word("ddplaunch"), *line.command(rest)]
    except CannotSay as cannot:
        return Translation(place.launcher, place.start, unknown=(cannot.note,))
    return Translation(place.launcher, place.start, tuple(command), tuple(line.dropped), tuple(line.unknown))


class LauncherLine:
    """The meaning of one line's options, collected word by word."""

    def __init__(self, launcher: str) -> None:
        self.launcher = launcher
        self.said: dict[str, Word] = {}
        self.flags: list[Word] = []
        self.switches: set[str] = set()
        self.dropped: list[Note] = []
        self.unknown: list[Note] = []

    def read(self, words: Sequence[Word]) -> Sequence[Word]:
        """Read the launcher's options and return the words after them, which the ranks run. Raises CannotSay."""
        at = 0
        words = list(words)
        while at < len(words):
            word = words[at]
            if word.parts and option_of(word.parts[0])[0]:
                words[at : at + 1] = word.parts
                continue
            if word.text == "--":
                return words[at + 1 :]
            name, value = option_of(word)
            if not name:
                self._refuse_hidden_options(words[at:])
                break
            key = canonical(self.launcher, name)
            if key is None and name[:2] in LAUNCHERS[self.launcher] and not name.startswith("--"):
                key, value = name[:2], known_word(name[2:])  # `-r3`
            if key is None:
                raise CannotSay(f"`{name}`", f"it is no option of {self.launcher} that ddplaunch knows")
            meaning = LAUNCHERS[self.launcher][key]
            value_count = meaning.values if value is None else 0
            if at + value_count >= len(words):
                raise CannotSay(f"`{word.source}`", "its value is missing")
            values = [*([] if value is None else [value]), *words[at + 1 : at + 1 + value_count]]
            self.take(key, meaning, values)
            at += 1 + value_count
        if at >= len(words):
            raise CannotSay(f"`{self.launcher}` without a script", "the line starts nothing")
        script, *arguments = words[at:]
        if arguments and arguments[0].text == "--":  # argparse keeps one that stands beside the script
            del arguments[0]
        return [script, *arguments]

    def _refuse_hidden_options(self, rest: Sequence[Word]) -> None:
        """Raise CannotSay if the first word of ``rest`` is a variable that may hold options of the launcher."""
        if rest[0].value is not None:
            return
        several = {"@", "*"} & set(rest[0].source)
        unsized = not {"nproc", "total", "nnodes"} & self.said.keys()
        if unsized and (several or self.launcher != "accelerate"):
            raise CannotSay(f"`{rest[0].source}`", f"the options of {self.launcher} may be in it: the line says none")
        table = LAUNCHERS[self.launcher]
        for word in rest[1:]:
            name = option_of(word)[0]
            means = table.get(canonical(self.launcher, name) or "") if name else None
            if (word.text or "").endswith(".py") or (
                means and means.kind in ("nproc", "nnodes", "--node-rank", "total")
            ):
                why = f"options of {self.launcher} may be in it, and the text of the script does not say which"
                raise CannotSay(f"`{rest[0].source}`", why)
            if not name and word.text is not None:
                return

    def take(self, key: str, meaning: Meaning, values: Sequence[Word]) -> None:
        """Record the meaning of one option. Raises CannotSay."""
        kind, typed = meaning.kind, " ".join([key, *(word.source for word in values)])
        if kind == "drop":
            self.dropped.append(Note(f"`{typed}`", meaning.detail))
        elif kind == "cannot":
            raise CannotSay(f"`{typed}`", meaning.detail)
        elif kind == "torchrun":
            self.flags.append(attached(f"--torchrun-arg={meaning.detail or key}=", values[0]))
        elif kind == "env":
            setting = attached(meaning.detail, values[0]) if values else known_word(meaning.detail)
            if not setting.source.lower().endswith("=no"):
                self.flags += [known_word("--env"), setting]
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
            counts = [known_word(f"{nnodes.text}x{nproc.text}")]
        elif not one:
            counts += [known_word("--nnodes"), nnodes]
        words = [known_word("run"), *counts, *self._rendezvous(one)]
        if self.said.get("gpus", known_word("all")).text != "all":
            words += [known_word("--gpus"), self.said["gpus"]]
        if "max_restarts" in self.said and self.said["max_restarts"].text != "0":
            words += [known_word("--max-restarts"), self.said["max_restarts"]]
        return [*words, *self.flags, known_word("--"), *self._target(rest)]

    def _size(self) -> tuple[Word, Word]:
        """Return processes per node, and nodes. Raises CannotSay."""
        nnodes = self.said.get("nnodes", known_word("1"))
        total, nproc = self.said.get("total"), self.said.get("nproc")
        if total is not None:
            nproc = divided(total, nnodes)
            if nproc is None:
                raise CannotSay(f"{total.source} processes on {nnodes.source} nodes", "every node runs the same number")
        if nproc is None:
            devices = self.said.get("gpus", known_word("all")).text
            if devices and devices != "all":
                nproc = known_word(str(len(devices.split(","))))
            else:
                nproc = known_word("1" if self.launcher.startswith("torch") else "auto")
        counted = {"gpu": known_word("auto"), "cpu": Word("$(nproc --all)")}
        return counted.get(nproc.text or "", nproc), nnodes

    def _rendezvous(self, one: bool) -> list[Word]:
        """Return the flags for the place where nodes meet, and for the rank of this node. Raises CannotSay."""
        self._split_endpoint(one)
        words = []
        why = "on one node ranks meet at localhost, and its node rank is 0"
        for kind in ("--node-rank", "--master-addr"):
            if kind in self.said and one:
                self.dropped.append(Note(f"`{kind} {self.said[kind].source}`", why))
            elif kind in self.said:
                words += [known_word(kind), self.said[kind]]
        port = self.said.get("port", known_word("0"))
        if port.text != "0" or PORT in self.switches:  # torchrun ignores an exported port
            words += [known_word("--master-port"), port]
        if not one and "--node-rank" not in self.said:
            why = "NODE_RANK or Slurm says it; elsewhere add `--node-rank 0` on the node of the address, 1 on the next"
            self.unknown.append(Note("the rank of each node", why))
        return words

    def _split_endpoint(self, one: bool) -> None:
        """Take address and port from ``--rdzv-endpoint HOST:PORT``; c10d's default port is 29400. Raises CannotSay.

        ``--standalone`` means an endpoint on localhost with a free port.
        """
        word = known_word("localhost:0") if "standalone" in self.switches else self.said.get("endpoint")
        if word is None:
            return
        split = address_and_port(word, "29400")
        if split is None:
            raise CannotSay(f"`--rdzv-endpoint {word.source}`", "address and port cannot be told apart in it")
        self.said.pop("port", None)  # torchrun uses only the endpoint
        if split[0].text not in _LOCAL or split[1].text not in ("0", "29400") or not one:
            self.said["--master-addr"], self.said["port"] = split

    def _target(self, rest: Sequence[Word]) -> list[Word]:
        """Return what every rank runs, with the option for its local rank if the launcher adds one."""
        local = "" if "use_env" in self.switches else _LOCAL_RANK.get(self.launcher, "")
        passed = [known_word(f"{local}=${{local_rank}}")] if local else []
        args = [*passed, *map(without_placeholders, rest[1:])]
        text = rest[0].value
        is_file = (text or "").endswith(".py")
        before = []
        if "module" in self.switches:
            before = ["-m"]
        elif "no_python" in self.switches:
            before = ["env"] if is_file else []
        elif text is None:
            self.unknown.append(unsure(rest[0]))
        elif not is_file:
            before = ["python", "-u"]
        return [*map(known_word, before), rest[0], *args]
