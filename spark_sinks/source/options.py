"""The options of ``format("weft")``."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from spark_sinks.errors import ReadError
from spark_sinks.source.hub.access import HubAccess, hub_access
from spark_sinks.source.positions import Position, parse_moment, parse_position
from spark_sinks.source.store_options import with_environment
from spark_sinks.source.typed import declared
from weft.config.payload_schema.model import PayloadSchema
from weft.protocols.lane import NAME_RULE, valid_name

NAMES = (
    "store", "tenant", "stream", "streams", "starting", "ending", "since", "until", "edges", "keys", "columns",
    "schema", "payload_format", "max_records_per_trigger", "fail_on_data_loss", "hub", "token_file", "ca_file",
)  # fmt: skip
_PLACES = (("store", "/var/lib/weft/hub or s3://bucket/weft"), ("stream", "telemetry"))
"""Required options, each with an example."""
STORE_PREFIX = "store."
"""Prefix of options for the object store: ``store.aws_region`` becomes ``AWS_REGION``."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read, checked as far as possible without looking at the store."""

    store: str
    """Root of the store: a path, ``file://``, ``s3://``, ``gs://`` or ``az://``; empty for a read through a hub."""
    stream: str
    tenant: str = "default"
    store_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options for the object store; may hold credentials."""
    starting: Position = "earliest"
    ending: Position = "latest"
    since: datetime | None = None
    """Only records with a ``_time`` of this moment or later."""
    until: datetime | None = None
    """Only records with a ``_time`` before this moment."""
    edges: frozenset[str] | None = None
    """Names of the edge nodes whose records to read; None means all."""
    keys: tuple[str, ...] | None = None
    """Keys of the records to read, or topic filters that match the keys; None means all."""
    columns: tuple[str, ...] | None = None
    """Names of the columns to read; None means all."""
    schema: PayloadSchema | None = None
    """Fields of the payloads that become typed columns; None makes none."""
    max_records_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    """False continues without records that are no longer in the log or in the table."""
    hub: HubAccess | None = None
    """Hub to read through, instead of the store."""


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read.

    Raises:
        ReadError: one is missing, unknown or not valid.
    """
    given = {name.lower(): value for name, value in options.items()}
    if "provider" in given:
        raise ReadError(
            "CREATE TABLE: Spark hands a Python source no options when it reads a table of its catalog. Use CREATE "
            "TEMPORARY VIEW NAME USING weft OPTIONS (...), or register(spark, store) for all streams"
        )
    _check_names(given)
    hub = hub_access(given)
    if hub is not None and (taken := [name for name in given if name == "store" or name.startswith(STORE_PREFIX)]):
        raise ReadError(f"{taken[0]}: with the option hub, the store is not read; leave one of them out")
    places = (("stream", "telemetry"),) if hub is not None else _PLACES
    for name, example in places:
        if not given.get(name):
            raise ReadError(f'{name}: missing; give it with .option("{name}", ...), for example {example}')
    for name in ("tenant", "stream"):
        if name in given and not valid_name(given[name]):
            raise ReadError(f"{name}: expected {NAME_RULE}; got {given[name]!r}")
    edges = _optional_names("edges", given)
    return ReadOptions(
        store=given.get("store", ""),
        stream=given["stream"],
        tenant=given.get("tenant", "default"),
        store_options=tuple(sorted(_store_options(given).items())),
        starting=parse_position("starting", given.get("starting", "earliest")),
        ending=parse_position("ending", given.get("ending", "latest")),
        since=_moment("since", given),
        until=_moment("until", given),
        edges=None if edges is None else frozenset(edges),
        keys=_optional_names("keys", given),
        columns=_optional_names("columns", given),
        schema=declared(given.get("schema"), given.get("payload_format")),
        max_records_per_trigger=_count("max_records_per_trigger", given),
        fail_on_data_loss=_truth("fail_on_data_loss", given, default=True),
        hub=hub,
    )


def source_options(
    stream: str,
    tenant: str,
    store: str | os.PathLike[str] | None,
    store_options: Mapping[str, str] | None = None,
    **of_hub: str | os.PathLike[str] | None,
) -> dict[str, str]:
    """Return the options of ``format("weft")`` for the arguments of functions that read a stream.

    Args:
        of_hub: ``hub``, ``token_file`` and ``ca_file``; None where one is not given.
    """
    named = {"stream": stream, "tenant": tenant}
    named |= {name: os.fspath(value) for name, value in {"store": store, **of_hub}.items() if value is not None}
    return named | {f"{STORE_PREFIX}{name}": value for name, value in (store_options or {}).items()}


def _check_names(given: Mapping[str, str]) -> None:
    for name in given:
        if name not in NAMES and not name.startswith(STORE_PREFIX):
            near = ["store"] if name == "path" else difflib.get_close_matches(name, NAMES, 1)
            advice = f"did you mean {near[0]}?" if near else f"the options are {', '.join(NAMES)} and {STORE_PREFIX}*"
            raise ReadError(f"{name}: no such option; {advice}")


def _store_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the store's options in upper case: Spark loses the case of option names."""
    named = {
        name.removeprefix(STORE_PREFIX).upper(): value for name, value in given.items() if name.startswith(STORE_PREFIX)
    }
    return with_environment(named, os.environ, given.get("store", ""))


def _optional_names(option: str, given: Mapping[str, str]) -> tuple[str, ...] | None:
    text = given.get(option)
    return None if text is None else parse_names(option, text)


def parse_names(option: str, text: str) -> tuple[str, ...]:
    """Return a list of names: separated by commas, or a JSON list where a name contains a comma.

    Raises:
        ReadError: it is not such a list, or it is empty.
    """
    names = [part.strip() for part in text.split(",")]
    if text.lstrip().startswith("["):
        try:
            names = msgspec.json.decode(text, type=list[str])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ReadError(f'{option}: expected names such as a, b or a JSON list ["a", "b"]; got {text!r}') from None
    if not names or not all(names):
        raise ReadError(f"{option}: expected one name or more, separated by commas; got {text!r}")
    return tuple(names)


def _moment(option: str, given: Mapping[str, str]) -> datetime | None:
    text = given.get(option)
    return None if text is None else parse_moment(option, text)


def _count(option: str, given: Mapping[str, str]) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    try:
        count = int(text.replace("_", ""))
    except ValueError:
        count = 0
    if count < 1:
        raise ReadError(f"{option}: expected a number of at least 1; got {text!r}")
    return count


def _truth(option: str, given: Mapping[str, str], *, default: bool) -> bool:
    text = given.get(option, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ReadError(f"{option}: expected true or false; got {given[option]!r}")
    return text == "true"
