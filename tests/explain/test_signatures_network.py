"""What hosts that do not reach each other print, and what it is mistaken for."""

from __future__ import annotations

import pytest

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.network import SIGNATURES
from tests.explain.signature_rules import caught, idle, matched, missed, unfilled

CODES = (
    "port-taken",
    "host-name-unresolvable",
    "rendezvous-failed",
    "wrong-network-interface",
)


@pytest.mark.parametrize("signature", SIGNATURES, ids=[f"{each.code}-{at}" for at, each in enumerate(SIGNATURES)])
def test_keeps_its_word(signature: Signature) -> None:
    assert signature.examples
    assert signature.near_misses
    assert missed(signature) == []
    assert caught(signature) == []
    assert idle(signature) == []
    assert unfilled(signature) == []
    assert bool(signature.fixes) == (signature.role != "cascade")


@pytest.mark.parametrize("code", CODES)
def test_code_has_a_root(code: str) -> None:
    assert any(each.code == code and each.role == "root" for each in SIGNATURES)


def _best(line: str) -> str | None:
    """The code that a line alone is given within this family."""
    found = [each for each in SIGNATURES if matched(each, line) is not None]
    return max(found, key=lambda each: each.priority).code if found else None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("RuntimeError: Address already in use", "port-taken"),
        (
            "[E socket.cpp:1028] [c10d] The client socket has timed out after 600s while trying to connect to (head, "
            "29500).",
            "rendezvous-failed",
        ),
        (
            "[W socket.cpp:601] [c10d] The IPv6 network addresses of (head, 29500) cannot be retrieved (gai error: -3 "
            "- x).",
            "host-name-unresolvable",
        ),
        (
            "RuntimeError: Gloo connectFullMesh failed with [pair.cc:152] timed out connecting, remote=[127.0.1.1]:1",
            "wrong-network-interface",
        ),
        (
            "RuntimeError: Gloo connectFullMesh failed with [pair.cc:152] timed out connecting, remote=[10.77.0.1]:1",
            "wrong-network-interface",
        ),
        (
            "[W socket.cpp:663] [c10d] The client socket has failed to connect to [::1]:29500 (errno: 111 - refused).",
            None,
        ),
        ("[W socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3", None),
        ("ERROR: TensorBoard could not bind to port 6006, it was already in use; trying 6007", None),
        ("NCCL INFO Bootstrap : Using enp5s0:192.168.0.31<0>", None),
        (
            "The node 'a_1_0' has failed to shutdown the rendezvous 'x' due to an error of type "
            "RendezvousConnectionError.",
            None,
        ),
    ],
)
def test_neighbours_are_told_apart(line: str, code: str | None) -> None:
    assert _best(line) == code
