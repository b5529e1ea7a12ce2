"""When a sender tells of its disk and functions: with messages that go anyway, seldom, and only what people would want
to know."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from weft.protocols.link import FEATURES, REPORT, Frame, FunctionReport, NodeReport, Ping, Welcome
from weft.replication.flow_control import COUNTS_INTERVAL, INTERVAL, LatestReport, ReportRide
from weft.replication.liveness import SECOND

HOT = FunctionReport("hot", "where", 1000, 10, 0, "")
WELL = NodeReport(500 << 20, 1 << 30, 500 << 20, 2000, 86_400, [HOT], 0)
MESSAGE: list[Frame] = [Ping(1)]


@dataclass
class Connection:
    """A connection whose owner changes what it tells of itself."""

    latest: LatestReport
    ride: ReportRide
    now: int = 0

    def sends(self, report: NodeReport, after: int = 0, message: list[Frame] = MESSAGE) -> list[Frame]:
        """Let time pass, and send a message; return what goes with it."""
        self.now += after
        self.latest.report = report
        return self.ride.rides(message, self.now)


def connection(features: tuple[str, ...] = FEATURES) -> Connection:
    latest = LatestReport()
    made = Connection(latest, ReportRide(latest, 0))
    made.ride.welcome(Welcome(1, "c", 1, 1, 0, "weft", list(features)))
    return made


def test_a_report_goes_with_a_message_and_makes_none() -> None:
    link = connection()
    assert link.sends(WELL, message=[]) == []
    assert link.sends(WELL) == [WELL]
    assert link.sends(WELL, 86_400 * SECOND) == [], "an idle node has nothing to say"


def test_a_hub_of_an_earlier_release_gets_none_and_a_node_without_one_sends_none() -> None:
    assert connection(tuple(each for each in FEATURES if each != REPORT)).sends(WELL) == []
    assert connection().ride.rides(MESSAGE, 0) == []


CHANGED = {
    "a fiftieth of the budget was filled": {"used_bytes": WELL.used_bytes + (22 << 20)},
    "space was freed": {"free_bytes": WELL.free_bytes + (22 << 20)},
    "another budget": {"budget_bytes": 2 << 30},
    "an outage may last half as long": {"outage_seconds": 43_200},
    "the log is full": {"outage_seconds": 0},
    "nothing comes in": {"outage_seconds": None, "bytes_per_second": 0},
    "a function has an error": {"functions": [msgspec.structs.replace(HOT, errors=1)]},
    "a function has stopped": {"functions": [msgspec.structs.replace(HOT, last_error="no file")]},
    "a function has gone": {"functions": []},
}


@pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED)
def test_what_changed_is_told_once_in_half_a_minute(changed: dict[str, object]) -> None:
    link, other = connection(), msgspec.structs.replace(WELL, **changed)
    assert link.sends(WELL) == [WELL]
    assert link.sends(other, INTERVAL - 1) == []
    assert link.sends(other, 1) == [other]
    assert link.sends(other, COUNTS_INTERVAL) == []


@pytest.mark.parametrize("same", [{"used_bytes": WELL.used_bytes + (20 << 20)}, {"outage_seconds": 100_000}])
def test_what_changed_a_little_is_not_told(same: dict[str, object]) -> None:
    link = connection()
    assert link.sends(WELL) == [WELL]
    assert link.sends(msgspec.structs.replace(WELL, **same), 10 * INTERVAL) == []


def test_small_changes_are_told_once_they_add_up() -> None:
    link = connection()
    reported = sum(
        len(link.sends(msgspec.structs.replace(WELL, used_bytes=n << 20), INTERVAL)) for n in range(500, 1000, 5)
    )
    assert 15 <= reported <= 25, "a half of the budget was filled"


def test_rows_of_functions_are_told_every_five_minutes_while_some_come() -> None:
    link = connection()
    assert link.sends(WELL) == [WELL]
    more = msgspec.structs.replace(WELL, functions=[msgspec.structs.replace(HOT, rows_in=1001)])
    assert link.sends(more, COUNTS_INTERVAL - 1) == []
    assert link.sends(more, 1) == [more]
    assert link.sends(more, COUNTS_INTERVAL) == []


def test_a_long_outage_is_no_news_however_much_longer_it_becomes() -> None:
    link, month = connection(), 30 * 86_400
    long = msgspec.structs.replace(WELL, outage_seconds=month)
    assert link.sends(long) == [long]
    assert link.sends(msgspec.structs.replace(WELL, outage_seconds=100 * month), INTERVAL) == []
