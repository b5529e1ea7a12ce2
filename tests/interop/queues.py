"""What tests of several clients ask of an AMQP queue."""

from __future__ import annotations

import time
from typing import Any

from tests.support.waiting import Patience


def got(channel: Any, name: str) -> tuple[Any, Any, bytes]:
    """Return the next message of a queue, which may be on its way."""
    patience = Patience()
    while not patience.is_over():
        method, properties, body = channel.basic_get(name, auto_ack=True)
        if method is not None:
            return method, properties, body
        time.sleep(0.01)
    raise AssertionError(f"nothing came to {name}")
