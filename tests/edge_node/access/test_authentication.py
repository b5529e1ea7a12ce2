"""Who is let in, as whom, and that no password is ever told."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from weft.config.limits import EdgeLimits
from weft.edge_node.access import identity as acl
from weft.edge_node.access import users
from weft.edge_node.access.authentication import Accounts
from weft.edge_node.access.identity import AccessDenied, Credentials, Denial
from weft.edge_node.counters import ListenerCounters

NAMES = {"press-7": users.HASHER.hash(b"secret-of-press-7")}


LIMITS = EdgeLimits(authentications=2, user_share=1)


def said(username: str | None = None, password: bytes | None = None) -> Credentials:
    return Credentials("C1", username, password)


@pytest.fixture
def counters() -> ListenerCounters:
    return ListenerCounters()


@pytest.fixture
def accounts(counters: ListenerCounters) -> Iterator[Accounts]:
    made = Accounts(NAMES, acl.parse("pattern write devices/%u/%c\n", "acl"), counters=counters, limits=LIMITS)
    yield made
    made.close()


async def refusal(accounts: Accounts, credentials: Credentials, *, may_be_anonymous: bool = False) -> Denial:
    with pytest.raises(AccessDenied) as caught:
        await accounts.identify(credentials, None, may_be_anonymous=may_be_anonymous)
    assert "secret" not in str(caught.value)
    return caught.value.denial


async def test_the_right_password_lets_in(accounts: Accounts, counters: ListenerCounters) -> None:
    for _ in range(2):  # the second time the answer is remembered
        credentials = said("press-7", b"secret-of-press-7")
        identity = await accounts.identify(credentials, None, may_be_anonymous=False)
        assert identity.username == "press-7"
        assert not identity.unrestricted
        assert identity.may_publish(b"devices/press-7/C1")
        assert not identity.may_publish(b"devices/press-7/C2")
        assert not identity.may_subscribe("devices/press-7/C1")
    assert counters.authentications_waiting == counters.authentications_refused == 0


async def test_a_certificate_that_was_revoked_since_the_handshake_does_not(accounts: Accounts) -> None:
    with pytest.raises(AccessDenied, match="its certificate was revoked") as caught:
        await accounts.identify(said(), "press-7", may_be_anonymous=True, is_revoked=lambda: True)
    assert caught.value.denial is Denial.NOT_ALLOWED


@pytest.mark.parametrize(
    ("username", "password"),
    [("press-7", b"secret"), ("press-8", b"secret-of-press-7"), ("press-7", None), ("press-7", b""), ("", b"secret")],
)
async def test_a_wrong_one_does_not(accounts: Accounts, username: str, password: bytes | None) -> None:
    for may_be_anonymous in (False, True):
        code = await refusal(accounts, said(username, password), may_be_anonymous=may_be_anonymous)
        assert code is Denial.WRONG


async def test_a_password_that_changes_while_it_is_checked_does_not_let_in(accounts: Accounts) -> None:
    credentials = said("press-7", b"secret-of-press-7")
    waiting = asyncio.create_task(accounts.identify(credentials, None, may_be_anonymous=False))
    await asyncio.sleep(0)
    assert not waiting.done()
    accounts.replace(names={"press-7": users.HASHER.hash(b"another")})
    with pytest.raises(AccessDenied):
        await waiting


async def test_who_is_no_longer_admitted(accounts: Accounts) -> None:
    identity = await accounts.identify(said("press-7", b"secret-of-press-7"), None, may_be_anonymous=False)
    certified = await accounts.identify(said(), "press-9", may_be_anonymous=False)
    anonymous = await accounts.identify(said(), None, may_be_anonymous=True)
    accounts.replace(names=NAMES | {"press-8": users.HASHER.hash(b"x")})
    assert identity.admitted
    accounts.replace(names={})
    assert not identity.admitted
    assert certified.admitted, "its name is not in the users file"
    assert anonymous.admitted


async def test_who_says_no_name_needs_a_place_where_that_is_allowed(accounts: Accounts) -> None:
    assert (await accounts.identify(said(), None, may_be_anonymous=True)).username is None
    assert await refusal(accounts, said()) is Denial.WRONG


async def test_without_a_users_file_a_name_is_not_believed() -> None:
    accounts = Accounts()
    identity = await accounts.identify(said("admin", b"x"), None, may_be_anonymous=True)
    assert identity.username is None
    assert identity.unrestricted
    assert await refusal(accounts, said("admin", b"x")) is Denial.NOT_ALLOWED
    accounts.close()


async def test_a_certificate_settles_who_a_client_is(accounts: Accounts) -> None:
    identity = await accounts.identify(said("somebody", b"x"), "press-9", may_be_anonymous=False)
    assert identity.username == "press-9"
    assert identity.may_publish(b"devices/press-9/C1")


async def test_too_many_at_once_are_told_to_come_again(accounts: Accounts, counters: ListenerCounters) -> None:
    async def attempt(number: int) -> Denial:
        return await refusal(accounts, said("press-7", b"secret %d" % number))

    codes = await asyncio.gather(*map(attempt, range(10)))
    assert codes.count(Denial.WRONG) == 2
    assert codes.count(Denial.BUSY) == 8
    assert counters.authentications_waiting == 0


async def test_who_goes_away_is_taken_off_the_list(accounts: Accounts, counters: ListenerCounters) -> None:
    waiting = asyncio.ensure_future(
        accounts.identify(said("press-7", b"secret-of-press-7"), None, may_be_anonymous=False)
    )
    await asyncio.sleep(0)
    assert counters.authentications_waiting == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert counters.authentications_waiting == 0


async def test_new_users_and_rules_hold_at_once_for_who_is_connected(accounts: Accounts) -> None:
    reports: list[int] = []
    accounts.watch(lambda: reports.append(1))
    credentials = said("press-7", b"secret-of-press-7")
    identity = await accounts.identify(credentials, None, may_be_anonymous=False)
    accounts.replace(names={"press-7": users.HASHER.hash(b"another secret")})
    accounts.replace(acl=acl.parse("user press-7\ntopic read a\n", "acl"))
    assert len(reports) == 2
    assert identity.may_read(b"a")
    assert not identity.may_publish(b"devices/press-7/C1")
    assert await refusal(accounts, credentials) is Denial.WRONG


async def test_secrets_are_never_logged(accounts: Accounts, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await accounts.identify(said("press-7", b"secret-of-press-7"), None, may_be_anonymous=False)
    await refusal(accounts, said("press-7", b"secret but wrong"))
    assert "secret" not in caplog.text
    assert "argon2" not in caplog.text


async def test_a_failed_login_is_an_event_without_its_password(
    accounts: Accounts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for _ in range(3):
        with pytest.raises(AccessDenied):
            await accounts.identify(
                said("press-7", b"secret-guess"), None, may_be_anonymous=False, address="203.0.113.7"
            )
    (line,) = [record.getMessage() for record in caplog.records if record.name == "weft.events"]
    answer = json.loads(line)
    assert (answer["event"], answer["severity"], answer["owner"]) == ("login_failed", "warning", "address 203.0.113.7")
    assert "'press-7'" in answer["reason"]
    assert "secret" not in line
