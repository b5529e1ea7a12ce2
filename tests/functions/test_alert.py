"""An alert is published when it begins, and not with each record that it lasts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import strategies

from tests.functions.restart import Chain, context, cuts, row, run, same_after_restarts
from tests.support.examples import given
from weft.config.functions.step import Alert
from weft.functions.contract import Function, Row
from weft.functions.routing import AlertFunction

SECOND = 10**9
LEVELS = {b"plant/a/m1": {"line": "a", "machine": "m1"}, b"plant/a/m2": {"line": "a", "machine": "m2"}}


def made(**settings: Any) -> AlertFunction:
    return AlertFunction(Alert(**({"when": "t > 80", "topic": "alerts/{key}"} | settings)), context(LEVELS))


def rows(*temperatures: float, key: bytes = b"plant/a/m1") -> list[Row]:
    return [row((at + 1) * SECOND, {"t": each}, key) for at, each in enumerate(temperatures)]


def published(chain: Chain) -> list[tuple[int, bytes, Any]]:
    """Return the second, topic and payload of each message."""
    messages = [each[1:] for each in chain.out.said if each[0] == "alert"]
    return [(time // SECOND, topic, payload) for topic, payload, _, time, _ in messages]


def seconds(chain: Chain) -> list[int]:
    return [second for second, _, _ in published(chain)]


def test_an_alert_is_sent_once_for_each_time_that_it_begins() -> None:
    chain = run(made, rows(70, 81, 82, 80, 90, 91))
    assert seconds(chain) == [2, 5]
    assert [each.values["t"] for each in chain.emitted] == [70, 81, 82, 80, 90, 91]


def test_until_keeps_an_alert_up_between_two_limits() -> None:
    chain = run(lambda: made(until="t < 75", cleared="over"), rows(81, 79, 82, 74, 79, 81))
    assert seconds(chain) == [1, 4, 6]
    assert [payload for _, _, payload in published(chain)][1] == b"over"


def test_an_alert_that_lasts_is_sent_again() -> None:
    assert seconds(run(lambda: made(every_s=2), rows(81, 82, 83, 84, 85, 70, 81))) == [1, 3, 5, 7]


def test_each_key_has_its_own() -> None:
    both = sorted(rows(81, 82) + rows(70, 83, key=b"plant/a/m2"), key=lambda each: each.time)
    assert [(second, topic) for second, topic, _ in published(run(made, both))] == [
        (1, b"alerts/plant/a/m1"),
        (2, b"alerts/plant/a/m2"),
    ]


@pytest.mark.parametrize(
    ("payload", "sent"),
    [
        (None, b'{"key":"plant/a/m1","time":1.0,"values":{"t":81,"who":"a/b+","motor":{"rpm":9.5}}}'),
        ({"at": "time", "machine": "machine", "over": "t - 80"}, b'{"at":1.0,"machine":"m1","over":1}'),
        ("{machine}: {t} degrees, {motor.rpm} rpm", b"m1: 81 degrees, 9.5 rpm"),
    ],
)
def test_payload_and_topic_are_made_of_the_record(payload: Any, sent: bytes) -> None:
    given_row = row(SECOND, {"t": 81, "who": "a/b+", "motor": {"rpm": 9.5}}, b"plant/a/m1")
    chain = run(lambda: made(topic="alerts/{line}/{who}/{t}", payload=payload, qos=2, retain=True), [given_row])
    assert chain.out.said == [("alert", b"alerts/a/a_b_/81", sent, 2, SECOND, True)]


def test_a_record_on_which_an_expression_fails_goes_to_the_errors_and_changes_nothing() -> None:
    chain = run(lambda: made(payload={"x": "missing"}), rows(81))
    assert chain.out.rejected() == ["alert: field missing is missing"]
    assert chain.function.state is not None
    assert chain.function.state.values == {}
    assert run(made, [row(SECOND, {})]).out.rejected() == ["alert: field t is missing"]
    assert run(lambda: made(topic="a/{who}"), rows(81)).out.rejected() == ["alert: field who is missing"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"when": "t >"}, "when: column"),
        ({"until": "1 + 1"}, "until: column 1: a condition is true or false"),
        ({"topic": "a/+/b"}, "topic: a topic to publish to has no + and no #"),
        ({"topic": "$SYS/a"}, "topic: topics that begin with $ are the node's own"),
        ({"topic": "a/{line"}, "topic: column 3: a { is alone; write names in braces: {key}"),
        ({"topic": "a/{}"}, "topic: expected a field such as rms or motor.rpm"),
        ({"payload": {"a": "b c"}}, "payload: a: column"),
        ({"cleared": "}"}, "cleared: column 1: a } is alone"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        made(**settings)
    assert reason in str(caught.value)


def test_keys_in_alert_are_bounded_and_the_oldest_goes() -> None:
    inputs = [row((at + 1) * SECOND, {"t": 90}, b"k%d" % at) for at in range(100)]
    chain = run(lambda: made(keys=3), inputs)
    assert chain.function.state is not None
    assert sorted(chain.function.state.values) == [b"k97", b"k98", b"k99"]
    assert len(published(chain)) == 100


@given(strategies.data())
def test_restarts_change_nothing(data: strategies.DataObject) -> None:
    record = strategies.tuples(strategies.sampled_from([70, 78, 85]), strategies.sampled_from([b"a", b"b", b"c", b"d"]))
    drawn = data.draw(strategies.lists(record, max_size=40))
    inputs = [row(at * SECOND // 2, {"t": t}, key) for at, (t, key) in enumerate(drawn)]
    until = data.draw(strategies.sampled_from([None, "t < 75"]))
    every = data.draw(strategies.sampled_from([None, 2.0]))
    same_after_restarts(
        lambda: made(until=until, every_s=every, cleared="over", keys=2), inputs, data.draw(cuts(len(inputs)))
    )


def test_bytes_and_nan_find_their_way_into_json() -> None:
    given_row = Row(SECOND, b"k", b"", {"t": 81, "raw": b"\0\1", "x": float("nan")})
    ((_, _, payload),) = published(run(made, [given_row]))
    assert msgspec.json.decode(payload)["values"] == {"t": 81, "raw": "AAE=", "x": None}


def test_only_fields_that_are_looked_at_need_to_be_decoded() -> None:
    assert made().reads() is None, "the whole row is in the payload"
    texts = {"topic": "a/{line}/{motor.rpm}", "payload": "{time}: {rms}"}
    assert paths(made(**texts)) == {("t",), ("motor",), ("rms",)}
    assert paths(made(**texts, until="u < 1", cleared={"x": "key + v"})) == {
        (each,) for each in ("t", "motor", "rms", "u", "v")
    }


def paths(function: Function) -> set[tuple[str, ...]]:
    return set(function.reads() or ())


def test_a_topic_of_many_bytes_takes_no_more_memory() -> None:
    long = [b"plant/" + b"x" * 900 + end for end in (b"a", b"b")]
    inputs = [row(at * SECOND, {"t": 90}, key) for at, key in enumerate([*long, *long], 1)]
    chain = same_after_restarts(made, inputs, [])
    assert [topic for _, topic, _ in published(chain)] == [b"alerts/" + key for key in long]
    assert chain.function.state is not None
    assert max(map(len, chain.function.state.values)) < 200
