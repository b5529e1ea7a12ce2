"""Settings of the state that an edge node keeps of its MQTT clients, and of the encryption of its data directory."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from weft.config.values import Count, Duration, MiB, Path, Section, Size


class State(Section, frozen=True, kw_only=True):
    """State of MQTT clients across restarts. Changes go into the log (the *journal*), then into a database."""

    save_interval_s: Annotated[
        Duration,
        Meta(
            ge=0.1,
            le=3600,
            description="How often the journal is folded into the database, so that the log can delete it. A "
            "longer interval reduces flash wear and makes a start after a crash slower.",
        ),
    ] = field(default=5.0, name="save_interval")
    save_bytes: Annotated[
        Size,
        Meta(
            ge=64 << 10,
            description="Size at which the journal is folded into the database before `save_interval` has passed.",
        ),
    ] = field(default=4 * MiB, name="save_size")
    journal_bytes: Annotated[
        Size,
        Meta(
            ge=1 * MiB,
            description="Maximum size of the journal that is not in the database, reached when the database "
            "cannot be written. Above it, changes to sessions are refused: clients cannot connect or "
            "subscribe, and publishes from persistent sessions are not acknowledged.",
        ),
    ] = field(default=64 * MiB, name="journal")
    journal_bytes_per_user: Annotated[
        Size,
        Meta(
            ge=64 << 10,
            description="Size of the changes in the journal that sessions of one user may make in a second; four "
            "times as much at once. Without a user name, it is of one address. Beyond it, its clients wait with "
            "CONNECT, SUBSCRIBE and UNSUBSCRIBE.",
        ),
    ] = field(default=4 * MiB, name="journal_per_user")
    positions_interval_s: Annotated[
        Duration,
        Meta(
            ge=0.1,
            le=3600,
            description="How often the read positions of connected sessions are saved. Messages acknowledged "
            "since the last save may be redelivered after a crash.",
        ),
    ] = field(default=1.0, name="positions_interval")
    resent_window: Annotated[
        Count,
        Meta(
            le=65_535,
            description="Number of newest messages per session by which the node recognises a message that is "
            "sent again. Set it above the number that clients leave unacknowledged: 20 with Paho and "
            "Mosquitto.",
        ),
    ] = 1_000
    resent_total: Annotated[
        Count,
        Meta(
            le=100_000_000,
            description="The same for all sessions together: a few bytes per message from devices that send many "
            "at a time, about 250 bytes otherwise. Above it, the node forgets messages of the "
            "sessions that published longest ago.",
        ),
    ] = 200_000
    resent_per_user: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="The same for the sessions of one user. Above it, the node forgets messages of those of them "
            "that published longest ago. Unset: a quarter of `resent_total`."
        ),
    ] = None
    idempotency_window_s: Annotated[
        Duration,
        Meta(
            ge=60,
            le=30 * 86_400,
            description="Time for which the node remembers the `Idempotency-Key` of an HTTP request, so that the same "
            "request stores nothing twice.",
        ),
    ] = field(default=86_400.0, name="idempotency_window")
    idempotency_keys: Annotated[
        Count,
        Meta(
            le=10_000_000,
            description="Number of such keys that are remembered, about 500 bytes of memory each. Above it, the oldest "
            "are forgotten.",
        ),
    ] = 100_000
    idempotency_keys_per_user: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="The same of one user, or of one address where clients have no user name. Unset: a quarter of "
            "`idempotency_keys`."
        ),
    ] = None
    backlog_buffer_bytes: Annotated[
        Size,
        Meta(
            ge=64 << 10,
            description="Maximum memory for records that are read from the log for sessions that are behind.",
        ),
    ] = field(default=16 * MiB, name="backlog_buffer")
    backlog_page_bytes: Annotated[
        Size, Meta(ge=1024, le=64 * MiB, description="Maximum number of bytes read at a time for one session.")
    ] = field(default=64 << 10, name="backlog_page")
    backlog_page_records: Annotated[
        Count, Meta(le=100_000, description="Maximum number of messages read at a time for one session.")
    ] = 250
    backlog_reads: Annotated[
        Count,
        Meta(
            le=64,
            description="Maximum number of concurrent disk reads for sessions that are behind, about 1 MiB of "
            "memory each.",
        ),
    ] = 2
    topics_log_bytes: Annotated[
        Annotated[Size, Meta(ge=1 * MiB)] | None,
        Meta(
            description="Size of the log above which messages that no stream matches may be deleted before an "
            "absent session has received them. At most a quarter of `disk.budget` is used. Unset: 1 "
            "GiB or that quarter, whichever is less.",
        ),
    ] = field(default=None, name="topics_log")


class Encryption(Section, frozen=True, kw_only=True):
    """Encryption of the node's data directory. Set exactly one source of the key: 32 bytes in hex or base64."""

    key_file: Annotated[
        Path | None,
        Meta(description="File with the key, which other users cannot read. A second line may hold the key before it."),
    ] = None
    command: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=4096)], ...],
        Meta(
            max_length=64,
            description="Command and its arguments, run without a shell, that prints the key within 30 s: for a TPM "
            "or a vault.",
        ),
    ] = ()
    environment: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="Variable of the node's environment that holds the key."),
    ] = None
