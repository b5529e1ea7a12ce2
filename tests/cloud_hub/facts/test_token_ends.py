"""The end of a token: its reason, the clock that decides, the warning before, and its links."""

from __future__ import annotations

import math
import time

import aiohttp
import pytest

from tests.cloud_hub.api.test_application import EDGE, records
from tests.cloud_hub.facts.test_credentials import DAY, Cluster
from tests.cloud_hub.facts.test_hub import SOON, declare, token
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.cloud_hub.auth.tokens import NO_TOKEN, TokenIdentity, hash_token
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts.tokens import Credentials, Secret, add_token, remove_token, rotate_token
from weft.cloud_hub.links import open_links
from weft.hub_api.rights import Scope
from weft.replication.events import LinkState
from weft.storage.object_store import Written
from weft.storage.object_store.directory import MemoryStore

YEAR = 365 * DAY


def test_an_ended_token_is_refused_with_its_name_and_the_moment() -> None:
    cluster = Cluster()
    cluster.add("guest", "secret", until=cluster.now + DAY)
    found = cluster.credentials.identify("secret")
    assert found is not None
    assert cluster.credentials.until(found) == cluster.now + DAY
    cluster.now += DAY
    refusal = cluster.credentials.refusal("secret")
    assert refusal.error == "the token 'guest' ended at 1972-09-28T00:00:00.000000000Z"
    assert "weft hub token rotate CONFIG guest" in refusal.advice
    assert cluster.credentials.why_over(found) == refusal, "its links are told the same"
    cluster.declare(remove_token("guest"))
    assert cluster.credentials.why_over(found).error == "the token 'guest' was revoked"
    for unknown in (None, "", "secret", "forged", "x" * 100_000):
        assert cluster.credentials.refusal(unknown) == NO_TOKEN


def test_the_next_end_is_that_of_a_token_without_a_later_secret() -> None:
    cluster = Cluster()
    assert cluster.credentials.seconds_to_next_end == math.inf
    cluster.add("endless", "1")
    cluster.add("later", "2", until=cluster.now + 9 * DAY)
    cluster.add("guest", "3", until=cluster.now + 2 * DAY)
    assert cluster.credentials.next_end == ("guest", cluster.now + 2 * DAY)
    cluster.now += DAY
    assert cluster.credentials.seconds_to_next_end == 86_400.0
    rotated = rotate_token("guest", Secret(hash_token("4")), cluster.now, cluster.now + DAY)
    cluster.declare(rotated)
    assert cluster.credentials.next_end == ("later", cluster.now + 8 * DAY), "the guest has a secret without an end"
    cluster.now += 9 * DAY
    assert cluster.credentials.next_end is None, "what has ended is no warning for ever"


@pytest.mark.parametrize("off", [YEAR, -YEAR])
def test_a_wrong_clock_neither_ends_nor_lengthens_a_token_and_is_named(off: int) -> None:
    cluster, boot = Cluster(), 10**12
    true = cluster.now
    cluster.add("valid", "valid", until=true + 90 * DAY)
    cluster.add("ended", "ended", until=true - DAY)
    clock = HubClock(lambda: true + off, lambda: boot, lambda: False)
    clock.wrote(boot, boot, Written(true, by_store=True))
    credentials = Credentials(False, clock.agreed, clock.doubted)
    credentials.refresh(cluster.state)
    valid = credentials.identify("valid")
    assert valid is not None
    assert credentials.revoked([valid]) == [], "nor does its link end"
    assert credentials.identify("ended") is None
    side = "ahead of" if off > 0 else "behind"
    assert f"this machine's clock is 365.0 days {side} the store's, and was" in credentials.refusal("ended").error


@pytest.mark.slow
async def test_a_link_ends_with_its_token_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_links, "LOOK_INTERVAL_S", 0.02)
    store = MemoryStore()
    async with running_hub(store, tokens_required=True, **SOON) as hub:
        await declare(hub, store, token("ops", "admin"))
        end = time.time_ns() + 3_600_000_000_000
        press = TokenIdentity("press", hash_token("edge"), Scope.EDGE, edge="press-1")
        await declare(hub, store, add_token(press, end))
        assert (await get(hub, "/v1/whoami", "edge"))[1]["until"].startswith("20")
        assert (await get(hub, "/v1/status", "admin"))[1]["cluster_log"]["next_end"]["token"] == "press"
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        epochs = MemoryEpochs()
        async with running_link(hub, log, EDGE, "edge", epochs) as link:
            await log.until_released(1)
            monkeypatch.setattr(hub._declared.credentials, "_now", lambda: end)
            await until(lambda: link.state is not LinkState.CONNECTED)
            assert "the token 'press' ended at 20" in link.last_error
            log.append(*records(1, [b"b"]))
            await until(lambda: "(401): the token 'press' ended at 20" in link.last_error)
            assert link.state is LinkState.REFUSED
        async with aiohttp.ClientSession() as session:
            answer = await session.get(f"{hub.url}/v1/whoami", headers={"Authorization": "Bearer edge"})
            assert answer.status == 401
            assert "the token 'press' ended" in (await answer.json())["detail"].replace('"', "'")
            assert answer.headers["WWW-Authenticate"].startswith('Bearer error="invalid_token", error_description="the')
            assert (await session.get(f"{hub.url}/v1/whoami")).headers["WWW-Authenticate"] == "Bearer"
        assert "weft_hub_token_next_end_seconds +Inf" in (await get(hub, "/metrics", "admin"))[1]
        await declare(hub, store, rotate_token("press", Secret(hash_token("new")), time.time_ns(), 0))
        async with running_link(hub, log, EDGE, "new", epochs):
            await log.until_released(2)
