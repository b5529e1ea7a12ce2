"""Settings of exchanges and queues."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from weft.config.values import Count, MiB, Section, Size

_OF_ONE_USER = "of one user, or of one address where clients have no user name. "
_Share = Annotated[int, Meta(ge=1)] | None


class QueueBounds(Section, frozen=True, kw_only=True):
    """Bounds on exchanges and queues, which AMQP clients declare. Beyond them clients are refused."""

    queues: Annotated[Count, Meta(le=10_000_000, description="Maximum number of queues.")] = 65_536
    queues_per_user: Annotated[
        _Share, Meta(description=f"Maximum number of queues {_OF_ONE_USER}Unset: a quarter of `queues`.")
    ] = None
    exchanges: Annotated[Count, Meta(le=1_000_000, description="Maximum number of exchanges.")] = 4_096
    exchanges_per_user: Annotated[
        _Share, Meta(description=f"Maximum number of exchanges {_OF_ONE_USER}Unset: a quarter of `exchanges`.")
    ] = None
    bindings: Annotated[
        Count,
        Meta(
            le=10_000_000,
            description="Maximum number of bindings. One counts one more for each 256 bytes of its names, key and "
            "arguments, each 8 words of its key and each 4 headers. With `#` before the end of its key it counts 16 "
            "more.",
        ),
    ] = 262_144
    bindings_per_user: Annotated[
        _Share, Meta(description=f"Maximum number of bindings {_OF_ONE_USER}Unset: a quarter of `bindings`.")
    ] = None
    match_cost: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Maximum number of steps for finding a message's queues that uncommon bindings may cost, of "
            "all users together. Keys with more than 4 words, several `*`, or `#` before the end are uncommon. Each "
            "way in which they mix words, `*` and `#` costs steps. So do bindings by several headers, at the one of "
            "them that fewest others share. Further ones are refused.",
        ),
    ] = 32_768
    match_cost_per_user: Annotated[
        _Share, Meta(description=f"The same {_OF_ONE_USER}Unset: a quarter of `match_cost`.")
    ] = None
    size_bytes: Annotated[
        Annotated[Size, Meta(ge=1 * MiB)] | None,
        Meta(
            description="Maximum size of the messages in queues: their payloads, and 128 bytes each. They are in the "
            "node's log. Above it, queues take no more: publishers that ask for confirms get a nack. Unset: a quarter "
            "of `disk.budget`."
        ),
    ] = field(default=None, name="size")
    size_per_user_bytes: Annotated[
        Annotated[Size, Meta(ge=1)] | None,
        Meta(description="The same of the queues that one user has declared. Unset: a quarter of `size`."),
    ] = field(default=None, name="size_per_user")
    unacknowledged: Annotated[
        Count,
        Meta(
            le=100_000_000,
            description="Maximum number of messages that consumers have and did not acknowledge. Above it, consumers "
            "get no more.",
        ),
    ] = 262_144
    unacknowledged_per_user: Annotated[
        _Share, Meta(description=f"The same {_OF_ONE_USER}Unset: a quarter of `unacknowledged`.")
    ] = None
    consumers: Annotated[Count, Meta(le=10_000_000, description="Maximum number of consumers of queues.")] = 65_536
    consumers_per_user: Annotated[
        _Share, Meta(description=f"Maximum number of consumers {_OF_ONE_USER}Unset: a quarter of `consumers`.")
    ] = None
    channels: Annotated[
        Count,
        Meta(le=10_000_000, description="Maximum number of AMQP channels; one connection may have 2,047 of them."),
    ] = 65_536
    channels_per_user: Annotated[
        _Share, Meta(description=f"Maximum number of AMQP channels {_OF_ONE_USER}Unset: a quarter of `channels`.")
    ] = None
