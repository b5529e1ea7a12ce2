"""One share for all totals, and one default for each bound, whether a configuration or a test makes the part."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weft.cloud_hub.settings import HubSettings
from weft.commands.hub_settings import settings_of
from weft.config.errors import ConfigError
from weft.config.load import parse
from weft.config.models import EdgeConfig, HubConfig
from weft.config.sources import AmqpSource, MqttSource
from weft.edge_node.derived.steps import ROW_BYTES_MAX
from weft.edge_node.queues.limits import QueueLimits
from weft.edge_node.servers.amqp.client import AmqpSettings
from weft.edge_node.servers.clients.context import ClientSettings
from weft.edge_node.servers.http.settings import HttpSettings
from weft.edge_node.servers.listeners.settings import admission_limits
from weft.edge_node.servers.mqtt.server import MqttSettings
from weft.edge_node.sessions.records import StateSettings
from weft.network.admission import AdmissionLimits

EDGE = "node: n\ndata_dir: data\n"
OF_THE_MACHINE = {"cores", "hosts", "commit_interval_min_s", "snapshot_chunks"}
"""Settings of a hub that follow from its cores, its address and its store."""


def edge(text: str = "") -> EdgeConfig:
    return parse(EDGE + text, "edge.yaml", EdgeConfig).config


def test_a_user_has_a_quarter_of_each_total_unless_the_file_says_another_share() -> None:
    assert edge().limits.user_share == 0.25
    assert edge("limits: {user_share: 12.5%}").limits.user_share == 0.125
    assert edge("limits: {user_share: 100 %}").limits.user_share == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("25", "Write the unit: 25%"),
        ("0.25", "expected a share such as 25%"),
        ("a quarter", "expected a share such as 25%"),
        ("0%", "expected at least 1%, got 0%"),
        ("101%", "expected a share of at most 100%"),
    ],
)
def test_what_is_not_a_share_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        edge(f"limits: {{user_share: {text}}}")


def test_a_hub_with_default_settings_takes_what_an_edge_with_default_settings_stores() -> None:
    taken = parse("store: s\n", "hub.yaml", HubConfig).config.limits.record_bytes
    sizes = [
        each.default
        for source in (AmqpSource, MqttSource)
        for each in msgspec.structs.fields(source)
        if each.name in {"message_bytes_max", "packet_bytes_max"}
    ]
    assert len(sizes) == 2
    assert taken >= 2 * max(edge().limits.message_bytes, *sizes), "with key and headers of the node's own"
    assert taken > ROW_BYTES_MAX, "of functions"


@pytest.mark.parametrize(
    ("of_config", "by_itself"),
    [
        (StateSettings.of(edge(), frozenset()), StateSettings()),
        (QueueLimits.of(edge()), QueueLimits()),
        (HttpSettings.of(edge(), "weft"), HttpSettings()),
        (AmqpSettings.of(edge(), "weft"), AmqpSettings()),
        (MqttSettings.of(edge(), "weft"), MqttSettings()),
        (ClientSettings.of(edge()), ClientSettings(patterns={})),
        (admission_limits(edge()), AdmissionLimits()),
    ],
)
def test_a_part_without_a_configuration_has_the_defaults_of_one(of_config: object, by_itself: object) -> None:
    assert by_itself == of_config


def test_a_hub_without_a_configuration_has_the_defaults_of_one(tmp_path: Path) -> None:
    config = parse(f"store: {tmp_path}\n", "hub.yaml", HubConfig).config
    assert set(_different(settings_of(config), HubSettings(str(tmp_path)))) <= OF_THE_MACHINE


def _different(one: Any, other: Any) -> list[str]:
    found = []
    for field in dataclasses.fields(one):
        first, second = getattr(one, field.name), getattr(other, field.name)
        if dataclasses.is_dataclass(first) and type(first) is type(second):
            found += _different(first, second)
        elif first != second:
            found.append(field.name)
    return found
