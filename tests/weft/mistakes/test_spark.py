"""Mistakes in the options of `format("weft")`: one sentence that names the option, before Spark starts a task."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from spark_sinks.errors import ReadError
from spark_sinks.source.data_source import WeftSource
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

GOOD = {"store": "<store>", "stream": "telemetry"}
POSITION = (
    'expected earliest, latest, a time such as 2024-05-01T06:00:00Z, or offsets by shard such as {"0": 1200, "1": 0}'
)
OPTIONS: list[tuple[str, dict[str, str], str]] = [
    (
        "no store",
        {"stream": "telemetry"},
        'store: missing; give it with .option("store", ...), for example /var/lib/weft/hub or s3://bucket/weft',
    ),
    ("no stream", {"store": "<store>"}, 'stream: missing; give it with .option("stream", ...), for example telemetry'),
    ("a path in place of the store", {"path": "<store>"}, "path: no such option; did you mean store?"),
    ("a misspelt option", GOOD | {"startng": "latest"}, "startng: no such option; did you mean starting?"),
    (
        "an option that is none",
        GOOD | {"compression": "zstd"},
        "compression: no such option; the options are store, tenant, stream, streams, starting, ending, since, until, "
        "edges, keys, columns, schema, payload_format, max_records_per_trigger, fail_on_data_loss, hub, token_file, "
        "ca_file and store.*",
    ),
    (
        "a stream's name with capitals",
        GOOD | {"stream": "Telemetry"},
        "stream: expected lower-case letters, digits, '-' and '_', at most 64, starting with a letter or digit; "
        "got 'Telemetry'",
    ),
    ("a beginning that is none", GOOD | {"starting": "yesterday"}, f"starting: {POSITION}; got 'yesterday'"),
    ("offsets that are no numbers", GOOD | {"ending": '{"0": "a"}'}, f'ending: {POSITION}; got \'{{"0": "a"}}\''),
    (
        "nothing between commas",
        GOOD | {"edges": "a,,b"},
        "edges: expected one name or more, separated by commas; got 'a,,b'",
    ),
    (
        "a list that is not valid JSON",
        GOOD | {"keys": '["a"'},
        'keys: expected names such as a, b or a JSON list ["a", "b"]; got \'["a"\'',
    ),
    (
        "a limit of nothing",
        GOOD | {"max_records_per_trigger": "0"},
        "max_records_per_trigger: expected a number of at least 1; got '0'",
    ),
    (
        "a limit in words",
        GOOD | {"max_records_per_trigger": "many"},
        "max_records_per_trigger: expected a number of at least 1; got 'many'",
    ),
    (
        "a store that is not there",
        GOOD | {"store": "/nowhere/hub"},
        "store '/nowhere/hub': the store holds no hub: check the store's address, or start a hub on it first",
    ),
    (
        "a store of a kind that is none",
        GOOD | {"store": "ftp://x/y"},
        "store 'ftp://x/y': 'ftp://x/y' is not a store: expected a path, file:///path, s3://bucket/prefix, "
        "gs://bucket/prefix or az://container/prefix, or memory://name",
    ),
    (
        "a stream that is none",
        GOOD | {"stream": "telemetri"},
        "the store has no stream 'telemetri' of tenant 'default'; it has no stream of that tenant yet",
    ),
]


@pytest.mark.parametrize(("did", "options", "message"), OPTIONS, ids=lambda each: each if isinstance(each, str) else "")
def test_a_mistake_in_the_options(did: str, options: dict[str, str], message: str, tmp_path: Path) -> None:
    asyncio.run(open_cluster(open_store(str(tmp_path)), 4))
    with pytest.raises(ReadError) as raised:
        WeftSource({name: value.replace("<store>", str(tmp_path)) for name, value in options.items()}).schema()
    assert str(raised.value).replace(str(tmp_path), "<store>") == message
