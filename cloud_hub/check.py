"""Rules for a hub's configuration beyond the shape of its values."""

from __future__ import annotations

from weft.config.errors import Finding
from weft.config.models import HubConfig
from weft.config.units import parse_bind, quoted
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.shard.placement import is_shard_count, nearest_shard_counts


def check(config: HubConfig) -> list[Finding]:
    """Return all errors of ``config``, without access to store or network."""
    findings = []
    if config.anonymous == "loopback" and config.tokens_file is None and not parse_bind(config.listen).is_loopback:
        findings.append(
            Finding(
                ("listen",),
                f"{config.listen} can be reached from other machines without authentication. Set a tokens_file, "
                "or `anonymous: never` for tokens of the cluster log, or bind to 127.0.0.1. "
                "`anonymous: allowed_beyond_loopback` is for a network that you trust",
            )
        )
    if config.chunk_bytes_max > config.limits.pending_bytes:
        findings.append(Finding(("chunk_bytes_max",), "expected at most limits.pending"))
    if config.shards is not None and not is_shard_count(config.shards):
        nearest = " or ".join(map(str, nearest_shard_counts(config.shards)))
        findings.append(Finding(("shards",), f"expected a power of two, got {config.shards}. Set it to {nearest}"))
    for key, stream in config.streams.items():
        if not all(map(valid_name, key.split("/"))) or key.count("/") > 1:
            findings.append(
                Finding(
                    ("streams", key),
                    f"expected a stream's name, or tenant, slash and name ({NAME_RULE})",
                )
            )
        for pattern in stream.expected_edges:
            if not valid_name(pattern.replace("*", "x")):
                path = ("streams", key, "expected_edges")
                findings.append(
                    Finding(
                        path,
                        f"expected names of edges, with `*` for any characters ({NAME_RULE}), got {quoted(pattern)}",
                    )
                )
    return findings
