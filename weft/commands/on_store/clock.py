"""``weft hub clock``: the times of a hub's shards, held against the store's, and lowered after a wrong clock."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, NamedTuple

import click

from weft.commands.common import config_argument, confirm, json_option, yes_option
from weft.commands.on_store.opening import acting, by_option, on_store
from weft.output import Failed, Refused, print_facts, print_json, print_table
from weft.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.cloud_hub.shard.lane_ends import Ending
from weft.protocols.shard.shard_state import ShardState

_SECOND = 10**9
ALL = "all"


class _ShardTime(NamedTuple):
    """The time of a shard, ns since 1970, as of its last chunk; None without a chunk."""

    shard: int
    chunk: int
    created: int | None


class _Times(NamedTuple):
    now: int
    """Nanoseconds since 1970 by the store's clock, as far as it tells."""
    off: int
    """This machine's clock minus the store's at least, ns."""
    level: int
    shards: list[_ShardTime]

    def ahead(self, shard: _ShardTime) -> int:
        """Return the nanoseconds by which a shard's time is in the future; 0 if it is not by more than seconds."""
        from weft.cloud_hub.clock import DOUBTED_NS

        ahead = 0 if shard.created is None else shard.created - self.now
        return ahead if ahead > DOUBTED_NS else 0


@click.command("clock")
@config_argument
@click.option("--set-back", "wanted", metavar="SHARD|all", help="Lower the time of this shard, or of all, to now.")
@click.option("--reason", help="Why, in a few words; recorded with --set-back.")
@by_option
@json_option
@yes_option
def clock(
    config_file: str, wanted: str | None, reason: str | None, *, by: str | None, as_json: bool, yes: bool
) -> None:
    """Show the times of the shards at the hub of CONFIG beside the store's time, whether nodes run or not.

    A shard's time is that of its last chunk, and never goes back. A node whose clock was ahead leaves a time in the
    future. Until then no chunk of the shard is collected, and none of its lanes retires by age. Queries of complete
    windows take every grace period for past.

    --set-back lowers such times to the present: that of the shard, when its edges were last seen, and when lanes were
    retired. First set the clocks of all nodes right, or stop those that are wrong. Rows and what queries have given out
    stay as they are.
    """
    if (wanted is None) != (reason is None):
        raise Refused("--set-back and --reason go together: say which shard, and why")
    found = on_store(config_file, _look)
    if wanted is None or reason is None:
        _show(found, as_json=as_json)
        return
    late = [each.shard for each in _chosen(found, wanted) if found.ahead(each)]
    if found.level < _level_needed():
        raise Failed(
            f"the cluster is at level {found.level}, and this needs level {_level_needed()}: when all nodes run this "
            "release, `weft hub finalize` first"
        )
    if late and not yes:
        named = ", ".join(map(str, late))
        confirm(f"lower the time of shard {named} to now? No node may run with a wrong clock", "nothing was lowered")
    lowered: list[int] = []
    if late:
        target = f"the time of shard {', '.join(map(str, late))}"
        lowered = acting(config_file, target, lambda store: _set_back(store, late, reason), by, reason)
    if as_json:
        print_json({"lowered": lowered})
    elif lowered:
        for shard in lowered:
            click.echo(f"the time of shard {shard} is lowered to now: {reason}")
    else:
        click.echo("nothing was lowered: no such shard has a time in the future")


def _level_needed() -> int:
    from weft.protocols.chunk_index.footer import BLOCKS_LEVEL

    return BLOCKS_LEVEL


def _chosen(found: _Times, wanted: str) -> list[_ShardTime]:
    if wanted == ALL:
        return found.shards
    chosen = [each for each in found.shards if str(each.shard) == wanted]
    if not chosen:
        raise Failed(f"--set-back {wanted}: the hub has shards 0 to {len(found.shards) - 1}; `{ALL}` means all of them")
    return chosen


async def _look(store: ObjectStore) -> _Times:
    from weft.cloud_hub.clock import HubClock
    from weft.storage.chunk_log import BOOT_CLOCK, open_cluster
    from weft.storage.every_shard import first_logs, load_every_shard

    cluster = await open_cluster(store, None)
    own = HubClock(time.time_ns, BOOT_CLOCK)
    await own.measure(store)
    # Of no stream: the time stands in the state's head, and the lanes are not read.
    found = [state for _, state in await load_every_shard(first_logs(store, cluster), frozenset())]
    shards = [_ShardTime(state.shard, state.n, state.created if state.n >= 0 else None) for state in found]
    off = own.off_ns
    return _Times(own.now() - off, off, cluster.level, shards)


async def _set_back(store: ObjectStore, shards: list[int], reason: str) -> list[int]:
    """Lower the times of shards, and return those that were in the future."""
    from weft.cloud_hub.clock import sound_clock
    from weft.cloud_hub.shard import lane_ends
    from weft.storage.chunk_log import ShardLog, open_cluster

    cluster, now, lowered = await open_cluster(store, None), await sound_clock(store), []

    async def plan(state: ShardState) -> Ending:
        return lane_ends.set_back(state, now(), reason)

    for number in shards:
        log = ShardLog(store, cluster, number)
        ending = await lane_ends.write_ending(
            log,
            plan,
            wall_clock=now,
            random_bits=random.SystemRandom().getrandbits,
            level=_level_needed(),
        )
        lowered += [number] if ending.controls else []
    return lowered


def _show(found: _Times, *, as_json: bool) -> None:
    from weft.config.units import approximate_duration

    if as_json:
        shards = [
            {"shard": each.shard, "chunk": each.chunk, "time_ns": each.created, "ahead_s": found.ahead(each) / _SECOND}
            for each in found.shards
        ]
        print_json({"store_time_ns": found.now, "off_s": found.off / _SECOND, "shards": shards})
        return
    far = approximate_duration(abs(found.off) / _SECOND)
    off = f"{far} {'ahead of' if found.off > 0 else 'behind'} the store's" if found.off else "as the store's"
    print_facts({"time of the store": _moment(found.now), "this machine's clock": off})
    rows = [
        (
            each.shard,
            "none" if each.created is None else each.chunk,
            "" if each.created is None else _moment(each.created),
            f"{approximate_duration(ahead / _SECOND)} ahead" if (ahead := found.ahead(each)) else "",
        )
        for each in found.shards
    ]
    print_table(("shard", "chunk", "time", ""), rows)
    if any(map(found.ahead, found.shards)):
        click.echo("To lower times in the future, after all clocks are right: weft hub clock CONFIG --set-back all "
                   "--reason '...'")  # fmt: skip


def _moment(time_ns: int) -> str:
    from weft.storage.chunks.open_gaps import shown

    return shown(time_ns)
