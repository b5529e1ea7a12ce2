"""docs/reference/api.md is right: every route has its section, and every example looks like a real answer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.cloud_hub.http.test_application import records
from tests.cloud_hub.live import EdgeLog, call, get, running_hub, running_link
from tests.hub_api.answers import BY_PATH, check_answer
from tests.support.waiting import until
from weft.cloud_hub.http.iceberg import PREFIX
from weft.cloud_hub.hub import Hub
from weft.hub_api.operations import UNDESCRIBED
from weft.protocols.chunk_index import GapRange
from weft.protocols.link import FunctionReport, NodeReport
from weft.replication.flow_control import LatestReport, SenderSettings
from weft.replication.runner import LinkIdentity
from weft.storage.object_store import open_store

PAGE = (Path(__file__).parents[3] / "docs/reference/api.md").read_text("utf-8")
SECTION = re.compile(r"^## `GET (\S+)`\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
EXAMPLE = re.compile(r"```json\n(.*?)```", re.DOTALL)
SECTIONS: dict[str, str] = dict(SECTION.findall(PAGE))
NAMED = {"{stream}": "telemetry", "{tenant}": "default", "{edge}": "press-shop-7"}


def shape(value: Any) -> Any:
    """What stays of a document when its values change: keys, and kinds of values."""
    unknown: dict[str, Any] = {
        "held_back_by": [],
        "table_bytes": None,
        "files": None,
        "bytes": None,
        "records_per_second": None,
        "intake": None,
    }
    if isinstance(value, dict):
        # Shard numbers are values.
        # Whom a moment waits for, and whether a rate or the size of a table is known, depends on the machine's speed.
        kept = {key: unknown.get(key, item) for key, item in value.items()}
        return {"#" if key.isdigit() else key: shape(item) for key, item in kept.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


def routes(hub: Hub) -> set[tuple[str, str]]:
    """(method, path) of every route of the API; Iceberg's are of another protocol."""
    assert hub._listener.server._runner is not None
    found = hub._listener.server._runner.app.router.routes()
    named = {(each.method, each.resource.canonical) for each in found if each.resource and each.method != "HEAD"}
    return {each for each in named if not each[1].startswith(PREFIX)}


async def look(hub: Hub, section: str) -> None:
    """Compare an answer with the example of its section, if that has one."""
    path, example = section, EXAMPLE.search(SECTIONS[section])
    if example is None:
        return
    for name, value in NAMED.items():
        path = path.replace(name, value)
    status, answer = await get(hub, path, accept="application/json")
    assert status == 200
    assert shape(answer) == shape(json.loads(example[1])), f"{section}: change the example in api.md"
    if ("GET", section) in BY_PATH:
        check_answer("GET", section, answer)


async def known(hub: Hub, path: str) -> bool:
    return (await get(hub, path))[0] == 200


async def test_every_route_is_on_the_page_and_every_answer_looks_like_its_example(tmp_path: Path) -> None:
    log = EdgeLog()
    log.append(*records(0, [b'{"temperature": 61.2}', b"\xff\x00"], {0: (("content_type", "application/json"),)}))
    log.gaps = [GapRange(2, 5, 2)]
    async with running_hub(open_store(str(tmp_path)), shards=1, table_interval_s=0.05) as hub:
        served = routes(hub)
        assert set(SECTIONS) == {path for method, path in served if method == "GET"}, (
            "give each route a section `## GET PATH` in docs/reference/api.md"
        )
        described = {(method, path) for method, path in served if path.startswith("/v1/") and path not in UNDESCRIBED}
        assert described == BY_PATH.keys(), (
            "give each route an Operation in its module of hub_api/, with the types of its parameters, body "
            "and answer; then `./run fix` writes the document"
        )

        async def settled() -> bool:
            stream = (await get(hub, "/v1/streams/telemetry"))[1]
            if stream.get("table_rows") != 2 or stream["complete_up_to"] is None:
                return False
            # The rows are in the table a moment before the hub notes when it committed them, and how large it is.
            return None not in [
                (await get(hub, "/v1/status"))[1]["tables"][0][each] for each in ("committed_at", "files")
            ]

        reported = LatestReport()
        reported.report = NodeReport(1, 2, 1, 3, 4, [FunctionReport("hot", "where, set", 3, 2, 1, "no field t")], 0)
        press = LinkIdentity("default", "press-shop-7", 0xABC, "weft 0.1.0")
        async with running_link(hub, log, press, sender=SenderSettings(report=reported)):
            await until(settled)
            of_schemas = [section for section in SECTIONS if section.endswith(("/schema", "/schemas"))]
            for section in SECTIONS.keys() - of_schemas:
                await look(hub, section)
            wanted = {"schema": {"fields": {"temperature": {"type": "float", "unit": "K"}}}, "reason": "columns"}
            assert (await call(hub, "PUT", "/v1/streams/telemetry/schema", wanted))[0] == 200
            await until(lambda: known(hub, "/v1/streams/telemetry/schema"))
            for section in of_schemas:
                await look(hub, section)
    assert sum(EXAMPLE.search(text) is not None for text in SECTIONS.values()) == len(SECTIONS) - 15  # none here


async def test_a_node_without_tables_does_not_guess_their_rows(tmp_path: Path) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"a"]))
    async with running_hub(open_store(str(tmp_path))) as hub:
        async with running_link(hub, log, LinkIdentity("default", "press-shop-7", 1, "test")):
            await log.until_released(1)
        _, stream = await get(hub, "/v1/streams/telemetry")
    assert (stream["records"], stream["table_rows"]) == (1, None)
