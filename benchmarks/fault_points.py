"""Launches again and again, each time with one call into the kernel that fails, and says whether the run kept its word.

    python -m benchmarks.fault_points
    python -m benchmarks.fault_points --process guard --call open --errno EMFILE --first 1 --last 20 --status 3

A point is a process (launcher, agent, which is torchrun with the plug-in, or guard), a call, an errno and n: the n-th
such call of the process fails. A library that is built with `cc` and preloaded makes it fail, so nothing of ours knows.
A disk that is full (ENOSPC, EDQUOT, EROFS) stays so. Not counted is what plain torchrun needs as much: the text of
programs, libraries, and devices. Two ranks that import no torch end, one of them with ``--status``. The invariants:

- *status*: once all ranks have run, the exit status is the training's; where one has not, it is not 0.
- *orphan*: nothing of the run is left.
- *traceback*: none whose last frame beside the library's is ours.
- *word*: outcome.json can be read and says that status, or a line on stderr says what is missing.

Each point prints a line; the exit status is 1 if any invariant was broken. `stopped` marks points where the ranks have
not all run: the launcher refused, or torchrun itself failed.
"""

from __future__ import annotations

import argparse
import collections
import errno
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ddplaunch.records.outcome import RunOutcome, read_outcome
from tests.agent.plugin_runs import of_folder
from tests.hosts.launching import clean_environment, run_to_end

DEADLINE_S = 180
_GONE_S = 15.0
_PROCESSES = ("launcher", "agent", "guard")
#: Errnos of each call that its manual names and that a machine in trouble gives.
_ERRNOS = {
    "open": ("EMFILE", "ENFILE", "ENOMEM"),
    "create": ("ENOSPC", "EDQUOT", "EROFS"),
    "write": ("ENOSPC", "EDQUOT"),
    "pipe": ("EMFILE", "ENFILE"),
    "fork": ("ENOMEM",),
    "socket": ("EMFILE", "ENFILE"),
    "connect": ("ENOMEM",),
    "epoll": ("EMFILE", "ENOMEM"),
}
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
static pid_t owner;
static const char *call;
static int number, error, stays;
static long calls;
static char hit[4096];
static const char *process_of(const char *line, size_t size) {
    if (memmem(line, size, "agent.guard.guard", 17)) return "guard";
    if (memmem(line, size, "torch.distributed.run", 21)) return "agent";
    return memmem(line, size, "ddplaunch\0run", 13) ? "launcher" : "";
}
__attribute__((constructor)) static void begin(void) {
    char line[65536];
    const char *wanted = getenv("FAULT_PROCESS");
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t size = file ? fread(line, 1, sizeof line, file) : 0;
    if (file) fclose(file);
    if (!wanted || strcmp(process_of(line, size), wanted)) return;
    call = getenv("FAULT_CALL"), number = atoi(getenv("FAULT_NUMBER")), error = atoi(getenv("FAULT_ERRNO"));
    stays = error == ENOSPC || error == EDQUOT || error == EROFS;
    snprintf(hit, sizeof hit, "%s", getenv("FAULT_HIT"));
    owner = getpid();
}
static int fails(const char *name, const char *what) {
    if (!owner || getpid() != owner || strcmp(name, call)) return 0;
    long now = __sync_add_and_fetch(&calls, 1);
    if (stays ? now < number : now != number) return 0;
    FILE *file = fopen(hit, "a");
    if (file) fprintf(file, "%s\n", what), fclose(file);
    errno = error;
    return 1;
}
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
static int counts(const char *path) {
    static const char *libraries[] = {"/lib/", "/lib64/", "/sys/", "/dev/", "/etc/", "/usr/",
                                      ".py", ".pyc", ".so", ".cfg", 0};
    size_t length = strlen(path);
    for (const char **one = libraries; *one; one++) {
        size_t size = strlen(*one);
        if (**one == '/' ? !strncmp(path, *one, size) : length >= size && !strcmp(path + length - size, *one)) return 0;
    }
    return !strstr(path, "/python3") && !strstr(path, "/__pycache__");
}
static int open_fails(const char *path, int flags) {
    if (!counts(path)) return 0;
    if (fails("open", path)) return 1;
    return flags & O_CREAT && strncmp(path, "/proc/", 6) && fails("create", path);
}
#define OPEN(name, first, passed)                                                                                      \
    int name(first const char *path, int flags, ...) {                                                                 \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, int); va_end(more);                            \
        return open_fails(path, flags) ? -1 : REAL(name)(passed path, flags, mode);                                    \
    }
#define AND ,
OPEN(open,,) OPEN(open64,,) OPEN(openat, int at AND, at AND) OPEN(openat64, int at AND, at AND)
ssize_t write(int file, const void *data, size_t size) {
    struct stat status;
    int on_disk = owner && !fstat(file, &status) && S_ISREG(status.st_mode);
    return on_disk && fails("write", "") ? -1 : REAL(write)(file, data, size);
}
int pipe(int ends[2]) { return fails("pipe", "") ? -1 : REAL(pipe)(ends); }
int pipe2(int ends[2], int flags) { return fails("pipe", "") ? -1 : REAL(pipe2)(ends, flags); }
pid_t fork(void) { return fails("fork", "") ? -1 : REAL(fork)(); }
pid_t vfork(void) { return fork(); } /* a wrapper cannot return twice into one stack */
int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *files, const posix_spawnattr_t *more,
                char *const words[], char *const variables[]) {
    return fails("fork", path) ? error : REAL(posix_spawn)(pid, path, files, more, words, variables);
}
int socket(int family, int kind, int protocol) {
    return fails("socket", "") ? -1 : REAL(socket)(family, kind, protocol);
}
int socketpair(int family, int kind, int protocol, int ends[2]) {
    return fails("socket", "") ? -1 : REAL(socketpair)(family, kind, protocol, ends);
}
int connect(int one, const struct sockaddr *to, socklen_t size) {
    return fails("connect", "") ? -1 : REAL(connect)(one, to, size);
}
int epoll_create1(int flags) { return fails("epoll", "") ? -1 : REAL(epoll_create1)(flags); }
int epoll_ctl(int one, int what, int file, struct epoll_event *event) {
    return what == EPOLL_CTL_ADD && fails("epoll", "") ? -1 : REAL(epoll_ctl)(one, what, file, event);
}
"""
_SCRIPT = """
import os, sys, time
rank = int(os.environ["RANK"])
print("rank", rank, "trained", flush=True)
open(f"trained-{rank}", "w").close()
while not os.path.exists("trained-0"): time.sleep(0.01)
sys.exit(int(sys.argv[1]) * rank)
"""


class Point(NamedTuple):
    """The call that fails: the ``number``-th ``call`` of ``process``, with ``errno``."""

    process: str
    call: str
    errno: str
    number: int

    def variables(self, library: Path, hit: Path) -> dict[str, str]:
        """Return the environment with which ``library`` makes it fail, and notes that in the file ``hit``."""
        fault = {"FAULT_PROCESS": self.process, "FAULT_CALL": self.call, "FAULT_NUMBER": str(self.number)}
        error = str(getattr(errno, self.errno))
        return {"LD_PRELOAD": str(library), **fault, "FAULT_ERRNO": error, "FAULT_HIT": str(hit)}


class Held(NamedTuple):
    """What became of a launch: the invariants that were ``broken``; ``stopped``: before the ranks were through."""

    broken: tuple[str, ...]
    stopped: bool = False
    what: str = ""
    stderr: str = ""


def build(folder: Path) -> Path:
    """Build the library that makes calls fail. Raises CalledProcessError, FileNotFoundError without `cc`."""
    library = folder / "fault_points.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), "-x", "c", "-", "-ldl"]
    subprocess.run(command, input=_SOURCE, text=True, check=True)
    return library


def launch(point: Point, library: Path, folder: Path, status: int = 0) -> Held | None:
    """Launch two ranks in the empty ``folder``, one of which ends with ``status``; None: the point is never reached."""
    (folder / "train.py").write_text(_SCRIPT)
    words = [sys.executable, "-m", "ddplaunch", "run", "2", "--quiet", "--no-checks", "--device", "cpu"]
    hit = folder / "hit"
    environment = clean_environment(**point.variables(library, hit))
    command = [*words, "--run-id", "run", "--", "train.py", str(status)]
    code, said = run_to_end(command, folder, environment, DEADLINE_S)
    if not hit.exists():
        return None
    trained = len(list(folder.glob("trained-*"))) == 2
    expected = code == status if trained else code not in (0, None)
    broken = {
        "status": not expected,
        "orphan": not _all_gone(folder),
        "traceback": any(map(_ours, _TRACEBACK.findall(said))),
        "word": trained and not _has_word(folder, said, status),
    }
    names = tuple(name for name, is_broken in broken.items() if is_broken)
    what = f"exit {code} {hit.read_text().splitlines()[0]}"
    return Held(names, not trained, what, said)


_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n((?:.*\n)*?)\S")


def _ours(traceback: str) -> bool:
    frames = re.findall(r'File "([^"]+)"', traceback)
    packages = [frame for frame in frames if "/python3" not in frame or "site-packages" in frame]
    return bool(packages) and "/ddplaunch/" in packages[-1] and "site-packages/torch/" not in packages[-1]


def _has_word(folder: Path, said: str, status: int) -> bool:
    misleading = "other node" in said or "was killed" in said or (not status and "error[" in said)
    outcome = read_outcome(folder / ".ddplaunch" / "runs" / "run")
    known = outcome.exit_status == status if isinstance(outcome, RunOutcome) else "ddplaunch: " in said
    return known and not misleading


def _all_gone(folder: Path) -> bool:
    until_s = time.monotonic() + _GONE_S
    while of_folder(folder) and time.monotonic() < until_s:
        time.sleep(0.05)
    return not of_folder(folder)


def reached(series: Sequence[Point], library: Path, status: int) -> Iterator[tuple[Point, Held]]:
    """Launch the points of one ``series``, n ascending, until one is never reached; yield what became of each."""
    for point in series:
        with tempfile.TemporaryDirectory() as folder:
            held = launch(point, library, Path(folder).resolve(), status)
        if held is None:
            return
        yield point, held


def main() -> int:
    """Run the points that were asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--process", nargs="+", choices=_PROCESSES, default=_PROCESSES)
    parser.add_argument("--call", nargs="+", choices=_ERRNOS, default=tuple(_ERRNOS))
    parser.add_argument("--errno", nargs="+", help="only these")
    parser.add_argument("--first", type=int, default=1, metavar="N")
    parser.add_argument("--last", type=int, default=60, metavar="N")
    parser.add_argument("--status", type=int, default=0, help="with which rank 1 ends")
    parser.add_argument("--show", action="store_true", help="print stderr of points that broke an invariant")
    args = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    numbers = range(args.first, args.last + 1)
    kinds = [(process, call, name) for process in args.process for call in args.call for name in _ERRNOS[call]]
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for kind in kinds:
            if args.errno and kind[-1] not in args.errno:
                continue
            for point, held in reached([Point(*kind, number) for number in numbers], library, args.status):
                verdict = f"broken: {', '.join(held.broken)}" if held.broken else "kept"
                counts.update([verdict, *(["stopped"] if held.stopped else [])])
                print(f"{' '.join(map(str, point)):32} {verdict}{', stopped' * held.stopped}  {held.what}", flush=True)
                if args.show and held.broken:
                    print(held.stderr, flush=True)
    kept, stopped = counts.pop("kept", 0), counts.pop("stopped", 0)
    print(f"\n{kept + counts.total()} points: {kept} kept ({stopped} of all stopped before the ranks were through)")
    for verdict, times in counts.most_common():
        print(f"{times:5} {verdict}")
    return 1 if counts else 0


if __name__ == "__main__":
    raise SystemExit(main())
