"""Imports what is beside it, as only a member of a package can."""

from . import heavy  # noqa: TID252 - it is what is tried
from .heavy import PID  # noqa: TID252

print(heavy.__name__, isinstance(PID, int), __package__, __spec__ and __spec__.parent)
