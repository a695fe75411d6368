"""Ways in which a script can end; the first argument names one."""

import atexit
import os
import signal
import sys
import threading
import time


class Noisy:
    def __del__(self) -> None:
        print("collected")


def falls_off() -> None:
    print("done")


def exits_3() -> None:
    sys.exit(3)


def exits_none() -> None:
    sys.exit()


def exits_with_text() -> None:
    sys.exit("a text")


def raises() -> None:
    def deeper() -> None:
        raise ValueError("too large")

    try:
        deeper()
    except ValueError as exception:
        raise RuntimeError("second") from exception


def interrupted() -> None:
    raise KeyboardInterrupt


def interrupted_by_signal() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)


def ends_at_once() -> None:
    os._exit(5)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def segfaults() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def waits_for_thread() -> None:
    def late() -> None:
        time.sleep(0.2)
        print("late thread")

    threading.Thread(target=late).start()
    print("main done")


def thread_raises() -> None:
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()


def hooked() -> None:
    sys.excepthook = lambda kind, value, trace: print("hook", kind.__name__, value, trace is not None)
    raise ValueError("for the hook")


def hook_fails() -> None:
    def hook(*_: object) -> None:
        raise OSError("hook")

    sys.excepthook = hook
    raise ValueError("original")


def handler_fails() -> None:
    def at_exit() -> None:
        raise ValueError("at exit")

    atexit.register(at_exit)


def warns() -> None:
    import warnings

    warnings.warn("first", stacklevel=1)
    warnings.warn("far", stacklevel=9)


def recurses() -> None:
    def depth(level: int) -> int:
        try:
            return depth(level + 1)
        except RecursionError:
            return level

    import inspect
    import traceback

    print(depth(0), len(inspect.stack()))
    traceback.print_stack()


def breaks_pipe() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.write(writing, b"x")


def breakpoints() -> None:
    breakpoint()


if __name__ == "__main__":
    atexit.register(print, "first registered")
    atexit.register(print, "second registered")
    noisy = Noisy()
    unflushed = open(os.environ.get("UNFLUSHED", os.devnull), "w")  # noqa: SIM115
    unflushed.write("kept")
    globals()[sys.argv[1]]()
