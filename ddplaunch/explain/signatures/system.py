"""Signatures of what the operating system refused: memory, /dev/shm, descriptors, threads, disks, permissions."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.system_files import FILES
from ddplaunch.explain.signatures.system_limits import LIMITS
from ddplaunch.explain.signatures.system_memory import MEMORY
from ddplaunch.explain.signatures.system_shm import SHARED_MEMORY

SIGNATURES: tuple[Signature, ...] = (*MEMORY, *SHARED_MEMORY, *LIMITS, *FILES)
