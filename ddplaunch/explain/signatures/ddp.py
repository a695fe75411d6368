"""Signatures about DDP and what runs through it: models, the process group, numbers; refuses to hold any itself."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures import ddp_group, ddp_model, ddp_numbers

SIGNATURES: tuple[Signature, ...] = (
    *ddp_group.SIGNATURES,
    *ddp_model.SIGNATURES,
    *ddp_numbers.SIGNATURES,
)
