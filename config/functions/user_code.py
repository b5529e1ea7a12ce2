"""Settings of functions that run a user's own code."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from weft.config.values import Duration, MiB, Path, Section, Size

Files = Annotated[tuple[str, ...], Meta(max_length=16, extra_json_schema={"x-unit": "path"})]


class Python(Section, frozen=True, kw_only=True):
    """A function of yours in a Python file. It runs in a process of its own, with limits on time and memory."""

    file: Annotated[
        Path,
        Meta(
            description="File with the code. It has `process(record, ctx)` or `process_batch(records, ctx)`, and maybe "
            "`setup(ctx)`. A change of the file is tried on the next records, and taken back when it fails."
        ),
    ]
    function: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="Name of the function in the file. Unset: `process`, or `process_batch` with `batch`."),
    ] = None
    batch: Annotated[
        bool,
        Meta(
            description="`true` calls the function with a list of records, and it returns a list with one entry for "
            "each. Right for models."
        ),
    ] = False
    files: Annotated[
        Files,
        Meta(
            description="Further files that the code opens or imports by their names, such as a model. A change of "
            "one is a new version."
        ),
    ] = ()
    timeout_s: Annotated[
        Duration,
        Meta(
            ge=0.01,
            le=3600,
            description="Longest time of one call. A record whose call takes longer goes to the stream of errors.",
        ),
    ] = field(default=1.0, name="timeout")
    start_timeout_s: Annotated[
        Duration, Meta(ge=0.1, le=3600, description="Longest time to load the file and to run `setup`.")
    ] = field(default=30.0, name="start_timeout")
    memory_bytes: Annotated[
        Size,
        Meta(
            ge=32 * MiB,
            description="Memory of the process. A record whose call needs more goes to the stream of errors.",
        ),
    ] = field(default=128 * MiB, name="memory")
    state_bytes: Annotated[
        Size,
        Meta(le=32 * MiB, description="Most that `ctx.state` may hold. It is kept in the log, and survives restarts."),
    ] = field(default=1 * MiB, name="state")
