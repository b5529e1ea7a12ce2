"""Events of a tail, over every end of a connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from weft.client.errors import HubRefusal, HubUnreachable
from weft.cloud_hub.openapi.streams import TailEvent

WAIT_S = 1.0
PASSING = (429, 500, 502, 503, 504)
"""Statuses of refusals that end by themselves."""
_DATA = b"data: "

Open = Callable[[dict[str, str]], AbstractContextManager[Any]]
"""Function that sends the request with more headers, and returns the answer to read."""


def event_of(line: bytes) -> TailEvent | None:
    """Return the event in a line of a tail; None if the line has none."""
    return msgspec.json.decode(line[len(_DATA) :], type=TailEvent) if line.startswith(_DATA) else None


def follow(opened: Open, position: str | None, wait_s: float) -> Iterator[TailEvent]:
    """Yield events with records, and go on behind the last one after each end.

    Raises:
        HubRefusal: the hub refuses, for a reason that waiting does not mend.
    """
    while True:
        try:
            with opened({} if position is None else {"Last-Event-ID": position}) as answer:
                for line in answer:
                    if (event := event_of(line)) is None:
                        continue
                    position = event.position
                    if event.records:
                        yield event
        except HubUnreachable:
            pass
        except HubRefusal as refused:
            if refused.status not in PASSING:
                raise
        time.sleep(wait_s)
