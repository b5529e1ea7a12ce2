"""The guard of steps: what one call of an event loop may take, however it came about.

A turn's budget looks at the clock between steps, so that it bounds amounts and no step. The guard times each callback
of the loop, which is all that the loop does for one client before it looks at others, by the processor time of its
thread: what a busy machine or the disk makes it wait does not count, and neither does the garbage collector.
Starting and stopping a process is left out: no client is served then.

A call of C in another thread that does not let go of the interpreter holds the loop up as a step of its own does. Where
``CALLS`` is set, each such call is timed, which makes threads some times as slow.

Processes that `tests.support.forked` forks are guarded while a `guarded` block lasts. They run on asyncio's own loop
then, since that of uvloop cannot be looked into.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import msgspec

from tests.support.speed import slowness, uncollected

T = TypeVar("T")
# Not a hook in each turn's budget: most of the steps that were too long had no budget. Not the waits of a good client:
# on a busy machine they say little.
STEP_S_MAX = 0.02
"""Longest processor time of a step, on the machine of the budgets."""
CALL_S_MAX = 0.05
"""Longest processor time of one call of C in a thread beside the loop's, on that machine."""
LETS_GO = frozenset({"_hashlib", "_io", "_socket", "_sqlite3", "_ssl", "_thread", "posix", "time", "zlib", "zstandard"})
"""Modules whose long calls let go of the interpreter."""
FILE = "WEFT_TEST_STEPS"
"""Variable that names the file which guarded processes append their long steps to."""
CALLS = "WEFT_TEST_CALLS"
"""Variable that has calls of threads timed in guarded processes."""
LOOK_S = 0.005
"""Interval at which a step that takes long is looked at."""
SHOWN_MAX = 8
"""Frames of a long step that are named."""
MAIN = "run_until_stopped.<locals>.main"
"""The coroutine that starts and stops a process."""
TRIES = 5
"""Number of times that a piece of work is measured before it counts as too long."""


def worked_s(work: Callable[[], object]) -> float:
    """Return the processor time of this thread that a piece of work takes, without that of the garbage collector."""
    collected = gc.isenabled()
    gc.disable()
    try:
        began = time.thread_time()
        work()
        return time.thread_time() - began
    finally:
        if collected:
            gc.enable()


async def stepped(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Let a coroutine run, and return its result and the longest processor time of a turn of the loop meanwhile, in
    seconds."""
    task, longest = asyncio.ensure_future(work), 0.0
    with uncollected():
        while not task.done():
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)
    return await task, longest


def quickest_s(measure: Callable[[], float], enough_s: float) -> float:
    """Measure a piece of work until it is quick enough, at most ``TRIES`` times, and return the least.

    What the work takes itself is there every time. What a busy machine adds is not: it empties the caches, and its host
    takes time that the thread is charged for.
    """
    least = measure()
    for _ in range(TRIES - 1):
        if least <= enough_s:
            break
        least = min(least, measure())
    return least


class LongSteps(AssertionError):
    """Steps beyond the bound, in guarded processes."""


class LongStep(msgspec.Struct):
    """A step beyond the bound."""

    seconds: float
    """Its processor time, as on the machine of the budgets."""
    name: str
    where: list[str]
    """The calls in which it was found, the innermost last."""

    def __str__(self) -> str:
        return f"{self.seconds * 1e3:.0f} ms in {self.name}" + "".join(f"\n    {line}" for line in self.where)


class Guard:
    """Times the callbacks of all loops of the thread that turns it on.

    Args:
        report: gets each long step.
        counts: says whether the step of a task's coroutine counts, by the coroutine's name.
    """

    def __init__(self, report: Callable[[LongStep], None], counts: Callable[[str], bool] = lambda _: True) -> None:
        self._report = report
        self._counts = counts
        self._began: float | None = None
        """Moment at which the step began, by the clock."""
        self._stack: list[str] = []
        self._collecting = 0.0
        """Processor time of the garbage collector."""
        self._collection_began = 0.0

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Guard until the block ends."""
        handle: Any = asyncio.events.Handle
        original, over = handle._run, threading.Event()
        main, clock = threading.get_ident(), time.thread_time

        def run(one: Any) -> None:
            if self._began is not None or threading.get_ident() != main:
                original(one)
                return
            before = clock() - self._collecting
            self._began = time.monotonic()
            try:
                original(one)
            finally:
                self._began = None
                spent = clock() - self._collecting - before
                if spent > STEP_S_MAX and not over.is_set():
                    self._note(spent, one)

        looking = threading.Thread(target=self._look, args=(main, over), daemon=True, name="guard of steps")
        gc.callbacks.append(self._collects)
        handle._run = run
        looking.start()
        try:
            yield
        finally:
            handle._run = original
            gc.callbacks.remove(self._collects)
            over.set()
            looking.join()

    def _note(self, spent: float, handle: Any) -> None:
        spent /= slowness()
        name = name_of(handle)
        if spent > STEP_S_MAX and self._counts(name):
            self._report(LongStep(spent, name, self._stack))

    def _collects(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            self._collecting += time.thread_time() - self._collection_began

    def _look(self, main: int, over: threading.Event) -> None:
        """Keep the stack of a step that takes long."""
        while not over.wait(LOOK_S):
            began = self._began
            if began is None or time.monotonic() - began < STEP_S_MAX / 2:
                continue
            stack = _calls(sys._current_frames().get(main))
            if self._began == began:
                self._stack = stack


def _calls(frame: FrameType | None) -> list[str]:
    frames = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=SHOWN_MAX, lookup_lines=False)
    return [f"{each.filename}:{each.lineno} {each.name}" for each in reversed(frames)]


class CallTimes:
    """Times the calls of C of all threads that begin after ``watch``. Of a call that calls Python again, which lets
    others work, nothing is known; and Cython's calls are not seen.

    Args:
        report: gets each long one.
    """

    def __init__(self, report: Callable[[LongStep], None]) -> None:
        self._report = report
        self._here = threading.local()

    def watch(self) -> None:
        """Begin, for the rest of the process."""
        threading.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            self._here.began = time.thread_time()
            return
        began, self._here.began = getattr(self._here, "began", None), None
        if began is None or event not in {"c_return", "c_exception"}:
            return
        spent = time.thread_time() - began
        if spent <= CALL_S_MAX or (spent := spent / slowness()) <= CALL_S_MAX:
            return
        owner = getattr(called, "__module__", None) or type(getattr(called, "__self__", None)).__module__
        if owner.partition(".")[0] not in LETS_GO:
            name = f"{called.__qualname__} in the thread {threading.current_thread().name}"
            self._report(LongStep(spent, name, _calls(frame)))


def name_of(handle: Any) -> str:
    """Return the name of what a loop calls: of a task, that of its coroutine."""
    callback = handle._callback
    if callback is None:  # it was cancelled meanwhile
        return "a cancelled call"
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner.get_coro()))
    return str(getattr(callback, "__qualname__", callback))


_to_the_end = contextlib.ExitStack()


def guard_this_process() -> None:
    """Guard this process to its end, if its environment names the file for what is found."""
    path = os.environ.get(FILE)
    if path is None:
        return
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # so that it cannot be imported

    def report(step: LongStep) -> None:
        with open(path, "ab") as file:
            file.write(msgspec.json.encode(step) + b"\n")

    _to_the_end.enter_context(Guard(report, lambda name: MAIN not in name).on())
    if os.environ.get(CALLS):
        CallTimes(report).watch()


class ProcessGuard:
    """Long steps of processes, which append them to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._checked = 0

    def check(self) -> None:
        """Fail if one of them took a long step since the last call.

        Raises:
            LongSteps: with the longest of them.
        """
        lines = self._file.read_bytes()[self._checked :].splitlines(keepends=True)
        self._checked += sum(map(len, lines))
        found = sorted((msgspec.json.decode(line, type=LongStep) for line in lines), key=lambda step: -step.seconds)
        if found:
            shown = "\n".join(map(str, found[:SHOWN_MAX]))
            raise LongSteps(f"{len(found)} steps took more than {STEP_S_MAX * 1e3:.0f} ms of processor time:\n{shown}")


@contextlib.contextmanager
def guarded(file: Path) -> Iterator[ProcessGuard]:
    """Guard the processes that are forked in the block."""
    file.touch(0o666)
    os.environ[FILE] = str(file)
    try:
        yield ProcessGuard(file)
    finally:
        del os.environ[FILE]
