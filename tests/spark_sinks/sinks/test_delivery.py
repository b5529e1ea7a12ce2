"""Drivers killed by SIGKILL in the middle of micro-batches, and what PostgreSQL and Kafka have afterwards."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark_sinks.conftest import STREAM, Hub
from tests.spark_sinks.sinks.delivery_job import AFTER_COMMIT, BEFORE_COMMIT, COPIED, SENDING, Settings, run
from tests.support.brokers import Kafka, connector_jars, kafka
from tests.support.postgresql import PASSWORD, needs_postgresql, postgresql

psycopg = pytest.importorskip("psycopg")
pytestmark = [pytest.mark.search(turns=4), pytest.mark.spark, pytest.mark.timeout(890)]
ROUNDS = 50


@needs_postgresql
def test_a_killed_driver_appends_each_row_once(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows copied, before the commit, after it, after it with the checkpoint lost as well; PostgreSQL killed too."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    hub.write(ROUNDS)
    checkpoint = tmp_path / "checkpoint"
    with postgresql() as server:

        def rows() -> list[Any]:
            with psycopg.connect(server.url.removeprefix("jdbc:"), password=PASSWORD) as connection:
                return [*connection.execute("SELECT _edge, _seq, payload FROM readings ORDER BY 1, 2")]

        def job(kill: str = "", kill_batch: int = 0) -> None:
            sink = {"url": server.url, "table": "readings", "name": "copy"}
            run(Settings(hub.root, STREAM, str(checkpoint), sink, kill, kill_batch))

        job(COPIED, 1)
        assert len(rows()) == 400
        job(BEFORE_COMMIT)
        assert len(rows()) == 400
        job(AFTER_COMMIT)
        assert len(rows()) == 800
        server.kill()
        server.start()
        shutil.rmtree(checkpoint)
        job(AFTER_COMMIT, 2)  # of the three batches, two were there
        assert len(rows()) == 1200
        job()
        assert [(edge, seq, bytes(payload)) for edge, seq, payload in rows()] == hub.expected()


@pytest.fixture
def broker() -> Iterator[Kafka]:
    try:
        connector_jars()
        running = kafka()
        server = running.__enter__()
    except LookupError as error:
        pytest.skip(str(error))
    try:
        yield server
    finally:
        running.__exit__(None, None, None)


Message = dict[str, Any]


def place(message: Message) -> tuple[str, int]:
    return message["headers"]["weft.lane"], int(message["headers"]["weft.seq"])


def without_repeats(messages: Iterable[Message]) -> Iterator[Message]:
    """The rule of docs/how-to/from-spark-to-kafka.md, as a consumer applies it."""
    highest: dict[tuple[str, str], int] = {}
    for message in messages:
        lane, seq = place(message)
        if seq > highest.get((message["key"], lane), -1):
            highest[message["key"], lane] = seq
            yield message


def test_a_killed_driver_loses_nothing_and_repeats_are_recognised(hub: Hub, tmp_path: Path, broker: Kafka) -> None:
    hub.write(ROUNDS)
    secret = tmp_path / "client.properties"
    secret.write_text('# as Kafka\'s own tools take it\nsasl.jaas.config=org.example.Module password="hush-hush";\n')
    events = tmp_path / "events"
    events.mkdir()
    sink = {"bootstrap_servers": broker.address, "topic": "telemetry", "options_file": str(secret)}
    conf = {"spark.jars": connector_jars(), "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{events}"}
    conf["spark.eventLog.compress"] = "false"
    data, dump = str(broker.folder / "data"), tmp_path / "messages"

    def job(kill: str = "", kill_batch: int = 0, **more: Any) -> str:
        place = str(tmp_path / "checkpoint")
        settings = Settings(hub.root, STREAM, place, sink, kill, kill_batch, 1000, conf, data, **more)
        return run(settings)

    said = job(SENDING) + job(AFTER_COMMIT) + job(dump=str(dump))
    messages = [json.loads(line) for line in dump.read_text().splitlines()]
    counts = Counter(map(place, messages))
    assert max(counts.values()) > 1, "without a repeat this test shows nothing"
    kept = list(without_repeats(messages))
    found = sorted((m["headers"]["weft.lane"].split("/")[0], place(m)[1], m["value"].encode()) for m in kept)
    assert found == hub.expected()
    logged = "".join(path.read_text(errors="replace") for path in events.rglob("*") if path.is_file())
    assert "telemetry" in logged
    assert "hush-hush" not in said + logged
