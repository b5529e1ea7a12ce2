"""Waiting for a streaming query in a script that Ctrl-C or a service manager may end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol, TypeVar

SIGNALS = (signal.SIGINT, signal.SIGTERM)


LOOK_S = 0.5
"""Time between two checks of a running query."""


class Query(Protocol):
    """A running query: Spark's ``StreamingQuery``, or one with the same methods."""

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Return whether it runs."""

    def awaitTermination(self) -> bool | None:  # noqa: N802
        """Wait for its end."""

    def stop(self) -> None:
        """End it."""

    def exception(self) -> BaseException | None:
        """Return the error with which it ended."""


Running = TypeVar("Running", bound=Query)


def await_termination(
    query: Running, look: Callable[[Running], None] | None = None, stop: threading.Event | None = None
) -> None:
    """Wait until a streaming query ends; stop it cleanly at Ctrl-C (SIGINT) or SIGTERM.

    ``query.awaitTermination()`` waits too. But in it, PySpark answers a signal with calls to the JVM from within a
    call. They fail, and PySpark prints three tracebacks.

    Args:
        look: called with the query about every ``LOOK_S`` seconds while it runs, and once when it has ended.
        stop: the event of ``stop_asked``, if signals were held while the query started.

    Raises:
        StreamingQueryException: the query failed.
        ValueError: not called from the main thread, the only one that gets signals.
    """
    with stop_asked() if stop is None else nullcontext(stop) as over:
        waiter = threading.Thread(target=_wait, args=(query, over), name="weft-await-termination", daemon=True)
        waiter.start()
        while not over.wait(None if look is None else LOOK_S):
            if look is not None:
                look(query)
        if query.isActive:
            query.stop()
    waiter.join()
    if look is not None:
        look(query)
    if (error := query.exception()) is not None:
        raise error


def _wait(query: Query, over: threading.Event) -> None:
    try:
        query.awaitTermination()
    except Exception:  # noqa: S110  # Raised again by the main thread, where the caller sees it.
        pass
    finally:
        over.set()


@contextmanager
def stop_asked() -> Iterator[threading.Event]:
    """Return an event that Ctrl-C (SIGINT) or SIGTERM sets, instead of the signals' usual effect.

    Around the start of a query, it keeps a signal from interrupting a call to the JVM.

    Raises:
        ValueError: not called from the main thread.
    """
    event = threading.Event()
    before = {number: signal.signal(number, lambda *_: event.set()) for number in SIGNALS}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
