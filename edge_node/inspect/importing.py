"""Import of an earlier disk's data directory into a node's own (``weft edge import``)."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from weft.config.models import EdgeConfig
from weft.config.units import approximate_size
from weft.edge_node.check.streams import segment_bytes
from weft.edge_node.inspect.maintenance import check_user, exclusive_log
from weft.edge_node.inspect.view import LogDirectory
from weft.edge_node.links import imports
from weft.edge_node.links.high_watermarks import Fork, find_fork, write_fork
from weft.edge_node.links.links import has_conflicts
from weft.edge_node.streams import STATE_STREAMS
from weft.protocols.lane import NodeName, format_log_id
from weft.storage.filesystem import DirectoryInUse, FileSystem
from weft.storage.segment_log import LogSettings, SegmentLog
from weft.storage.segment_log.encryption import disk_of

_SPARE_BYTES = 64 << 20
"""Free space required beyond a copied log."""


class NotImportable(Exception):
    """An error: the directory cannot become a part of this node's; the text has the reason and the remedy."""


class Imported(NamedTuple):
    """A log that was put into the node's data_dir."""

    log_id: str
    directory: str
    records: dict[str, int]
    """Stream -> records in the log."""
    is_copy: bool
    """True when the files were copied: the given directory is unchanged."""
    left_out: tuple[str, ...] = ()
    """Streams of a fork whose records stay in the given directory: hubs may have them."""


def import_log(config: EdgeConfig, directory: str) -> Imported:
    """Put the log in ``directory`` into the place where the node of ``config``, running or not, finds it and brings it
    to the hubs.

    A directory on the data_dir's file system is moved there, another one is copied. A crash before the end loses
    nothing: the command can be repeated.

    Raises:
        NotImportable: the text has the reason.
        NoLog: there is no log.
        NotTheOwner: a folder is another user's.
        UnsupportedVersion, LogError: the log cannot be read.
        OSError: the log cannot be moved or copied.
    """
    directory = os.path.abspath(directory)
    _refuse_special_files(directory)
    log_id = _check(config, directory)
    check_user(config.data_dir)
    filesystem = disk_of(config.data_dir)
    folder = imports.folder(config.data_dir)
    target = os.path.join(folder, log_id)
    filesystem.make_directory(folder)
    if os.stat(directory).st_dev == os.stat(folder).st_dev and not os.path.ismount(directory):
        check_user(directory)
        records = _recovered(config, directory)
        filesystem.rename(directory, target)
        filesystem.sync_directory(os.path.dirname(directory))
        filesystem.sync_directory(folder)
        return Imported(log_id, target, records, is_copy=False)
    part = target + imports.PART
    try:
        _copy(filesystem, directory, part)
        records = _recovered(config, part)
        filesystem.rename(part, target)
        filesystem.sync_directory(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return Imported(log_id, target, records, is_copy=True)


def import_fork(config: EdgeConfig, directory: str) -> Imported:
    """Write the records that only the log in ``directory`` has into a new log, and put that into the place of
    ``import_log``.

    For a log that hubs refuse because it is an old copy that accepted messages. The log itself stays in place. A
    repeated import becomes the same log with the same numbers, of which hubs store nothing twice.

    Raises as ``import_log``.
    """
    directory = os.path.abspath(directory)
    _refuse_special_files(directory)
    _check_owner(config, directory)
    check_user(config.data_dir)
    if os.path.samefile(directory, config.data_dir):
        raise NotImportable(
            f"{directory} is the node's own data_dir. Stop the node, move the folder away, start the node with an "
            "empty one, then run this again with the folder that was moved"
        )
    folder = imports.folder(config.data_dir)
    if os.path.dirname(directory) != folder and not has_conflicts(directory):
        raise NotImportable(
            f"no hub is known to have refused the log in {directory}. Import it without --as-new: its records reach "
            "the hubs under their own numbers"
        )
    filesystem = disk_of(config.data_dir)
    filesystem.make_directory(folder)
    settings = _settings(config, directory)
    with _importable(directory), exclusive_log(directory, settings) as log:
        fork = _fork(log, filesystem, directory)
        log_id = format_log_id(fork.log_id)
        _refuse_known(config, log_id)
        target = os.path.join(folder, log_id)
        part = target + imports.PART
        shutil.rmtree(part, ignore_errors=True)
        try:
            owner = NodeName(config.tenant, config.node)
            counts = write_fork(log, fork, part, settings, filesystem=filesystem, owner=owner)
            filesystem.rename(part, target)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    if os.path.dirname(directory) == folder:
        filesystem.rename(directory, directory + imports.DONE)
    filesystem.sync_directory(folder)
    return Imported(log_id, target, counts, is_copy=True, left_out=tuple(fork.sent))


def _fork(log: SegmentLog, filesystem: FileSystem, directory: str) -> Fork:
    try:
        fork = find_fork(log, filesystem, directory)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise NotImportable(
            f"it is unknown which records only the log in {directory} has: the record of what was sent to hubs cannot "
            f"be read ({error}). `weft edge query` reads all of its records"
        ) from None
    if fork is None or not fork.begins:
        sent = f" Hubs were sent records of {', '.join(fork.sent)} since." if fork is not None else ""
        raise NotImportable(f"the log in {directory} has received no messages since it was restored.{sent}")
    return fork


def delete_done(config: EdgeConfig) -> list[str]:
    """Delete the imported logs that the hubs have completely. Return their ids.

    Raises:
        NotTheOwner, OSError: they cannot be deleted.
    """
    names = imports.done(config.data_dir)
    if names:
        check_user(config.data_dir)
    for name in names:
        shutil.rmtree(os.path.join(imports.folder(config.data_dir), name + imports.DONE))
    return names


def _refuse_special_files(directory: str) -> None:
    """Refuse files that no node has in its data_dir: opening a pipe never returns, and a link may lead anywhere."""
    for folder, _, names in os.walk(directory):
        for name in names:
            kind = os.lstat(os.path.join(folder, name)).st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISSOCK(kind)):
                raise NotImportable(
                    f"{os.path.join(folder, name)} is not a regular file, and a data_dir has no others. Move it out of "
                    f"{directory}, then run this again"
                )


def _check_owner(config: EdgeConfig, directory: str) -> int:
    """Check the log's owner, and return the log's id."""
    name = NodeName(config.tenant, config.node)
    given = LogDirectory(directory)
    given.require()
    number, owner = given.log_id(), given.owner()
    if number is None:
        raise NotImportable(f"no segment in {directory} has a sound header, so it is unknown which log this is")
    if owner is not None and owner != name:
        raise NotImportable(
            f"the log in {directory} belongs to {owner}, this configuration names {name}. Its records reach hubs under "
            f"the name {owner} alone: import it with a configuration of that name"
        )
    if not os.path.isdir(config.data_dir):
        # Its owner must be the node's user, and this process may run as another one.
        raise NotImportable(f"{config.data_dir} is missing. Start the node once, which makes it, then run this again")
    return number


def _check(config: EdgeConfig, directory: str) -> str:
    """Check the log's owner and that it is not in use, and return the log's id."""
    number = _check_owner(config, directory)
    log_id = format_log_id(number)
    if has_conflicts(directory):
        raise NotImportable(
            f"a hub refused log {log_id} as an old copy: it has other records under the same numbers. Give --as-new to "
            "bring the records that only this copy has, under new numbers"
        )
    if LogDirectory(config.data_dir).log_id() == number:
        raise NotImportable(
            f"{directory} holds log {log_id}, which is the node's own log in {config.data_dir}: a copy of it has "
            "nothing to import. If it has records that the node lacks, the copy continued alone; read them with "
            "`weft edge query`, or bring them as new ones with --as-new"
        )
    _refuse_known(config, log_id)
    return log_id


def _refuse_known(config: EdgeConfig, log_id: str) -> None:
    for there in (imports.waiting(config.data_dir), imports.done(config.data_dir)):
        if log_id in there:
            raise NotImportable(
                f"log {log_id} was imported before; see `weft edge status`. To import another copy of it, first "
                "wait until it is done, then delete it with --delete-done"
            )


def _recovered(config: EdgeConfig, directory: str) -> dict[str, int]:
    """Open the log once, as the node will: recovery repairs the traces of a crash, or reports the problem."""
    with _importable(directory), exclusive_log(directory, _settings(config, directory)) as log:
        counts = {name: log.ranges(number).count() for name, number in log.streams().items()}
    return {name: count for name, count in counts.items() if count and name not in STATE_STREAMS}


def _settings(config: EdgeConfig, directory: str) -> LogSettings:
    segment = segment_bytes(config)
    taken = sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())
    return LogSettings(
        segment_bytes=segment, budget_bytes=max(config.disk.budget_bytes, 2 * taken + 8 * segment), tail_bytes=0
    )


@contextlib.contextmanager
def _importable(directory: str) -> Iterator[None]:
    try:
        yield
    except DirectoryInUse:
        raise NotImportable(f"a node runs with {directory}. Stop it first, then run this again") from None


def _copy(filesystem: FileSystem, source: str, target: str) -> None:
    """Copy a data directory durably, files and folders of links; sockets and locks stay behind."""
    with contextlib.ExitStack() as stack:
        try:
            stack.callback(filesystem.lock(source).close)
        except DirectoryInUse:
            raise NotImportable(f"a node runs with {source}. Stop it first, then run this again") from None
        except OSError:
            pass  # a disk mounted read-only: no process writes to it
        files = [
            os.path.join(folder, name)
            for folder, _, names in os.walk(source)
            for name in names
            if os.path.isfile(os.path.join(folder, name)) and name != "lock"
        ]
        needed = sum(map(os.path.getsize, files)) + _SPARE_BYTES
        free = filesystem.free_bytes(os.path.dirname(target))
        if needed > free:
            raise NotImportable(
                f"the copy needs {approximate_size(needed)}, {os.path.dirname(target)} has {approximate_size(free)}. "
                f"Make room, or mount the disk of {source} and let a node with an own data_dir there deliver it"
            )
        shutil.rmtree(target, ignore_errors=True)
        for path in files:
            place = os.path.join(target, os.path.relpath(path, source))
            filesystem.make_directory(os.path.dirname(place))
            shutil.copyfile(path, place)
            _sync(place)
        for folder, _, _ in os.walk(target):
            filesystem.sync_directory(folder)


def _sync(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
