"""The environment variables that the user set, wherever they did; refuses to judge any of them."""

from __future__ import annotations

from collections.abc import Iterator

from ddplaunch.frozen import dataclass
from ddplaunch.launch.plan import Launch

ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Setting:
    """One variable as the user set it. ``where`` is "environment", "--env" or what the source of the pair says."""

    name: str
    value: str
    where: str

    @property
    def typed(self) -> str:
        """``NAME=value`` as one would type it."""
        return f"{self.name}={self.value}"

    @property
    def removal(self) -> str:
        """What to do to get rid of it, as a clause with text that can be typed."""
        if self.where == ENVIRONMENT:
            return f"`unset {self.name}`"
        return f"drop `{self.typed}` from {self.where}"


def user_variables(environment: dict[str, str], launch: Launch | None) -> tuple[Setting, ...]:
    """Return what is set in the environment and by ``--env``, ``--env-file`` or profile; the later outranks."""
    settings = {name: Setting(name, value, ENVIRONMENT) for name, value in environment.items()}
    for setting in _from_launch(launch) if launch else ():
        settings[setting.name] = setting
    return tuple(settings.values())


def _from_launch(launch: Launch) -> Iterator[Setting]:
    """Yield the user's own pairs. The plan has those of ``--env-file`` too, under a source that is theirs."""
    for variable in launch.environment:
        if variable.value is not None and variable.reason == "yours":
            yield Setting(variable.name, variable.value, variable.source.detail or str(variable.source))
    for pair in launch.options.env:
        name, _, value = pair.value.partition("=")
        yield Setting(name, value, pair.source.detail or "--env")
