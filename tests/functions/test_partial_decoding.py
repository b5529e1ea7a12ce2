"""A chain decodes the fields that it needs, and gives what it would give if it decoded all of them."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import strategies

from tests.functions.restart import context
from tests.fuzz.mqtt_damage import damage
from tests.support.examples import given
from weft.config.functions.step import Changes, Deadband, Dedupe, Redact, Route, Rule, Sample, SwingingDoor
from weft.functions.chain import Chain, Outputs, paths_read
from weft.functions.contract import Function, PartialFormat, Path, PayloadError, Row, Values
from weft.functions.formats import JsonFormat
from weft.functions.registry import KINDS

NAMES = ("a", "b", "value", "µ", "a b")
JSON = strategies.recursive(
    strategies.one_of(
        strategies.none(),
        strategies.booleans(),
        strategies.integers(-(2**70), 2**70),
        strategies.floats(allow_nan=False, allow_infinity=False),
        strategies.text(max_size=5),
    ),
    lambda inner: (
        strategies.lists(inner, max_size=3)
        | strategies.dictionaries(strategies.sampled_from((*NAMES, "c")), inner, max_size=4)
    ),
    max_leaves=6,
)
OBJECTS = strategies.dictionaries(strategies.sampled_from((*NAMES, "c", "d")), JSON, max_size=6)
READ = strategies.frozensets(
    strategies.lists(strategies.sampled_from(NAMES), min_size=1, max_size=3).map(tuple), min_size=1
)


class Whole:
    """JSON that is always decoded as a whole."""

    def __init__(self) -> None:
        self._inner = JsonFormat()
        self.encode = self._inner.encode
        self.decode = self._inner.decode


def decoded(decode: Any, payload: bytes) -> Values | str:
    try:
        found: Values = decode(payload)
    except PayloadError as error:
        return str(error)
    return found


def only(values: Values | str, paths: frozenset[Path]) -> Values | str:
    """What is at the paths, as far as anything that follows one of them can tell."""
    if isinstance(values, str):
        return values
    found: Values = {}
    for first in {path[0] for path in paths} & set(values):
        rest = frozenset(path[1:] for path in paths if path[0] == first)
        is_whole = () in rest or not isinstance(values[first], dict)
        found[first] = values[first] if is_whole else only(values[first], rest)
    return found


@given(OBJECTS | JSON, READ)
def test_the_fields_are_those_of_the_whole(value: Any, paths: frozenset[Path]) -> None:
    payload = msgspec.json.encode(value)
    format_ = JsonFormat()
    assert only(decoded(format_.decoder(paths), payload), paths) == only(decoded(format_.decode, payload), paths)


@given(strategies.lists(OBJECTS.map(msgspec.json.encode), min_size=2, max_size=3), READ, strategies.integers())
def test_a_damaged_payload_is_refused_as_a_whole_one_is(kept: list[bytes], paths: frozenset[Path], seed: int) -> None:
    chance = random.Random(seed)
    format_ = JsonFormat()
    payload = damage(kept[0], chance, kept)
    whole, part = (only(decoded(decode, payload), paths) for decode in (format_.decode, format_.decoder(paths)))
    if part != whole:
        # A number that nothing looks at may be one that Python does not represent.
        assert isinstance(whole, str)
        assert "out of range" in whole


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b'{"a":1,"d":tru}',
        b'{"a":1,"d":"\xff"}',
        b'{"a":1,"\xff":2}',
        b'{"a":1} x',
        b'{"a":1,"d":01}',
        b'{"a":1,"d":' + b"[" * 40 + b"]" * 40 + b"}",
        b'{"a":1,"d":"' + b"x" * (256 << 10) + b'"}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_wrong_in_a_field_that_is_left_out_is_noticed(payload: bytes) -> None:
    format_ = JsonFormat()
    whole, part = decoded(format_.decode, payload), decoded(format_.decoder(frozenset({("a",)})), payload)
    assert isinstance(whole, str)
    assert part == whole


def made(**steps: Any) -> list[Function]:
    return [KINDS[name](settings, context()) for name, settings in steps.items()]


DEADBAND = Deadband(field_="b", delta=0.5)
CHAINS: dict[str, tuple[dict[str, Any], str | None]] = {
    "where and deadband": ({"where": "a > 0", "deadband": DEADBAND}, "a b"),
    "a condition on the topic": ({"where": 'key == "k"'}, ""),
    "select behind where": ({"where": "a > 0", "select": ("b", "d.x"), "set": {"y": "b"}}, "a b d.x"),
    "new fields behind a route": (
        {"route": Route(rules=(Rule(to="r", where="exists(c)", copy=True),)), "select": {"x": 'a if flag else m["x"]'}},
        "a c flag m.x",
    ),
    "set needs all": ({"where": "a > 0", "set": {"x": "a"}}, None),
    "reducers": (
        {
            "dedupe": Dedupe(by=("a",), within_s=1e-9),
            "changes": Changes(fields=("c.x",)),
            "sample": Sample(every=2, by=("d",)),
        },
        "a c.x d",
    ),
    "reducers of whole payloads": (
        {"dedupe": Dedupe(within_s=9.0), "changes": Changes(), "sample": Sample(every=2)},
        "",
    ),
    "swinging_door remembers rows": ({"swinging_door": SwingingDoor(field_="b", delta=0.5)}, None),
    "redact needs all": ({"where": "a > 0", "redact": Redact(remove=("b",)), "select": ("a",)}, None),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_knows_what_it_reads(name: str) -> None:
    steps, expected = CHAINS[name]
    wanted = None if expected is None else {tuple(path.split(".")) for path in expected.split()}
    assert paths_read(made(**steps)) == wanted


@pytest.mark.parametrize("name", CHAINS)
async def test_a_chain_gives_the_same(name: str) -> None:
    steps, _ = CHAINS[name]
    chance = random.Random(3)
    sent = [
        msgspec.json.encode(
            {
                each: chance.choice([None, 1, -1, 2.5, "x", True, {"x": 1}, {"x": 2, "y": []}])
                for each in [*"abcdm", "flag"]
                if chance.random() < 0.9
            }
        )
        for _ in range(400)
    ] + [b"7", b"[]", b"{"]
    outputs = []
    for format_ in (JsonFormat(), Whole()):
        out = Outputs()
        chain = Chain([(f"{at}", each) for at, each in enumerate(made(**steps))], format_, format_)
        await chain.process([Row(at, b"k", payload, {}) for at, payload in enumerate(sent)], out)
        outputs.append(
            (
                [(row.time, row.payload, row.headers) for row in out.rows],
                [(each.row.time, each.row.payload, each.reason) for each in out.rejected],
                {to: [(row.time, row.payload) for row in rows] for to, rows in out.routed.items()},
            )
        )
    assert isinstance(JsonFormat(), PartialFormat)
    assert not isinstance(Whole(), PartialFormat)
    assert outputs[0] == outputs[1]
    assert outputs[0][0]
