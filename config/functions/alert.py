"""Settings of the function that publishes alerts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from weft.config.functions.fields import Fields
from weft.config.functions.settings import FunctionSettings
from weft.config.values import Count, Duration, Expression

Template = Annotated[str, Meta(min_length=1, max_length=4096)]


class Alert(FunctionSettings, frozen=True, kw_only=True):
    """A message to a local MQTT topic when a condition becomes true. The records pass unchanged."""

    when: Annotated[Expression, Meta(description="Condition that begins an alert.")]
    until: Annotated[
        Expression | None,
        Meta(
            description="Condition that ends an alert, such as `temperature < 70` for an alert at 80. Unset: an alert "
            "ends with the first record for which `when` is false."
        ),
    ] = None
    topic: Annotated[
        Template,
        Meta(
            description="Topic of the message. `{key}`, names of topic levels and of fields in braces are replaced, as "
            'in `"alerts/{line}/{machine}"`.'
        ),
    ]
    payload: Annotated[
        Fields | Template | None,
        Meta(
            description="Payload: a mapping of names to expressions, sent as JSON, or a text with names in braces. "
            "Unset: JSON with `key`, `time` and `values`, the record's fields."
        ),
    ] = None
    cleared: Annotated[
        Fields | Template | None,
        Meta(description="Payload of a message for the end of an alert. Unset: none is sent."),
    ] = None
    every_s: Annotated[
        Annotated[Duration, Meta(ge=1)] | None,
        Meta(description="Time after which the message is sent again while the alert goes on. Unset: it is not."),
    ] = field(default=None, name="every")
    qos: Annotated[int, Meta(ge=0, le=2, description="QoS of the message.")] = 1
    retain: Annotated[
        bool, Meta(description="`true` keeps the message for clients that subscribe later. Set `cleared` as well.")
    ] = False
    keys: Annotated[
        Count,
        Meta(
            description="Most keys in alert at a time. Beyond them the oldest alert is forgotten, and may be sent "
            "again."
        ),
    ] = 10_000

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topic, with names in braces."""
        return (self.topic,)
