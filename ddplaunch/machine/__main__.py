"""`python -m ddplaunch.machine [--request -]` prints this machine's facts as JSON."""

from __future__ import annotations

import sys

from ddplaunch.machine.facts import ProbeRequest
from ddplaunch.machine.gather import gather
from ddplaunch.values import codec

USAGE = "usage: python -m ddplaunch.machine [--request -]   (a ProbeRequest as JSON on stdin)"


def main(arguments: list[str]) -> int:
    """Print the facts and return 0; 2 for an argument or a request that cannot be read."""
    request = ProbeRequest()
    if arguments == ["--request", "-"]:
        try:
            request = codec.from_json(sys.stdin.read(), ProbeRequest)
        except ValueError as error:
            print(f"the request on stdin cannot be read: {error}", file=sys.stderr)
            return 2
    elif arguments:
        print(USAGE, file=sys.stderr)
        return 2
    print(codec.to_json(gather(request)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
