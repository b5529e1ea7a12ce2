"""Routing keys beside the one of basic.publish: the fields ``CC`` and ``BCC`` of ``headers``, an extension of RabbitMQ.

Both are arrays of text. Consumers see ``CC``, but not ``BCC``.
"""

from __future__ import annotations

import json
from typing import Any, Final

from weft.protocols.amqp.errors import AmqpError, ReplyCode
from weft.protocols.amqp.typed_values import TYPES, kinds_header, kinds_of
from weft.protocols.columns import HeaderPairs

SEEN: Final = "CC"
UNSEEN: Final = "BCC"
KEYS_MAX: Final = 256
"""Maximum number of further keys of one message: each is a look-up of its own."""
KEY_BYTES_MAX: Final = 255
"""Longest key: a short string."""


def read_further_keys(headers: HeaderPairs) -> tuple[tuple[str, ...], HeaderPairs]:
    """Return the further keys of a message, and its headers without those hidden from consumers.

    Raises:
        AmqpError: they are not lists of text, too long, or too many.
    """
    by_name = dict(headers)
    if SEEN not in by_name and UNSEEN not in by_name:
        return (), headers
    types = dict(kinds_of(headers))
    keys = tuple(key for name in (SEEN, UNSEEN) if name in by_name for key in _list(by_name[name], types, name))
    if len(keys) > KEYS_MAX:
        raise _invalid(f"CC and BCC have {len(keys)} keys; a message may have {KEYS_MAX}")
    if UNSEEN not in by_name:
        return keys, headers
    types.pop(UNSEEN, None)
    left = [pair for pair in headers if pair[0] not in {UNSEEN, TYPES}]
    return keys, (*left, *kinds_header(types))


def _list(value: object, types: dict[str, Any], name: str) -> list[str]:
    found = json.loads(str(value)) if types.get(name) == "A" else None
    if not isinstance(found, list) or not all(isinstance(key, str) for key in found):
        raise _invalid(f"the header {name} must be an array of routing keys as text")
    if any(len(key.encode()) > KEY_BYTES_MAX for key in found):
        raise _invalid(f"a routing key in the header {name} has more than {KEY_BYTES_MAX} bytes")
    return found


def _invalid(reason: str) -> AmqpError:
    return AmqpError(ReplyCode.PRECONDITION_FAILED, reason)
