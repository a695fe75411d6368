"""`python -m ddplaunch.probes` prints this machine's facts as JSON; refuses to read stdin unless told to."""

from __future__ import annotations

import sys

from ddplaunch.probes import encode
from ddplaunch.probes.facts import ProbeRequest
from ddplaunch.probes.gather import gather

USAGE = "usage: python -m ddplaunch.probes [--request -]   (a ProbeRequest as JSON on stdin)"


def main(arguments: list[str]) -> int:
    """Print the facts and return 0; 2 for an argument or a request that cannot be read."""
    request = ProbeRequest()
    if arguments in (["--request", "-"], ["--request=-"]):
        try:
            request = encode.request_from_json(sys.stdin.read())
        except ValueError as error:
            print(f"the request on stdin cannot be read: {error}", file=sys.stderr)
            return 2
    elif arguments:
        print(USAGE, file=sys.stderr)
        return 2
    print(encode.to_json(gather(request)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
