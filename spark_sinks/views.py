"""Views of all streams, so that SQL names them: ``SELECT * FROM weft.telemetry``."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from pyspark.sql import DataFrame, SparkSession

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.read import read
from spark_sinks.runtime.session import register as register_source
from spark_sinks.source.options import STORE_PREFIX, ReadOptions, parse_options
from spark_sinks.source.stream_log import open_hub
from weft.storage.chunk_log import first_logs

# Global temporary views are the only temporary ones in a database. A catalog is a class of Java: a jar to build, and
# to pin to Spark's version.
DATABASE = "spark.sql.globalTempDatabase"
"""Conf with the database of views that all sessions of an application share. ``session`` sets it to ``weft``."""
VIEWS_MAX = 1_000
"""Maximum number of views of one call. Each takes a look into the store."""


def register(
    spark: SparkSession,
    store: str | os.PathLike[str] | None = None,
    *,
    hub: str | None = None,
    tenant: str = "default",
    streams: Collection[str] | None = None,
    prefix: str = "",
    store_options: Mapping[str, str] | None = None,
    hub_options: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Register ``format("weft")`` in a session, and with a store or a hub a view for each stream of a tenant.

    Views are in the database of global temporary views: ``weft`` in a session of ``session``, in others
    ``global_temp``, unless their conf ``spark.sql.globalTempDatabase`` says otherwise. They are gone with the
    application. A view of a stream whose schema is declared in the hub's store (``weft hub schema``) has its typed
    columns, as ``read``.

    A view from a store shows the stream as it is at the call, history by Spark's Parquet reader, as ``read``. Call
    again to see later records. A view from a hub reads the log of that moment in each query.

    Args:
        store: root of the hub's store.
        hub: URLs of the hub, separated by commas, instead of a store; ``streams`` must be given then.
        streams: only these streams; None takes all.
        prefix: text before the names of views, for several tenants or hubs in one application.
        store_options: for the object store: ``{"AWS_REGION": ...}``.
        hub_options: ``{"token_file": ..., "ca_file": ...}``, as options of ``format("weft")``.

    Returns:
        The streams, each with the name of its view as SQL writes it. Empty without a store or hub.

    Raises:
        ReadError: both or none of the two can be read, a stream is not there, or names differ in case only.
    """
    register_source(spark)
    if store is None and hub is None:
        return {}
    if store is not None and hub is not None:
        raise ReadError("hub: with a store, no hub is asked; leave one of them out")
    if hub is not None:
        return _views(spark, prefix, _through(spark, hub, tenant, streams, hub_options or {}))
    given = {f"{STORE_PREFIX}{name}": value for name, value in (store_options or {}).items()}
    # Which stream it is matters to no read of names.
    named = parse_options({"store": os.fspath(store or ""), "stream": "any", "tenant": tenant} | given)
    names = run(_names(named, streams))
    _check_names(names)
    frames = {name: read(spark, name, store=named.store, tenant=tenant, store_options=store_options) for name in names}
    return _views(spark, prefix, frames)


def _through(
    spark: SparkSession, hub: str, tenant: str, streams: Collection[str] | None, options: Mapping[str, str]
) -> dict[str, DataFrame]:
    if not streams:
        raise ReadError("streams: name the streams to read through a hub")
    _check_names(streams)
    reader = spark.read.format("weft").options(hub=hub, tenant=tenant, **options)
    return {name: reader.option("stream", name).load() for name in streams}


def _views(spark: SparkSession, prefix: str, frames: Mapping[str, DataFrame]) -> dict[str, str]:
    database = spark.conf.get(DATABASE, None) or "global_temp"
    views = {}
    for stream, frame in frames.items():
        name = _quoted(prefix + stream)
        frame.createOrReplaceGlobalTempView(name)
        views[stream] = f"{database}.{name}"
    return views


def _quoted(name: str) -> str:
    """Return a name as SQL writes it: in backticks unless it is a plain word."""
    is_plain = name.isascii() and name.replace("_", "a").isalnum() and not name[0].isdigit()
    return name if is_plain else f"`{name}`"


def _check_names(names: Collection[str]) -> None:
    if len(names) > VIEWS_MAX:
        raise ReadError(f"streams: {len(names)} are more than {VIEWS_MAX} views; name those that you need")
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.casefold(), name)) != name:
            raise ReadError(f"streams: {other} and {name} would be one view, as SQL ignores case; name one of them")


async def _names(options: ReadOptions, streams: Collection[str] | None) -> list[str]:
    """Return the names of the streams to view, sorted; None for ``streams`` takes all of the tenant."""
    store, cluster = await open_hub(options)
    found = set[str]()
    logs = list(first_logs(store, cluster))
    while logs:  # one after the other: each may be large, and only names are kept
        log = logs.pop(0)
        state = await log.load()
        logs += [log.new_shard(split) for split in state.splits]
        found |= state.tenant_streams(options.tenant)
    if missing := sorted(set(streams or ()) - found):
        raise ReadError(
            f"the store has no stream {missing[0]!r} of tenant {options.tenant!r}; "
            f"it has {', '.join(sorted(found)[:20]) or 'no stream of that tenant yet'}"
        )
    return sorted(found if streams is None else set(streams))
