"""Has a future import, which must not come from anybody else's code, and leaves it in a code object."""

from __future__ import annotations

print(annotations.compiler_flag & compile("1", "x", "eval").co_flags != 0, __annotations__)
