"""Owners that are charged for the requests of readers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.tokens import create_token
from tests.support.waiting import until
from weft.bounds import Owner, OwnerKind
from weft.cloud_hub.auth.access import Access
from weft.cloud_hub.facts.tokens import Credentials
from weft.hub_api.rights import Scope
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore


@pytest.mark.parametrize(
    ("remote", "owner"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
    ],
)
def test_without_tokens_all_addresses_of_one_customer_share_a_budget(remote: str, owner: str) -> None:
    access = Access(Credentials(False, lambda: 0), open_to_network=True)
    request = make_mocked_request("GET", "/v1/streams").clone(remote=remote)
    assert access.charged(request).owner == Owner(OwnerKind.ADDRESS, owner)


async def test_refused_requests_and_links_are_events_with_an_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = str(tmp_path / "tokens")
    reader, admin = (create_token(path, name, Scope(name)) for name in ("reader", "admin"))
    async with running_hub(MemoryStore(), tokens=path) as hub:
        for _ in range(3):
            await get(hub, "/v1/streams", "forged-token")
        await get(hub, "/v1/streams")
        await get(hub, "/v1/status", reader)
        await get(hub, "/v1/nowhere", reader)
        async with running_link(hub, EdgeLog(), LinkIdentity("default", "press-1", 7, "test"), "forged-token") as link:
            await until(lambda: "token" in (link.last_error or ""))
        _, metrics = await get(hub, "/metrics", admin)
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "weft.events"]
    found = [(each["event"], each["severity"], each["owner"], each["on"]) for each in lines]
    assert found == [
        ("login_failed", "warning", "address 127.0.0.1", "GET /v1/streams"),
        ("access_refused", "warning", "token reader", "GET /v1/status"),
    ], "the same owner with the same trouble: one line a minute, whatever it asked for"
    assert "forged" not in caplog.text
    assert 'weft_hub_security_events_total{event="access_refused"} 1' in metrics
    assert 'weft_hub_security_events_total{event="login_failed"} 5' in metrics
