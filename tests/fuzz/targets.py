"""All fuzz targets, by the name of their folder in ``tests/fuzz/corpus``."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz import (
    amqp1_targets,
    amqp_targets,
    edge_targets,
    expression_targets,
    fabric_targets,
    http_targets,
    payload_targets,
    settings_targets,
    source_targets,
)
from tests.fuzz.target import Target

TARGETS: Mapping[str, Target] = {
    **amqp1_targets.TARGETS,
    **amqp_targets.TARGETS,
    **edge_targets.TARGETS,
    **expression_targets.TARGETS,
    **fabric_targets.TARGETS,
    **http_targets.TARGETS,
    **payload_targets.TARGETS,
    **settings_targets.TARGETS,
    **source_targets.TARGETS,
}
