"""Drains and splits, which move shards: bodies, answers and operations."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from weft.config.limits import FACT_NAME_CHARACTERS_MAX
from weft.hub_api.answers import Count, Moment
from weft.hub_api.operation import OF_CHANGES, REASON, Operation, Parameter, Reason, ShardNumber
from weft.hub_api.rights import Right, Scope
from weft.protocols.shard.placement import SHARDS_MAX


class Drain(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: the process or the machine to drain."""

    node: Annotated[str, Meta(min_length=1, max_length=FACT_NAME_CHARACTERS_MAX)]
    """Name of a process, or of a machine for all of its processes, as `/v1/nodes` has it."""
    reason: Reason = ""
    """For the record of administrative acts."""


class Split(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: the shard to split. It cannot be reverted."""

    shard: Annotated[int, Meta(ge=0, le=SHARDS_MAX - 1)]
    force: bool = False
    """Do it though all its edges would be in one of the two."""
    reason: Reason = ""
    """For the record of administrative acts."""


class DrainOfNode(msgspec.Struct, frozen=True, kw_only=True):
    """A process or a machine that is drained."""

    node: str
    since: Moment
    by: str
    reason: str
    links: Count | UnsetType = UNSET
    """Links that its processes still have; 0 of one that is gone."""
    tables: Count | UnsetType = UNSET
    """Tables that its processes still write. They write them as long as no other process does."""


class DrainsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The drained processes and machines, by name, whether they run or not."""

    drains: list[DrainOfNode]


class DrainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A drain that was declared or ended."""

    node: str
    drained: bool
    links: Count | None
    """Links that the node had; null if it is drained no more."""


class SplitLook(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a split that was not made."""

    shard: Count
    moving: Count
    """Edges that would go to the new shard."""
    staying: Count


class SplitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A split that was made."""

    shard: Count
    new_shard: Count
    moved: Count
    """Edges that are in the new shard."""
    stayed: Count


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "drains",
        "get",
        "/v1/drains",
        "Return the processes and machines that are drained.",
        "Entries in the order of their names, whether their processes run or not. A process knows a change within "
        "two seconds.",
        DrainsAnswer,
        (Scope.ADMIN,),
        errors=frozenset({401, 403, 421, 503}),
        right=Right.STATUS,
        command="weft hub nodes",
    ),
    Operation(
        "drain",
        "post",
        "/v1/drains",
        "Drain a process, or those of a machine: others take over its shards and edges.",
        "The answer comes when the order is durable; shards and links move afterwards. Refused with 404 for an "
        "unknown name, and with 409 while no other process would take the shards.",
        DrainAnswer,
        (Scope.GRANTED,),
        errors=OF_CHANGES | {404},
        body=Drain,
        right=Right.NODES,
        command="weft hub drain",
    ),
    Operation(
        "undo_drain",
        "delete",
        "/v1/drains",
        "End the drain of a process or machine: it accepts shards and edges again.",
        "The answer comes when the order is durable. Refused with 409 if the process or machine is not drained.",
        DrainAnswer,
        (Scope.GRANTED,),
        errors=frozenset({400, 401, 403, 409, 421, 503}),
        parameters=(
            Parameter(
                "node", str, "The process or the machine.", required=True, advice="GET /v1/drains lists what is drained"
            ),
            REASON,
        ),
        right=Right.NODES,
        command="weft hub drain --undo",
    ),
    Operation(
        "look_at_split",
        "get",
        "/v1/splits",
        "Return how many edges a split of a shard would move.",
        "Changes nothing. The process reads the whole shard, one request at a time; a second one gets 429.",
        SplitLook,
        (Scope.GRANTED,),
        parameters=(
            Parameter("shard", ShardNumber, "The shard.", required=True, advice="GET /v1/status has the shards"),
        ),
        errors=frozenset({400, 401, 403, 409, 421, 429, 503}),
        right=Right.NODES,
        command="weft hub split",
    ),
    Operation(
        "split",
        "post",
        "/v1/splits",
        "Split a shard: about half of its edges move to a new one, for good.",
        "The answer comes when the new shard exists, and a split is never reverted. Refused with 409 if all edges "
        "would be in one of the two, unless `force` is set. Without an answer, read `/v1/status` first: a declared "
        "split is completed.",
        SplitAnswer,
        (Scope.GRANTED,),
        errors=OF_CHANGES | {429},
        body=Split,
        right=Right.NODES,
        command="weft hub split",
    ),
)
"""Operations, in the order of the document."""
