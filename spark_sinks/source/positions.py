"""Start and end of a read: record offsets per shard, or a time or word that stands for them.

Offsets are the log's own (``_offset`` of ``_shard``), so they stay valid when chunks become table rows.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from spark_sinks.errors import ReadError

Offsets = dict[int, int]
"""Shard -> offset of the next record to read."""
Position = Literal["earliest", "latest"] | Offsets | datetime
CHUNKS = "chunks"
"""Key beside the shards of a checkpoint's offsets, for the chunks of the log that they are in."""
READ = "read"
"""Likewise, for records that a query has read in another region: no text of offsets for ``starting`` names them."""
EXPECTED_TIME = "a time such as 2024-05-01T06:00:00Z"
EXPECTED = f'earliest, latest, {EXPECTED_TIME}, or offsets by shard such as {{"0": 1200, "1": 0}}'
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_position(option: str, text: str) -> Position:
    """Read the value of ``starting`` or ``ending``. A time without a zone is UTC.

    Raises:
        ReadError: it has none of the forms of ``EXPECTED``.
    """
    lower = text.strip().lower()
    if lower == "earliest":
        return "earliest"
    if lower == "latest":
        return "latest"
    try:
        if lower.startswith("{"):
            return from_json(msgspec.json.decode(text))
        return in_utc(datetime.fromisoformat(text.strip()))
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise ReadError(f"{option}: expected {EXPECTED}; got {text!r}") from None


def parse_moment(option: str, value: datetime | str) -> datetime:
    """Return a moment with a zone. A text is ISO 8601; without a zone it is UTC.

    Raises:
        ReadError: it is not a moment.
    """
    with contextlib.suppress(ValueError):
        value = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
    if not isinstance(value, datetime):
        raise ReadError(f"{option}: expected {EXPECTED_TIME}; got {value!r}")
    return in_utc(value)


def in_utc(moment: datetime) -> datetime:
    """Return a time with a zone, UTC when it has none."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def from_json(value: Any) -> Offsets:
    """Return offsets from their JSON form: ``{"0": 1200, "1": 0}``. The chunks of a checkpoint are left out.

    Raises:
        ValueError: it has another form.
    """
    if isinstance(value, dict):
        value = {shard: offset for shard, offset in value.items() if shard != CHUNKS}
    if not isinstance(value, dict) or not all(type(offset) is int and offset >= 0 for offset in value.values()):
        raise ValueError(f"expected offsets by shard, got {value!r}")
    return {int(shard): offset for shard, offset in value.items()}


def to_json(offsets: Offsets) -> dict[str, int]:
    """Return offsets by shard in their JSON form."""
    return {str(shard): offset for shard, offset in sorted(offsets.items())}


def offsets_text(offsets: Offsets) -> str:
    """Return the form for the options ``starting`` and ``ending``."""
    return msgspec.json.encode(to_json(offsets)).decode()


def check_offsets(option: str, offsets: Offsets, heads: Offsets) -> None:
    """Check that offsets name every shard of the log once, and no record beyond its end.

    Args:
        heads: the end of the log, per shard.

    Raises:
        ReadError: they do not.
    """
    if offsets.keys() != heads.keys():
        raise ReadError(
            f"{option}: the offsets name the shards {_names(offsets)}; name each shard of the log once: {_names(heads)}"
        )
    for shard, offset in offsets.items():
        if offset > heads[shard]:
            raise ReadError(
                f"{option}: offset {offset} of shard {shard} is past the end of the log, {heads[shard]}. "
                "If these offsets come from a checkpoint, it belongs to another store, or the store was restored to an "
                "earlier state"
            )


def of_checkpoint(offsets: Offsets, heads: Offsets) -> Offsets:
    """Return the offsets of a checkpoint for every shard of the log. A shard that was added later begins at 0.

    Raises:
        ReadError: they name a shard that the log lacks, or an offset beyond its end.
    """
    unknown = offsets.keys() - heads.keys()
    if unknown:
        raise ReadError(
            f"checkpoint: it names shard {_names(dict.fromkeys(unknown, 0))}, and the store has the shards "
            f"{_names(heads)}. The checkpoint belongs to another store: name the store that it was made with, or start "
            "with a new checkpoint"
        )
    whole = dict.fromkeys(heads, 0) | offsets
    check_offsets("checkpoint", whole, heads)
    return whole


def limited(start: Offsets, end: Offsets, records_max: int) -> Offsets:
    """Return the end of a read from ``start`` towards ``end`` of at most ``records_max`` records, at least 1.

    Shards share the limit evenly, and shards with fewer records leave the rest of their part to the others, so that a
    shard with a long backlog does not delay the others.
    """
    left = records_max
    result = {}
    by_backlog = sorted(start, key=lambda shard: (end[shard] - start[shard], shard))
    for done, shard in enumerate(by_backlog):
        share = -(-left // (len(by_backlog) - done))
        taken = max(0, min(end[shard] - start[shard], share))
        result[shard] = start[shard] + taken
        left -= taken
    return result


def nanoseconds(moment: datetime) -> int:
    """Return nanoseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def _names(offsets: Offsets) -> str:
    return ", ".join(map(str, sorted(offsets))) or "none"
