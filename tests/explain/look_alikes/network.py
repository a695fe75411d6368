"""What hosts that do not reach each other print, and what it is mistaken for."""

from __future__ import annotations

#: Each of them has a root among the signatures of the family.
CODES = (
    "port-taken",
    "host-name-unresolvable",
    "rendezvous-failed",
    "wrong-network-interface",
)

#: A line, and the code that it alone is given within the family.
LINES: tuple[tuple[str, str | None], ...] = (
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
        "The node 'a_1_0' has failed to shutdown the rendezvous 'x' due to an error of type RendezvousConnectionError.",
        None,
    ),
)
