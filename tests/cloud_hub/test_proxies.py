"""Links and readers through real proxies before a hub, configured as docs/how-to/tls-at-the-hub.md says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.cloud_hub.api.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.end_to_end.page_blocks import Block, blocks
from tests.support.certificates import Authority
from tests.support.proxies import PACKAGES, proxy
from tests.support.waiting import until
from weft.network.tls import ClientTlsFiles, TlsFiles, client_context
from weft.storage.object_store.directory import MemoryStore

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "tls-at-the-hub.md"
BLOCKS = [block for block in blocks(PAGE) if block.language in PACKAGES]
MEBIBYTE = 1 << 20

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def passes_tls(block: Block) -> bool:
    return "mode tcp" in block.text


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.language + "-tcp" * passes_tls(block))
async def test_a_link_and_readers_come_through_the_proxy(block: Block, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem, own = authority.sign("hub"), authority.sign(EDGE.edge)
    trust = ClientTlsFiles(ca_file=authority.path, certificate=own.certificate, key=own.key)
    hubs_own = TlsFiles(
        certificate=pem.certificate, key=pem.key, client_ca=authority.path, client_certificate_required=False
    )
    tls = hubs_own if passes_tls(block) else None
    async with running_hub(MemoryStore(), tls=tls, edges_need_certificate=tls is not None) as hub:
        with proxy(block.language, block.text, hub._listener.port, pem, tmp_path) as port:
            log = EdgeLog()
            log.append(*records(0, [b"x" * MEBIBYTE] * 3))
            async with running_link(hub, log, EDGE, url=f"https://localhost:{port}", tls=trust) as link:
                await log.until_released(3)
                async with aiohttp.ClientSession() as session:
                    context = client_context(trust)
                    answers = await asyncio.gather(*(_status(session, port, context) for _ in range(20)))
                    assert set(answers) == {200}
                    await _lists_the_stream(session, port, context)
                log.append(*records(3, [b"y"]))
                await log.until_released(4)
                assert link.connections == 1
            await until(lambda: len(hub._links) == 0)


async def _status(session: aiohttp.ClientSession, port: int, context: object) -> int:
    async with session.get(f"https://localhost:{port}/healthz", ssl=context) as answer:  # type: ignore[arg-type]
        return answer.status


async def _lists_the_stream(session: aiohttp.ClientSession, port: int, context: object) -> None:
    async with session.get(f"https://localhost:{port}/v1/streams", ssl=context) as answer:  # type: ignore[arg-type]
        assert (await answer.json())["streams"][0]["stream"] == "telemetry"
