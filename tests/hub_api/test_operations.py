"""The document of the API is valid OpenAPI, and says of each operation what a client needs."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.cloud_hub.http.test_application import EDGE, STREAM, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from weft.cloud_hub.http.application import END_OFFSET, NEXT_CHUNK, NEXT_OFFSET
from weft.hub_api.operation import ERRORS, Operation
from weft.hub_api.operations import OPERATIONS, document
from weft.hub_api.rights import Right
from weft.protocols.lane import valid_name
from weft.storage.object_store.directory import MemoryStore


def test_the_document_is_openapi() -> None:
    from openapi_spec_validator import validate  # a second of imports, which every worker would wait for

    validate(document())


def test_operations_have_names_of_their_own() -> None:
    assert [name for name, count in Counter(each.name for each in OPERATIONS).items() if count > 1] == []
    assert [key for key, count in Counter(each.key for each in OPERATIONS).items() if count > 1] == []


@pytest.mark.parametrize("each", OPERATIONS, ids=lambda each: each.name)
def test_an_operation_has_a_tag_a_summary_and_a_description_with_the_right_that_it_needs(each: Operation) -> None:
    described = document()["paths"][each.path][each.method]
    (tag,) = described["tags"]
    assert tag in {known["name"] for known in document()["tags"] if known["description"]}
    assert described["summary"][:1].isupper()
    assert described["summary"].endswith(".")
    assert each.description not in ("", each.summary)
    named = re.findall(r"right `(\w+)`", described["description"])
    assert set(named) <= set(Right)
    assert named or "any scope" in described["description"], "say which right it needs"
    sentences = re.split(r"(?<=[.:;]) ", described["description"])
    assert [text for text in sentences if len(text.split()) > 25] == []


@pytest.mark.parametrize("each", OPERATIONS, ids=lambda each: each.name)
def test_an_operation_says_what_it_takes(each: Operation) -> None:
    in_path = {parameter.name for parameter in each.parameters if parameter.place == "path"}
    assert in_path == {part[1:-1] for part in each.path.split("/") if part.startswith("{")}
    assert all(parameter.required for parameter in each.parameters if parameter.place == "path")
    assert each.errors <= ERRORS.keys()
    assert each.errors >= {401, 403, 421}, "any request may lack the right token"


def test_every_field_that_is_not_plain_is_explained() -> None:
    """Docstrings of fields become descriptions, also those of base classes."""
    members = document()["components"]["schemas"]
    assert members["StreamAnswer"]["properties"]["table_rows"]["description"].startswith("Records that are rows")
    assert members["StreamsAnswer"]["properties"]["missing_shards"]["description"].startswith("Absent when")


def test_bounds_of_rows_are_those_of_the_code_that_makes_them() -> None:
    """That code imports pyarrow, which a hub without tables does not need, so the document repeats them."""
    rows = next(each for each in OPERATIONS if each.name == "rows")
    assert set(rows.headers) == {NEXT_OFFSET, NEXT_CHUNK, END_OFFSET}


@pytest.mark.parametrize("name", ["a", "press-7", "0_", "-a", "", "A", "a" * 64, "a" * 65, "a\n", "ä"])
def test_names_are_described_by_the_rule_of_names(name: str) -> None:
    (stream,) = (each for each in OPERATIONS if each.name == "stream")
    pattern = document()["paths"][stream.path]["get"]["parameters"][0]["schema"]["pattern"]
    assert (re.search(pattern.replace("$", r"\Z"), name) is not None) == valid_name(name)


# --- Parameters of requests: what the document does not allow is refused, also where the handler would not look at it


REFUSED = {
    f"{STREAM}/records?shard=0&from_shard=[]&from_shard=false&from_shard=7.5e15&since=%C3%90&chunk=284712646": "since=",
    f"{STREAM}/records?chunk=3&shard=0&since=yesterday": "since=",
    f"{STREAM}/records?shard=0&chunk=3&since=5": "since= has no meaning beside chunk=",
    f"{STREAM}/records?shard=0&offset=3&since=5": "since= has no meaning beside offset=",
    f"{STREAM}/records?shard=0&from_shard=0": "from_shard= has no meaning beside shard=",
    f"{STREAM}/records?shard=0&from_shard=x": "from_shard=",
    f"{STREAM}/records?shard=0&shard=1": "shard= is given 2 times",
    f"{STREAM}/records?shard=%D9%A0": "shard=",
    f"{STREAM}/records?limit=5&limit=5": "limit= is given 2 times",
    f"{STREAM}/rows?shard=0&offset=1&chunk=2&chunk=3": "chunk= is given 2 times",
    f"{STREAM}?tenant=default&tenant=default": "tenant= is given 2 times",
    f"{STREAM}/lanes?after=press-1": "after=",
    "/v1/streams/unknown?tenant=A": "tenant=",
    "/v1/edges?shards=own&shards=all": "shards= is given 2 times",
    "/v1/edges?shards=none": "shards=",
    "/v1/messages?edge=press-1&edge=press-2": "edge= is given 2 times",
    "/v1/pulls?id=1&edge=B": "edge=",
    f"{STREAM}/records?shard=0&ofset=3": "ofset= is not a parameter of this operation",
    "/v1/edges?tennant=acme": "tennant= is not a parameter of this operation",
}
"""Request -> beginning of what it is refused with."""


async def test_parameters_that_the_document_does_not_allow_are_refused_by_name() -> None:
    log = EdgeLog()
    log.append(*records(0, [b"a"]))
    async with running_hub(MemoryStore()) as hub, running_link(hub, log, EDGE):
        await log.until_released(1)
        found = {path: await get(hub, path) for path in REFUSED}
        allowed = await get(hub, f"{STREAM}/records?from_shard=0&since=0&limit=5&colour=red&colour=blue")
    assert {path: status for path, (status, _) in found.items() if status != 400} == {}
    assert {
        path: answer["detail"]
        for path, (_, answer) in found.items()
        if not answer["detail"].startswith(REFUSED[path]) or not answer["advice"]
    } == {}
    assert (allowed[0], len(allowed[1]["records"])) == (200, 1), "later releases may have more parameters"


@pytest.mark.parametrize("each", [each for each in OPERATIONS if each.parameters], ids=lambda each: each.name)
def test_whatever_takes_parameters_may_refuse_them(each: Operation) -> None:
    assert 400 in each.errors
    names = {parameter.name for parameter in each.parameters}
    assert {other for parameter in each.parameters for other in parameter.beside} <= names
