"""Checks before a link or a lane is opened: of who may open it, and of the shard that is to take it."""

from __future__ import annotations

from weft.cloud_hub.api.identity.certificates import CertificateIdentity
from weft.cloud_hub.api.identity.rights import Right
from weft.cloud_hub.api.tokens import TokenIdentity
from weft.cloud_hub.shard.message_lanes import is_hubs_own
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols.lane import Lane, NodeName
from weft.protocols.link import RefuseCode
from weft.protocols.shard.spread import opened_by
from weft.replication.runner import LinkRefused


def check_edge(identity: TokenIdentity | None, node: NodeName) -> None:
    """Check that a link may speak for an edge.

    Args:
        identity: the identity of the link's token; None when the hub has no tokens.

    Raises:
        LinkRefused: the token is not the edge's.
    """
    if identity is None:
        return
    if Right.WRITE not in identity.rights or (identity.tenant, identity.edge) not in opened_by(node):
        kind = "certificate" if isinstance(identity, CertificateIdentity) else "token"
        raise LinkRefused(
            RefuseCode.UNAUTHORISED,
            f"{identity.shown} is not for edge {node.edge} of tenant {node.tenant}",
            f"give the link this edge's own {kind}, or set node and tenant as the {kind} says",
        )


def check_stream(identity: TokenIdentity | None, lane: Lane) -> None:
    """Check that a link may write a lane's stream.

    Raises:
        LinkRefused: the token is not for it, or it is the hub's own.
    """
    if identity is not None and not identity.rights.allow(Right.WRITE, lane.stream):
        raise LinkRefused(
            RefuseCode.UNAUTHORISED,
            f"{identity.shown} is not for stream {lane.stream}",
            f"its records wait at the edge. Replicate other streams, or give it a token with write:{lane.stream}",
        )
    if is_hubs_own(lane.tenant, lane.stream):
        advice = "replicate streams of the configuration only; if this edge runs a release of Weft, report this"
        raise LinkRefused(RefuseCode.BAD_HELLO, f"stream {lane.stream} is the hub's own", advice)


def check_shard(sequencer: Sequencer, shard: int, lane: Lane) -> None:
    """Check that a lane's shard takes records now.

    Raises:
        LinkRefused: it does not.
    """
    if not sequencer.loaded:
        raise LinkRefused(
            RefuseCode.UNAVAILABLE,
            f"shard {shard}, where lane {lane} belongs, cannot be loaded: {sequencer.told}",
            "nothing is lost, and the edge connects again by itself; `weft hub status` names the object",
        )
    if sequencer.is_unavailable:
        raise LinkRefused(
            RefuseCode.UNAVAILABLE,
            f"shard {shard} of this hub node has trouble with its store: {sequencer.told}",
            "nothing is lost, and the edge tries the hub's other nodes; the hub's log says more",
        )
