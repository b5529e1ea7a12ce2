"""Messages that do not fit the stream that they are posted to: another topic than its ``from``, or broken JSON.

Stored, they would be rows with nulls that a reader finds weeks later. A stream refuses them unless it has `misfits:
take`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from weft.edge_node.servers.http.counters import HttpCounters
from weft.edge_node.servers.http.problem import Problem, quoted
from weft.edge_node.servers.http.writes.fields import NO_JSON

log = logging.getLogger(__name__)

PATTERNS_SHOWN = 5
_VALUE = msgspec.json.Decoder(msgspec.Raw)


class MisfitRule(NamedTuple):
    """Rule for the messages of a stream."""

    name: str
    patterns: tuple[str, ...]
    is_json: bool
    takes: bool
    """True if the stream accepts misfits."""


class Misfits:
    """Refusal or count of misfits. Belongs to the event loop's thread."""

    def __init__(self, counters: HttpCounters) -> None:
        """Start without rules."""
        self._counters = counters
        self._rules: Mapping[int, MisfitRule] = {}
        self._told: set[str] = set()
        self.knows_json = False
        """True if any stream requires JSON."""

    def use(self, rules: Mapping[int, MisfitRule]) -> None:
        """Apply these rules: number of a stream in the log -> its rule."""
        self._rules = rules
        self.knows_json = any(rule.is_json for rule in rules.values())

    def refuse_topic(self, stream: int, topic: str, *, is_named: bool) -> None:
        """Refuse a message whose topic the stream's patterns do not match.

        Args:
            is_named: False if the request names no topic, and gets the stream's default.

        Raises:
            Problem: the stream refuses misfits.
        """
        rule = self._rules.get(stream)
        if rule is None:  # a reload has removed the stream's topics since the request began
            raise Problem(409, "the stream takes no topics any more; nothing was stored")
        if rule.takes:
            return
        more = len(rule.patterns) - PATTERNS_SHOWN
        shown = ", ".join(rule.patterns[:PATTERNS_SHOWN]) + (f" and {more} more" if more > 0 else "")
        if is_named:
            problem = Problem(
                422, f"the stream {rule.name} takes topics that match {shown}, and {quoted(topic)} does not; correct "
                "the topic, or add it to the stream's `from`",
            )  # fmt: skip
        else:
            problem = Problem(
                400, f"the request names no topic; send one that matches {shown} in the path or as Weft-Key"
            )
        self._refused(rule, problem)

    def look(self, streams: Iterable[int], payload: bytes) -> None:
        """Refuse, or count, a payload that is not JSON for a stream that requires it.

        Raises:
            Problem: it is not JSON, and a stream refuses misfits.
        """
        rules = [rule for rule in map(self._rules.get, streams) if rule is not None and rule.is_json]
        if not rules:
            return
        try:
            payload.decode()  # in C; a decoder that only skips values does not check text
            _VALUE.decode(payload)
        except NO_JSON as error:
            for rule in rules:
                if not rule.takes:
                    self._refused(rule, Problem(400, f"the payload is no JSON: {error}; the stream {rule.name} has "
                                                "`payload: json`. Nothing was stored, correct it"))  # fmt: skip
            self._counters.http_misfits_taken += 1

    def took(self, count: int) -> None:
        """Count accepted messages whose topic does not match."""
        self._counters.http_misfits_taken += count

    def _refused(self, rule: MisfitRule, problem: Problem) -> None:
        self._counters.http_misfits_refused += 1
        if rule.name not in self._told:
            self._told.add(rule.name)
            log.warning(
                "refused a request that posts to the stream %s: %s. Further ones are counted in `weft edge status`; "
                "`misfits: take` takes them", rule.name, problem,
            )  # fmt: skip
        raise problem
