"""Signatures about GPUs: visibility, driver, memory, faults and libraries; refuses to hold any itself."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures import gpu_driver, gpu_fault, gpu_library, gpu_memory, gpu_visible

SIGNATURES: tuple[Signature, ...] = (
    *gpu_visible.SIGNATURES,
    *gpu_driver.SIGNATURES,
    *gpu_memory.SIGNATURES,
    *gpu_fault.SIGNATURES,
    *gpu_library.SIGNATURES,
)
