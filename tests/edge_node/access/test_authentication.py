"""Who is let in, as whom, and that no password is ever told."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import threading
from base64 import b64encode
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S
from weft.bounds import Bound, Quota, Refusals, user_or_address
from weft.config.limits import EdgeLimits
from weft.edge_node.access import authentication, users
from weft.edge_node.access import identity as acl
from weft.edge_node.access.authentication import (
    BACK_OFF_S,
    FILE_NAME,
    FREE_TRIES,
    SAVE_INTERVAL_S,
    THREADS,
    Accounts,
    PasswordCache,
    PasswordChecks,
    TooMany,
)
from weft.edge_node.access.identity import AccessDenied, Credentials, Denial
from weft.edge_node.access.users import UsersUnusable
from weft.edge_node.counters import ListenerCounters

NAMES = {"press-7": users.hasher().hash(b"secret-of-press-7")}


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
    accounts.replace(names={"press-7": users.hasher().hash(b"another")})
    with pytest.raises(AccessDenied):
        await waiting


async def test_who_is_no_longer_admitted(accounts: Accounts) -> None:
    identity = await accounts.identify(said("press-7", b"secret-of-press-7"), None, may_be_anonymous=False)
    certified = await accounts.identify(said(), "press-9", may_be_anonymous=False)
    anonymous = await accounts.identify(said(), None, may_be_anonymous=True)
    accounts.replace(names=NAMES | {"press-8": users.hasher().hash(b"x")})
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
    accounts.replace(names={"press-7": users.hasher().hash(b"another secret")})
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


# --- Right passwords are remembered over restarts, and the file does not tell them


HASHED = users.hasher().hash(b"secret-of-press-7")


async def remembering(folder: Path) -> PasswordCache:
    known = PasswordCache(str(folder), lambda: 0.0)
    known.add("press-7", HASHED, b"secret-of-press-7")
    await known.save(at_end=True)
    return PasswordCache(str(folder), lambda: 0.0)


async def test_a_right_password_is_known_after_a_restart(tmp_path: Path) -> None:
    known = await remembering(tmp_path)
    assert known.knows("press-7", HASHED, b"secret-of-press-7")
    assert not known.knows("press-8", HASHED, b"secret-of-press-7")
    assert not known.knows("press-7", HASHED, b"secret-of-press-8")
    assert not known.knows("press-7", users.hasher().hash(b"secret-of-press-7"), b"secret-of-press-7"), "a new hash"


async def test_the_file_is_for_the_node_alone_and_holds_no_password(tmp_path: Path) -> None:
    await remembering(tmp_path)
    path = tmp_path / FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    assert b"secret" not in content
    assert b"argon2" not in content
    assert b"press" not in content


@pytest.mark.parametrize("damage", [b"", b"{", b'{"key":"AA=="}', b'{"key":5}'])
async def test_a_file_that_cannot_be_used_is_begun_anew(tmp_path: Path, damage: bytes) -> None:
    await remembering(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(damage)
    assert not PasswordCache(str(tmp_path), lambda: 0.0).knows("press-7", HASHED, b"secret-of-press-7")
    assert (await remembering(tmp_path)).knows("press-7", HASHED, b"secret-of-press-7")


async def test_a_copied_hash_is_nothing_without_its_key(tmp_path: Path) -> None:
    await remembering(tmp_path)
    copied = (tmp_path / FILE_NAME).read_text()
    key = copied.split('"')[3]
    (tmp_path / FILE_NAME).write_text(copied.replace(key, "A" * 43 + "="))
    assert not PasswordCache(str(tmp_path), lambda: 0.0).knows("press-7", HASHED, b"secret-of-press-7")


async def test_many_devices_cost_few_writes(tmp_path: Path) -> None:
    now, inodes = 0.0, set()
    known = PasswordCache(str(tmp_path), lambda: now)
    for number in range(100):
        known.add(f"press-{number}", HASHED, b"x")
        await known.save()
        inodes.add(os.stat(tmp_path / FILE_NAME).st_ino)
    assert len(inodes) == 1
    now += SAVE_INTERVAL_S
    await known.save()
    known = PasswordCache(str(tmp_path), lambda: now)
    assert all(known.knows(f"press-{number}", HASHED, b"x") for number in range(100))


async def test_without_a_folder_nothing_outlives_the_process(tmp_path: Path) -> None:
    known = PasswordCache(None, lambda: 0.0)
    known.add("press-7", HASHED, b"x")
    await known.save(at_end=True)
    assert known.knows("press-7", HASHED, b"x")
    assert not PasswordCache(None, lambda: 0.0).knows("press-7", HASHED, b"x")


def test_the_file_is_as_its_page_says(tmp_path: Path) -> None:
    entry = blake2b(b"press-7\0argon2 hash\0secret", key=bytes(range(32)), digest_size=24).digest()
    content = {"key": b64encode(bytes(range(32))).decode(), "passwords": [b64encode(entry).decode()]}
    (tmp_path / FILE_NAME).write_text(json.dumps(content))
    assert PasswordCache(str(tmp_path), lambda: 0.0).knows("press-7", "argon2 hash", b"secret")


# --- Wrong passwords of one client keep no other waiting: turns of addresses and users, and pauses after wrong ones


HOSTILE, OTHER = user_or_address(None, "10.0.0.66"), user_or_address(None, "10.0.0.1")


class Hall:
    """Checks whose threads wait for ``opened``, a clock that stands, and the order in which passwords were checked."""

    def __init__(self, total: int = 100, share: int = 100) -> None:
        self.now = 1000.0
        self.opened = threading.Event()
        self.checked: list[str] = []
        self.refusals = Refusals(lambda: self.now)
        self.waiting = Bound(Quota("total", total, share, "passwords"), self.refusals)
        self.checks = PasswordChecks(self.waiting, self.refusals, lambda: self.now)
        self.known: set[str] = set()

    def ask(self, address: object, user: str, *, right: bool = False) -> asyncio.Task[bool]:
        def verify() -> bool:
            assert self.opened.wait(PATIENCE_S)
            self.checked.append(user)
            return right

        return asyncio.ensure_future(
            self.checks.is_right(address, user, lambda: user in self.known, verify)  # type: ignore[arg-type]
        )

    async def settled(self) -> None:
        """Have everything asked that was begun."""
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
def hall() -> Iterator[Hall]:
    made = Hall()
    yield made
    made.opened.set()
    made.checks.close()


async def test_addresses_take_turns(hall: Hall) -> None:
    flood = [hall.ask(HOSTILE, f"made up {number}") for number in range(50)]
    await hall.settled()
    device = hall.ask(OTHER, "press-7", right=True)
    await hall.settled()
    hall.opened.set()
    assert await device
    assert hall.checked.index("press-7") <= 2 * THREADS
    assert not any(await asyncio.gather(*flood))
    assert hall.waiting.used == 0


async def test_users_of_an_address_take_turns(hall: Hall) -> None:
    flood = [hall.ask(HOSTILE, "alice") for _ in range(50)]
    await hall.settled()
    device = hall.ask(HOSTILE, "press-7", right=True)
    await hall.settled()
    hall.opened.set()
    assert await device
    assert hall.checked.index("press-7") <= 2 * THREADS
    await asyncio.gather(*flood)


async def test_a_password_that_was_found_right_meanwhile_is_not_checked(hall: Hall) -> None:
    all_of_them = [hall.ask(OTHER, "press-7", right=True) for _ in range(20)]
    await hall.settled()
    hall.known.add("press-7")
    hall.opened.set()
    assert all(await asyncio.gather(*all_of_them))
    assert len(hall.checked) == THREADS


async def test_wrong_passwords_make_the_same_user_of_the_same_address_wait(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(authentication.asyncio, "sleep", pause)  # type: ignore[attr-defined]
    hall.opened.set()
    for _ in range(FREE_TRIES):
        assert not await hall.ask(HOSTILE, "alice")
    assert pauses == []
    assert not await hall.ask(HOSTILE, "alice")
    assert pauses == [BACK_OFF_S]
    outcomes = await asyncio.gather(*(hall.ask(HOSTILE, "alice") for _ in range(60)), return_exceptions=True)
    assert any(isinstance(each, TooMany) and "wrong passwords" in str(each) for each in outcomes)
    assert len(hall.checked) < FREE_TRIES + 30
    assert [(each.bound, each.owner) for each in hall.refusals] == [("wrong passwords", HOSTILE)]
    pauses.clear()
    assert await hall.ask(OTHER, "alice", right=True), "from elsewhere she is not kept waiting"
    assert await hall.ask(HOSTILE, "press-7", right=True), "and others are not"
    assert pauses == []
    hall.now += 60
    assert await hall.ask(HOSTILE, "alice", right=True)
    assert await hall.ask(HOSTILE, "alice", right=True)
    assert pauses == [], "a right one ends it"


async def test_one_address_has_a_share_of_the_checks_that_wait() -> None:
    hall = Hall(share=5)
    flood = [hall.ask(HOSTILE, f"{number}") for number in range(20)]
    await hall.settled()
    device = hall.ask(OTHER, "press-7", right=True)
    hall.opened.set()
    outcomes = await asyncio.gather(*flood, return_exceptions=True)
    assert sum(isinstance(each, TooMany) for each in outcomes) == 15
    assert await device
    hall.checks.close()


async def test_where_too_many_wait_the_address_with_most_gives_way() -> None:
    hall = Hall(total=10)
    flood = [hall.ask(HOSTILE, f"{number}") for number in range(20)]
    await hall.settled()
    devices = [hall.ask(OTHER, f"press-{number}", right=True) for number in range(3)]
    await hall.settled()
    hall.opened.set()
    assert all(await asyncio.gather(*devices))
    outcomes = await asyncio.gather(*flood, return_exceptions=True)
    assert sum(isinstance(each, TooMany) for each in outcomes) == 13
    assert hall.waiting.used == 0
    hall.checks.close()


async def test_who_goes_away_takes_its_turn_from_nobody(hall: Hall) -> None:
    flood = [hall.ask(HOSTILE, f"{number}") for number in range(50)]
    await hall.settled()
    for each in flood:
        each.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    assert hall.waiting.used == 0
    device = hall.ask(OTHER, "press-7", right=True)
    await hall.settled()
    hall.opened.set()
    assert await device
    assert len(hall.checked) <= THREADS + 1


# --- The users file: hashes only, everything else in it stays, and it never shows what is in it


def test_a_password_is_kept_as_an_argon2id_hash(tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert users.add(str(path), "press-7", b"correct horse")
    assert path.read_text().startswith("press-7:$argon2id$")
    assert "correct" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    hashed = users.read(str(path))["press-7"]
    assert users.verify(hashed, b"correct horse")
    assert not users.verify(hashed, b"wrong horse")


def test_changes_leave_the_rest_of_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "users"
    users.add(str(path), "first", b"1")
    users.add(str(path), "second", b"2")
    path.write_text(f"# the presses\n\n{path.read_text()}")
    os.chmod(path, 0o640)
    assert not users.add(str(path), "first", b"other")
    assert path.read_text().startswith("# the presses\n\nfirst:")
    assert users.verify(users.read(str(path))["first"], b"other")
    users.remove(str(path), "first")
    assert list(users.read(str(path))) == ["second"]
    assert path.read_text().startswith("# the presses\n\nsecond:")
    assert path.stat().st_mode & 0o777 == 0o640


def test_an_unknown_user_cannot_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "users"
    users.add(str(path), "first", b"1")
    with pytest.raises(UsersUnusable, match="there is no user 'x'"):
        users.remove(str(path), "x")


@pytest.mark.parametrize("name", ["", " a", "a:b", "#a", "a\n", "x" * 257])
def test_names_that_the_file_cannot_hold_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsersUnusable):
        users.add(str(tmp_path / "users"), name, b"password")
    assert not (tmp_path / "users").exists()


@pytest.mark.parametrize("password", [b"", b"x" * 1025])
def test_passwords_have_bounds(tmp_path: Path, password: bytes) -> None:
    with pytest.raises(UsersUnusable, match="1 to 1024 bytes"):
        users.add(str(tmp_path / "users"), "a", password)


@pytest.mark.parametrize(
    "line",
    [
        "hunter2",
        "name:hunter2",
        "name:$2b$12$hunter2hunter2hunter2hunter2hunter2hunter2hunter2hun",
        "name:$argon2i$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aHVudGVyMmh1bnRlcjI",
        "name:$argon2id$v=19$m=99999999,t=2,p=1$c2FsdHNhbHQ$aHVudGVyMmh1bnRlcjI",
    ],
)
def test_what_is_no_argon2id_hash_is_refused_without_showing_it(line: str) -> None:
    with pytest.raises(UsersUnusable, match="users:2: expected name:hash") as caught:
        users.parse(f"# users\n{line}\n", "users")
    assert "hunter2" not in str(caught.value)


def test_a_name_comes_once() -> None:
    line = f"a:{users.hasher().hash(b'x')}\n"
    with pytest.raises(UsersUnusable, match="users:2: user 'a' already exists"):
        users.parse(line * 2, "users")
