"""Parameters of requests: what the document does not allow is refused, also where the handler would not look at it."""

from __future__ import annotations

import pytest

from tests.cloud_hub.api.test_application import EDGE, STREAM, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from weft.hub_api.operations import OPERATIONS, Operation
from weft.storage.object_store.directory import MemoryStore

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
