"""Stateless functions, on messages that are not in the log yet (``raw: discard``).

Their results are appended in place of the message, and the message is acknowledged with them. A message without results
is acknowledged and never written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from weft.config.models import EdgeConfig
from weft.edge_node.functions.chain import Chain, Outputs
from weft.edge_node.functions.contract import NotReady, Row
from weft.edge_node.functions.definitions import Definition, definitions_before_log
from weft.edge_node.functions.runtime.counters import FunctionCounters
from weft.edge_node.functions.runtime.step import runs_of
from weft.edge_node.ingest.before_log import StreamRecords
from weft.edge_node.streams import errors_stream
from weft.protocols.batch import HeaderPairs
from weft.protocols.origin import OriginKind
from weft.storage.segment_log import SegmentLog

logger = logging.getLogger(__name__)


def functions_before_log(
    config: EdgeConfig, log: SegmentLog, known: Mapping[int, FunctionsBeforeLog]
) -> dict[int, FunctionsBeforeLog]:
    """Return the functions of streams with ``raw: discard``, by the number of the stream that they replace.

    Args:
        known: functions of earlier settings, whose figures continue.

    Raises:
        ValueError: a function cannot work with its settings.
        OSError: a file that a function needs cannot be used. Messages cannot wait for it, as none of them is stored.
    """
    found = {}
    for definition in definitions_before_log(config):
        number = log.stream(definition.inputs[0])
        try:
            made = FunctionsBeforeLog(definition, log)
        except NotReady as error:
            raise OSError(f"streams.{definition.name}: {error}") from None
        if number in known:
            made.counters = msgspec.structs.replace(known[number].counters, version=made.counters.version)
        found[number] = made
    return found


class FunctionsBeforeLog:
    """The functions of one stream. Event loop's thread only."""

    def __init__(self, definition: Definition, log: SegmentLog) -> None:
        """Create the functions, and read the files that they need, once.

        Raises:
            ValueError: a function cannot work with its settings.
            NotReady: a file cannot be used.
        """
        self.name = definition.name
        self._log = log
        self._chain: Chain = definition.make_chain()
        self._digest = definition.digest
        self._own = log.stream(definition.name)
        self._errors = log.stream(errors_stream(definition.name))
        self._others = {name: log.stream(name) for name in definition.others}
        self._chain.prepare_at_once()
        version = self._chain.version()
        self._version = self._digest.hex()[:8] + (f"-{version}" if version else "")
        self.counters = FunctionCounters(version=self._version)

    def runs(
        self, keys: list[bytes], payloads: list[bytes], headers: dict[int, HeaderPairs], now: int
    ) -> list[StreamRecords]:
        """Return what is to be stored of some messages, by stream. What fails goes to the stream of errors."""
        outputs = Outputs()
        try:
            self._chain.process_at_once(_rows(keys, payloads, headers, now), outputs)
        except Exception as error:
            # A fault of a function. The messages go to the stream of errors, since nothing else may have a copy of
            # them.
            logger.exception("the functions of %s failed", self.name)
            self.counters.failures += 1
            outputs = Outputs()
            way = self._chain.entry(outputs)
            for row in _rows(keys, payloads, headers, now):
                way.reject(row, f"the functions failed: {type(error).__name__}")
        origin = self._log.origin(OriginKind.FUNCTION, self.name, self._version, self._digest)
        # The rows' own times are not used: all rows have the time of the turn, as messages have.
        return [
            StreamRecords(run.stream, run.keys, run.payloads, run.headers, origin)
            for run in runs_of(outputs, self._own, self._errors, self._others, after=0, last={})
        ]

    def stored(self, payloads: list[bytes], runs: Sequence[StreamRecords]) -> None:
        """Count the appended rows."""
        counters = self.counters
        counters.rows_in += len(payloads)
        counters.bytes_in += sum(map(len, payloads))
        for run in runs:
            if run.stream == self._own:
                counters.rows_out += len(run.keys)
                counters.bytes_out += sum(map(len, run.payloads))
            elif run.stream == self._errors:
                counters.rows_rejected += len(run.keys)
            else:
                counters.rows_routed += len(run.keys)


def _rows(keys: list[bytes], payloads: list[bytes], headers: dict[int, HeaderPairs], now: int) -> list[Row]:
    rows = [Row(now, key, payload, {}, original=payload) for key, payload in zip(keys, payloads, strict=True)]
    for index, pairs in headers.items():
        rows[index].headers = pairs
    return rows
