"""Which interfaces a user named and how NCCL and gloo read such a name; refuses to say whether it is a good choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddplaunch.checks.user_variables import user_variables
from ddplaunch.frozen import dataclass
from ddplaunch.launch.environment import gloo_interfaces
from ddplaunch.launch.plan import Launch

NCCL = "NCCL_SOCKET_IFNAME"
GLOO = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class Choice:
    """One naming of interfaces: the library that reads it, the value, and how to say and undo it."""

    library: str
    value: str
    typed: str
    removal: str
    where: str

    def matching(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` that the value chooses; nothing where it only excludes.

        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        """
        return [name for name in names if any(self._fits(wanted, name) for wanted in self._wanted())]

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return what cannot be had: for NCCL all entries when none matches, for gloo each that is not there."""
        wanted = self._wanted()
        if self.library == "NCCL":
            return [] if self.matching(names) else wanted
        return [each for each in wanted if each not in names]

    def _wanted(self) -> list[str]:
        if self.library == "NCCL" and self.value.startswith("^"):
            return []
        bare = self.value.removeprefix("=") if self.library == "NCCL" else self.value
        return [entry.partition(":")[0].strip() for entry in bare.split(",") if entry.strip()]

    def _fits(self, wanted: str, name: str) -> bool:
        exact = self.library == "gloo" or self.value.startswith("=")
        return name == wanted if exact else name.startswith(wanted)


def chosen_interfaces(environment: dict[str, str], launch: Launch | None) -> Iterator[Choice]:
    """Yield what ``--socket-ifname`` or, failing that, the user's variables name for the library that will run.

    Without a launch both libraries count: nobody knows yet which of them is going to be used.
    """
    libraries = {NCCL: "NCCL", GLOO: "gloo"}
    if launch:
        libraries = {NCCL: "NCCL"} if launch.device.value == "cuda" else {GLOO: "gloo"}
        option = launch.options.socket_ifname
        if option is not None:
            typed = f"--socket-ifname is {option.value}"
            for library in libraries.values():
                value = option.value if library == "NCCL" else gloo_interfaces(option.value)
                if value is not None:
                    yield Choice(library, value, typed, "leave `--socket-ifname` away", str(option.source))
            return
    for setting in user_variables(environment, launch):
        if setting.name in libraries and setting.value.strip():
            typed = f"{setting.name} is {setting.value}"
            yield Choice(libraries[setting.name], setting.value, typed, setting.removal, setting.where)
