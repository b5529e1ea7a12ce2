"""``x-death``: the history of a dead-lettered message, a header that is an array of tables in AMQP.

Stored as every array of AMQP is: JSON text, and its types in the header ``amqp.types``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from weft.edge_node.queues.topics import EXCHANGE, QUEUES, ROUTING_KEY, headers_of_route
from weft.protocols.amqp.typed_values import TYPES, kinds_header, kinds_of
from weft.protocols.batch import HeaderPairs
from weft.protocols.columns import HeaderValue
from weft.protocols.message_headers import EXPIRES

DEATHS: Final = "x-death"
FIRST: Final = "x-first-death-"
EXPIRATION: Final = "amqp.expiration"
DEATHS_MAX: Final = 32
"""Maximum number of queues named; a message that went through more loses the ones it left longest ago."""
_TEXTS: Final = ("reason", "queue", "exchange", "original-expiration")
_NUMBER_MAX: Final = (1 << 63) - 1
_KINDS: Final = {"count": "l"}
"""Types in an entry: clients in Java expect a ``Long``, which RabbitMQ sends."""
_SECOND_NS = 1_000_000_000


class Death(StrEnum):
    """Reasons why a message left a queue without being handled."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


def deaths_of(headers: HeaderPairs) -> list[dict[str, Any]]:
    """Return the entries of ``x-death``, the latest first; empty where a publisher wrote something else."""
    for name, value in headers:
        if name == DEATHS and isinstance(value, str):
            try:
                found = json.loads(value)
            except (ValueError, RecursionError):  # a publisher may write any text
                return []
            if isinstance(found, list) and all(_is_entry(each) for each in found):
                return [_known(each) for each in found[:DEATHS_MAX]]
    return []


def _is_entry(each: object) -> bool:
    return isinstance(each, dict) and all(isinstance(each.get(name), str) for name in ("queue", "reason"))


def _known(entry: dict[str, Any]) -> dict[str, Any]:
    """Return only the entries' keys that the node itself writes. Other values of a publisher, nested without end or
    with numbers that have no text form, would fail here and hold up all dead letters."""
    count, time, keys = entry.get("count"), entry.get("time"), entry.get("routing-keys")
    known = {name: entry[name] for name in _TEXTS if isinstance(entry.get(name), str)}
    known["count"] = count if _is_number(count) else 0
    if isinstance(time, dict) and _is_number(seconds := time.get("$timestamp")):
        known["time"] = {"$timestamp": seconds}
    if isinstance(keys, list) and all(isinstance(each, str) for each in keys):
        known["routing-keys"] = keys
    return known


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < _NUMBER_MAX


def left_before(headers: HeaderPairs) -> frozenset[str]:
    """Return the queues to which a dead letter must not go, because it left them before and no client rejected it
    meanwhile: it would circulate without end."""
    entries = deaths_of(headers)
    if any(each["reason"] == Death.REJECTED for each in entries):
        return frozenset()
    return frozenset(each["queue"] for each in entries)


def with_death(  # noqa: PLR0917
    headers: HeaderPairs,
    death: Death,
    queue: str,
    came_by: tuple[str, str],
    goes_by: tuple[str, str],
    topic: str,
    now_ns: int,
) -> HeaderPairs:
    """Return the headers of a dead letter.

    Args:
        headers: of the message in the queue.
        came_by: exchange and routing key of its arrival there.
        goes_by: those of the dead letter.
        topic: of the dead letter.
    """
    own: dict[str, HeaderValue] = dict(headers)
    expiration = own.get(EXPIRATION)
    entries = _counted(deaths_of(headers), death, queue, came_by, expiration, now_ns)
    dropped = {DEATHS, TYPES, EXCHANGE, ROUTING_KEY, QUEUES}
    if death is Death.EXPIRED:
        dropped |= {EXPIRES, EXPIRATION}  # or it would expire again at its destination
    kept = tuple((name, value) for name, value in headers if name not in dropped)
    if f"{FIRST}queue" not in own:
        kept += (
            (f"{FIRST}queue", queue), (f"{FIRST}reason", str(death)), (f"{FIRST}exchange", came_by[0])
        )  # fmt: skip
    kinds = {**kinds_of(headers), DEATHS: [_KINDS] * len(entries)}
    kept += ((DEATHS, json.dumps(entries)), *kinds_header(kinds))
    return kept + headers_of_route(*goes_by, topic)


def _counted(  # noqa: PLR0917
    entries: Sequence[dict[str, Any]], death: Death, queue: str, came_by: tuple[str, str], expiration: object,
    now_ns: int,
) -> list[dict[str, Any]]:  # fmt: skip
    same = [each for each in entries if each["queue"] == queue and each["reason"] == death]
    entry: dict[str, Any] = same[0] if same else {
        "count": 0,
        "reason": str(death),
        "queue": queue,
        "time": {"$timestamp": now_ns // _SECOND_NS},
        "exchange": came_by[0],
        "routing-keys": [came_by[1]],
    }  # fmt: skip
    entry["count"] += 1
    if death is Death.EXPIRED and isinstance(expiration, str):
        entry["original-expiration"] = expiration
    return [entry, *(each for each in entries if each not in same)][:DEATHS_MAX]
