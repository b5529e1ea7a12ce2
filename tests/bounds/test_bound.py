"""Shares, turns and rates: what one owner uses up is its own."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.bounds import (
    Bound,
    Events,
    NestedShares,
    Owner,
    OwnerKind,
    Quota,
    Rates,
    Refusals,
    SecurityEvent,
    Severity,
    Shares,
    TurnBudget,
    user_or_address,
)
from weft.bounds.bound import INTERVAL_S, KEYS_MAX, LINE_INTERVAL_S, LINES_MAX, REFUSED_OWNERS_MAX


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def user(name: str) -> Owner:
    return user_or_address(name, "192.0.2.1")


def test_who_did_not_log_in_is_known_by_the_address() -> None:
    assert str(user("press-1")) == "user press-1"
    assert str(user_or_address(None, "192.0.2.1")) == "address 192.0.2.1"
    assert user_or_address("", "192.0.2.1").kind is OwnerKind.USER


def test_a_full_share_leaves_room_for_others() -> None:
    shares: Shares[str] = Shares(10, 4)
    assert [shares.take("greedy") for _ in range(6)] == [True] * 4 + [False] * 2
    assert shares.is_own_share_full("greedy")
    assert not shares.is_own_share_full("modest")
    assert shares.take("modest", 4)
    assert shares.heaviest() in {"greedy", "modest"}
    shares.free("greedy")
    assert shares.heaviest() == "modest"
    assert shares.take("greedy")


@given(st.integers(1, 1 << 50), st.integers(1, 100))
def test_a_share_is_whole_units_of_its_total_and_at_least_one(total: int, percent: int) -> None:
    quota = Quota.of("limits.wills", total, percent / 100, "wills")
    assert quota.share == max(total * percent // 100, 1)
    assert quota.share <= quota.total


def test_a_refusal_says_whose_bound_it_met_and_what_to_raise(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = Refusals(clock)
    bound = Bound(Quota.of("limits.wills", 8, 0.5, "wills"), refusals)
    assert bound.take(user("greedy"), 4)
    bound.refuse(user("greedy"))
    assert bound.take(user("modest"), 4)
    clock.now += LINE_INTERVAL_S
    bound.refuse(user("third"))
    assert [(each.bound, str(each.owner)) for each in refusals] == [
        ("limits.user_share of limits.wills", "user greedy"),
        ("limits.wills", "user third"),
    ]
    assert "raise limits.wills or limits.user_share if it is to have more" in caplog.messages[0]
    assert "raise limits.wills if it is to have more" in caplog.messages[1]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 7), st.booleans()), max_size=60))
def test_no_order_of_taking_and_freeing_passes_a_bound(steps: list[tuple[str, int, bool]]) -> None:
    shares: Shares[str] = Shares(20, 12)
    model = dict.fromkeys("abc", 0)
    for owner, units, is_taking in steps:
        if is_taking:
            fits = model[owner] + units <= 12 and sum(model.values()) + units <= 20
            assert shares.take(owner, units) == fits
            model[owner] += units * fits
        elif model[owner] >= units:
            shares.free(owner, units)
            model[owner] -= units
        assert shares.used == sum(model.values())
        assert {owner: shares.taken(owner) for owner in model} == model


HELD = st.tuples(st.sampled_from(["take", "hold", "free"]), st.sampled_from("xyz"), st.sampled_from("abc"))


@given(st.lists(st.tuples(HELD, st.integers(1, 30)), max_size=60))
def test_what_is_held_beyond_a_share_is_nobody_else_s(steps: list[tuple[tuple[str, str, str], int]]) -> None:
    shares: NestedShares[str] = NestedShares(20, 10, 5)
    model = {(tenant, owner): 0 for tenant in "xyz" for owner in "abc"}

    def of_tenant(tenant: str) -> int:
        return sum(min(5, model[tenant, owner]) for owner in "abc")

    for (kind, tenant, owner), units in steps:
        if kind == "take":
            fits = (
                model[tenant, owner] + units <= 5
                and of_tenant(tenant) + units <= 10
                and sum(min(10, of_tenant(each)) for each in "xyz") + units <= 20
            )
            assert shares.take(tenant, owner, units) == fits
            model[tenant, owner] += units * fits
        elif kind == "hold":
            shares.hold(tenant, owner, units)
            model[tenant, owner] += units
        elif model[tenant, owner] >= units:
            shares.free(tenant, owner, units)
            model[tenant, owner] -= units
        assert shares.used == sum(model.values())
    for (tenant, owner), units in model.items():
        shares.free(tenant, owner, units)
    assert (shares.used, shares.take("x", "a", 5)) == (0, True)


def test_a_turn_ends_by_its_cost_or_by_its_time() -> None:
    clock = Clock()
    turn = TurnBudget(3, 0.5, clock)
    turn.begin(clock())
    assert [turn.spend() for _ in range(3)] == [True, True, False]
    turn.begin(clock())
    assert turn.spend()
    clock.now += 0.6
    assert not turn.spend()
    turn.begin(clock())
    assert turn.spend()


def test_rates_are_each_owner_s_own_and_come_back_with_time() -> None:
    clock = Clock()
    rates: Rates[str] = Rates(2.0, 3.0, clock)
    assert [rates.use("greedy") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert rates.use("modest") == 0.0
    clock.now += 0.5
    assert rates.use("greedy") == 0.0
    assert rates.use("greedy") > 0


def test_rates_of_a_flood_of_owners_take_bounded_memory() -> None:
    rates: Rates[int] = Rates(1.0, 1.0, Clock(), owners_max=10)
    for owner in range(1000):
        rates.use(owner)
    assert rates.use(999) > 0
    assert rates.use(1) == 0.0


def test_refusals_name_owners_within_a_bound_and_are_logged_rarely(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = Refusals(clock)
    with caplog.at_level(logging.WARNING):
        for number in range(REFUSED_OWNERS_MAX + 50):
            refusals.note("limits.wills", user(f"u{number}"), "its will was refused; raise the share")
        refusals.note("limits.wills", user("u0"), "its will was refused; raise the share")
    counts = {refused.owner: refused.times for refused in refusals}
    assert counts[user("u0")] == 2
    assert counts[None] == 50
    assert len(counts) == REFUSED_OWNERS_MAX + 1
    assert len(caplog.messages) == 1
    clock.now += LINE_INTERVAL_S
    refusals.note("limits.wills", user("u0"), "its will was refused; raise the share")
    assert "user u0 reached its share, limits.wills" in caplog.messages[1]
    assert f"{REFUSED_OWNERS_MAX + 50:,} more refusals" in caplog.messages[1]


# --- Structured lines about refusals: who, what and how often, and never a flood


MIRA = Owner(OwnerKind.ADDRESS, "203.0.113.7")


class EventsClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def reported(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    found = [json.loads(record.getMessage()) for record in caplog.records if record.name == "weft.events"]
    caplog.clear()
    return found


def test_a_repetition_is_counted_and_told_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = EventsClock()
    events = Events(clock)

    def fail() -> None:
        events.note(SecurityEvent.LOGIN_FAILED, Severity.WARNING, MIRA, "no valid token", on="GET /v1/status")

    for _ in range(1000):
        fail()
    assert reported(caplog) == [
        {
            "event": "login_failed",
            "severity": "warning",
            "owner": "address 203.0.113.7",
            "on": "GET /v1/status",
            "reason": "no valid token",
            "times": 1,
            "left_out": 0,
        }
    ]
    clock.now = INTERVAL_S
    fail()
    (again,) = reported(caplog)
    assert (again["times"], again["left_out"]) == (1000, 999)
    assert events.counts[SecurityEvent.LOGIN_FAILED] == 1001


def test_a_flood_of_names_is_bounded_in_lines_and_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = EventsClock()
    events = Events(clock)
    for number in range(20_000):
        events.note(
            SecurityEvent.LOGIN_FAILED,
            Severity.WARNING,
            Owner(OwnerKind.ADDRESS, f"2001:db8:{number:x}::/64"),
            "x" * 5000,
        )
    assert len(reported(caplog)) == LINES_MAX
    assert len(events._known) == KEYS_MAX
    clock.now = INTERVAL_S
    events.note(SecurityEvent.ACCESS_REFUSED, Severity.NOTICE, MIRA, "the token is for a link")
    (line,) = reported(caplog)
    assert line["left_out"] == 20_000 - LINES_MAX
