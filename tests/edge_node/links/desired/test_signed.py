"""An edge whose file names keys: what it takes of a hub, and what it refuses with which reason."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.edge_node.links.desired.edges import HUB, Edge
from tests.support.processes import weft
from weft.config.signing import Statement, make_key, message_of, sign, with_signature
from weft.edge_node.reconfigure import ConfigUnusable
from weft.protocols.link import ConfigDesired, ConfigLayer, ConfigOutcome, desired_of

CONFIRMED, REFUSED, TRIAL = ConfigOutcome.CONFIRMED, ConfigOutcome.REFUSED, ConfigOutcome.TRIAL
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


def wanted(*texts: str, names: tuple[str, ...] = (OWN,), version: int = 1) -> ConfigDesired:
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
    assert edge.outcome[0] is CONFIRMED, edge.trial.statement().reason


async def test_what_a_key_signed_is_taken_and_stays_over_a_start(tmp_path: Path) -> None:
    edge = trusting(tmp_path, "ops")
    texts = signed(streams("alarms"), 7, GROUP), signed(streams("energy"), 3)
    await confirmed(edge, wanted(*texts, names=(GROUP, OWN)))
    assert list(edge.config.streams) == ["telemetry", "alarms", "energy"]
    edge.start()
    assert list(edge.config.streams) == ["telemetry", "alarms", "energy"]
    assert edge.outcome[0] is CONFIRMED


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
    await confirmed(edge, wanted(signed(streams("energy"), 7)))
    before = edge.config
    for version, (text, reason) in enumerate(WRONG, 2):
        await edge.push(wanted(text, version=version))
        assert edge.outcome == (REFUSED, version, 1)
        assert reason in edge.trial.statement().reason
        assert edge.config == before
    edge.start()
    assert edge.config == before


async def test_an_edge_takes_no_layer_of_others_under_their_own_name(tmp_path: Path) -> None:
    """The hub says which groups an edge is in, and could say that it is another edge."""
    edge = trusting(tmp_path, "ops")
    await edge.push(wanted(signed(streams("alarms"), 8, "edge press-8"), names=("edge press-8",)))
    assert "for edge press-8, not for edge press-7" in edge.trial.statement().reason
    await edge.push(
        wanted(signed(streams("spy"), 8, "group ovens", edges=("oven-*",)), names=("group ovens",), version=2)
    )
    assert "for the edges oven-*" in edge.trial.statement().reason
    assert list(edge.config.streams) == ["telemetry"]


async def test_the_numbers_outlive_crashes_and_withdrawals(tmp_path: Path) -> None:
    edge = trusting(tmp_path, "ops")
    await confirmed(edge, wanted(signed(streams("alarms"), 5, GROUP), names=(GROUP,)))
    await confirmed(edge, wanted(signed("{}\n", 6, GROUP), names=(GROUP,), version=2))
    await confirmed(edge, wanted(signed(streams("energy"), 1), version=3))
    edge.start()  # a new process, with what the disk has
    await edge.push(
        wanted(signed(streams("alarms"), 5, GROUP), signed(streams("energy"), 1), names=(GROUP, OWN), version=4)
    )
    assert "group presses has the number 5, an earlier one again: the edge has had 6" in edge.trial.statement().reason


async def test_the_numbers_are_known_after_a_time_without_a_hub(tmp_path: Path) -> None:
    edge = trusting(tmp_path, "ops")
    await confirmed(edge, wanted(signed(streams("alarms"), 5)))
    text = edge.file.read_text()
    edge.file.write_text(text.replace("config_from_hub: allowed", "config_from_hub: never"))
    edge.start()
    edge.file.write_text(text)
    edge.overlay.read_again()
    await edge.push(wanted(signed(streams("energy"), 4), version=2))
    assert "an earlier one again: the edge has had 5" in edge.trial.statement().reason
    edge.start()
    await edge.push(wanted(signed(streams("energy"), 4), version=3))
    assert "an earlier one again: the edge has had 5" in edge.trial.statement().reason


async def test_a_number_counts_once_it_is_confirmed(tmp_path: Path) -> None:
    """What was taken back may be tried again, beside settings that were not touched."""
    edge = trusting(tmp_path, "ops")
    first = signed(streams("alarms"), 5)
    await confirmed(edge, wanted(first))
    bad = signed("links: {cloud: {to: 'https://other.example.com'}}\n", 6)
    await edge.push(wanted(bad, version=2))
    await edge.seconds(92)
    assert edge.outcome == (ConfigOutcome.ROLLED_BACK, 2, 1)
    both = wanted(signed(streams("energy"), 1, GROUP), first, names=(GROUP, OWN), version=3)
    await confirmed(edge, both)
    await edge.push(wanted(signed(streams("energy"), 1, GROUP), bad, names=(GROUP, OWN), version=4))
    assert edge.outcome[0] is TRIAL


async def test_a_hub_leaves_nothing_out_and_keeps_the_order(tmp_path: Path) -> None:
    edge = trusting(tmp_path, "ops")
    group, own = signed(streams("alarms"), 5, GROUP, order=2), signed(streams("energy"), 5)
    other = signed(streams("power"), 5, "group hall", order=1)
    await edge.push(wanted(group, other, names=(GROUP, "group hall")))
    assert (
        "in another order than they are signed for: group presses (2), group hall (1)" in edge.trial.statement().reason
    )
    await confirmed(edge, wanted(other, group, own, names=("group hall", GROUP, OWN), version=2))
    for rest, names in (((), ()), ((group, own), (GROUP, OWN)), ((other, group), ("group hall", GROUP))):
        await edge.push(wanted(*rest, names=names, version=3))
        assert edge.outcome[0] is REFUSED
        assert "is missing, and nothing that is signed withdraws its settings" in edge.trial.statement().reason
    assert sorted(edge.config.streams) == ["alarms", "energy", "power", "telemetry"]
    # An older word does not withdraw; a newer one does.
    old = signed(streams("energy"), 5, "group all", order=3, withdraws=(GROUP,))
    await edge.push(wanted(other, old, own, names=("group hall", "group all", OWN), version=4))
    assert "group presses is missing" in edge.trial.statement().reason
    leaving = signed(streams("energy"), 6, withdraws=(GROUP, "group hall"))
    await confirmed(edge, wanted(leaving, version=5))
    assert sorted(edge.config.streams) == ["energy", "telemetry"]


async def test_keys_are_rotated_without_a_restart(tmp_path: Path) -> None:
    edge = trusting(tmp_path, "ops")
    await confirmed(edge, wanted(signed(streams("alarms"), 1)))
    by_next = signed(streams("energy"), 2, key="next")
    await edge.push(wanted(by_next, version=2))
    assert edge.outcome == (REFUSED, 2, 1)
    trust(tmp_path, "ops", "next")
    edge.overlay.read_again()
    await confirmed(edge, wanted(by_next, version=3))
    trust(tmp_path, "next")
    edge.config = edge.overlay.read_again()
    assert list(edge.config.streams) == ["telemetry", "energy"]
    await edge.push(wanted(signed(streams("alarms"), 3), version=4))
    assert "which is none of config_signed_by" in edge.trial.statement().reason
    # A key can be replaced in its file as well, without a word to the node.
    (tmp_path / "next.pub").write_bytes(KEYS["thief"][1])
    await edge.push(wanted(signed(streams("alarms"), 3, key="thief"), version=5))
    assert edge.outcome[0] is TRIAL


async def test_a_key_is_not_withdrawn_from_under_settings_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edge = trusting(tmp_path, "ops")
    first = wanted(signed(streams("alarms"), 1))
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
    assert edge.outcome == (REFUSED, 1, 0), "the hub has to see that its settings are not in force"
    assert "does not fit the edge's file any more" in edge.trial.statement().reason
    await edge.push(wanted(streams("spy"), version=5))
    assert edge.outcome == (REFUSED, 5, 0)
    await confirmed(edge, wanted(signed(streams("energy"), 2, key="next"), version=2))
    assert list(edge.config.streams) == ["telemetry", "energy"]
    trust(tmp_path, "ops", "next")
    edge.start()
    assert edge.outcome == (CONFIRMED, 2, 2)


@pytest.mark.parametrize(
    "spoil", [Path.unlink, lambda path: path.write_text("no key"), lambda path: path.write_text("")]
)
async def test_a_file_without_a_key_is_named_and_the_others_count(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    edge = trusting(tmp_path, "ops", "next")
    spoil(tmp_path / "next.pub")
    assert "links.cloud.config_signed_by" in weft("edge", "check", edge.file).output
    await edge.push(wanted(signed(streams("alarms"), 1, key="next")))
    assert "next.pub: " in edge.trial.statement().reason
    await edge.push(wanted(signed(streams("alarms"), 1), version=2))
    assert edge.outcome[0] is TRIAL


async def test_signed_settings_are_ordinary_ones_for_an_edge_without_keys(tmp_path: Path) -> None:
    """So signed settings come first, and the edge's file names the keys after."""
    edge = trusting(tmp_path)
    await confirmed(edge, wanted(signed(streams("alarms"), 9)))
    trust(tmp_path, "ops")
    edge.config = edge.overlay.read_again()
    assert list(edge.config.streams) == ["telemetry", "alarms"]
    await edge.push(wanted(signed(streams("energy"), 8), version=2))
    assert "an earlier one again" in edge.trial.statement().reason


async def test_numbers_that_no_key_signed_are_not_remembered(tmp_path: Path) -> None:
    edge = trusting(tmp_path)
    await confirmed(edge, wanted(signed(streams("alarms"), 1 << 62, key="thief")))
    trust(tmp_path, "ops")
    edge.start()
    assert edge.outcome[0] is REFUSED
    await confirmed(edge, wanted(signed(streams("energy"), 2), version=2))
    assert list(edge.config.streams) == ["telemetry", "energy"]
