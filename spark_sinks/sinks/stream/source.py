"""The log of a query's source, compared with the log that the lanes of its sink recorded."""

from __future__ import annotations

from spark_sinks.errors import SinkError
from spark_sinks.sinks.followed_log import FollowedLog
from spark_sinks.sinks.stream.last_record import LastRecord
from spark_sinks.sinks.stream.settings import ProducerSettings
from spark_sinks.source.history import KeptPosition, WentBack, Witness


def chunk_of(settings: ProducerSettings, shard: int, offset: int) -> Witness | None:
    """Return the chunk with a record of the source; None if the source's store is not given, or the hub has deleted the
    chunk.

    Raises:
        SinkError: the source's store does not answer.
    """
    if settings.source_log is None:
        return None
    return FollowedLog(settings.source_log).witnesses({shard: offset + 1}).get(shard)


def check_source(settings: ProducerSettings, shard: int, last: LastRecord) -> None:
    """Check that the source still has the record behind a lane's last one. A source that was restored to an earlier
    state gives the offset to another record, which would be skipped as one that the stream has.

    Raises:
        SinkError: it has another record there, the source ends before it, or its store does not answer.
    """
    if settings.source_log is None:
        return
    source = FollowedLog(settings.source_log)
    try:
        if shard >= source.shards:
            raise WentBack(f"shard {shard} of {settings.source_log.stream}, and the source has {source.shards} shards")
        source.check({shard: KeptPosition(last.position.offset + 1, last.witness)})
    except WentBack as error:
        raise SinkError(
            f"stream {settings.stream} has rows of query {settings.query} up to {error}: the source's store was "
            "restored to an earlier state, or is another one. Start the query under another name, at the rows that the "
            "stream lacks"
        ) from None
