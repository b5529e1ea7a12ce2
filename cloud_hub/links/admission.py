"""Checks before a link or a lane is opened: of who may open it, and of the shard that is to take it."""

from __future__ import annotations

from weft.cloud_hub.api.identity.certificates import CertificateIdentity
from weft.cloud_hub.api.identity.rights import ANY, Right
from weft.cloud_hub.api.tokens import TokenIdentity
from weft.cloud_hub.shard.message_lanes import is_hubs_own
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols.lane import Lane, NodeName
from weft.protocols.link import CONFIG, Hello, RefuseCode
from weft.protocols.link.pull import PULL
from weft.protocols.shard.spread import opened_by
from weft.replication.runner import LinkRefused


def check_link(identity: TokenIdentity | None, hello: Hello) -> None:
    """Check that a link may be opened: by the edge that HELLO names, or by another region.

    Raises:
        LinkRefused: the token is not the edge's, or the region asks for what is for edges alone.
    """
    if identity is None or not identity.is_region:
        check_edge(identity, NodeName(hello.tenant, hello.edge))
        return
    if identity.tenant not in (ANY, hello.tenant):
        raise LinkRefused(
            RefuseCode.UNAUTHORISED,
            f"{identity.shown} is for regions that relay tenant {identity.tenant}, not {hello.tenant}",
            "set `tenant` of the region as the token says, or give it a token for all tenants",
        )
    if asked := {CONFIG, PULL} & set(hello.features):
        advice = "a region gets neither configurations nor requests for records; an edge needs a token of its own"
        raise LinkRefused(
            RefuseCode.UNAUTHORISED, f"{identity.shown} is for regions, and the link asks for {min(asked)}", advice
        )


def check_lane(identity: TokenIdentity | None, lane: Lane, *, is_relay: bool) -> None:
    """Check that a link may write a lane.

    Raises:
        LinkRefused: the token is not for its edge or its stream, or the stream is the hub's own.
    """
    if identity is not None and Right.RELAY in identity.rights and (is_relay or identity.is_region):
        if not is_relay or not identity.may_relay(lane.tenant, lane.stream):
            what = "relay" if is_relay else "own"
            raise LinkRefused(
                RefuseCode.UNAUTHORISED,
                f"{identity.shown} does not allow to {what} lanes of stream {lane.stream} of tenant {lane.tenant}",
                "relay other streams (`streams` and `tenant` of the region), or use a token that is for them, too",
            )
    else:
        check_edge(identity, NodeName(lane.tenant, lane.edge))
        _check_write(identity, lane)
    if is_hubs_own(lane.tenant, lane.stream):
        advice = "replicate streams of the configuration only; if this edge runs a release of Weft, report this"
        raise LinkRefused(RefuseCode.BAD_HELLO, f"stream {lane.stream} is the hub's own", advice)


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


def _check_write(identity: TokenIdentity | None, lane: Lane) -> None:
    if identity is not None and not identity.rights.allow(Right.WRITE, lane.stream):
        raise LinkRefused(
            RefuseCode.UNAUTHORISED,
            f"{identity.shown} is not for stream {lane.stream}",
            f"its records wait at the edge. Replicate other streams, or give it a token with write:{lane.stream}",
        )


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
