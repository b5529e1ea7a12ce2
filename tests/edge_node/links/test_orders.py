"""Policies of links from the configuration, and what of their orders outlives the process."""

from __future__ import annotations

import logging
from datetime import time
from pathlib import Path

import pytest

from weft.config.errors import ConfigError
from weft.config.links import Link
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.links.links import Orders, rules_of, without_policy
from weft.replication.liveness import SECOND
from weft.replication.policy import DayWindow, Order
from weft.storage.filesystem import OSFileSystem

TEXT = """\
node: press-7
data_dir: data
streams: {{telemetry: {{from: "plant/#"}}}}
links: {{cloud: {{to: "http://127.0.0.1:9", {0}}}}}
"""


def link(settings: str) -> Link:
    return parse(TEXT.format(settings), "edge.yaml", EdgeConfig, check).config.links["cloud"]


def test_a_link_s_settings_become_its_rules() -> None:
    found = link(
        'order: fresh_first, history_share: 0.5, rate: 64KiB/s, every: 10s, priorities: {"bulk*": 2}, budget: 500MB, '
        'schedule: [{streams: ["bulk*"], between: "22:00-24:00", days: [sat], zone: Europe/Berlin}]'
    )
    rules = rules_of(found)
    assert (rules.order, rules.history_share, rules.rate, rules.every) == (Order.FRESH_FIRST, 0.5, 65_536, 10 * SECOND)
    assert (rules.priority("bulk-a"), rules.priority("other")) == (2, 10)
    assert rules.budget is not None
    assert (rules.budget.size, rules.budget.day) == (500_000_000, 1)
    windows = rules.windows("bulk-a")
    assert windows is not None
    assert windows.windows == (DayWindow(time(22), time(0)),)
    assert (windows.days, str(windows.zone)) == (frozenset({5}), "Europe/Berlin")
    assert rules.windows("other") is None
    assert without_policy(found) == link("window: 8MiB")
    assert without_policy(found) != without_policy(link("window: 1MiB"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("rate: 64KiB", "expected a rate such as 64KiB/s"),
        ("rate: fast", "expected a rate such as 64KiB/s"),
        ("priorities: {a: 0}", "priorities.a"),
        ("history_share: 0.95", "history_share"),
        ('schedule: [{streams: [a], between: "25:00-26:00"}]', "expected a window such as 01:00-05:00"),
        ('schedule: [{streams: [a], between: "01:00-05:00", zone: Mars/Base}]', "expected a time zone"),
        ('schedule: [{streams: [a], between: "01:00-05:00", zone: ../../etc/passwd}]', "expected a time zone"),
        ("budget: 100B", "budget"),
        ("budget: {size: 5MB, day: 31}", "budget.day"),
        ('proxy: "http://user:secret@proxy:3128"', "proxy"),
    ],
)
def test_a_setting_that_cannot_be_is_told(settings: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        link(settings)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_pauses_and_counts_outlive_the_process_and_a_damaged_file_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "links" / "orders"

    def orders() -> Orders:
        return Orders(OSFileSystem(), str(path), lambda: 1_796_083_140 * SECOND)

    control = orders().control("cloud", link("budget: 5MB"))
    await control.look(0)
    control.policy.count.add(700)
    await control.pause(True)
    again = orders()
    control = again.control("cloud", link("budget: 5MB"))
    assert control is again.control("cloud", link("budget: 6MB"))
    await control.look(0)
    assert (control.policy.is_paused, control.policy.count.used) == (True, 700)
    assert not again.control("other", link("budget: 5MB")).policy.is_paused
    for damage in (b"", b"[]", b'{"cloud": {"paused": 7}}', b"x" * (2 << 20), b'{"\xff": {}}', b"[" * 9999):
        caplog.clear()
        path.write_bytes(damage)
        with caplog.at_level(logging.ERROR):
            assert not orders().control("cloud", link("budget: 5MB")).policy.is_paused
        assert "no link is paused now, and budgets count from 0" in caplog.text


async def test_the_count_of_each_month_is_saved_from_its_first_bytes_on(tmp_path: Path) -> None:
    """Also where the month before had many."""
    path, wall = str(tmp_path / "links" / "orders"), [1_796_083_140 * SECOND]
    control = Orders(OSFileSystem(), path, lambda: wall[0]).control("cloud", link("budget: 5MB"))
    await control.look(0)
    control.policy.count.add(4_000_000)
    await control.look(0)
    wall[0] += 32 * 86_400 * SECOND
    await control.look(0)
    control.policy.count.add(3_000_000)
    await control.look(0)
    again = Orders(OSFileSystem(), path, lambda: wall[0]).control("cloud", link("budget: 5MB"))
    await again.look(0)
    assert again.policy.count.used == 3_000_000
