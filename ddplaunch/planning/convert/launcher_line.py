"""One line of another launcher as the command of ddplaunch that starts the same processes; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ddplaunch.planning.convert.launch_words import Word, attached, divided, endpoint, find_launcher, known, option_of
from ddplaunch.planning.convert.launcher_options import FLAGS, LAUNCHERS, ONE_PROCESS, Meaning, canonical
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
    "mpirun": Note(
        "processes of MPI",
        "with RANK and LOCAL_RANK in place of MPI's variables it is `ddplaunch run 4 -- train.py`; "
        "over hosts, `ddplaunch run --hosts a,b -- train.py`",
    ),
}
#: All words that a shell script or function was called with.
ALL_WORDS = ("$@", "$*", "${@}", "${*}")
_LOCAL = ("localhost", "127.0.0.1")
#: What ``--config_file`` says, by option; None where it cannot be read.
ReadConfig = Callable[[str], "Mapping[str, str] | None"]


def translate(
    words: Sequence[Word], config: ReadConfig | None = None, job: Mapping[str, Word] | None = None
) -> Translation | None:
    """Return what ddplaunch says for a line, None if no launcher starts ranks in it.

    ``config`` reads the files of ``--config_file``; ``job`` are the sizes of the Slurm job around it.
    """
    place = find_launcher(words)
    if place is None:
        return None
    if place.launcher == "srun":
        return step_of(words, place, job or {})
    if place.launcher in _STAY:
        return Translation(place.launcher, place.start, unknown=(_STAY[place.launcher],))
    line = LauncherLine(place.launcher, config or (lambda path: None))
    try:
        rest = line.read(words[place.options :])
        program = [known("ddplaunch")] if place.python is None else [place.python, known("-m"), known("ddplaunch")]
        said = [*program, *line.command(rest)]
        line.unknown += of_container(words[: place.start])
    except CannotSay as cannot:
        return Translation(place.launcher, place.start, unknown=(cannot.note,))
    return Translation(place.launcher, place.start, tuple(said), tuple(line.dropped), tuple(line.unknown))


class LauncherLine:
    """What the options of one line say, collected word by word."""

    def __init__(self, launcher: str, config: ReadConfig) -> None:
        self.launcher = launcher
        self.config = config
        self.said: dict[str, Word] = {}
        self.flags: list[Word] = []
        self.env: dict[str, Word] = {}
        self.switches: set[str] = set()
        self.kind = ""  # the distributed_type of accelerate's file
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
            taken = meaning.values if value is None else 0
            if at + taken >= len(words):
                raise CannotSay(f"`{word.source}`", "a value is missing behind it")
            values = [*([] if value is None else [value]), *words[at + 1 : at + 1 + taken]]
            self.take(key, meaning, values)
            at += 1 + taken
        if at >= len(words):
            raise CannotSay(f"`{self.launcher}` without a script", "the line starts nothing")
        return list(words[at:])

    def _refuse_hidden_options(self, rest: Sequence[Word]) -> None:
        """Raise CannotSay if a variable stands before what is plainly the script: options of the launcher are in it."""
        if rest[0].value is not None:
            return
        several = rest[0].source.strip('"') in ALL_WORDS or "[@]" in rest[0].source or "[*]" in rest[0].source
        unsized = not {"nproc", "total", "nnodes", "config"} & self.said.keys()
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
        elif kind == "own":
            self.flags += map(known, meaning.detail.split("="))
        elif kind == "config":
            self._read_config(values[0])
        elif values:
            self.said[kind] = values[0]
        else:
            self.switches.add(kind)

    def _read_config(self, path: Word) -> None:
        self.switches.add("configured")
        said = None if path.text is None else self.config(path.text)
        if said is None:
            raise CannotSay(
                f"`--config_file {path.source}`",
                "it says how many ranks there are, and it cannot be read here or has no `distributed_type`",
            )
        for name, text in said.items():
            key = canonical("accelerate", name)
            means = LAUNCHERS["accelerate"].get(key or "")
            if name == "distributed_type":
                self.kind = text
            elif text == "{}" and means is None:
                why = "accelerate hands it to the ranks in variables of its own"
                raise CannotSay(f"`{name[2:].replace('-', '_')}`", why)
            elif key is None or means is None:
                self.dropped.append(
                    Note(f"`{name[2:].replace('-', '_')}`", "it is nothing of accelerate's that ddplaunch knows")
                )
            elif not (means.kind in self.said or means.detail in self.env or (not means.values and text == "false")):
                self.take(key, means, [known(text)][: means.values])  # what was typed wins over the file

    def _count_as_accelerate(self) -> None:
        """Say where accelerate takes the number of processes from, if the line has none.

        With ``--cpu``, and by a file for one process, it starts one, whatever the number (``simple_launcher`` of
        accelerate's launch.py, 1.15).
        """
        several = any(note.what == "`--multi-gpu`" for note in self.dropped)
        if "cpu" in self.switches or (self.kind in ONE_PROCESS and not several):
            why = f"by `distributed_type: {self.kind}`" if self.kind in ONE_PROCESS else "on the CPU"
            sizes = [self.said.pop(kind, known("1")) for kind in ("total", "nproc", "nnodes")]
            counted = (f"`{word.source}` processes or machines" for word in sizes if word.text != "1")
            self.dropped += [Note(what, f"accelerate starts one {why}") for what in counted]
            self.said["nproc"] = known("1")
        every = self.said.get("gpus", known("all")).text == "all" and not {"nproc", "total"} & self.said.keys()
        if every and not {"configured", "cpu"} & self.switches:
            self.unknown.append(_BY_DEFAULT)

    def command(self, rest: Sequence[Word]) -> list[Word]:
        """Return ``run NPROC FLAGS -- TARGET``. Raises CannotSay."""
        if self.launcher == "accelerate":
            self._count_as_accelerate()
        nproc, nnodes = self._size()
        one = nnodes.value in _ONE
        counts = [nproc]
        if not one and nproc.text is not None and nnodes.number() is not None:
            counts = [known(f"{nnodes.text}x{nproc.text}")]
        elif not one:
            counts += [known("--nnodes"), nnodes]
        found = [known("run"), *counts, *self._rendezvous(one)]
        for kind in ("gpus", "hostfile"):
            if kind in self.said and self.said[kind].text != "all":
                found += [known(FLAGS[kind]), self.said[kind]]
        if "max_restarts" in self.said and self.said["max_restarts"].text != "0":
            found += [known("--max-restarts"), self.said["max_restarts"]]
        if "cpu" in self.switches:
            found += [known("--device"), known("cpu")]
            self.env["ACCELERATE_USE_CPU"] = known("True")
        for name, value in self.env.items():
            found += [known("--env"), attached(f"{name}=", value)]
        return [*found, *self.flags, known("--"), *self._target(list(rest))]

    def _size(self) -> tuple[Word, Word]:
        """Return processes per node and nodes."""
        nnodes = self.said.get("nnodes", known("1"))
        self._gpus_of_deepspeed()
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

    def _gpus_of_deepspeed(self) -> None:
        """``--include localhost:0,1`` chooses GPUs."""
        if (word := self.said.pop("include", None)) is not None:
            host, _, devices = (word.text or "").partition(":")
            if host not in _LOCAL or not devices or "@" in devices:
                raise CannotSay(f"`--include {word.source}`", "it chooses among hosts: name them by `--hosts`")
            self.said["gpus"] = known(devices)
            self.said.setdefault("nproc", known(str(len(devices.split(",")))))
        nnodes = self.said.get("nnodes")
        alone = {"hostfile", "node_rank"} & self.said.keys()
        if self.launcher == "deepspeed" and nnodes is not None and nnodes.text != "1" and not alone:
            self.said["hostfile"] = known("/job/hostfile")  # DeepSpeed's default

    def _rendezvous(self, one: bool) -> list[Word]:
        """Return the flags that say where nodes meet and which one this is."""
        self._split_endpoint()
        found = []
        why = "on one node ranks meet at localhost, and its node rank is 0"
        for kind in ("node_rank", "addr"):
            if kind in self.said and one:
                self.dropped.append(Note(f"`{FLAGS[kind]} {self.said[kind].source}`", why))
            elif kind in self.said:
                found += [known(FLAGS[kind]), self.said[kind]]
        port = self.said.get("port")
        if port is not None and port.text == "0":
            self.dropped.append(Note("port 0", "one node finds a free port by itself"))
        elif port is not None:
            found += [known("--master-port"), port]
        if not one and not {"node_rank", "hostfile"} & self.said.keys():
            why = "Slurm says it in a job; elsewhere add `--node-rank 0` on the node of the address, 1 on the next"
            self.unknown.append(Note("the rank of each node", why))
        return found

    def _split_endpoint(self) -> None:
        """``--rdzv-endpoint HOST:PORT`` says the address and the port; c10d's own port is 29400."""
        word = self.said.pop("endpoint", None)
        if word is None:
            return
        found = endpoint(word, "29400")
        if found is None:
            raise CannotSay(f"`--rdzv-endpoint {word.source}`", "address and port cannot be told apart in it")
        address, number = found
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
        local = self.launcher in ("torch.distributed.launch", "deepspeed") and "use_env" not in self.switches
        name = "--local_rank" if self.launcher == "deepspeed" else "--local-rank"
        passed = [known(name + "=${local_rank}")] if local else []
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
