"""What a derived stream has from its inputs, where its records go, and which mistakes are refused."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.config.errors import ConfigError
from weft.config.functions.settings import FunctionSettings, Payload
from weft.config.functions.step import FunctionStep
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.check.rules import check
from weft.edge_node.check.streams import (
    Flow,
    as_filter,
    carried_streams,
    inputs,
    intake_patterns,
    overlap,
    published,
    stream_policies,
    streams_of,
)
from weft.protocols.topics import compile_pattern, matches
from weft.storage.segment_log import StreamPolicy

HEAD = "node: a\ndata_dir: /data\nstreams:\n"
TELEMETRY = "  telemetry: {from: 'plant/{line}/{machine}/x', payload: json}\n"
HOT = "  hot: {from_stream: telemetry, functions: [{where: 'rms > 2'}]}\n"


def edge(streams: str, rest: str = "") -> EdgeConfig:
    return parse(HEAD + streams + rest, "edge.yaml", EdgeConfig, check).config


def refusal(streams: str) -> str:
    with pytest.raises(ConfigError) as caught:
        edge(streams)
    return str(caught.value)


class Settings(FunctionSettings, frozen=True):
    """Settings of a function that routes, publishes or groups, whatever its name."""

    routes_to: tuple[str, ...] = ()
    grouped_by: tuple[str, ...] | None = None
    publishes: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        return self.routes_to

    @property
    def new_key(self) -> tuple[str, ...] | None:
        return self.grouped_by

    @property
    def topics(self) -> tuple[str, ...]:
        return self.publishes


class Step(FunctionStep, frozen=True):
    """An entry whose function is one of the test's."""

    noun: ClassVar[str] = "function"
    of_test: Settings | None = None


def step(*, to: str = "", by: tuple[str, ...] | None = None, topic: str = "") -> Step:
    publishes = (topic,) if topic else ()
    return Step(of_test=Settings(routes_to=(to,) if to else (), grouped_by=by, publishes=publishes))


def config(**streams: Stream) -> EdgeConfig:
    return EdgeConfig(node="a", data_dir="/data", streams=streams)


def test_a_derived_stream_has_the_columns_and_the_format_of_its_input() -> None:
    flow = Flow(edge(TELEMETRY + HOT + "  hotter: {from_stream: hot, functions: [{where: 'rms > 9'}]}\n"))
    for name in ("telemetry", "hot", "hotter", "hot-errors"):
        assert flow.patterns(name) == ("plant/{line}/{machine}/x",)
        assert flow.payload(name).format == "json"


def test_a_stream_may_say_another_format_than_its_input() -> None:
    text = "  telemetry: {from: t, payload: {format: struct, fields: [{name: rms, type: f32}]}}\n"
    flow = Flow(edge(text + "  hot: {from_stream: telemetry, payload: json, functions: [{where: 'rms > 2'}]}\n"))
    assert (flow.payload("telemetry").kind, flow.payload("hot").kind) == ("bytes", "json")
    assert flow.input_payload("hot").fields[0].name == "rms"
    assert flow.payload("hot-errors").format == "struct", "an error keeps the original payload"


def test_keys_after_a_window_have_the_levels_that_it_groups_by() -> None:
    flow = Flow(
        config(
            telemetry=Stream(from_=("plant/{line}/{machine}/x",)),
            means=Stream(from_stream=("telemetry",), functions=(step(by=("line", "tool")), step(to="cold"))),
            all=Stream(from_stream=("means",), functions=(step(by=()),)),
            odd=Stream(from_stream=("telemetry",), functions=(step(by=("payload", "a b", "line")),)),
            cold=Stream(),
        )
    )
    assert flow.patterns_before("means", 0) == ("plant/{line}/{machine}/x",)
    assert flow.patterns("means") == flow.patterns("cold") == ("{line}/{tool}",)
    assert flow.patterns("all") == ("#",)
    # A column of every table and what is no name of a column give no level.
    assert flow.patterns("odd") == ("+/+/{line}",)
    for name in ("means", "all", "odd"):
        for pattern in flow.patterns(name):
            compile_pattern(pattern)


def test_devices_publish_to_a_stream_that_only_the_functions_read() -> None:
    found = edge("  telemetry: {from: t/#, functions: [{where: rms}]}\n  plain: {from: p}\n" + HOT)
    assert intake_patterns(found) == {"weft-raw-telemetry": ("t/#",), "plain": ("p",)}
    assert inputs("telemetry", found.streams["telemetry"]) == ("weft-raw-telemetry",)
    assert inputs("hot", found.streams["hot"]) == ("telemetry",)
    assert inputs("plain", found.streams["plain"]) == ()


def test_errors_have_a_stream_of_their_own_with_bounds() -> None:
    link = "links: {cloud: {to: 'http://hub', streams: [hot]}, all: {to: 'http://other'}}\n"
    found = edge(TELEMETRY + HOT, link)
    assert list(streams_of(found)) == ["telemetry", "hot", "hot-errors"]
    assert carried_streams(found.links["cloud"], found) == ("hot", "hot-errors")
    assert carried_streams(found.links["all"], found) == ("telemetry", "hot", "hot-errors")
    assert stream_policies(found)["hot-errors"] == StreamPolicy("drop_oldest", 604_800.0, 64 << 20)


def test_a_configured_stream_of_errors_has_its_own_retention_and_links() -> None:
    own = "  hot-errors: {retain: {time: 1d}, replicate: false}\n"
    found = edge(TELEMETRY + HOT + own, "links: {cloud: {to: 'http://hub'}}\n")
    assert carried_streams(found.links["cloud"], found) == ("telemetry", "hot")
    assert stream_policies(found)["hot-errors"] == StreamPolicy("refuse", 86_400.0, replicated=False)


def test_raw_messages_go_with_the_functions_or_after_a_time() -> None:
    text = "  t: {from: t, functions: [{where: rms}]%s}\n"
    assert stream_policies(edge(text % ""))["weft-raw-t"] == StreamPolicy()
    kept = stream_policies(edge(text % ", raw: {time: 7d, size: 1GiB}, when_full: drop_oldest"))["weft-raw-t"]
    assert kept == StreamPolicy("drop_oldest", 604_800.0, 1 << 30)
    assert stream_policies(edge(text % ", raw: discard"))["weft-raw-t"] == StreamPolicy()


@pytest.mark.parametrize(
    ("streams", "error"),
    [
        (
            "  a: {from_stream: b}\n  b: {from_stream: c}\n  c: {from_stream: a}\n",
            "edge.yaml:6: streams.c.from_stream: the streams form a cycle: a -> c -> b -> a. Remove one of",
        ),
        ("  a: {from_stream: a}\n", "edge.yaml:4: streams.a.from_stream: the streams form a cycle: a -> a."),
        (TELEMETRY + HOT + "  more: {from_stream: [hot-errors, more]}\n", "form a cycle: more -> more"),
        (
            TELEMETRY + "  hot: {from_stream: telemetri}\n",
            'edge.yaml:5: streams.hot.from_stream: "telemetri" is not a stream of this node. Did you mean telemetry?',
        ),
        (
            TELEMETRY + "  hot: {from_stream: [telemetry, cold]}\n",
            'edge.yaml:5: streams.hot.from_stream[1]: "cold" is not a stream of this node. Streams: telemetry, hot',
        ),
        (TELEMETRY + "  hot: {from_stream: [telemetry, telemetry]}\n", 'from_stream[1]: "telemetry" is listed twice'),
        (
            TELEMETRY + "  hot: {from: x, from_stream: telemetry}\n",
            "edge.yaml:5: streams.hot.from_stream: a stream has either `from` or `from_stream`. Remove one of them",
        ),
        (
            "  hot: {functions: [{where: rms}]}\n",
            "edge.yaml:4: streams.hot: its functions need records: set `from` (MQTT filters) or `from_stream`",
        ),
        ("  hot: {when_full: refuse}\n", "edge.yaml:4: streams.hot: has no records: set `from` (MQTT filters) or"),
        (
            TELEMETRY + HOT + "  hot-errors: {from: x}\n",
            "edge.yaml:6: streams.hot-errors: is the stream of the errors of hot: it may have `retain`",
        ),
        ("  t: {from: t, raw: discard}\n", "streams.t.raw: is for a stream with `from` and `functions`"),
        ("  t: {from: t, functions: [{where: a}], raw: {size: 1TiB}}\n", "t.raw.size: expected at most disk.budget"),
        ("  t: {from: t, payload: struct}\n", "streams.t.payload.fields: is missing: a `struct` needs them"),
        (
            "  t: {from: t, payload: {format: json, fields: [{name: a, type: i8}]}}\n",
            "t.payload.fields: is for `format: struct`",
        ),
        (
            "  t: {from: t, payload: {format: struct, fields: [{name: a, type: int8}]}}\n",
            'edge.yaml:4: streams.t.payload.fields[0].type: expected text such as i16, f32 or text[8], got "int8"',
        ),
        (
            TELEMETRY + "  b: {from: b}\n  c: {from_stream: [telemetry, b]}\n",
            "edge.yaml:6: streams.c.from_stream: expected streams with the same payload format: telemetry is json, b "
            "is bytes. Derive",
        ),
        (f"  {'x' * 58}: {{from: x, functions: [{{where: a}}]}}\n", "expected a name of at most 55 characters"),
    ],
)
def test_what_cannot_work_is_refused(streams: str, error: str) -> None:
    assert error in refusal(streams)


@pytest.mark.parametrize(
    ("streams", "cycle"),
    [
        (
            {
                "a": Stream(from_stream=("b",), functions=(step(to="c"),)),
                "b": Stream(from_stream=("c",)),
                "c": Stream(),
            },
            "a -> c -> b -> a",
        ),
        ({"a": Stream(from_=("x/{m}/y", "z"), functions=(step(topic="x/alarm-{m}/y"),))}, "a -> a"),
        ({"a": Stream(from_=("x/#",)), "b": Stream(from_stream=("a",), functions=(step(topic="x"),))}, "a -> b -> a"),
    ],
)
def test_a_cycle_through_a_route_or_an_alert_is_refused(streams: dict[str, Stream], cycle: str) -> None:
    errors = [finding.message for finding in check(config(**streams))]
    assert errors == [f"the streams form a cycle: {cycle}. Remove one of these steps"]


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("nowhere", '"nowhere" is not a stream of this node. Streams: a, full, derived, own, other'),
        ("other", '"other" has payloads of json, and the rows of a are bytes. Leave its `payload` out'),
        ("full", '"full" has records of its own. Name a stream with neither `from` nor `from_stream`'),
        ("derived", '"derived" has records of its own'),
    ],
)
def test_a_route_leads_to_a_stream_that_takes_nothing_else(target: str, error: str) -> None:
    streams = {
        "a": Stream(from_=("y",), functions=(step(to="own"), step(to=target))),
        "full": Stream(from_=("x",)),
        "derived": Stream(from_stream=("full",)),
        "own": Stream(),
        "other": Stream(payload=Payload(format="json")),
    }
    if target != "other":
        streams["other"] = Stream(from_=("z",))
    (finding,) = check(config(**streams))
    assert finding.path == ("streams", "a", "functions", 1, "of_test")
    assert finding.message.startswith(error)


@pytest.mark.parametrize(
    ("functions", "read"),
    [
        ("{where: 'v > 50'}", "json"),
        ("{where: 'v > 50 and exists(w)'}", "json"),
        ("{set: {a: v * 2}}", "json"),
        ("{sample: {every: 2}}, {where: v > 1}", "json"),
        ("{window: {every: 1m, emit: {n: mean(v)}}}", "json"),
        ("{window: {every: 1m, by: zone, emit: {n: count()}}}", "json"),
        ("{select: [v, w]}", "json"),
        ("{alert: {when: v > 1, topic: x}}", "json"),
        # These have results of bytes, or may have, so that what runs continues as it was.
        ("{where: value > 5}", "bytes"),
        ("{where: 'default(v, 0) < 1'}", "bytes"),
        ("{where: not exists(v)}", "bytes"),
        ("{where: machine == 'm' or v > 1}", "bytes"),
        ("{sample: {every: 2}}", "bytes"),
        ("{select: [v, value]}", "bytes"),
        ("{alert: {when: machine == 'm', topic: x}}, {where: v > 1}", "bytes"),
        ("{redact: [v]}, {where: v}", "bytes"),
        ("{window: {every: 1m, by: machine, emit: {n: count()}}}", "bytes"),
        ("{where: v, missing: null}", "bytes"),
    ],
)
def test_functions_that_name_fields_read_json_where_nothing_says_the_format(functions: str, read: str) -> None:
    streams = f"  t: {{from: 'plant/{{machine}}'}}\n  warm: {{from_stream: t, functions: [{functions}]}}\n"
    flow = Flow(edge(streams))
    assert (flow.input_payload("warm").format, flow.payload("warm").format) == (read, read)
    assert (flow.payload("t").format, flow.payload("warm-errors").format) == ("bytes", "bytes")
    said = Flow(edge(streams.replace("{machine}'", "{machine}', payload: bytes")))
    assert (said.input_payload("warm").format, said.payload("warm").format) == ("bytes", "bytes")
    own = Flow(edge(f"  warm: {{from: 'plant/{{machine}}', functions: [{functions}]}}\n"))
    assert (own.input_payload("warm").format, own.payload("warm").format) == (read, read)


def test_every_cycle_is_named_and_long_chains_take_no_time() -> None:
    chain = {f"s{at}": Stream(from_stream=(f"s{at - 1}", f"s{max(at - 2, 0)}")) for at in range(1, 1000)}
    flow = Flow(config(s0=Stream(from_=("{line}/#",)), **chain))
    assert (flow.cycles, flow.patterns("s999")) == ([], ("{line}/#",))
    pairs = {f"{side}{at}": Stream(from_stream=(f"{other}{at}",)) for at in range(9) for side, other in ("ab", "ba")}
    assert len(Flow(config(**pairs)).cycles) == 9


@pytest.mark.parametrize(
    ("template", "filters"),
    [
        ("alerts/{line}/hot", ["alerts/+/hot"]),
        ("alerts/{key}", ["alerts/plant/+/x", "alerts/t/#"]),
        ("{key}/alarm", ["plant/+/x/alarm", "t/#"]),
        ("alerts/of-{key}/now", ["alerts/#"]),
        ("of-{key}", ["#"]),
    ],
)
def test_a_topic_with_the_key_may_be_what_the_key_may_be(template: str, filters: list[str]) -> None:
    assert published(template, ("plant/{line}/x", "t/#")) == filters


def test_an_alert_beside_the_topics_of_its_stream_is_no_cycle() -> None:
    text = "  telemetry: {from: 'plant/{line}/x'}\n  hot: {from_stream: telemetry, functions: [{alert: %s}]}\n"
    edge(text % "{when: 'rms > 2', topic: '{key}/alarm'}")
    assert "cycle: telemetry -> hot -> telemetry" in refusal(text % "{when: 'rms > 2', topic: 'plant/{tool}/x'}")
    assert "form a cycle: a -> a" in refusal(
        "  a: {from: 'a/#', functions: [{alert: {when: x, topic: '{key}/alarm'}}]}\n"
    )


LEVELS = st.lists(st.sampled_from(["a", "b", "+"]), min_size=1, max_size=4)
FILTERS = st.builds(lambda levels, rest: "/".join(levels + rest), LEVELS, st.sampled_from([[], ["#"]]))


@given(FILTERS, FILTERS, st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=6))
def test_filters_that_match_one_topic_overlap(one: str, other: str, levels: list[str]) -> None:
    topic = "/".join(levels)
    if matches(one, topic) and matches(other, topic):
        assert overlap(one, other)
    assert overlap(one, other) == overlap(other, one)


@pytest.mark.parametrize(
    ("one", "other"), [("a/b", "a/c"), ("a", "a/b"), ("a/+", "a/+/+"), ("b/#", "a/#"), (as_filter("a/{x}"), "b/x")]
)
def test_filters_without_a_common_topic_do_not_overlap(one: str, other: str) -> None:
    assert not overlap(one, other)
