"""Ways in which a script can end; the first argument names one."""

import atexit
import faulthandler
import importlib
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from typing import Any


class Noisy:
    def __del__(self) -> None:
        print("collected")


def falls_off() -> None:
    print("done")


#: By the second argument.
CODES: dict[str, Any] = {"3": 3, "257": 257, "-1": -1, "none": None, "text": "a text", "tuple": (1, "two")}


def exits() -> None:
    sys.exit(CODES[sys.argv[2]])


def signalled() -> None:
    os.kill(os.getpid(), signal.Signals[sys.argv[2]])
    time.sleep(10)


def raises() -> None:
    def deeper() -> None:
        raise ValueError("too large")

    try:
        deeper()
    except ValueError as exception:
        raise RuntimeError("second") from exception


def interrupted() -> None:
    raise KeyboardInterrupt


def ends_at_once() -> None:
    os._exit(5)


def waits_for_thread() -> None:
    def late() -> None:
        time.sleep(0.2)
        print("late thread")

    threading.Thread(target=late).start()
    print("main done")


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


def breaks_pipe() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.write(writing, b"x")


def breakpoints() -> None:
    breakpoint()


def aborts() -> None:
    os.abort()


def stack_of_last_object() -> None:
    class Last:
        def __del__(self, dump: Any = faulthandler.dump_traceback, stream: int = 2) -> None:
            dump(stream)

    globals()["last"] = Last()


def exits_at_exit() -> None:
    atexit.register(sys.exit, 4)


def raises_group_with_a_note() -> None:
    error: Exception = ValueError("no groups yet")
    if sys.version_info >= (3, 11):
        error = ExceptionGroup("several", [ValueError("one"), TypeError("two")])  # noqa: F821
        error.add_note("a note")
    raise error


def raises_at_import() -> None:
    importlib.import_module("package.raises")


def told_in_handler() -> None:
    def told(number: int, frame: object) -> None:
        traceback.print_stack()
        raise SystemExit(number)

    signal.signal(signal.SIGTERM, told)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


def goes_on() -> None:
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    up, hold = threading.Lock(), threading.Lock()
    up.acquire(), hold.acquire()
    # on one line, so that it does not matter how far the thread is
    thread = threading.Thread(target=lambda: (up.release(), hold.acquire()))  # type: ignore[func-returns-value]
    thread.start()
    up.acquire()
    faulthandler.dump_traceback(sys.stderr)
    hold.release()
    thread.join()
    warnings.warn("first", stacklevel=1)
    warnings.warn("far", stacklevel=9)
    warnings.showwarning = lambda message, category, *_: print("shown", message, category.__name__)
    globals().pop("noisy")  # known: what only a module of before the fork holds may not be collected at the end
    warnings.warn("mine", DeprecationWarning, stacklevel=1)
    for _ in range(2):
        warnings.warn("only once from here", stacklevel=1)


def uses_libraries() -> None:
    import asyncio
    import weakref
    from multiprocessing.shared_memory import SharedMemory

    async def answer() -> str:
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(5)")
        return f"{await child.wait()} {await asyncio.to_thread(os.getpid) == os.getpid()}"

    print(asyncio.run(answer()))
    memory = SharedMemory(create=True, size=10)
    assert memory.buf is not None
    memory.buf[0] = 7
    print(memory.buf[0])
    memory.close()
    memory.unlink()
    kept = globals()["kept"] = type("Thing", (), {})()
    weakref.finalize(kept, print, "finalized")
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    atexit.register(traceback.print_stack)


def restarts_itself() -> None:
    if "again" in sys.argv:
        print("again", sys.flags)
        return
    os.execv(sys.executable, [*sys.orig_argv, "again"])


if __name__ == "__main__":
    atexit.register(print, "first registered")
    atexit.register(print, "second registered")
    noisy = Noisy()
    unflushed = open(os.environ.get("UNFLUSHED", os.devnull), "w")  # noqa: SIM115
    unflushed.write("kept")
    globals()[sys.argv[1]]()
