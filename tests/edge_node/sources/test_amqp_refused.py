"""A consumer of an external queue whose messages the log refuses."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

from weft.bounds import Rounds
from weft.config.sources import AmqpSource
from weft.edge_node.ingest.back_pressure import Pause
from weft.edge_node.sources.amqp_connection import AmqpConnection
from weft.edge_node.sources.connection import Memory, NodeParts
from weft.edge_node.sources.status import SourceStatus
from weft.edge_node.sources.topics import Topics


async def test_nothing_is_taken_behind_a_message_that_the_log_has_refused() -> None:
    """The acknowledgement of a later one says "all up to here", and the broker would delete the one between."""
    ingest = cast(Any, SimpleNamespace(routes_of=lambda identity: None))
    node = NodeParts(ingest, Rounds(lambda: None), time.time_ns)
    taken = list[Any]()

    class Refused(AmqpConnection):
        def _take(self, message: Any) -> None:
            taken.append(message)
            if message == "second":
                self.hold(Pause.DISK)

    settings = AmqpSource(url=("amqp://127.0.0.1",), queue="q")
    none = cast(Any, None)
    connection = Refused(node, SourceStatus("plant", "amqp"), Topics(), Memory(), settings, none, none)
    ahead: Any = connection._ahead
    ahead.extend(["first", "second", "third"])
    connection.go_on()
    assert taken == ["first", "second"]
    assert list(ahead) == ["third"]
