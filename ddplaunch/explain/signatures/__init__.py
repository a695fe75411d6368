"""All signatures, one family per file, listed by hand; refuses to look for any by itself."""

from __future__ import annotations

from functools import cache

from ddplaunch.explain.signatures.signature import Signature


@cache
def all_signatures() -> tuple[Signature, ...]:
    """Return the signatures of all families, in the order of the list; imported here, when a log is to be explained."""
    from ddplaunch.explain.signatures import (
        collective,
        connection,
        data,
        ddp,
        echoes,
        ending,
        gpu_faults,
        gpu_memory,
        gpu_setup,
        launching,
        nccl,
        rendezvous,
        scheduler,
        system,
        system_memory,
    )

    families = (
        gpu_setup,
        gpu_faults,
        gpu_memory,
        nccl,
        echoes,
        collective,
        ddp,
        system_memory,
        system,
        connection,
        rendezvous,
        data,
        launching,
        scheduler,
        ending,
    )
    return tuple(signature for family in families for signature in family.SIGNATURES)
