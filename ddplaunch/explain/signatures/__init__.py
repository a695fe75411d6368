"""All signatures, one family per file, listed by hand; refuses to look for any by itself."""

from __future__ import annotations

from functools import cache

from ddplaunch.explain.signature import Signature


@cache
def all_signatures() -> tuple[Signature, ...]:
    """Return the signatures of all families, in the order of the list; imported here, when a log is to be explained."""
    from ddplaunch.explain.signatures import (
        collective,
        data,
        ddp,
        ending,
        gpu,
        launching,
        nccl,
        network,
        scheduler,
        system,
    )

    families = (gpu, nccl, collective, ddp, system, network, data, launching, scheduler, ending)
    return tuple(signature for family in families for signature in family.SIGNATURES)
