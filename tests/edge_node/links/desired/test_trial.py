"""The trial of a hub's configuration: no word of a hub cuts an edge off, and no kill leaves it without one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.edge_node.links.desired.edges import CLUSTER, HUB, Edge, Killed, wanted
from weft.edge_node.links.desired import NOTED_S, NOTHING, STARTS_MAX
from weft.protocols.link import ConfigDesired, ConfigLayer, ConfigOutcome

GOOD = "streams: {telemetry: {from: 'plant/+/telemetry'}, alarms: {from: 'alarms/#'}}"
WRONG_URL = "links: {cloud: {to: 'https://hub.exmaple.com'}}"
OTHER_HUB = "links: {cloud: {to: 'https://other.example.com'}}"
BIGGER = "disk: {budget: 2GiB}"
ROLLED_BACK, CONFIRMED, TRIAL, REFUSED = (
    ConfigOutcome.ROLLED_BACK,
    ConfigOutcome.CONFIRMED,
    ConfigOutcome.TRIAL,
    ConfigOutcome.REFUSED,
)


async def test_a_good_configuration_is_confirmed_after_a_minute_and_holds_over_a_restart(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    assert edge.outcome == (ConfigOutcome.NONE, 0, 0)
    await edge.push(wanted(GOOD))
    assert edge.outcome == (TRIAL, 7, 7)
    assert list(edge.config.streams) == ["telemetry", "alarms"]
    await edge.seconds(59)
    assert edge.outcome == (TRIAL, 7, 7)
    await edge.seconds(2)
    assert edge.outcome == (CONFIRMED, 7, 7)
    edge.start()
    assert edge.outcome == (CONFIRMED, 7, 7)
    assert list(edge.config.streams) == ["telemetry", "alarms"]
    await edge.push(NOTHING)
    await edge.seconds(61)
    assert edge.outcome == (ConfigOutcome.NONE, 0, 0)
    assert list(edge.config.streams) == ["telemetry"], "the file alone counts again"


@pytest.mark.parametrize("text", [WRONG_URL, OTHER_HUB])
async def test_a_configuration_that_cuts_the_edge_off_is_taken_back_and_told(tmp_path: Path, text: str) -> None:
    edge = Edge(tmp_path)
    edge.hubs["https://other.example.com"] = "f" * 32
    await edge.push(wanted(text))
    assert edge.outcome[0] is TRIAL
    await edge.second()
    assert not edge.is_up
    await edge.seconds(91)
    assert edge.is_up
    assert edge.outcome == (ROLLED_BACK, 7, 0)
    assert "the link was down on it for 90 s" in edge.said[-1].reason
    before = len(edge.said)
    await edge.push(wanted(text))
    assert edge.outcome == (ROLLED_BACK, 7, 0), "the same is not tried again"
    assert len(edge.said) == before + 1
    await edge.push(wanted(GOOD, 9))
    await edge.seconds(61)
    assert edge.outcome == (CONFIRMED, 9, 9)


async def test_a_link_that_comes_and_goes_confirms_nothing(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    await edge.push(wanted(GOOD))
    for _ in range(12):
        await edge.seconds(40)
        edge.hubs.clear()
        await edge.seconds(8)
        edge.hubs[HUB] = CLUSTER
    assert edge.outcome[0] is TRIAL
    await edge.seconds(59)
    assert edge.outcome == (ROLLED_BACK, 7, 0)
    assert "within 600 s" in edge.trial.statement().reason


async def test_the_confirmed_one_comes_back_and_not_the_file(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    await edge.push(wanted(GOOD))
    await edge.seconds(61)
    await edge.push(wanted(f"{GOOD}\n{WRONG_URL}", 8))
    await edge.seconds(30)
    await edge.push(wanted(f"{GOOD}\n{OTHER_HUB}", 9))  # as a hub that is reached by another link could say
    await edge.seconds(95)
    assert edge.outcome == (ROLLED_BACK, 9, 7)
    assert list(edge.config.streams) == ["telemetry", "alarms"]
    assert edge.is_up


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("streams: {telemetry: {from: 'plant/#'", "edge.yaml|the hub's configuration"),
        ("streams: {telemetry: {fro: 'plant/#'}}", "streams.telemetry.fro"),
        ("streams: {telemetry: {from: 'plant/#', retain: {size: 1PiB}}}", "streams.telemetry.retain.size"),
        ("links: null", "links.cloud"),
        ("links: {cloud: null}", "links.cloud.to"),
        ("[]", "expected settings"),
        ("", "expected settings"),
        (BIGGER, "needs a restart, for disk.budget, and the edge's file allows none"),
        ("data_dir: /tmp/other", "data_dir"),
        ("node: press-8", "node"),
        ("listeners: {mqtt: {bind: '*:1883'}}", "listeners"),
        ("auth: {users_file: users}", "auth"),
        ("links: {cloud: {token_file: /etc/shadow}}", "links.cloud.token_file"),
        ("links: {cloud: {config_from_hub: allowed_with_restart}}", "links.cloud.config_from_hub"),
        ("links: {cloud: {cluster: " + "0" * 32 + "}}", "links.cloud.cluster"),
        ("links: {x: {to: 'https://x.example.com', key: k}}", "links.x.key"),
        ("streams: {t: {from: 'a/#', functions: [{python: evil.py}]}}", "functions"),
        ("sources: {x: {mqtt: {url: 'mqtt://b', topics: '#', password_env: HOME}}}", "password_env"),
        ("a: &a {b: *a}", "more than"),
        ("\n".join(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 20))]), "more"),
    ],
)
async def test_what_is_wrong_or_not_the_hubs_is_refused_with_the_reason(tmp_path: Path, text: str, why: str) -> None:
    edge = Edge(tmp_path)
    before = edge.config
    await edge.push(wanted(text))
    assert edge.outcome == (REFUSED, 7, 0)
    assert any(each in edge.said[-1].reason for each in why.split("|")), edge.said[-1].reason
    assert edge.config == before
    edge.start()
    assert edge.config == before
    assert edge.outcome == (REFUSED, 7, 0)


async def test_a_digest_that_does_not_match_is_refused(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    await edge.push(ConfigDesired(7, "0123456789abcdef", [ConfigLayer("edge press-7", 7, GOOD)]))
    assert edge.outcome == (REFUSED, 7, 0)


async def test_a_full_disk_refuses_and_the_old_one_stays_on_disk_and_in_force(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    await edge.push(wanted(GOOD))
    await edge.seconds(61)
    edge.disk.is_full = True
    await edge.push(wanted(WRONG_URL, 8))
    assert edge.outcome == (REFUSED, 8, 7)
    assert "cannot be stored: [Errno 28]" in edge.said[-1].reason
    await edge.seconds(10)
    edge.start()
    assert edge.outcome == (CONFIRMED, 7, 7)
    assert edge.is_up


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_a_full_disk_refused_is_tried_again_when_it_has_room(tmp_path: Path, *, is_restarted: bool) -> None:
    edge = Edge(tmp_path)
    edge.disk.is_full = True
    await edge.push(wanted(GOOD))
    await edge.seconds(130)
    assert edge.outcome == (REFUSED, 7, 0)
    edge.disk.is_full = False
    if is_restarted:
        await edge.seconds(2)
        edge.start()
        await edge.push(wanted(GOOD))  # the hub sends what the edge has no word about
    await edge.seconds(55)
    assert edge.outcome == (TRIAL, 7, 7)
    await edge.seconds(61)
    assert edge.outcome == (CONFIRMED, 7, 7)
    assert list(edge.config.streams) == ["telemetry", "alarms"]


async def test_another_configuration_takes_the_place_of_one_that_a_full_disk_refused(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    edge.disk.is_full = True
    await edge.push(wanted(WRONG_URL))
    edge.disk.is_full = False
    await edge.push(wanted(GOOD, 8))
    await edge.seconds(70)
    assert edge.outcome == (CONFIRMED, 8, 8)


async def test_a_disk_that_fills_up_during_a_trial_brings_the_old_one_back(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    await edge.push(wanted(WRONG_URL))
    edge.disk.is_full = True
    await edge.seconds(92)
    assert edge.is_up
    assert edge.outcome == (ROLLED_BACK, 7, 0)
    edge.start()
    assert edge.is_up, "an uncounted start does not use a configuration on trial"
    edge.disk.is_full = False
    await edge.seconds(2)
    edge.start()
    assert edge.outcome == (ROLLED_BACK, 7, 0)


async def test_what_needs_a_restart_is_tried_with_one_and_taken_back_with_one(tmp_path: Path) -> None:
    edge = Edge(tmp_path, "allowed_with_restart")
    await edge.push(wanted(BIGGER))
    assert (edge.restarts, edge.outcome) == (1, (TRIAL, 7, 7))
    assert edge.config.disk.budget_bytes == 2 << 30
    await edge.seconds(61)
    assert edge.outcome == (CONFIRMED, 7, 7)
    await edge.push(wanted(f"disk: {{budget: 4GiB}}\n{WRONG_URL}", 8))
    await edge.seconds(95)
    assert (edge.restarts, edge.outcome) == (3, (ROLLED_BACK, 8, 7))
    assert edge.config.disk.budget_bytes == 2 << 30
    assert edge.is_up


async def test_a_node_that_ends_on_a_configuration_takes_it_back_after_some_starts(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    await edge.push(wanted(GOOD))
    for _ in range(STARTS_MAX - 1):
        edge.start()
        assert edge.outcome == (TRIAL, 7, 7)
    edge.start()
    assert edge.outcome == (ROLLED_BACK, 7, 0)
    assert list(edge.config.streams) == ["telemetry"]


async def test_a_node_that_ends_again_and_again_on_a_dead_link_comes_back_as_soon_as_one_that_runs(
    tmp_path: Path,
) -> None:
    edge, seconds = Edge(tmp_path), 1
    await edge.push(wanted(WRONG_URL))
    await edge.second()
    while not edge.is_up:
        await edge.second()
        seconds += 1
        if seconds % 85 == 0:
            edge.start()  # as a watchdog does that the dead link wakes
    assert seconds <= 90 + 2 * NOTED_S
    assert edge.outcome == (ROLLED_BACK, 7, 0)


async def test_a_link_that_came_back_has_its_whole_time_again_after_a_start(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    await edge.push(wanted(GOOD))
    await edge.seconds(5)
    for _ in range(2):
        edge.hubs = {}
        await edge.seconds(80)
        edge.hubs = {HUB: CLUSTER}
        await edge.seconds(5)
        edge.start()
    await edge.seconds(61)
    assert edge.outcome == (CONFIRMED, 7, 7)


async def test_the_file_turns_it_off_at_once_and_for_a_start(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    await edge.push(wanted(GOOD))
    edge.file.write_text(edge.file.read_text().replace("config_from_hub: allowed", "config_from_hub: never"))
    edge.config = edge.overlay.read_again()
    await edge.push(wanted(WRONG_URL, 8))
    await edge.seconds(200)
    assert list(edge.config.streams) == ["telemetry"]
    edge.start()
    assert list(edge.config.streams) == ["telemetry"]


async def test_a_file_that_changes_during_a_trial_counts_when_it_is_taken_back(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    await edge.push(wanted(WRONG_URL))
    edge.file.write_text(edge.file.read_text().replace("telemetry:", "measurements:"))
    edge.config = edge.overlay.read_again()
    assert list(edge.config.streams) == ["measurements"]
    await edge.seconds(95)
    assert list(edge.config.streams) == ["measurements"]
    assert edge.is_up


async def test_a_file_that_no_longer_fits_the_hubs_configuration_counts_alone(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    await edge.push(wanted("links: {cloud: {streams: [telemetry]}}"))
    await edge.seconds(61)
    edge.file.write_text(edge.file.read_text().replace("telemetry:", "measurements:"))
    assert list(edge.overlay.read_again().streams) == ["measurements"]
    edge.start()
    assert list(edge.config.streams) == ["measurements"]
    assert edge.is_up


async def test_a_damaged_file_of_the_hub_leaves_the_nodes_own(tmp_path: Path) -> None:
    edge = Edge(tmp_path)
    await edge.push(wanted(GOOD))
    await edge.seconds(61)
    stored = tmp_path / "data" / "config" / "hub.json"
    for damaged in (b"", b"{", stored.read_bytes().replace(b"alarms/#", b"plant/x/"), b"[" * 10_000, bytes(5 << 20)):
        stored.write_bytes(damaged)
        edge.start()
        assert list(edge.config.streams) == ["telemetry"]
        assert edge.is_up


TEXTS = {
    "good": (GOOD, True),
    "wrong": (WRONG_URL, False),
    "restart": (BIGGER, True),
    "both": (f"{BIGGER}\n{WRONG_URL}", False),
}


@pytest.mark.parametrize(
    ("names", "stride"),
    [(("wrong",), 3), pytest.param(tuple(TEXTS), 1, marks=pytest.mark.search(turns=3))],
    ids=["some", "all"],
)
async def test_killed_at_any_step_the_edge_has_the_old_or_the_new_one_and_ends_well(
    tmp_path: Path, names: tuple[str, ...], stride: int
) -> None:
    """The steps of applying, confirming and taking back, with and without a restart of the node."""
    kills = 0
    for name in names:
        text, is_good = TEXTS[name]
        at = 1 - stride
        while True:
            at += stride
            edge = Edge(tmp_path / f"{name}-{at}", "allowed_with_restart")
            old = edge.config
            edge.steps.count, edge.steps.kill_at = 0, at
            with contextlib.suppress(Killed):
                await edge.push(wanted(text))
                await edge.seconds(95)
                break
            kills += 1
            edge.steps.kill_at = -1
            edge.status.is_taken = False
            edge.start()
            new = edge.overlay.lay(wanted(text))
            assert edge.config in (old, new), f"killed {edge.steps.names[at - 1]}"
            await edge.push(wanted(text))
            await edge.seconds(200)
            assert edge.outcome == ((CONFIRMED, 7, 7) if is_good else (ROLLED_BACK, 7, 0)), edge.steps.names[at - 1]
            assert edge.config == (new if is_good else old)
            assert edge.is_up
        assert at > 6, name
    assert kills * stride > 8 * len(names)


async def _push_to_all(folder: Path, count: int) -> None:
    texts = [WRONG_URL, OTHER_HUB, "streams: {telemetry: {from: [", f"{BIGGER}\n{WRONG_URL}", GOOD]
    edges = [Edge(folder / str(n), "allowed_with_restart") for n in range(count)]
    for edge in edges:
        edge.hubs["https://other.example.com"] = "f" * 32
    for n, edge in enumerate(edges):
        edge.disk.is_full = n % len(texts) == len(texts) - 1
        await edge.push(wanted(texts[n % len(texts)]))
    down = 0
    for _ in range(180):
        for edge in edges:
            await edge.second()
        down = max(down, sum(not edge.is_up for edge in edges))
    assert down == 3 * count // 5, "the wrong ones were tried"
    assert [edge for edge in edges if not edge.is_up] == []
    assert {edge.outcome[0] for edge in edges} == {ROLLED_BACK, REFUSED}
    assert {edge.outcome[2] for edge in edges} == {0}


async def test_bad_configurations_for_some_edges_leave_all_connected_within_three_minutes(tmp_path: Path) -> None:
    await _push_to_all(tmp_path, 5)


@pytest.mark.search(turns=3)
@pytest.mark.timeout(900)
async def test_bad_configurations_for_a_thousand_edges_leave_all_connected_within_three_minutes(tmp_path: Path) -> None:
    await _push_to_all(tmp_path, 1000)


async def test_the_files_urls_are_left_once_others_are_confirmed_and_not_before(tmp_path: Path) -> None:
    """With them, a configuration on trial would look good whatever its own URLs are."""
    edge = Edge(tmp_path)
    edge.hubs["https://other.example.com"] = CLUSTER
    assert edge.trial.own_urls() == ()
    await edge.push(wanted(OTHER_HUB))
    assert (edge.outcome[0], edge.trial.own_urls()) == (TRIAL, ())
    await edge.seconds(61)
    assert (edge.outcome[0], edge.trial.own_urls()) == (CONFIRMED, (HUB,))
    edge.start()
    assert edge.trial.own_urls() == (HUB,)
