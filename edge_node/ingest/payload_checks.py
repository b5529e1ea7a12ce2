"""Checks of payloads as a part of the node: from the schemas of a configuration to the checks of its routes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from weft.config.log_lines.repeats import Repeats, left_out
from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.config.payload_schema.checked import CheckedSchema
from weft.edge_node.ingest.checks import Check, CheckFigures, StreamCheck
from weft.edge_node.ingest.routing import Routing
from weft.edge_node.part import Part, Undo
from weft.edge_node.streams import errors_stream
from weft.storage.segment_log import SegmentLog

logger = logging.getLogger(__name__)

_BECOMES = {
    "accept": "it is stored all the same (`on_misfit: accept`)",
    "dead_letter": "it is in {errors}, with the reason",
    "refuse": "it is refused, or in {errors} if its sender gets no answer",
}


class PayloadChecks(Part):
    """The checks of all streams with a schema. The code of checks is loaded once a node has some."""

    name = "payload checks"

    def __init__(self, config: EdgeConfig, log: SegmentLog, routing: Routing, clock: Callable[[], float]) -> None:
        """Begin to check.

        Args:
            clock: monotonic seconds.
        """
        self._log = log
        self._routing = routing
        self._clock = clock
        self._made: dict[str, tuple[CheckedSchema, Check]] = {}
        """Checks of the schemas in use: a change of other settings makes none of them again."""
        self._checks: dict[str, StreamCheck] = {}
        self._lines = Repeats()
        self._put(config)

    def _put(self, config: EdgeConfig) -> None:
        """Check payloads by the schemas of a configuration from now on. The figures of each stream go on."""
        schemas = {name: each.schema for name, each in config.streams.items() if each.schema is not None}
        if not schemas and not self._checks:
            return
        # Imported here: few nodes have a schema.
        from weft.storage.payloads.check import CHECKED_BYTES_MAX
        from weft.storage.payloads.formats import PAYLOAD_BYTES_MAX

        made = {name: self._check_of(name, schema) for name, schema in schemas.items()}
        unchecked = range(CHECKED_BYTES_MAX + 1, PAYLOAD_BYTES_MAX + 1)
        checks = {}
        for name, (_, check) in made.items():
            policy, number = config.streams[name].on_misfit, self._log.stream(name)
            errors = number if policy == "accept" else self._log.stream(errors_stream(name))
            figures = self._checks[name].figures if name in self._checks else CheckFigures()
            watch = partial(self._warn, name, policy, figures)
            checks[name] = StreamCheck(
                name, number, errors, policy, check, unchecked, figures, watch, fields=len(schemas[name].fields)
            )
        self._made, self._checks = made, checks
        self._routing.check_payloads({check.stream: check for check in checks.values()})

    def _check_of(self, name: str, schema: CheckedSchema) -> tuple[CheckedSchema, Check]:
        known = self._made.get(name)
        return known if known is not None and known[0] == schema else (schema, _Later(schema))

    def _warn(self, name: str, policy: str, figures: CheckFigures) -> None:
        """Write a line about a misfit, the first time and then seldom. It has no values: logs go far."""
        repeated = self._lines.say(name, self._clock())
        if repeated is not None:
            becomes = _BECOMES[policy].format(errors=errors_stream(name))
            logger.warning(
                "stream %s: a message does not fit the schema (%s): %s%s",
                name, figures.fields, becomes, left_out(repeated),
            )  # fmt: skip

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Check payloads by the schemas of ``now``."""
        self._put(now)
        return lambda: self._put(before)

    def facts(self) -> Mapping[str, Any]:
        """Return the section of the status."""
        return {"schemas": {name: _facts(check) for name, check in self._checks.items()}}

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the metrics."""
        for name, check in self._checks.items():
            figures = check.figures
            yield Sample("weft_edge_schema_checked_total", figures.checked, (name,))
            yield Sample("weft_edge_schema_unchecked_total", figures.unchecked, (name,))
            for outcome in ("accepted", "dead_lettered", "refused"):
                yield Sample("weft_edge_schema_misfits_total", getattr(figures, outcome), (name, outcome))


class _Later:
    """A check that is made when the first payload comes: 1,000 of them at once would be a long step."""

    def __init__(self, schema: CheckedSchema) -> None:
        self._schema = schema
        self._check: Check | None = None

    def __call__(self, payload: bytes) -> Sequence[tuple[str, str]]:
        if self._check is None:
            from weft.storage.payloads.check import PayloadCheck

            self._check = PayloadCheck(self._schema).misfits
        return self._check(payload)


def _facts(check: StreamCheck) -> dict[str, Any]:
    figures = check.figures
    return {
        "on_misfit": check.policy,
        "checked": figures.checked,
        "unchecked": figures.unchecked,
        "accepted": figures.accepted,
        "dead_lettered": figures.dead_lettered,
        "refused": figures.refused,
        "last_misfit": figures.fields,
    }
