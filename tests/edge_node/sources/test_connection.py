"""Tests of ``edge_node/sources/connection.py``."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.certificates import Authority
from tests.support.live_node import configuration
from tests.support.waiting import until
from weft.config.errors import ConfigError
from weft.config.sources import OpcuaSecurity
from weft.edge_node.preflight import EdgeFindings, look
from weft.edge_node.sources.connection import NEW_MAX, RECENT_MAX, AnyConnection, Recent, Runner, Topics
from weft.edge_node.sources.opcua_client import make_certificate
from weft.edge_node.sources.status import SourceStatus
from weft.protocols.topics import InvalidTopic, compile_rule


@pytest.mark.parametrize(
    ("from_", "to", "topic", "expected"),
    [
        ("a/b", "c", "a/b", "c"),
        ("factory/{line}/{machine}/raw", "plant/{machine}/line-{line}", "factory/4/7/raw", "plant/7/line-4"),
        ("factory/#", "plant/#", "factory/a/b", "plant/a/b"),
        ("factory/#", "plant/#", "factory", "plant"),
        ("factory/{line}/#", "{line}/#", "factory/4", "4"),
        ("#", "all/#", "a/b", "all/a/b"),
        ("factory/+/raw", "raw", "factory/4/raw", "raw"),
        ("factory/+/raw", "raw", "elsewhere", None),
    ],
)
def test_a_rule_puts_a_topic_in_the_place_of_another(from_: str, to: str, topic: str, expected: str | None) -> None:
    assert compile_rule(from_, to).apply(topic) == expected


@pytest.mark.parametrize(
    ("from_", "to", "word"),
    [
        ("a/+", "b/{line}", "does not name"),
        ("a/{line}", "b/+", "no wildcards"),
        ("a/{line}", "b/#", "no rest"),
        ("a/#/b", "c", "#"),
        ("a", "", "at least one character"),
        ("a/#", "b/#/c", "no wildcards"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(from_: str, to: str, word: str) -> None:
    with pytest.raises(InvalidTopic, match=word):
        compile_rule(from_, to)


def test_the_first_rule_counts_and_the_prefix_comes_before_every_topic() -> None:
    topics = Topics([("a/{x}", "one/{x}"), ("a/#", "two/#")], "site/")
    assert [topics.key(each) for each in (b"a/1", b"a/1/2", b"b", b"a/1")] == [
        b"site/one/1",
        b"site/two/1/2",
        b"site/b",
        b"site/one/1",
    ]


def test_a_topic_that_becomes_none_is_an_error() -> None:
    with pytest.raises(InvalidTopic):
        Topics((), "x" * 60_000).key(b"y" * 6_000)


# --- recent


def taken(recent: Recent, *numbers: int) -> list[bool]:
    return [recent.is_again(b"topic", b"%d" % number) for number in numbers]


def test_equal_messages_of_one_connection_are_messages() -> None:
    assert not any(taken(Recent(), 1, 1, 1))


def test_what_came_before_is_known_once_on_the_next_connection() -> None:
    recent = Recent()
    taken(recent, 1, 2, 2)
    recent.reconnected()
    assert taken(recent, 2, 2, 2, 1, 3, 1) == [True, True, False, True, False, False]


def test_nothing_is_expected_any_more_behind_new_messages() -> None:
    recent = Recent()
    taken(recent, 1)
    recent.reconnected()
    taken(recent, *range(1000, 1000 + NEW_MAX))
    assert taken(recent, 1) == [False]


def test_the_memory_is_bounded() -> None:
    recent = Recent()
    taken(recent, *range(RECENT_MAX + 1))
    recent.reconnected()
    assert taken(recent, 0, 1) == [False, True]


# --- `weft edge check` finds what is wrong with a source before it connects


BASE = "node: a\ndata_dir: data\nstreams: {t: {from: '#'}}\nlisteners: {mqtt: {bind: '127.0.0.1:1883'}}\n"


def mqtt(settings: str, listener: str = "") -> str:
    return (
        BASE.replace("'127.0.0.1:1883'", listener or "'127.0.0.1:1883'") + f"sources: {{s: {{mqtt: {{{settings}}}}}}}\n"
    )


def amqp(settings: str) -> str:
    return BASE + f"sources: {{s: {{amqp: {{{settings}}}}}}}\n"


_SECURE = "security: {certificate: n.pem, key: n.key, trusted: n.pem}, user: {certificate: u.pem, key: u.key}"


def opcua(settings: str) -> str:
    return BASE + f"sources: {{s: {{opcua: {{{settings}}}}}}}\n"


PRESS = "url: 'opc.tcp://press.example.com'"
URL = "url: 'mqtt://broker.example.com'"


def modbus(registers: str, device: str = "", settings: str = "") -> str:
    devices = f"devices: {{m: {{{device}registers: {{{registers}}}}}}}"
    return BASE + f"sources: {{s: {{modbus: {{url: 'tcp://10.0.0.5', {settings}{devices}}}}}}}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (mqtt("url: 'mqtt://127.0.0.1', topics: a"), "sources.s.mqtt.url: 127.0.0.1:1883 is listeners.mqtt"),
        (mqtt("url: 'mqtt://localhost:1883', topics: a"), "is listeners.mqtt of this node"),
        (
            mqtt("url: 'mqtt://127.0.0.1', topics: a", "'0.0.0.0:1883', anonymous: allowed_beyond_loopback"),
            "is listeners.mqtt of this node",
        ),
        (mqtt("url: 'amqp://broker', topics: a"), "expected mqtt://HOST or mqtts://HOST"),
        (mqtt("url: 'mqtt://user:word@broker', topics: a"), "without a user name or password"),
        (mqtt("url: 'mqtt://broker/path', topics: a"), "no paths"),
        (mqtt(f"{URL}, topics: 'a/{{b}}'"), "have no names in a subscription"),
        (mqtt(f"{URL}, topics: 'a/#/b'"), "must be the whole last level"),
        (mqtt(f"{URL}, topics: '$share/a/b'"), "set `share`"),
        (mqtt(f"{URL}, topics: a, share: x, version: v3.1.1"), "no shared subscriptions"),
        (mqtt(f"{URL}, topics: a, share: 'x/y'"), "gateways"),
        (mqtt(f"{URL}, topics: a, qos: 3"), "expected at most 2"),
        (mqtt(f"{URL}, topics: a, password: secret"), "never holds secrets"),
        (mqtt(f"{URL}, topics: a, password_file: x"), "sources.s.mqtt.username: is missing"),
        (mqtt(f"{URL}, topics: a, username: u, password_file: x, password_env: Y"), "Delete one of them"),
        (mqtt(f"{URL}, topics: a, tls: {{ca_file: x}}"), "needs a URL with TLS"),
        (mqtt("url: 'mqtts://b', topics: a, tls: {key: x}"), "a key needs its certificate"),
        (mqtt(f"{URL}, topics: a, prefix: 'a/#'"), "expected the beginning of a topic"),
        (mqtt(f"{URL}, topics: a, rewrite: [{{from: 'a/+', to: 'b/{{x}}'}}]"), "does not name"),
        (mqtt(f"{URL}, topics: a, retry_min: 1m"), "expected at most retry_max"),
        (amqp("url: 'mqtt://broker', queue: q"), "expected amqp://HOST or amqps://HOST"),
        (amqp("url: 'amqp://broker', queue: amq.x, declare: quorum"), "names that begin with amq."),
        (opcua("url: 'mqtt://press', nodes: [{id: 'i=7'}]"), "expected opc.tcp://HOST"),
        (opcua(f"{PRESS}, nodes: [{{id: Temperature}}]"), "nodes[0].id: expected a node id"),
        (opcua(f"{PRESS}, nodes: [{{id: 'i=7', path: Objects}}]"), "expected one name of nodes"),
        (opcua(f"{PRESS}, nodes: [{{id: 'i=7', topic: 'a/#'}}]"), "expected a topic"),
        (opcua(f"{PRESS}, nodes: [{{id: 'i=7', deadband: 1.0, deadband_percent: 1.0}}]"), "Delete one of them"),
        (opcua(f"{PRESS}, nodes: [{{id: 'i=7'}}], user: {{certificate: u.pem, key: u.key}}"), "security: is missing"),
        (opcua(f"{PRESS}, nodes: [{{id: 'i=7'}}], {_SECURE}, username: u"), "user: username is set, too"),
        (BASE + "sources: {'a b': {mqtt: {url: 'mqtt://b', topics: a}}}\n", "expected a name"),
        (BASE + "sources: {s: {}}\n", "expected one kind of source"),
        (modbus("a: {address: 65536}"), "expected at most 65535"),
        (modbus("a: {address: 65535, type: f32}"), "f32 at 65535 goes beyond the last register"),
        (modbus("a: {address: 1, type: int}"), "f32"),
        (modbus("a: {address: 1, order: CBAD}"), "ABCD"),
        (modbus("a: {address: 1, kind: coil, type: u16}"), "a coil is a bit: expected bool, got u16"),
        (modbus("a: {address: 1, kind: coil, order: DCBA}"), "has no order of bytes"),
        (modbus("a: {address: 1, type: text}"), "a.length: is missing: give the number of registers"),
        (modbus("a: {address: 1, type: text, length: 4, order: CDAB}"), "expected ABCD or BADC for text"),
        (modbus("a: {address: 1, length: 4}"), "is for `type: text`"),
        (modbus("a: {address: 1, bit: 4}"), "is for `type: bool` in a holding or input register"),
        (modbus("a: {address: 1, type: bool, scale: 2}"), "is for numbers, and the type is bool"),
        (modbus("a: {address: 1, type: u32}, b: {address: 2}"), "b.address: holding 2 to 2 overlaps with a, 1 to 2"),
        (modbus("a: {address: 1, type: u64}", "registers_in_request: 3, "), "expected at least 4"),
        (
            modbus("a: {address: 1, type: text, length: 5}", "registers_in_request: 4, "),
            "has 5 registers, and a request 4",
        ),
        (modbus("'a/b': {address: 1}"), "expected a name of at most 64 letters"),
        (modbus("a: {address: 1}", "unit_id: 256, "), "expected at most 255"),
        (modbus("a: {address: 1}", "", "serial: {baud_rate: 9600}, "), "is for `url: serial:///dev/...`"),
        (modbus("a: {address: 1}", "", "retry_min: 1m, "), "expected at most retry_max"),
        (modbus("a: {address: 1}").replace("tcp://", "udp://"), "tcp://10.0.0.5"),
        (
            BASE
            + "sources:\n"
            + "".join(f"  {name}: {{mqtt: {{url: 'mqtt://b', topics: a, client_id: c}}}}\n" for name in "xy"),
            "sources.x has this client_id",
        ),
    ],
)
def test_a_source_that_cannot_work_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        configuration(tmp_path, text)
    assert words in str(error.value)


def looked(folder: Path, text: str) -> EdgeFindings:
    return look(configuration(folder, text), (), datetime.now(UTC))


def test_the_nodes_own_listener_is_found_behind_a_name_of_this_machine(tmp_path: Path) -> None:
    text = mqtt(
        f"url: 'mqtt://{socket.gethostname()}', topics: a", "'0.0.0.0:1883', anonymous: allowed_beyond_loopback"
    )
    try:
        socket.getaddrinfo(socket.gethostname(), 1883)
    except OSError:
        pytest.skip("this machine's name cannot be resolved")
    assert any("each message would arrive again" in each.message for each in looked(tmp_path, text).needed)


def test_missing_files_are_named(tmp_path: Path) -> None:
    found = looked(tmp_path, mqtt("url: 'mqtts://b', topics: a, username: u, password_file: p, tls: {ca_file: ca}"))
    reports = [(each.path[-1], each.message) for each in found.unfit]
    assert reports == [
        ("password_file", f"{tmp_path}/p: there is no such file"),
        ("ca_file", f"{tmp_path}/ca: there is no such file"),
    ]


def test_a_password_for_all_to_see_is_doubtful(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("secret\n")
    (tmp_path / "p").chmod(0o644)
    found = looked(tmp_path, mqtt("url: 'mqtt://b', topics: a, username: u, password_file: p"))
    assert {each.path[-1] for each in found.doubtful} >= {"password_file", "url"}
    assert any("in clear text" in each.message for each in found.doubtful)
    assert found.unfit == []


def test_a_password_of_opcua_that_is_not_text_is_named_without_it(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"geheim\xe4\n")
    (tmp_path / "p").chmod(0o600)
    found = looked(tmp_path, opcua(f"{PRESS}, nodes: [{{browse: {{below: Objects}}}}], username: u, password_file: p"))
    assert [each.message for each in found.unfit] == [
        f"{tmp_path}/p: expected a password in UTF-8. Write it there in that encoding"
    ]


@pytest.mark.parametrize(
    ("certificate", "key", "at", "why"),
    [
        ("u.pem", "u.key", "", ""),
        ("u.pem", "n.key", "key", "is not the key of"),
        ("u.pem", "ec.key", "key", "expected an RSA key"),
        ("u.pem", "u.pem", "key", "expected a key in PEM, not encrypted"),
        ("gone.pem", "u.key", "certificate", "gone.pem"),
        ("u.key", "u.key", "certificate", "expected a certificate in PEM"),
    ],
)
async def test_the_certificate_of_a_user_is_read_with_its_key(
    tmp_path: Path, certificate: str, key: str, at: str, why: str
) -> None:
    for name in ("u", "n"):
        files = OpcuaSecurity(certificate=str(tmp_path / f"{name}.pem"), key=str(tmp_path / f"{name}.key"), trusted="")
        await make_certificate(files, name, "localhost")
    curve = ec.generate_private_key(ec.SECP256R1())
    encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "ec.key").write_bytes(curve.private_bytes(*encoding))
    (tmp_path / "ec.key").chmod(0o600)
    user = _SECURE.replace("u.pem", certificate).replace("u.key", key)
    found = looked(tmp_path, opcua(f"{PRESS}, nodes: [{{id: 'i=7'}}], {user}"))
    assert [(each.path[-2:], why in each.message) for each in found.unfit] == ([(("user", at), True)] if at else [])
    (tmp_path / "u.key").chmod(0o644)
    found = looked(tmp_path, opcua(f"{PRESS}, nodes: [{{id: 'i=7'}}], {_SECURE}"))
    assert [each.path[-2:] for each in found.doubtful if each.path[-1] == "key"] == [("user", "key")]


class Faulty(Runner):
    """A source with a fault whose repr has a secret."""

    async def connect(self, url: str) -> AnyConnection:
        raise KeyError("geheim")

    async def close(self, connection: AnyConnection) -> None:
        pass


async def test_the_status_names_an_internal_fault_by_its_kind_alone() -> None:
    status = SourceStatus("s", "mqtt")
    node: Any = SimpleNamespace(wall_clock=time.time_ns)
    settings: Any = SimpleNamespace(rewrite=(), prefix="", retry_min_s=5.0, retry_max_s=5.0)
    running = asyncio.create_task(Faulty(settings, ("mqtt://b",), status, node, random.Random(1)).run())
    await until(lambda: bool(status.last_error))
    running.cancel()
    assert status.last_error == "internal fault: KeyError. The log has more"


def test_a_serial_port_that_is_not_there_is_named(tmp_path: Path) -> None:
    text = modbus("a: {address: 1}").replace("tcp://10.0.0.5", f"serial://{tmp_path}/ttyUSB0")
    assert [each.message for each in looked(tmp_path, text).unfit] == [
        f"{tmp_path}/ttyUSB0: there is no such device on this machine"
    ]


def test_values_may_share_a_register_whole(tmp_path: Path) -> None:
    configuration(tmp_path, modbus("a: {address: 1, type: bool, bit: 0}, b: {address: 1, type: bool, bit: 1}"))


def test_good_files_are_good(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.sign("node")
    (tmp_path / "p").write_text("secret\n")
    (tmp_path / "p").chmod(0o600)
    tls = f"tls: {{ca_file: {authority.path}, certificate: {pem.certificate}, key: {pem.key}, server_name: x}}"
    found = looked(tmp_path, mqtt(f"url: 'mqtts://b', topics: a, username: u, password_file: p, {tls}"))
    assert (found.needed, found.unfit) == ([], [])
