"""The trial of a hub's configuration: no word of a hub cuts an edge off, and no kill leaves it without one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.edge_node.links.edges import CLUSTER, HUB, Edge, Killed, wanted
from tests.edge_node.links.edges import FILE as EDGES_FILE
from tests.support.processes import weft
from tests.support.slices import SLICE
from weft.cloud_hub.facts import edges as edge_configs
from weft.cloud_hub.facts.fact import CannotDeclare
from weft.config.errors import ConfigError
from weft.config.load import PUSHABLE, check_overlay, leaves
from weft.config.models import EdgeConfig
from weft.config.schema import settings
from weft.config.signing import Statement, make_key, message_of, sign, with_signature
from weft.edge_node.links.desired import NOTED_S, NOTHING, STARTS_MAX
from weft.edge_node.reconfigure import ConfigUnusable
from weft.protocols.link import ConfigDesired, ConfigLayer, ConfigOutcome, desired_of

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
    """A hundred of them but at night: no edge knows of another."""
    await _push_to_all(tmp_path, SLICE.amount(ci=100, night=1000))


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


# --- An edge whose file names keys: what it takes of a hub, and what it refuses with which reason


SIGNED_CONFIRMED, SIGNED_REFUSED, SIGNED_TRIAL = ConfigOutcome.CONFIRMED, ConfigOutcome.REFUSED, ConfigOutcome.TRIAL
FILE = """\
node: press-7
tenant: acme
data_dir: data
listeners: {{mqtt: null}}
http: null
streams: {{telemetry: {{from: "plant/#"}}}}
links: {{cloud: {{to: "{hub}", config_from_hub: allowed, config_signed_by: [{keys}]}}}}
"""
KEYS = {name: make_key() for name in ("ops", "next", "thief")}
GROUP, OWN = "group presses", "edge press-7"


def streams(name: str) -> str:
    return f"streams: {{{name}: {{from: '{name}/#'}}}}\n"


def signed(
    text: str,
    number: int,
    target: str = OWN,
    *,
    key: str = "ops",
    tenant: str = "acme",
    edges: tuple[str, ...] = (),
    order: int = 0,
    withdraws: tuple[str, ...] = (),
) -> str:
    statement = Statement(tenant, target, edges or ("press-*",), order, number, withdraws)
    return with_signature(text, statement, *sign(KEYS[key][0], message_of(text, statement)))


def signed_wanted(*texts: str, names: tuple[str, ...] = (OWN,), version: int = 1) -> ConfigDesired:
    return desired_of([ConfigLayer(name, version, text) for name, text in zip(names, texts, strict=True)])


def trusting(folder: Path, *keys: str) -> Edge:
    folder.mkdir(exist_ok=True)
    for name, (_, public, _) in KEYS.items():
        (folder / f"{name}.pub").write_bytes(public)
    trust(folder, *keys)
    return Edge(folder)


def trust(folder: Path, *keys: str) -> None:
    (folder / "edge.yaml").write_text(FILE.format(hub=HUB, keys=", ".join(f"{key}.pub" for key in keys)))


async def confirmed(edge: Edge, desired: ConfigDesired) -> None:
    await edge.push(desired)
    await edge.second()
    edge.now += 60
    await edge.second()
    assert edge.outcome[0] is SIGNED_CONFIRMED, edge.trial.statement().reason


async def test_what_a_key_signed_is_taken_and_stays_over_a_start(tmp_path: Path) -> None:
    edge = trusting(tmp_path, "ops")
    texts = signed(streams("alarms"), 7, GROUP), signed(streams("energy"), 3)
    await confirmed(edge, signed_wanted(*texts, names=(GROUP, OWN)))
    assert list(edge.config.streams) == ["telemetry", "alarms", "energy"]
    edge.start()
    assert list(edge.config.streams) == ["telemetry", "alarms", "energy"]
    assert edge.outcome[0] is SIGNED_CONFIRMED


WRONG = [
    (streams("alarms"), "edge press-7 has no signature"),
    (signed(streams("alarms"), 8, key="thief"), f"is signed by the key {KEYS['thief'][2]}, which is none of"),
    (signed(streams("alarms"), 8).replace(KEYS["ops"][2], "0" * 16), "signed by the key 0000"),
    (signed(streams("alarms"), 8, key="thief").replace(KEYS["thief"][2], KEYS["ops"][2]), "does not match"),
    (signed(streams("alarms"), 8).replace("alarms/#", "spy/#"), "it was changed after it was signed"),
    (signed(streams("alarms"), 7).replace("number: 7", "number: 9"), "it was changed after it was signed"),
    (signed(streams("alarms"), 8) + "disk: {}\n", "cannot be read"),
    (signed(streams("alarms"), 8, tenant="globex"), "for the tenant globex, not for acme"),
    (signed(streams("alarms"), 8, "edge press-8"), "for edge press-8, not for edge press-7"),
    (signed(streams("alarms"), 8, GROUP), "for group presses, not for edge press-7"),
    (signed(streams("alarms"), 8, edges=("oven-*",)), "for the edges oven-*"),
    (signed(streams("alarms"), 6), "has the number 6, an earlier one again: the edge has had 7"),
    (signed(streams("alarms"), 7), "has the number 7, which the edge has had with other settings"),
]
"""Settings that the edge must not take after number 7, and a part of the reason."""


async def test_anything_else_is_refused_with_the_reason(tmp_path: Path) -> None:
    edge = trusting(tmp_path, "ops")
    await confirmed(edge, signed_wanted(signed(streams("energy"), 7)))
    before = edge.config
    for version, (text, reason) in enumerate(WRONG, 2):
        await edge.push(signed_wanted(text, version=version))
        assert edge.outcome == (SIGNED_REFUSED, version, 1)
        assert reason in edge.trial.statement().reason
        assert edge.config == before
    edge.start()
    assert edge.config == before


async def test_an_edge_takes_no_layer_of_others_under_their_own_name(tmp_path: Path) -> None:
    """The hub says which groups an edge is in, and could say that it is another edge."""
    edge = trusting(tmp_path, "ops")
    await edge.push(signed_wanted(signed(streams("alarms"), 8, "edge press-8"), names=("edge press-8",)))
    assert "for edge press-8, not for edge press-7" in edge.trial.statement().reason
    await edge.push(
        signed_wanted(signed(streams("spy"), 8, "group ovens", edges=("oven-*",)), names=("group ovens",), version=2)
    )
    assert "for the edges oven-*" in edge.trial.statement().reason
    assert list(edge.config.streams) == ["telemetry"]


async def test_the_numbers_outlive_crashes_and_withdrawals(tmp_path: Path) -> None:
    edge = trusting(tmp_path, "ops")
    await confirmed(edge, signed_wanted(signed(streams("alarms"), 5, GROUP), names=(GROUP,)))
    await confirmed(edge, signed_wanted(signed("{}\n", 6, GROUP), names=(GROUP,), version=2))
    await confirmed(edge, signed_wanted(signed(streams("energy"), 1), version=3))
    edge.start()  # a new process, with what the disk has
    await edge.push(
        signed_wanted(signed(streams("alarms"), 5, GROUP), signed(streams("energy"), 1), names=(GROUP, OWN), version=4)
    )
    assert "group presses has the number 5, an earlier one again: the edge has had 6" in edge.trial.statement().reason


async def test_the_numbers_are_known_after_a_time_without_a_hub(tmp_path: Path) -> None:
    edge = trusting(tmp_path, "ops")
    await confirmed(edge, signed_wanted(signed(streams("alarms"), 5)))
    text = edge.file.read_text()
    edge.file.write_text(text.replace("config_from_hub: allowed", "config_from_hub: never"))
    edge.start()
    edge.file.write_text(text)
    edge.overlay.read_again()
    await edge.push(signed_wanted(signed(streams("energy"), 4), version=2))
    assert "an earlier one again: the edge has had 5" in edge.trial.statement().reason
    edge.start()
    await edge.push(signed_wanted(signed(streams("energy"), 4), version=3))
    assert "an earlier one again: the edge has had 5" in edge.trial.statement().reason


async def test_a_number_counts_once_it_is_confirmed(tmp_path: Path) -> None:
    """What was taken back may be tried again, beside settings that were not touched."""
    edge = trusting(tmp_path, "ops")
    first = signed(streams("alarms"), 5)
    await confirmed(edge, signed_wanted(first))
    bad = signed("links: {cloud: {to: 'https://other.example.com'}}\n", 6)
    await edge.push(signed_wanted(bad, version=2))
    await edge.seconds(92)
    assert edge.outcome == (ConfigOutcome.ROLLED_BACK, 2, 1)
    both = signed_wanted(signed(streams("energy"), 1, GROUP), first, names=(GROUP, OWN), version=3)
    await confirmed(edge, both)
    await edge.push(signed_wanted(signed(streams("energy"), 1, GROUP), bad, names=(GROUP, OWN), version=4))
    assert edge.outcome[0] is SIGNED_TRIAL


async def test_a_hub_leaves_nothing_out_and_keeps_the_order(tmp_path: Path) -> None:
    edge = trusting(tmp_path, "ops")
    group, own = signed(streams("alarms"), 5, GROUP, order=2), signed(streams("energy"), 5)
    other = signed(streams("power"), 5, "group hall", order=1)
    await edge.push(signed_wanted(group, other, names=(GROUP, "group hall")))
    assert (
        "in another order than they are signed for: group presses (2), group hall (1)" in edge.trial.statement().reason
    )
    await confirmed(edge, signed_wanted(other, group, own, names=("group hall", GROUP, OWN), version=2))
    for rest, names in (((), ()), ((group, own), (GROUP, OWN)), ((other, group), ("group hall", GROUP))):
        await edge.push(signed_wanted(*rest, names=names, version=3))
        assert edge.outcome[0] is SIGNED_REFUSED
        assert "is missing, and nothing that is signed withdraws its settings" in edge.trial.statement().reason
    assert sorted(edge.config.streams) == ["alarms", "energy", "power", "telemetry"]
    # An older word does not withdraw; a newer one does.
    old = signed(streams("energy"), 5, "group all", order=3, withdraws=(GROUP,))
    await edge.push(signed_wanted(other, old, own, names=("group hall", "group all", OWN), version=4))
    assert "group presses is missing" in edge.trial.statement().reason
    leaving = signed(streams("energy"), 6, withdraws=(GROUP, "group hall"))
    await confirmed(edge, signed_wanted(leaving, version=5))
    assert sorted(edge.config.streams) == ["energy", "telemetry"]


async def test_keys_are_rotated_without_a_restart(tmp_path: Path) -> None:
    edge = trusting(tmp_path, "ops")
    await confirmed(edge, signed_wanted(signed(streams("alarms"), 1)))
    by_next = signed(streams("energy"), 2, key="next")
    await edge.push(signed_wanted(by_next, version=2))
    assert edge.outcome == (SIGNED_REFUSED, 2, 1)
    trust(tmp_path, "ops", "next")
    edge.overlay.read_again()
    await confirmed(edge, signed_wanted(by_next, version=3))
    trust(tmp_path, "next")
    edge.config = edge.overlay.read_again()
    assert list(edge.config.streams) == ["telemetry", "energy"]
    await edge.push(signed_wanted(signed(streams("alarms"), 3), version=4))
    assert "which is none of config_signed_by" in edge.trial.statement().reason
    # A key can be replaced in its file as well, without a word to the node.
    (tmp_path / "next.pub").write_bytes(KEYS["thief"][1])
    await edge.push(signed_wanted(signed(streams("alarms"), 3, key="thief"), version=5))
    assert edge.outcome[0] is SIGNED_TRIAL


async def test_a_key_is_not_withdrawn_from_under_settings_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edge = trusting(tmp_path, "ops")
    first = signed_wanted(signed(streams("alarms"), 1))
    await confirmed(edge, first)
    trust(tmp_path, "next")
    with pytest.raises(ConfigUnusable, match="are not valid with this file: edge press-7 is signed by the key"):
        edge.overlay.read_again()
    assert list(edge.config.streams) == ["telemetry", "alarms"]
    with caplog.at_level(logging.ERROR):
        shown = weft("edge", "config", edge.file).output
    assert "the file alone" in shown
    assert "which is none of config_signed_by" in " ".join(shown.split())
    edge.start()  # the operator who restarts it decides that the file counts alone
    assert list(edge.config.streams) == ["telemetry"]
    assert edge.outcome == (SIGNED_REFUSED, 1, 0), "the hub has to see that its settings are not in force"
    assert "does not fit the edge's file any more" in edge.trial.statement().reason
    await edge.push(signed_wanted(streams("spy"), version=5))
    assert edge.outcome == (SIGNED_REFUSED, 5, 0)
    await confirmed(edge, signed_wanted(signed(streams("energy"), 2, key="next"), version=2))
    assert list(edge.config.streams) == ["telemetry", "energy"]
    trust(tmp_path, "ops", "next")
    edge.start()
    assert edge.outcome == (SIGNED_CONFIRMED, 2, 2)


@pytest.mark.parametrize(
    "spoil", [Path.unlink, lambda path: path.write_text("no key"), lambda path: path.write_text("")]
)
async def test_a_file_without_a_key_is_named_and_the_others_count(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    edge = trusting(tmp_path, "ops", "next")
    spoil(tmp_path / "next.pub")
    assert "links.cloud.config_signed_by" in weft("edge", "check", edge.file).output
    await edge.push(signed_wanted(signed(streams("alarms"), 1, key="next")))
    assert "next.pub: " in edge.trial.statement().reason
    await edge.push(signed_wanted(signed(streams("alarms"), 1), version=2))
    assert edge.outcome[0] is SIGNED_TRIAL


async def test_signed_settings_are_ordinary_ones_for_an_edge_without_keys(tmp_path: Path) -> None:
    """So signed settings come first, and the edge's file names the keys after."""
    edge = trusting(tmp_path)
    await confirmed(edge, signed_wanted(signed(streams("alarms"), 9)))
    trust(tmp_path, "ops")
    edge.config = edge.overlay.read_again()
    assert list(edge.config.streams) == ["telemetry", "alarms"]
    await edge.push(signed_wanted(signed(streams("energy"), 8), version=2))
    assert "an earlier one again" in edge.trial.statement().reason


async def test_numbers_that_no_key_signed_are_not_remembered(tmp_path: Path) -> None:
    edge = trusting(tmp_path)
    await confirmed(edge, signed_wanted(signed(streams("alarms"), 1 << 62, key="thief")))
    trust(tmp_path, "ops")
    edge.start()
    assert edge.outcome[0] is SIGNED_REFUSED
    await confirmed(edge, signed_wanted(signed(streams("energy"), 2), version=2))
    assert list(edge.config.streams) == ["telemetry", "energy"]


# --- What a hub may set on an edge: the same list at both ends, over all settings of the model


RIGHTS = tuple(
    f"links.<name>.{name}"
    for name in (
        "config_from_hub",
        "cluster",
        "down",
        "pull",
        "redirects",
        "proxy",
        "retry_m",
        "ping_interval",
        "silence",
    )
)
"""What a hub may do, whom a link shows credentials, and how soon a lost hub is found again."""
LOCAL = ("token", "password", "secret", "credential")


def overlay(path: str) -> str:
    """An overlay with one setting, named as the reference names it."""
    value: Any = "x"
    for name in reversed(path.replace("[]", ".[]").split(".")):
        value = [value] if name == "[]" else {"x" if name == "<name>" else name: value}
    return msgspec.json.encode(value).decode()


def local_settings() -> list[str]:
    found = []
    for each in settings(EdgeConfig):
        is_in_payloads = "motor.rpm" in each.expected
        names_file = "a path" in each.expected.split(" such")[0] or "or unix:/path" in each.expected
        names_file = names_file and not is_in_payloads
        last = each.path.rpartition(".")[2]
        is_own = each.path.split(".")[0] not in PUSHABLE
        rights = each.path.startswith(RIGHTS)
        if names_file or is_own or rights or any(word in last for word in LOCAL):
            found.append(each.path)
    return found


def test_every_file_credential_and_right_is_refused_by_the_command() -> None:
    paths = local_settings()
    assert len(paths) > 40
    for known in (
        "data_dir",
        "links.<name>.token_file",
        "sources.<name>.mqtt.password_env",
        "auth.users_file",
        "streams.<name>.functions[].redact.key_file",
        "listeners.<name>.tls.key",
    ):
        assert known in paths
    for path in paths:
        with pytest.raises(CannotDeclare, match="cannot be set by a hub"):
            edge_configs.set_config(("default", "edge", "press-7"), overlay(path))


async def test_every_one_of_them_is_refused_by_the_edge_itself(tmp_path: Path) -> None:
    """A hub that does not check, or an attacker in its place, gets no further."""
    edge = Edge(tmp_path, "allowed_with_restart")
    before = edge.config
    for version, path in enumerate(local_settings(), 1):
        await edge.push(wanted(overlay(path), version))
        assert edge.outcome == (ConfigOutcome.REFUSED, version, 0), path
        assert "cannot be set by a hub" in edge.said[-1].reason
    assert edge.config == before


async def test_the_short_form_of_a_file_is_refused_too(tmp_path: Path) -> None:
    """It is refused before it is read: a reason must not tell a hub what is in a file of the edge."""
    (tmp_path / "secret").write_text("s3cret: s3cret")
    text = f"streams: {{telemetry: {{schema: {tmp_path}/secret}}}}"
    with pytest.raises(CannotDeclare, match="cannot be set by a hub"):
        edge_configs.set_config(("default", "edge", "press-7"), text)
    edge = Edge(tmp_path, "allowed")
    await edge.push(wanted(text))
    assert edge.outcome[0] is ConfigOutcome.REFUSED
    assert "streams.telemetry.schema.file: cannot be set by a hub" in edge.said[-1].reason
    assert "s3cret" not in edge.said[-1].reason


async def test_a_hub_may_declare_the_schema_that_payloads_are_checked_against(tmp_path: Path) -> None:
    edge = Edge(tmp_path, "allowed")
    await edge.push(wanted("streams: {telemetry: {on_misfit: dead_letter, schema: {fields: {t: float}}}}"))
    assert edge.outcome[0] is ConfigOutcome.TRIAL
    assert edge.config.streams["telemetry"].schema is not None
    assert edge.config.streams["telemetry"].on_misfit == "dead_letter"
    other = Edge(tmp_path / "other", "allowed")
    await other.push(wanted("streams: {telemetry: {schema: {fields: {t: flote}}}}"))
    assert other.outcome == (ConfigOutcome.REFUSED, 7, 0)
    assert "expected a type such as float" in other.said[-1].reason


def test_all_other_settings_may_be_set() -> None:
    local = local_settings()
    others = [each.path for each in settings(EdgeConfig) if each.path not in local and each.expected != "section"]
    assert len(others) > 150
    for path in others:
        check_overlay(overlay(path))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("links: {cloud: {to: 'http://hub.example.com'}}", "expected URLs with https"),
        ("links: {other: {to: 'https://evil.example.com'}}", "shows its own credential"),
        ("sources: {old: {mqtt: {url: 'mqtt://evil.example.com'}}}", "shows a credential there"),
    ],
)
async def test_an_edge_shows_no_credential_at_an_address_of_the_hubs_choice(
    tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    (tmp_path / "secret").chmod(0o600)
    other = "other: {to: 'https://other.example.com', token_file: secret, streams: [telemetry]}"
    file = EDGES_FILE.format(hub=HUB, allowed="allowed, token_file: secret").replace("links: {", f"links: {{{other}, ")
    source = "{mqtt: {url: 'mqtt://127.0.0.1', topics: 'a/#', username: u, password_file: secret}}"
    (tmp_path / "edge.yaml").write_text(f"{file}sources: {{old: {source}}}\n")
    edge = Edge(tmp_path)
    await edge.push(wanted(text))
    assert edge.outcome[0] is ConfigOutcome.REFUSED
    assert why in edge.said[-1].reason


@pytest.mark.parametrize(
    ("source", "text", "is_refused"),
    [
        ("tcp://10.0.0.5", "{old: {modbus: {url: 'serial:///dev/ttyS7'}}}", True),
        ("serial:///dev/ttyS1", "{old: {modbus: {url: 'serial:///dev/ttyS7'}}}", True),
        ("serial:///dev/ttyS1", "{new: {modbus: {url: 'serial:///dev/ttyS1', devices: DEVICES}}}", True),
        ("serial:///dev/ttyS1", "{old: {modbus: {url: 'serial:///dev/ttyS1', retry_max: 5s}}}", False),
        ("serial:///dev/ttyS1", "{old: {modbus: {url: 'tcp://10.0.0.5'}}}", False),
    ],
)
async def test_a_hub_names_no_serial_port_that_the_file_does_not(
    tmp_path: Path, source: str, text: str, *, is_refused: bool
) -> None:
    devices = "{m: {registers: {a: {address: 1}}}}"
    old = f"{{modbus: {{url: '{source}', devices: {devices}}}}}"
    (tmp_path / "edge.yaml").write_text(f"{EDGES_FILE.format(hub=HUB, allowed='allowed')}sources: {{old: {old}}}\n")
    edge = Edge(tmp_path)
    await edge.push(wanted(f"sources: {text.replace('DEVICES', devices)}"))
    assert (edge.outcome[0] is ConfigOutcome.REFUSED) is is_refused, edge.said[-1].reason
    assert ("serial ports belong to the edge" in edge.said[-1].reason) is is_refused


def test_leaves_are_the_settings_that_an_overlay_has() -> None:
    text = "streams: {a: {from: ['x/#', y]}}\nlimits: {message: 2MiB}"
    assert list(leaves(text)) == [("streams.a.from", "[x/#, y]"), ("limits.message", "2MiB")]
    with pytest.raises(ConfigError):
        list(leaves("a: 1\na: 2"))
