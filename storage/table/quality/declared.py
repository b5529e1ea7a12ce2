"""Quality rules as the cluster log declares them: their documents, and the state of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from weft.config.payload_schema.quality import QualityRules, check_rules
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.cluster_log.state import ClusterState

QUALITY = "quality"
"""Kind of the facts; the name of a fact is TENANT/STREAM."""


class UnreadableRules(ValueError):
    """A document that this release cannot read."""


class QualityDocument(msgspec.Struct, frozen=True):
    """Quality rules of a stream."""

    quality: msgspec.Raw
    """The settings of ``config.payload_schema.quality``."""


class StreamQuality(NamedTuple):
    """The quality rules of a stream."""

    version: int
    """Number of the entry of the cluster log that declared them."""
    rules: QualityRules


def encode(rules: QualityRules) -> bytes:
    """Return the document of rules."""
    return msgspec.json.encode(QualityDocument(msgspec.Raw(msgspec.json.encode(rules))))


def decode(document: bytes, version: int) -> StreamQuality:
    """Decode a document.

    Raises:
        UnreadableRules: it has no rules, or some that this release does not know.
    """
    try:
        found = msgspec.json.decode(document, type=QualityDocument)
        rules = msgspec.json.decode(found.quality, type=QualityRules)
        # A rule of a later release has no check that this one knows.
        problem = next(check_rules(rules), None)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError) as error:
        raise UnreadableRules(str(error)) from error
    if problem is not None:
        raise UnreadableRules(f"{'.'.join(map(str, problem.path))}: {problem.message}")
    return StreamQuality(version, rules)


class DeclaredQuality:
    """The quality rules of all streams, as of the last ``refresh``. A document is decoded once for each version."""

    def __init__(self) -> None:
        self._seen: tuple[ClusterState, int] | None = None
        self.streams: Mapping[StreamKey, StreamQuality] = {}
        """Another mapping after each change."""
        self.unusable: dict[str, str] = {}
        """Names of streams whose rules cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> None:
        """Take over the declarations of the cluster log, if there is an entry about rules since the last call."""
        last = state.last(QUALITY)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return
        self._seen, self.unusable = (state, last), {}
        found: dict[StreamKey, StreamQuality] = {}
        for name, fact in state.facts(QUALITY).items():
            tenant, _, stream = name.partition("/")
            known = self.streams.get((tenant, stream))
            if known is None or known.version != fact.version:
                try:
                    known = decode(fact.document, fact.version)
                except UnreadableRules as error:
                    self.unusable[name] = str(error)
                    continue
            found[tenant, stream] = known
        self.streams = found

    def of(self, key: StreamKey) -> StreamQuality | None:
        """Return the rules of a stream; None if none are declared, or they cannot be read."""
        return self.streams.get(key)
