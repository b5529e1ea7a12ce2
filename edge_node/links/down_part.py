"""Messages from hubs as a part of the node. A node whose links take none has no streams for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.edge_node.check.streams import down_policy, takes_messages
from weft.edge_node.part import Part, Undo
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.streams import DOWN_STATE_STREAM, DOWN_STREAM
from weft.replication.runner.settings import MessageTaker

if TYPE_CHECKING:
    from weft.edge_node.links.down import DownMemory, LinkTaker


OUTCOMES = ("published", "expired", "refused")


class DownPart(Part):
    """The takers of the node's links."""

    name = "down"

    def __init__(self, config: EdgeConfig, context: ProtocolContext) -> None:
        """Recover what became of earlier messages.

        Raises:
            OSError, LogError: the log cannot be read.
            UnsupportedVersion: a later release wrote it.
        """
        self._config, self._context = config, context
        self._takers: dict[str, LinkTaker] = {}
        """Link -> its taker; also those of links that no longer take messages, for the counters."""
        self._memory: DownMemory | None = None
        if takes_messages(config) or DOWN_STATE_STREAM in context.log.streams():
            self._open(config)

    def _open(self, config: EdgeConfig) -> DownMemory:
        log = self._context.log
        log.set_policy(log.stream(DOWN_STREAM), down_policy(config))
        if self._memory is None:
            from weft.edge_node.links.down import DownMemory

            self._memory = DownMemory(log, log.stream(DOWN_STATE_STREAM), self._context.wall_clock)
        return self._memory

    def taker(self, link: str) -> MessageTaker | None:
        """Return the taker of a link; None if the link takes no messages."""
        down = self._config.links[link].down
        if down is None:
            return None
        taker = self._takers.get(link)
        if taker is None:
            from weft.edge_node.links.down import LinkTaker

            context = self._context
            taker = self._takers[link] = LinkTaker(
                down,
                self._open(self._config),
                context.ingest,
                context.log.stream(DOWN_STREAM),
                clock=context.clock,
                wall_clock=context.wall_clock,
                call_later=context.call_later,
                payload_bytes_max=self._config.limits.message_bytes,
            )
        taker.down = down
        return taker

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Take messages for the topics of ``now``. Its links are started after this."""
        self._use(now)
        return lambda: self._use(before)

    def _use(self, config: EdgeConfig) -> None:
        self._config = config
        if takes_messages(config):
            self._open(config)

    def facts(self) -> Mapping[str, Any]:
        """Return the section of the status."""
        return {
            "down": {
                link: {
                    **{outcome: taker.counted(outcome) for outcome in OUTCOMES},
                    "waiting": taker.waiting,
                    "trouble": taker.trouble or None,
                }
                for link, taker in self._takers.items()
            }
        }

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the metrics."""
        for link, taker in self._takers.items():
            for outcome in OUTCOMES:
                yield Sample("weft_edge_down_messages_total", taker.counted(outcome), (link, outcome))
            yield Sample("weft_edge_down_waiting", taker.waiting, (link,))
