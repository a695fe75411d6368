"""``python -m ddplaunch``: the same as the ``ddplaunch`` command."""

from __future__ import annotations

from ddplaunch.cli.main import main

if __name__ == "__main__":
    main()
