"""Requests for acts that need a second person: who may approve, and how often an approval counts."""

from __future__ import annotations

import msgspec
import pytest

from tests.storage.cluster_log.declaring import declares, log_of
from weft.cloud_hub.facts import approvals
from weft.cloud_hub.facts.approvals import (
    REQUEST,
    Approval,
    AskedAct,
    NeedsApproval,
    SecondPersonDocument,
    allow,
    approve,
    change_setting,
    requests_of,
)
from weft.cloud_hub.facts.fact import CannotDeclare
from weft.storage import hub_keys
from weft.storage.cluster_log import Author
from weft.storage.object_store.directory import MemoryStore

S = 10**9
MARA = Author(1_000 * S, "mara", "case 12", "mara@ops-1", "hub erase")
ERASE = AskedAct("hub erase", "rows of default/visits", {"key": "person-4711", "reason": "case 12"})
BEN = Approval("ben", "ben@ops-2", 1_100 * S)


async def turned_on() -> MemoryStore:
    store = MemoryStore()
    await log_of(store).append(change_setting(SecondPersonDocument("names", 3600)), MARA)
    return store


async def asked(store: MemoryStore, wanted: AskedAct = ERASE, author: Author = MARA) -> str:
    with pytest.raises(NeedsApproval) as refused:
        await allow(store, log_of(store), wanted, author)
    (name,) = [name for name in requests_of(await log_of(store).load()) if name in str(refused.value)]
    return name


async def test_an_approved_act_is_allowed_once_and_only_as_it_was_asked() -> None:
    store = await turned_on()
    name = await asked(store)
    assert await asked(store) == name, "the same act has one request"
    await log_of(store, 1).append(approve(name, BEN), MARA)
    assert await asked(store, ERASE._replace(options={"key": "person-4712", "reason": "case 12"})) != name
    assert await allow(store, log_of(store, 2), ERASE, MARA) == name
    assert [each.key for each in await store.list(hub_keys.REQUESTS)] != []
    assert hub_keys.request_key(name) not in [each.key for each in await store.list(hub_keys.REQUESTS)]
    assert await asked(store) != name, "an approval counts once"


async def test_who_asked_cannot_approve_under_one_of_two_names() -> None:
    store = await turned_on()
    name = await asked(store)
    for by, origin in (
        ("mara", "ben@ops-2"),
        (" Mara", "ben@ops-2"),
        ("ben", "mara@ops-1"),
        ("ben", "mara@laptop"),
        ("ben", "root@ops-1 (sudo by mara)"),
        ("ben", "weft@ops-2 (sudo by mara)"),
    ):
        with pytest.raises(CannotDeclare, match="another person"):
            await log_of(store).append(approve(name, Approval(by, origin, BEN.at)), MARA)
    with pytest.raises(CannotDeclare, match="no request"):
        await log_of(store).append(approve("f" * 16, BEN), MARA)
    with pytest.raises(CannotDeclare, match="is over"):
        await log_of(store).append(approve(name, msgspec.structs.replace(BEN, at=9_000 * S)), MARA)


async def test_people_behind_one_user_are_told_apart_by_sudo() -> None:
    store = await turned_on()
    name = await asked(store, author=MARA._replace(origin="root@ops-1 (sudo by mara)"))
    for origin in ("mara@ops-1", "root@ops-2 (sudo by mara)"):
        with pytest.raises(CannotDeclare, match="another person"):
            await log_of(store).append(approve(name, Approval("ben", origin, BEN.at)), MARA)
    state = await log_of(store).append(approve(name, Approval("ben", "root@ops-1 (sudo by ben)", BEN.at)), MARA)
    assert [each.by for each in requests_of(state)[name].approvals] == ["ben"]


async def test_what_is_over_leaves_no_options_and_other_acts_need_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await turned_on()
    name = await asked(store)
    assert await allow(store, log_of(store), ERASE._replace(command="hub split"), MARA) is None
    later = await asked(store, author=MARA._replace(at=9_000 * S))
    assert later != name
    assert [each.key for each in await store.list(hub_keys.REQUESTS)] == [hub_keys.request_key(later)]
    assert list((await log_of(store).load()).facts(REQUEST)) == [later]
    monkeypatch.setattr(approvals, "REQUESTS_MAX", 1)
    with pytest.raises(CannotDeclare, match="1 requests wait"):
        await allow(store, log_of(store), ERASE._replace(options={}), MARA)


async def test_a_setting_of_a_later_release_is_not_passed_over() -> None:
    store = MemoryStore()
    await log_of(store).append(declares("acts", b'{"approvals":"three-keys"}', "second-person"), MARA)
    with pytest.raises(CannotDeclare, match="later release"):
        await allow(store, log_of(store), ERASE, MARA)
