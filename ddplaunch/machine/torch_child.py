"""A child interpreter that imports torch and reports what it finds; ddplaunch's own process never imports torch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from ddplaunch.machine.facts import TorchImport
from ddplaunch.values import codec
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.variable_names import own_command
from ddplaunch.values.words import signal_name

DEADLINE_S = 120.0


def start_import() -> subprocess.Popen[bytes]:
    """Start the child interpreter in its own session, so that its whole process group can be killed."""
    return subprocess.Popen(
        own_command(sys.executable, "ddplaunch.machine.torch_child"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(child: subprocess.Popen[bytes], deadline_s: float = DEADLINE_S) -> TorchImport | Unavailable:
    """Return the child's report, or why there is none; after ``deadline_s`` seconds the child's group is killed."""
    try:
        output, errors = child.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        _kill(child)
        return Unavailable(f"`import torch` in {sys.executable} did not finish within {deadline_s:g} s")
    except BaseException:  # Ctrl-C does not reach the child, which has its own session
        _kill(child)
        raise
    try:
        return codec.from_plain(json.loads(output), TorchImport)
    except ValueError:
        return Unavailable(f"`import torch` failed in {sys.executable}: {_last_words(child.returncode, errors)}")


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # in an uninterruptible system call; the kernel will end it
        child.wait(timeout=1.0)


def _last_words(status: int, errors: bytes) -> str:
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    if status < 0:
        return f"ended by {signal_name(-status)}"
    return lines[-1] if lines else f"exit status {status}"


def import_report() -> dict[str, Any]:
    """Import torch and return what it reports, in JSON's types; this is all the child does."""
    import torch
    import torch.distributed

    available = torch.cuda.is_available()
    error = _cuda_error(torch)
    if error is None and not available:
        error = "torch.cuda.is_available() is False and CUDA gave no reason"
    return {
        "version": str(torch.__version__),
        "nccl_available": torch.distributed.is_nccl_available(),
        "cuda_available": available,
        "cuda_error": error,
        "device_count": torch.cuda.device_count(),
        "arch_list": list(torch.cuda.get_arch_list()),
    }


def _cuda_error(torch: Any) -> str | None:
    """Return why CUDA does not start, or None. ``is_available()`` swallows the reason; ``init()`` raises it."""
    try:
        torch.cuda.init()
    except Exception as error:
        return str(error)
    return None


def main() -> None:
    """Write the report to stdout; whatever torch and its plug-ins print goes to stderr."""
    data_fd = os.dup(1)
    os.dup2(2, 1)
    os.write(data_fd, json.dumps(import_report()).encode())


if __name__ == "__main__":
    main()
