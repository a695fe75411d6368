"""All signatures: one family per file, each with a tuple ``SIGNATURES`` in which the specific ones come first."""

from __future__ import annotations

from functools import cache

from ddplaunch.explain.signatures.signature import Signature


@cache
def all_signatures() -> tuple[Signature, ...]:
    """Return the signatures of all families; they are imported here, when a log is to be explained."""
    from ddplaunch.explain.signatures import (
        checkpoints,
        data,
        ddp,
        echoes,
        ending,
        extensions,
        failed_collectives,
        imports,
        launching,
        scheduler,
        system,
        system_memory,
    )
    from ddplaunch.explain.signatures.gpu import faults, memory, setup
    from ddplaunch.explain.signatures.network import connection, nccl, rendezvous

    families = (
        setup,
        faults,
        memory,
        nccl,
        echoes,
        failed_collectives,
        ddp,
        system_memory,
        system,
        connection,
        rendezvous,
        checkpoints,
        data,
        launching,
        extensions,
        imports,
        scheduler,
        ending,
    )
    return tuple(signature for family in families for signature in family.SIGNATURES)
