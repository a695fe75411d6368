"""Spares a node that waits for no other the pause with which torchrun spreads nodes out; refuses to touch several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def skip_the_spread() -> None:
    """Leave out the random pause of 0 to 0.3 s before a first rendezvous where one node is all there is.

    c10d makes it "to slightly skew the rendezvous attempts across the nodes" (``next_rendezvous`` in torch's
    ``elastic/rendezvous/dynamic_rendezvous.py``, 2.3 to 2.13). Where torch is built otherwise nothing changes.
    """
    try:
        from torch.distributed.elastic.rendezvous import dynamic_rendezvous

        module: Any = dynamic_rendezvous
        replace_pause(module, module.DynamicRendezvousHandler)
    except (ImportError, AttributeError):
        return


def replace_pause(module: Any, handlers: Any) -> None:
    """Have ``handlers.next_rendezvous`` call ``module._delay`` for fixed pauses only, if their node is alone.

    Raises AttributeError if one of them is missing.
    """
    pause: Callable[[Any], None] = module._delay
    join = handlers.next_rendezvous

    def fixed_only(seconds: Any) -> None:
        if not isinstance(seconds, tuple):
            pause(seconds)

    def next_rendezvous(handler: Any) -> Any:
        alone = getattr(getattr(handler, "settings", None), "max_nodes", None) == 1
        module._delay = fixed_only if alone else pause
        return join(handler)

    handlers.next_rendezvous = next_rendezvous
