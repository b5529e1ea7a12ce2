"""Redacted fields leave in no form: neither as they were, nor behind something that was not expected."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies

from tests.functions.restart import Recorder, context, row
from weft.config.functions.step import Redact as Settings
from weft.functions.contract import AsyncFunction, NotReady
from weft.functions.fields import Redact, RedactWithKey, make_redact

SECRET = "a-secret"
SECRETS = strategies.recursive(
    strategies.sampled_from([SECRET, 7, None]),
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.sampled_from("xyz"), inner),
    max_leaves=6,
)
KEY = b"0123456789abcdef0123456789abcdef"


@given(SECRETS, SECRETS, SECRETS)
def test_no_payload_holds_a_named_field_as_it_was(one: Any, other: Any, third: Any) -> None:
    values = {"keep": 1, "one": one, "other": other, "deep": {"x": third, "keep": 2}}
    out = Recorder()
    settings = Settings(remove=("one.x.y", "one.x.x", "one.x.z"), replace={"other": "***"}, hash=("deep.x",))
    function = Redact(settings, KEY)
    for done in function.process([row(1, values)], out):
        assert done.payload is None
        assert done.values["keep"] == 1
        assert done.values["deep"]["keep"] == 2
        assert done.values["other"] == "***"
        assert done.values["deep"]["x"] is None or len(done.values["deep"]["x"]) == 32
        inner = done.values["one"].get("x") if isinstance(done.values["one"], dict) else None
        assert not inner or isinstance(inner, dict)
        assert SECRET not in str(inner)


@given(
    strategies.lists(
        strategies.one_of(strategies.text(max_size=4), strategies.integers(), strategies.booleans()),
        min_size=2,
        max_size=2,
    )
)
def test_equal_values_have_equal_hashes_and_others_do_not(pair: list[Any]) -> None:
    function = Redact(Settings(hash=("a",)), KEY)
    first, second = (function.process([row(1, {"a": value})], Recorder())[0].values["a"] for value in pair)
    same = str(pair[0]).lower() == str(pair[1]).lower() if type(pair[0]) is not type(pair[1]) else pair[0] == pair[1]
    if first == second:
        assert same
    elif type(pair[0]) is type(pair[1]):
        assert pair[0] != pair[1]


def test_the_hash_of_a_text_is_what_openssl_makes_of_it() -> None:
    (done,) = Redact(Settings(hash=("a",)), KEY).process([row(1, {"a": "A-17"})], Recorder())
    assert done.values["a"] == hmac.new(KEY, b"A-17", hashlib.sha256).hexdigest()[:32]


def test_a_payload_that_names_a_field_twice_is_written_anew() -> None:
    sent = row(1, {})
    sent.payload = b'{"owner": {"name": "Kim"}, "owner": null}'
    sent.values = msgspec.json.decode(sent.payload)
    (done,) = Redact(Settings(remove=("owner.name",))).process([sent], Recorder())
    assert (done.payload, done.values) == (None, {"owner": None})


def test_headers_are_removed_also_where_their_name_is_reserved() -> None:
    sent = row(1, {"a": 1})
    sent.headers = (("trace", "x"), ("keep", "y"), ("weft.user.weft.id", "z"), ("trace", "again"))
    (done,) = Redact(Settings(headers=("trace", "weft.id"))).process([sent], Recorder())
    assert done.headers == (("keep", "y"),)


async def test_without_its_key_a_stream_waits(tmp_path: Path) -> None:
    path = tmp_path / "key"
    function = make_redact(Settings(hash=("a",), key_file=str(path)), context())
    assert isinstance(function, AsyncFunction)
    with pytest.raises(NotReady, match=r"cannot read .*key: No such file.*openssl rand"):
        await function.prepare()
    path.write_bytes(b"short\n")
    path.chmod(0o600)
    with pytest.raises(NotReady, match="has 5 bytes, at least 16"):
        await function.prepare()
    path.write_bytes(KEY + b"\n")
    path.chmod(0o604)
    with pytest.raises(NotReady, match=r"every user of the machine may read .*chmod o="):
        await function.prepare()
    path.chmod(0o640)
    await function.prepare()
    (done,) = await function.process_async([row(1, {"a": "A-17"})], Recorder())
    assert done.values["a"] == hmac.new(KEY, b"A-17", hashlib.sha256).hexdigest()[:32]
    other = RedactWithKey(Settings(hash=("a",)), str(path))
    path.write_bytes(KEY[::-1])
    await other.prepare()
    assert function.version() != other.version()
    assert KEY.hex()[:8] not in function.version()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(), "nothing to redact"),
        (Settings(hash=("a",)), "`hash` needs a `key_file`"),
        (Settings(remove=("a",), hash=("a",), key_file="k"), '"a" is named twice'),
        (Settings(remove=("a", "a.b")), '"a.b" lies in "a"'),
        (Settings(remove=("a..b",)), "expected a field such as rms or motor.rpm"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: Settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_redact(settings, context())
