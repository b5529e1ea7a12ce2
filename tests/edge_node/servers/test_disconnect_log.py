"""Log lines about clients that were closed: one for what many meet, or one client again and again, then a count."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.edge_node.servers.amqp1 import harness as amqp1
from tests.edge_node.servers.mqtt.harness import RawClient, SyncGate, running
from tests.support.waiting import PATIENCE_S
from weft.config.log_lines import NAMES_MAX, DisconnectLog
from weft.protocols.mqtt.packets import Publish

ATTEMPTS = 20
FULL = "what it sent could not be stored and is not acknowledged: the log is full: %d bytes"
log = logging.getLogger(__name__)


def lines(caplog: pytest.LogCaptureFixture, beginning: str) -> list[str]:
    return [line for record in caplog.records if (line := record.getMessage()).startswith(beginning)]


def test_few_names_that_a_stranger_chooses_give_it_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    disconnect_log = DisconnectLog(lambda: 0.0)
    for number in range(50):
        name = f"a'b\"{number:x}-{'x' * (number % 7)}"
        disconnect_log.closed(log, "closed a client", f"user {name!r}: wrong password", stranger_at="10.0.0.7")
        disconnect_log.closed(log, "closed a client", f"no protocol: {name.encode()!r}", stranger_at="10.0.0.7")
    assert len(lines(caplog, "closed a client")) == NAMES_MAX + 2


def test_each_of_a_few_devices_with_an_old_password_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Behind one address: a gateway, or the devices of a site."""
    disconnect_log = DisconnectLog(lambda: 0.0)
    for _ in range(10):
        for name in ("press", "oven"):
            disconnect_log.closed(log, "closed a client", f"no such user or password: {name!r}", stranger_at="10.0.0.7")
    assert [line[-7:] for line in lines(caplog, "closed a client")] == ["'press'", " 'oven'"]


def test_a_refusal_each_second_is_a_line_after_1_2_and_4_minutes(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    disconnect_log = DisconnectLog(lambda: now)
    said: list[float] = []
    for second in range(10 * 60):
        now = float(second)
        before = len(caplog.records)
        for device in range(50):
            disconnect_log.closed(log, f"closed MQTT client 'device-{device}'", FULL % (second + device))
        said += [now] * (len(caplog.records) - before)
    assert said == [0, 60, 180, 420]
    assert "'device-0'" in caplog.records[0].getMessage()
    assert caplog.records[1].getMessage().endswith("; 2,999 more like this since the last line")


def test_other_reasons_addresses_and_clients_have_lines_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    disconnect_log = DisconnectLog(lambda: 0.0)
    for _ in range(3):
        for origin in ("192.0.2.7", "192.0.2.8"):
            for reason in ("expected a frame, got b'\\x01'", "expected a frame, got b'\\x02'", "no password"):
                disconnect_log.closed(log, "closed", reason, stranger_at=origin)
        disconnect_log.closed(log, "closed MQTT client 'a'", "did not read what it was sent for 60 s")
        disconnect_log.closed(log, "closed", "expected a frame", logging.INFO, "192.0.2.7")
    levels = [record.levelno for record in caplog.records]
    assert levels.count(logging.WARNING) == 2 * 2 + 3, "what a client that was let in did is said each time"


def test_what_is_remembered_of_a_reason_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    disconnect_log = DisconnectLog(lambda: 0.0)
    for number in range(3):
        disconnect_log.closed(log, "closed", "x" * 10_000 + chr(97 + number), stranger_at="192.0.2.7")
    assert len(caplog.records) == 1


async def test_a_disk_that_fails_is_one_line_for_all_clients(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate) as node:
        gate.error = OSError(5, "Input/output error")
        for number in range(ATTEMPTS):
            device = await RawClient.connect(node.port, f"device-{number % 3}")
            device.send(Publish(b"plant/a", b"x", 1, 9))
            assert await device.receive() is None
        assert node.counters.log_refusals == ATTEMPTS
    assert len(lines(caplog, "closed MQTT client 'device-")) <= 2, "the first is told of the error, the others after it"


@pytest.mark.parametrize("first", [amqp1.SASL, b"GET /%02d"], ids=["a bad frame", "another protocol"])
async def test_attempts_without_a_login_do_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: bytes
) -> None:
    async with amqp1.amqp(tmp_path) as node:
        for number in range(ATTEMPTS):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            writer.write((first % number if b"%" in first else first) + b"\xff\0\0\0%02d" % number)
            async with asyncio.timeout(PATIENCE_S):
                await reader.read()
            writer.close()
    assert len(lines(caplog, "closed ")) == 1
