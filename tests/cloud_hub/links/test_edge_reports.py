"""A hub knows of the disk and the functions of its edges, as these say; from edges that mean it ill, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cloud_hub.api.test_application import deliver, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.epochs import MemoryEpochs
from tests.support.live_node import running
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.protocols.link import ERROR_CHARACTERS_MAX, FUNCTIONS_MAX, FunctionReport, NodeReport
from weft.replication.flow_control import LatestReport, SenderSettings
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

PRESS = LinkIdentity("default", "press-1", 0xABC, "weft 9.1")
NODE = """
node: press-7
data_dir: {folder}/data
disk: {{budget: 64MiB}}
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:0"}}
streams:
  telemetry: {{from: "plant/#", payload: json}}
  hot: {{from_stream: telemetry, functions: [where: t > 70, set: {{f: t * 2}}]}}
links:
  hub: {{to: "{url}"}}
"""


async def facts_of(hub: Hub, edge: str) -> dict[str, Any]:
    status, answer = await get(hub, f"/v1/edges/{edge}")
    assert status == 200, answer
    return answer  # type: ignore[no-any-return]


async def knows_disk(hub: Hub, edge: str) -> bool:
    _, answer = await get(hub, "/v1/edges")
    return any(each["edge"] == edge and each["disk"] is not None for each in answer["edges"])


async def test_a_hub_knows_the_disk_and_the_functions_of_a_node_and_the_disk_when_its_link_is_cut(
    tmp_path: Path,
) -> None:
    async with running_hub(MemoryStore()) as hub:
        async with running(tmp_path, NODE.format(folder=tmp_path, url=hub.url)):
            await until(lambda: knows_disk(hub, "press-7"))
            here = await facts_of(hub, "press-7")
            disk = here["disk"]
            assert disk["budget_bytes"] == 64 << 20
            assert 0 < disk["free_bytes"] <= 64 << 20
            assert (disk["bytes_per_second"], disk["outage_seconds_left"]) == (None, None), "not known yet"
            (function,) = here["functions"]
            assert (function["stream"], function["kinds"], function["last_error"]) == ("hot", "where, set", None)
            assert here["functions_more"] == 0
            _, listed = await get(hub, "/v1/edges")
            assert "functions" not in listed["edges"][0], "a list of a fleet stays short"
        await until(lambda: not hub._links)
        gone = await facts_of(hub, "press-7")
        assert (gone["connected_since"], gone["disk"], gone["functions"]) == (None, disk, None)


async def test_the_disk_of_an_edge_that_tells_nothing_is_unknown() -> None:
    async with running_hub(MemoryStore()) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"x"]))
        await deliver(hub, log, 1, PRESS)
        facts = await facts_of(hub, "press-1")
        assert (facts["disk"], facts["functions"], facts["functions_more"]) == (None, None, 0)
        status, answer = await get(hub, "/v1/edges/press-2")
        assert (status, "default/press-2" in answer["detail"]) == (404, True)


async def test_texts_of_an_edge_are_text_and_one_beyond_a_bound_ends_its_link_alone() -> None:
    name, words = "<img src=x onerror=alert(1)>", "\u202e" * ERROR_CHARACTERS_MAX
    reported, epochs = LatestReport(), MemoryEpochs()
    function = FunctionReport(name, "\n\x1b[2J", 1, 1, 1, words)
    reported.report = NodeReport(1, 2, 1, 1, 0, [function] * FUNCTIONS_MAX, 1 << 31)
    async with running_hub(MemoryStore()) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"x"]))
        async with running_link(hub, log, PRESS, epochs=epochs, sender=SenderSettings(report=reported)) as status:
            await until(lambda: knows_disk(hub, "press-1"))
            functions = (await facts_of(hub, "press-1"))["functions"]
            assert len(functions) == FUNCTIONS_MAX
            assert (functions[0]["stream"], functions[0]["last_error"]) == (name, words)
            assert not status.last_error
        reported.report = NodeReport(1, 2, 1, 1, 0, [FunctionReport(name, "", 1, 1, 1, words + "x")], 0)
        other = EdgeLog()
        other.append(*records(0, [b"x"]))
        async with running_link(hub, log, PRESS, epochs=epochs, sender=SenderSettings(report=reported)) as status:
            await until(lambda: "length" in status.last_error)
            await deliver(hub, other, 1, LinkIdentity("default", "saw-2", 0xDEF, "weft"))
