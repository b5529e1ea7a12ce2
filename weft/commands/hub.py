"""``weft hub``: run a hub node, and check its configuration."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from weft.commands.common import (
    CheckAnswer,
    cannot_be_done,
    config_argument,
    json_option,
    located_hub,
    log_level_option,
    store_located,
    until,
)
from weft.commands.hub_settings import settings_of
from weft.config.errors import format_path
from weft.config.release import SOFTWARE
from weft.config.schema import UNITS
from weft.config.units import kind_of
from weft.output import Failed, Refused
from weft.service.serving import (
    CannotStart,
    DidNotStart,
    RunningSettings,
    Signals,
    Supervisor,
    collect_garbage_rarely,
    end_with_supervisor,
    let_threads_in_soon,
    log_to_stderr,
    run_until_stopped,
)

if TYPE_CHECKING:
    from weft.cloud_hub.hub import Hub
    from weft.config.load import Loaded
    from weft.config.models import HubConfig


processes_option = click.option(
    "--processes",
    type=click.IntRange(1),
    help="Number of processes that share the shards; instead of the setting `processes`.",
)


@click.command()
@config_argument
@processes_option
@click.option(
    "--advertise",
    multiple=True,
    metavar="URL",
    help="URL at which edges reach this machine, one for each process; instead of the setting `advertise`.",
)
@click.option("--part", hidden=True, help="NUMBER/COUNT/DESCRIPTOR/FIRST, from the supervisor to its processes.")
@log_level_option
def run(config_file: str, processes: int | None, advertise: tuple[str, ...], part: str | None, log_level: str) -> None:
    """Run the node of CONFIG until SIGTERM or SIGINT.

    It is one process per core, each with its own shards and port: the port of `listen` and the following ones. A
    process that ends is started again. With --processes 1, the command is the only process.
    """
    loaded = _advertised(located_hub(config_file), advertise)
    log_to_stderr(log_level)
    if part is not None:
        number, count, alive, first = map(int, part.split("/"))

        end_with_supervisor(alive)
        _serve(config_file, loaded, number, count, advertise, begins=bool(first))
        return
    from weft.cloud_hub import preflight
    from weft.cloud_hub.settings import check_processes, cores, process_count

    found = preflight.look(loaded.config, datetime.now(UTC))
    count = process_count(loaded.config, processes, cores(), preflight.shards_of(loaded.config, found))
    if needed := [*found.needed, *check_processes(loaded.config, count)]:
        raise cannot_be_done(loaded, needed)
    for finding in (*found.unfit, *found.doubtful):
        logging.getLogger("weft").warning("%s: %s", format_path(finding.path), finding.message)
    if count == 1:
        _serve(config_file, loaded, 0, 1, advertise)
    else:
        _supervise(config_file, count, log_level, advertise)


def _advertised(loaded: Loaded[HubConfig], urls: tuple[str, ...]) -> Loaded[HubConfig]:
    """Return the configuration with the URLs of the command line, for machines that share one file."""
    if not urls:
        return loaded

    try:
        advertise = tuple(str(UNITS["advertised_urls"].parse(url, "")) for url in urls)
    except ValueError as error:
        raise Refused(f"--advertise: {error}") from None
    return replace(loaded, config=msgspec.structs.replace(loaded.config, advertise=advertise))


def _supervise(config_file: str, count: int, log_level: str, advertise: tuple[str, ...]) -> None:
    """Run the node as several processes."""

    def arguments(number: int, alive: int, is_first: bool) -> list[str]:
        urls = [f"--advertise={each}" for each in advertise]
        part = f"{number}/{count}/{alive}/{is_first:d}"
        return ["hub", "run", config_file, "--log-level", log_level, *urls, "--part", part]

    async def serve(signals: Signals) -> None:
        await Supervisor(arguments, count).run(signals)

    try:
        run_until_stopped(serve)
    except DidNotStart as failure:
        raise click.exceptions.Exit(abs(failure.status) or 1) from None
    except CannotStart as failure:
        raise Failed(f"{failure}. Mend that, or run the hub as one process: --processes 1") from None


def _serve(
    config_file: str,
    loaded: Loaded[HubConfig],
    number: int,
    count: int,
    advertise: tuple[str, ...],
    *,
    begins: bool = True,
) -> None:
    """Run one process of the node."""
    from weft.cloud_hub.hub import Hub

    config = loaded.config
    which = f" ({number + 1} of {count})" if count > 1 else ""
    logging.getLogger("weft").info("%s starts with %s, process %d%s", SOFTWARE, config_file, os.getpid(), which)
    settings = RunningSettings(config_file, config, lambda path: _advertised(located_hub(path), advertise).config)

    async def serve(signals: Signals) -> None:
        collect_garbage_rarely()  # or a start would look at what it has loaded again and again: three times the time
        hub = await Hub.open(replace(settings_of(config, number, count), begins=begins))
        try:
            collect_garbage_rarely()
            let_threads_in_soon()
            click.echo(f"the hub is ready at {hub.url}")
            async with signals.reloading(lambda: _reload(hub, settings, number)):
                if (failure := await signals.stopped(hub.failed())) is not None:
                    raise Failed(failure)
        finally:
            await hub.close()

    with store_located(loaded):
        run_until_stopped(serve)


async def _reload(hub: Hub, settings: RunningSettings, number: int) -> None:
    hub.reload()
    if number == 0:  # once is enough
        await settings.log_what_needs_a_restart()


@click.command()
@config_argument
@click.option("--offline", is_flag=True, help="Do not contact a store in a bucket, and probe no store.")
@processes_option
@json_option
def check(config_file: str, offline: bool, processes: int | None, as_json: bool) -> int:
    """Check CONFIG and what it names: tokens, the store, the ports.

    The command starts nothing. It probes the store as a hub does when it starts: it writes, races and deletes objects
    below `probe/`, and leaves none behind. An error stops a hub from running, or others from using it: exit status 2.
    Warnings go to standard error and leave exit status 0. Run it as the hub's user, whose access rights may differ from
    yours. While the hub runs, its ports are not checked.
    """
    from weft.cloud_hub import preflight

    answer = CheckAnswer(config_file, as_json)
    loaded = answer.load(located_hub)
    from weft.cloud_hub.settings import addresses, check_processes, cores, process_count

    config, found = loaded.config, preflight.look(loaded.config, datetime.now(UTC), offline=offline)
    count = process_count(config, processes, cores(), found.shards)
    wrong = check_processes(config, count)
    taken, untried = preflight.ports(config, addresses(config, count)) if not wrong else ([], [])
    return answer.give(
        loaded,
        errors=[*found.needed, *found.unfit, *wrong, *map(loaded.with_default, taken)],
        warnings=[*found.doubtful, *untried],
        facts={
            "listen": config.listen,
            "store": config.store,
            "kind": kind_of(config.store),
            "shards": found.shards,
            "processes": count,
            "certificates": found.certificates,
        },
        summary=(
            f"store {config.store} ({kind_of(config.store)}), {found.shards} shards, "
            f"{_listening(config, count)}{until(found.certificates)}"
        ),
    )


def _listening(config: HubConfig, count: int) -> str:
    from weft.cloud_hub.settings import addresses

    if count == 1:
        return f"listening on {config.listen}"
    return f"{count} processes, listening on {config.listen} to {addresses(config, count)[-1].port}"
