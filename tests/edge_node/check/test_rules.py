"""What an edge's configuration must keep to beyond the shape of its values."""

from __future__ import annotations

import pytest

from weft.config.errors import ConfigError
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check import rules
from weft.edge_node.check.rules import check, notes
from weft.edge_node.check.streams import carried_streams, log_settings, stream_policies, unrouted_policy
from weft.edge_node.sessions.records import StateSettings
from weft.storage.segment_log import StreamPolicy

GOOD = "node: a\ndata_dir: /data\nstreams:\n  telemetry: {from: 'plant/{line}/#'}\n"


def edge(text: str) -> EdgeConfig:
    return parse(text, "edge.yaml", EdgeConfig, check).config


def test_a_good_configuration_passes() -> None:
    assert edge(GOOD + "links: {cloud: {to: 'https://hub', streams: [telemetry]}}\n").node == "a"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (GOOD.replace("node: a", "node: Press Shop"), "edge.yaml:1: node: expected a name (lower-case letters"),
        (GOOD + "tenant: ../other\n", "edge.yaml:5: tenant: expected a name"),
        (GOOD.replace("telemetry:", "Telemetry:"), "edge.yaml:4: streams.Telemetry: expected a name"),
        (GOOD.replace("plant/{line}/#", "plant/#/x"), "edge.yaml:4: streams.telemetry.from: "),
        (GOOD.replace("'plant/{line}/#'", "[a, 'b/{x}/{x}']"), "streams.telemetry.from[1]: "),
        (GOOD.replace("{line}", "{payload}"), "streams.telemetry.from: "),
        (GOOD + "links: {c: {to: 'https://hub', streams: [alarms]}}", '"alarms" is not a stream of this node'),
        (GOOD + "links: {c: {to: 'https://hub', streams: []}}", "links.c.streams: expected 1 to 1024 entries, got 0"),
        (GOOD + "links: {c: {to: 'https://hub', retry_min: 0}}", "links.c.retry_min: expected at least 10ms, got 0s"),
        (GOOD.replace("/data", "~/data"), "data_dir: expected a path written out, without ~"),
        (GOOD + "links: {c: {to: 'https://hub', retry_min: 1m}}", "links.c.retry_min: expected at most retry_max"),
        (GOOD + "disk: {budget: 64MiB, segment: 32MiB}", "disk.segment: expected at most a quarter of disk.budget"),
        (GOOD + "listeners: {mqtt: {bind: '0.0.0.0:1883'}}", "listeners.mqtt.bind: 0.0.0.0:1883 can be reached from"),
        (
            GOOD + "listeners: {mqtt: {anonymous: never}}",
            "`anonymous: never` refuses every client without auth.users_file",
        ),
        (
            GOOD + "listeners: {mqtts: {tls: {certificate: a, key: b, crl_file: c}}}",
            "listeners.mqtts.tls.crl_file: needs `client_ca`: without it",
        ),
        (GOOD + "listeners: {wss: {bind: 'a:1'}}", "listeners.wss.tls: is missing"),
        (
            GOOD + "listeners: {a: {bind: 'a:1'}, b: {bind: 'a:1'}}",
            "listeners.b.bind: a:1 is the address of listeners.a",
        ),
        (GOOD + "listeners: {Mqtt: {}}", "listeners.Mqtt: expected a name"),
        (
            GOOD + "listeners: {ws: {websocket: {path: mqtt}}}",
            "listeners.ws.websocket.path: expected a path such as /mqtt",
        ),
        (
            GOOD + "  weft-mine: {from: 'x/#'}\n",
            "edge.yaml:5: streams.weft-mine: names that begin with weft- are for streams of the node itself. Choose",
        ),
        (
            GOOD + "  unrouted: {from: 'x/#'}\n",
            "edge.yaml:5: streams.unrouted: is the name of the stream for messages that no stream matches. Set its",
        ),
        (
            GOOD + "links: {c: {to: 'https://hub', streams: [telemetry, unrouted]}}",
            "edge.yaml:5: links.c.streams: `unrouted` stays on the node: no link may carry it",
        ),
        (GOOD + "disk: {budget: 64MiB}\nunrouted: {size: 65MiB}\n", "unrouted.size: expected at most disk.budget"),
        (
            GOOD + "links: {a: {to: 'https://hub'}, b: {to: ['https://other', 'https://hub/']}}",
            "links.b.to: https://hub is in links.a.to, and both bring it the same streams. Remove one of them",
        ),
        (GOOD + "http: {bind: '[::]:80'}", "http.bind: [::]:80 can be reached from other machines"),
    ],
)
def test_what_cannot_work_is_refused(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        edge(text)
    assert error in str(caught.value)


def test_a_listener_beyond_loopback_needs_the_words_for_it() -> None:
    config = edge(GOOD + "listeners: {mqtt: {bind: '0.0.0.0:1883', anonymous: allowed_beyond_loopback}}\n")
    assert config.listeners["mqtt"] is not None
    assert config.listeners["mqtt"].bind == "0.0.0.0:1883"


@pytest.mark.parametrize(
    "text",
    [
        "listeners: {mqtt: {bind: '0.0.0.0:1883'}}\nauth: {users_file: users}\n",
        "listeners: {mqtts: {bind: '0.0.0.0:1', anonymous: never, tls: {certificate: a, key: b, client_ca: c}}}\n",
        "listeners: {local: {bind: 'unix:/run/weft.sock'}}\n",
        "listeners: {mqtt: {bind: '[::1]:1883'}}\n",
    ],
)
def test_a_listener_that_can_know_its_clients_needs_no_words(text: str) -> None:
    assert edge(GOOD + text).listeners


def test_passwords_without_tls_are_pointed_out() -> None:
    config = edge(GOOD + "listeners: {mqtt: {bind: '0.0.0.0:1883'}}\nauth: {users_file: users}\n")
    assert ["listeners.mqtt has no TLS" in note for note in notes(config)].count(True) == 1


def test_a_stream_that_no_link_carries_is_pointed_out() -> None:
    config = edge(GOOD + "  raw: {from: raw}\nlinks: {cloud: {to: 'https://hub', streams: [telemetry]}}\n")
    (note,) = notes(config)
    assert note.startswith("no link carries raw: its records are never deleted. Once they fill disk.budget (16GiB)")


def test_names_that_match_nothing_are_named() -> None:
    config = edge(
        "node: a\ndata_dir: /d\nstreams: {telemetry: {from: 'plant/*/x'}}\n"
        "links: {cloud: {to: 'http://127.0.0.1:8090/console', priorities: {alarm: 1, tele*: 2}}}\n"
    )
    assert notes(config) == [
        'streams.telemetry.from: `*` is not a wildcard in "plant/*/x". + is one level, # the rest',
        'links.cloud.priorities: "alarm" matches no stream of this node',
        'links.cloud.to: "http://127.0.0.1:8090/console" is a page of a hub. Links take its address without that path',
    ]


@pytest.mark.parametrize(
    ("topics", "more", "note"),
    [
        ("line/#", "", ""),
        ("line/meter", "", '"line/$gap", so the notices of its gaps stay on the node, in `unrouted`. Add that'),
        ("plant/line/#", "prefix: plant/, ", ""),
        ("plant/#", 'rewrite: [{from: "line/{device}", to: "plant/{device}"}], ', ""),
        ("plant/#", 'rewrite: [{from: "line/meter/#", to: "plant/meter/#"}], ', '"line/$gap", so'),
    ],
)
def test_notices_of_gaps_that_no_stream_takes_are_pointed_out(topics: str, more: str, note: str) -> None:
    source = f"{{url: 'tcp://10.0.0.5', {more}devices: {{meter: {{registers: {{n: {{address: 0}}}}}}}}}}"
    config = edge(
        GOOD.replace("plant/{line}/#", topics)
        + f"links: {{cloud: {{to: 'https://hub'}}}}\nsources: {{line: {{modbus: {source}}}}}\n"
    )
    found = "".join(notes(config))
    assert note in found
    assert bool(found) is bool(note)


_DEVICES = (
    "devices: {meter: {registers: {n: {address: 0}, b: {address: 1, type: bool, bit: 2}, t: {address: 2, kind: coil},"
    " long: {address: 10, type: text, length: 124}}}, all: {unit_id: 0, registers: {n: {address: 0}}}}"
)


@pytest.mark.parametrize(
    ("write", "error"),
    [
        ("{device: meter, register: n, min: 0, max: 9}", ""),
        ("{device: meter, register: t}", ""),
        ("{device: meter, register: n, max: 9}", "min: is missing: name the least and the greatest number"),
        ("{device: meter, register: n, min: 9, max: 0}", "min: expected at most max"),
        ("{device: meter, register: t, min: 0}", "min: is for numbers"),
        ("{device: meter, register: x, min: 0, max: 9}", "register: `devices` has no meter/x"),
        ("{device: meter, register: b}", "register: expected a whole holding register, or a coil"),
        ("{device: meter, register: n, min: 0, max: 9, topic: a/#}", "topic: expected a topic such as"),
        ("{device: meter, register: n, min: 0, max: 9, topic: line/$write/other}", "is that of the write line."),
        (
            "{device: meter, register: n, min: 0, max: 9, topic: line/meter}",
            "is a topic of what the source line stores",
        ),
        ("{device: meter, register: n, min: 0, max: 9, topic: line/$written}", "is a topic of what the source line"),
        ("{device: meter, register: n, min: 0, max: 9, topic: line/$gap}", "is a topic of what the source line"),
        ("{device: all, register: n, min: 0, max: 9}", "device: has unit_id 0, with which all devices"),
        ("{device: meter, register: long}", "register: has 124 registers; a request writes 123 at most"),
    ],
)
def test_a_write_names_what_it_may_write_and_its_range(write: str, error: str) -> None:
    other = "{device: meter, register: n, min: 0, max: 9}"
    source = f"{{url: 'tcp://10.0.0.5', {_DEVICES}, writes: {{limit: {write}, other: {other}}}}}"
    text = GOOD + f"sources: {{line: {{modbus: {source}}}}}\n"
    if not error:
        assert edge(text).sources["line"].modbus
        return
    with pytest.raises(ConfigError) as raised:
        edge(text)
    assert error in str(raised.value)


def test_a_rewritten_record_of_a_write_is_no_message_that_writes() -> None:
    write = "writes: {limit: {device: meter, register: n, min: 0, max: 9, topic: plant/1/$written}}"
    rewrite = 'rewrite: [{from: "line/#", to: "1/#"}], prefix: plant/'
    with pytest.raises(ConfigError, match="is a topic of what the source line stores"):
        edge(GOOD + f"sources: {{line: {{modbus: {{url: 'tcp://10.0.0.5', {rewrite}, {_DEVICES}, {write}}}}}}}\n")


@pytest.mark.parametrize(
    ("node", "error"),
    [
        ("nsu=urn:example:press;s=Speed", ""),
        ("i=85", ""),
        ("ns=0;i=85", ""),
        ("ns=2;s=Speed", "node: expected a node id with the URI of its namespace"),
    ],
)
def test_a_variable_that_messages_write_is_named_by_the_uri_of_its_namespace(node: str, error: str) -> None:
    write = f"writes: {{speed: {{node: '{node}', type: Double, min: 0, max: 9}}}}"
    text = GOOD + f"sources: {{press: {{opcua: {{url: 'opc.tcp://h', nodes: [{{id: i=85}}], {write}}}}}}}\n"
    if not error:
        assert edge(text).sources["press"].opcua
        return
    with pytest.raises(ConfigError, match=error):
        edge(text)


@pytest.mark.parametrize(
    ("topics", "more", "notes_"),
    [
        ("line/#", "", []),
        ("line/$gap", "", ["records of what messages wrote stay on the node"]),
        ("line/$gap", "unrouted: live\n", ["records of what messages wrote are not kept", "messages of clients write"]),
    ],
)
def test_messages_and_records_of_writes_that_no_stream_takes_are_pointed_out(
    topics: str, more: str, notes_: list[str]
) -> None:
    write = "writes: {limit: {device: meter, register: n, min: 0, max: 9}}"
    config = edge(
        GOOD.replace("plant/{line}/#", topics)
        + f"{more}links: {{cloud: {{to: 'https://hub'}}}}\n"
        + f"sources: {{line: {{modbus: {{url: 'tcp://10.0.0.5', {_DEVICES}, {write}}}}}}}\n"
    )
    found = [each for each in notes(config) if each.startswith("sources.line")]
    assert [part in note for part, note in zip(notes_, found, strict=True)] == [True] * len(notes_)


@pytest.mark.parametrize(
    ("node", "error"),
    [
        ("{id: i=2253, events: true, queue: 10}", ""),
        ("{browse: {below: Objects/2:Press}, events: true}", "events: is for one node"),
        ("{id: i=2253, events: true, sampling: 1s}", "sampling: is for values"),
        ("{id: i=2253, events: true, deadband: 1}", "deadband: is for values"),
    ],
)
def test_events_are_those_of_one_node_and_have_no_deadband(node: str, error: str) -> None:
    text = GOOD + f"sources: {{press: {{opcua: {{url: 'opc.tcp://h', nodes: [{node}]}}}}}}\n"
    if not error:
        assert edge(text).sources["press"].opcua
        return
    with pytest.raises(ConfigError, match=error):
        edge(text)


def test_messages_of_another_broker_that_would_write_are_pointed_out() -> None:
    write = "writes: {limit: {device: meter, register: n, min: 0, max: 9}}"
    modbus = f"line: {{modbus: {{url: 'tcp://10.0.0.5', {_DEVICES}, {write}}}}}"
    mqtt = "plant: {mqtt: {url: 'mqtt://broker', topics: ['line/#']}}"
    config = edge(GOOD.replace("plant/{line}/#", "line/#") + f"sources: {{{modbus}, {mqtt}}}\n")
    assert any("messages of sources.plant are stored, and write nothing" in each for each in notes(config))


def test_a_node_without_links_is_told_that_its_disk_will_fill() -> None:
    (note,) = notes(edge(GOOD))
    assert note.startswith("no link carries telemetry: its records are never deleted")
    assert "devices get no acknowledgements, whatever the stream" in note


def test_a_stream_that_stays_and_ends_by_itself_is_not_pointed_out() -> None:
    config = edge(
        GOOD + "  raw: {from: raw, replicate: false, retain: {time: 48h}}\nlinks: {cloud: {to: 'https://hub'}}\n"
    )
    assert notes(config) == []
    assert carried_streams(config.links["cloud"], config) == ("telemetry",)
    assert stream_policies(config) == {
        "telemetry": StreamPolicy(),
        "raw": StreamPolicy(retain_s=172_800.0, replicated=False),
    }


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "  raw: {from: raw, replicate: false}\nlinks: {c: {to: 'http://h', streams: [raw]}}\n",
            'links.c.streams: "raw" has `replicate: false`; no link may carry it',
        ),
        ("  raw: {from: raw, retain: {size: 1TiB}}\n", "streams.raw.retain.size: expected at most disk.budget"),
        (
            "links: {c: {to: 'http://h', pull: {streams: [vibration, 'raw*']}}}\n",
            'links.c.pull.streams: "vibration" is not a stream of this node; streams: telemetry',
        ),
        ("  raw: {from: raw, when_full: drop}\n", "expected drop_oldest or refuse"),
    ],
)
def test_retention_that_cannot_work_is_refused(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        edge(GOOD + text)
    assert error in str(caught.value)


def test_what_is_left_out_goes_with_the_budget() -> None:
    small = edge("node: a\ndata_dir: /data\ndisk: {budget: 64MiB}\n")
    assert (check(small), notes(small)) == ([], [])
    assert log_settings(small).segment_bytes == 8 << 20
    assert log_settings(edge("node: a\ndata_dir: /data\n")).segment_bytes == 64 << 20


def test_what_no_stream_matches_takes_a_small_part_of_the_disk() -> None:
    small = edge("node: a\ndata_dir: /data\ndisk: {budget: 16MiB}\n")
    assert unrouted_policy(small) == StreamPolicy("drop_oldest", 86_400.0, 1 << 20, replicated=False)
    assert unrouted_policy(edge("node: a\ndata_dir: /data\n")).retain_bytes == 64 << 20
    chosen = edge("node: a\ndata_dir: /data\nunrouted: {time: 7d, size: 1GiB}\n")
    assert unrouted_policy(chosen) == StreamPolicy("drop_oldest", 604_800.0, 1 << 30, replicated=False)


def test_an_acknowledgement_of_what_is_refused_is_pointed_out() -> None:
    text = "node: a\ndata_dir: /data\nunrouted: refuse\n"
    assert notes(edge(text)) == []
    (note,) = notes(edge(text + "auth: {refused_publish: acknowledge}\n"))
    assert note.startswith("`unrouted: refuse` with `auth.refused_publish: acknowledge`: clients of MQTT 3.1.1 get an")


def test_what_is_kept_for_absent_sessions_takes_a_quarter_of_the_disk_at_most() -> None:
    """With more they would fill it, and no device would get an acknowledgement any more"""
    small = edge("node: a\ndata_dir: /data\ndisk: {budget: 1GiB}\nstate: {topics_log: 300MiB}\n")
    (note,) = notes(small)
    assert note.startswith("state.topics_log (300MiB) is more than a quarter of disk.budget (1GiB): 256MiB is used")
    assert StateSettings.of(small, frozenset()).topics_log_bytes == 256 << 20
    fits = edge("node: a\ndata_dir: /data\ndisk: {budget: 1GiB}\nstate: {topics_log: 256MiB}\n")
    assert notes(fits) == []
    assert StateSettings.of(fits, frozenset()).topics_log_bytes == 256 << 20


def test_links_may_share_a_hub_when_each_has_streams_of_its_own() -> None:
    two = GOOD + "  alarms: {from: 'alarms/#'}\n"
    edge(two + "links: {a: {to: 'https://hub', streams: [telemetry]}, b: {to: 'https://hub', streams: [alarms]}}\n")


def test_nothing_is_pointed_out_when_links_carry_everything() -> None:
    assert notes(edge(GOOD + "links: {cloud: {to: 'https://hub'}}\n")) == []
    assert notes(edge("node: a\ndata_dir: /data\n")) == []


def test_a_listener_for_amqp_says_where_the_engine_of_1_0_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with_amqp = edge(GOOD + "links: {cloud: {to: 'https://hub'}}\nlisteners: {amqp: {}}\n")
    monkeypatch.setattr(rules, "is_installed", lambda: False)
    (note,) = notes(with_amqp)
    assert "listeners.amqp: clients of AMQP 1.0 are refused" in note
    assert "weft-fabric[amqp1]" in note
    monkeypatch.setattr(rules, "is_installed", lambda: True)
    assert notes(with_amqp) == []


PAIR = GOOD + "links: {cloud: {to: 'https://hub'}}\npair: {peer: 'https://b:7443'"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            PAIR + ", listen: '0.0.0.0:7443'}",
            "pair.listen: 0.0.0.0:7443 can be reached from other machines: set `token_fi",
        ),
        (PAIR + ", listen: '*:7443', token_file: t}", "*:7443 can be reached from other machines: set `tls`"),
        (
            PAIR.replace("https://b", "http://b") + ", token_file: t}",
            "pair.peer: the token would cross the network in cl",
        ),
        (
            GOOD + "pair: {peer: 'http://127.0.0.1:7443'}",
            "pair: copies streams that a link carries, and there is no link",
        ),
        (PAIR + ", alone_after: 10ms}", "pair.alone_after: expected at least 100ms"),
        (PAIR + ", budget: 1MiB}", "pair.budget: expected at least 8MiB"),
    ],
)
def test_a_pair_that_strangers_can_reach_or_that_copies_nothing_is_refused(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        edge(text + "\n")
    assert error in str(raised.value)


def test_streams_whose_messages_have_one_disk_in_a_pair_are_pointed_out() -> None:
    tls = ", listen: '0.0.0.0:7443', token_file: t, tls: {certificate: c, key: k}}\n"
    assert not any(note.startswith("pair") for note in notes(edge(PAIR + ", acks: both" + tls)))
    more = "  local: {from: 'l/#', replicate: false}\n  hot: {from: 'h/#', functions: [{where: 'true'}]}\nlinks:"
    config = edge(PAIR.replace("links:", more) + ", acks: both" + tls)
    (note,) = [note for note in notes(config) if note.startswith("pair")]
    assert note.startswith("pair.acks: messages for local, hot are acknowledged with one disk")
