"""What a release answers, later ones answer: the document of the API against those of the releases."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.releases.api import api_file, broken
from tests.releases.write import RELEASES
from weft.hub_api.document import document

STREAMS = "/v1/streams"


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    now = copy.deepcopy(document())
    change(now)
    return now


@pytest.mark.parametrize("release", RELEASES)
def test_a_client_of_a_release_misses_nothing(release: str) -> None:
    assert broken(json.loads(api_file(release).read_text()), document()) == [], (
        "clients of the release depend on this: add fields and operations, and leave those that are there as they are"
    )


@pytest.mark.parametrize("release", RELEASES)
def test_a_client_of_this_release_reads_a_hub_of_an_earlier_one(release: str) -> None:
    """`weft.client` decodes answers by the types of the document, so it needs what they require."""
    lacking = [each for each in broken(document(), json.loads(api_file(release).read_text())) if "absent" in each]
    assert lacking == [], "the release does not answer with them: give the fields of the types the default UNSET"


def schemas(now: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = now["components"]["schemas"]
    return found


def limit(now: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in now["paths"][STREAMS]["get"]["parameters"] if each["name"] == "limit")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda now: now["paths"].pop("/v1/edges"), "GET /v1/edges is gone"),
        (lambda now: now["paths"][STREAMS]["get"]["parameters"].pop(), "the parameter limit is gone"),
        (lambda now: limit(now).update(required=True), "the parameter limit is required now"),
        (lambda now: limit(now)["schema"].update(maximum=5), "maximum is 5, it was 10000"),
        (lambda now: schemas(now)["StreamOf"]["properties"].pop("records"), "streams[].records is gone"),
        (lambda now: schemas(now)["StreamOf"]["properties"]["records"].update(type="string"), "records: type is 'stri"),
        (lambda now: schemas(now)["StreamOf"]["required"].remove("records"), "streams[].records may be absent now"),
        (lambda now: schemas(now)["StreamOf"]["properties"].update(edges={"anyOf": [{}, {}]}), "edges: there are 2 ch"),
        (lambda now: schemas(now)["MessageRequest"]["required"].append("qos"), "body.qos is required now"),
        (lambda now: now["paths"][STREAMS]["get"]["security"].pop(0), "is not open to reader any more"),
    ],
)
def test_what_would_break_a_client_is_named(change: Callable[[dict[str, Any]], object], named: str) -> None:
    assert any(named in each for each in broken(document(), changed(change)))


@pytest.mark.parametrize(
    "change",
    [
        lambda now: now["paths"].update({"/v1/new": {"get": {}}}),
        lambda now: schemas(now)["StreamOf"]["properties"].update(colour={"type": "string"}),
        lambda now: schemas(now)["MessageRequest"]["properties"].update(colour={"type": "string"}),
        lambda now: limit(now)["schema"].update(maximum=20_000),
        lambda now: schemas(now)["StreamOf"].update(description="Other words."),
    ],
)
def test_what_is_added_breaks_no_client(change: Callable[[dict[str, Any]], object]) -> None:
    assert broken(document(), changed(change)) == []
