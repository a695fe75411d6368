"""Signatures about NCCL: what it needs, its networks, and its echoes of a dead peer; refuses to hold any itself."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures import nccl_echoes, nccl_infiniband, nccl_setup

SIGNATURES: tuple[Signature, ...] = (
    *nccl_echoes.SIGNATURES,
    *nccl_infiniband.SIGNATURES,
    *nccl_setup.SIGNATURES,
)
