"""Settings of Sparkplug B: the function that understands it, and the node as a host application."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from weft.config.functions.settings import FunctionSettings
from weft.config.values import Count, Duration, Section


class Sparkplug(FunctionSettings, frozen=True, kw_only=True):
    """Metrics of Sparkplug B with their names, datatypes and quality. It is the first function of its stream."""

    rows: Annotated[
        Literal["metric", "message"],
        Meta(
            description="`metric` makes a record of each metric: its name, value, time, datatype, quality. `message` "
            "makes one of each message, with the metrics as fields by their names."
        ),
    ] = "metric"
    rebirth: Annotated[
        bool,
        Meta(
            description="Whether edge nodes are asked for their births (`Node Control/Rebirth`). The node asks when a "
            "sequence number is missing, an alias is unknown, or data arrive before a birth."
        ),
    ] = True
    reorder_s: Annotated[
        Annotated[Duration, Meta(ge=0, le=3600)],
        Meta(
            description="Time to wait for a missing message before its edge node is asked for a birth, rounded up to "
            "whole seconds."
        ),
    ] = field(default=5.0, name="reorder")
    rebirth_every_s: Annotated[
        Annotated[Duration, Meta(ge=1)],
        Meta(
            description="Shortest time between two such requests to an edge node. A request that is older than this "
            "when it could be sent is dropped."
        ),
    ] = field(default=60.0, name="rebirth_every")
    certificates: Annotated[
        bool,
        Meta(
            description="`true` keeps each birth as a retained message below `$sparkplug/certificates/`, as a "
            "Sparkplug-aware MQTT server does."
        ),
    ] = False
    sources_max: Annotated[
        Count,
        Meta(
            description="Maximum number of edge nodes and devices whose births are remembered. Further births go to "
            "the stream of errors."
        ),
    ] = 1_000
    metrics_max: Annotated[
        Count,
        Meta(
            description="Maximum number of their metrics, which bounds the memory: each takes some 200 bytes and its "
            "name. An edge node with its devices has at most 20,000."
        ),
    ] = 100_000

    @property
    def reads(self) -> Literal["sparkplug"]:
        """Return the payload format that it reads itself."""
        return "sparkplug"

    @property
    def new_patterns(self) -> tuple[str, ...]:
        """Return the patterns of its rows' keys. The device is empty for the edge node's own metrics."""
        return ("{group}/{node}/{device}/#",) if self.rows == "metric" else ("{group}/{node}/{device}",)


class SparkplugHost(Section, frozen=True, kw_only=True):
    """The node as a host application of Sparkplug B."""

    host_id: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=128,
            pattern=r"^[^/+#\x00]+$",
            examples=["plant-historian"],
            description="Name under which the node reports that it is online, in the retained message "
            "`spBv1.0/STATE/{host_id}`. Edge nodes with this primary host send their data only while it is.",
        ),
    ]
