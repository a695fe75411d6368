"""Signatures about collectives: timeouts, mismatches, echoes in gloo and the store; refuses to hold any itself."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures import collective_echoes, collective_mismatch, collective_timeout, collective_waits

SIGNATURES: tuple[Signature, ...] = (
    *collective_echoes.SIGNATURES,
    *collective_mismatch.SIGNATURES,
    *collective_timeout.SIGNATURES,
    *collective_waits.SIGNATURES,
)
