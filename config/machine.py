"""Files, folders, disk space and ports that a configuration names on this machine, and why they cannot be used."""

from __future__ import annotations

import errno
import os
import pwd
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from weft.config.errors import Finding, format_path
from weft.config.units import Address, UnixSocket, approximate_size, format_size

CREDENTIALS = "/run/credentials/"
"""Folder that systemd fills while a unit runs; at other times its files are missing."""
_PORT_FREE_FOR_ALL = 1024


def user(number: int | None = None) -> str:
    """Return the name of a user, given by number; without one, of the user that this process runs as."""
    number = os.geteuid() if number is None else number
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"number {number}"


def run_as(owner: int) -> str:
    """Return the advice to run a command as another user, given by number."""
    if owner == 0:
        return "Put `sudo` before the command"
    try:
        return f"Put `sudo -u {pwd.getpwuid(owner).pw_name}` before the command"
    except KeyError:
        return f"Put `sudo -u '#{owner}'` before the command"


def why_denied(path: str, act: str) -> str:
    """Return why this process may not use a file or folder, its owner, and what to do.

    Args:
        path: the refused path; it need not exist.
        act: the attempted act, such as ``read`` or ``write to``.
    """
    place, found = _obstacle(path)
    whose = "it" if place == os.path.abspath(path) else place
    owner = f"{whose} belongs to user {user(found.st_uid)} (mode {stat.S_IMODE(found.st_mode):03o})"
    denied = f"user {user()} may not {act} it: {owner}"
    if os.geteuid() in (0, found.st_uid):
        return f"{denied}. Change its mode: `chmod u+rwX {place}`"
    return f"{denied}. {run_as(found.st_uid)}, or change the owner, group or mode of {place}"


def _obstacle(path: str) -> tuple[str, os.stat_result]:
    """Return the path, or the folder above it that hides it or in which it cannot be made."""
    path = os.path.abspath(path)
    while True:
        try:
            return path, os.stat(path)
        except OSError:
            # "/" can always be looked at.
            path = os.path.dirname(path)


def why_unreadable(error: OSError) -> str:
    """Return why a file cannot be read, and what to do."""
    match error.errno:
        case errno.ENOENT:
            return "there is no such file"
        case errno.ENOTDIR:
            return "there is no such file: a part of its path is a file and not a folder"
        case errno.EISDIR:
            return "this is a folder. Name a file"
        case errno.EACCES | errno.EPERM if isinstance(error.filename, str):
            return why_denied(error.filename, "read")
    return f"it cannot be read: {(error.strerror or str(error)).lower()}"


def unreadable(path: str) -> str | None:
    """Return ``why_unreadable`` of a file; None when it can be read."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        return why_unreadable(error)
    return None


def too_readable(path: str) -> str | None:
    """Return a warning for a file with secrets that every user of the machine may read; None otherwise."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return None
    if not mode & (stat.S_IROTH | stat.S_IWOTH):
        return None
    return f"every user of this machine may read {path} (mode {stat.S_IMODE(mode):03o}). Run `chmod o-rwx {path}`"


def folder(path: str) -> str | None:
    """Return why this process cannot write to a folder or create it; None when it can.

    The check creates nothing.
    """
    existing = _existing(path)
    if not os.path.isdir(existing):
        return f"{existing} is not a folder. Name a folder, or move that file away"
    if os.statvfs(existing).f_flag & os.ST_RDONLY:
        return f"{existing} is on a read-only file system. Name a folder on another, or mount it writable"
    if not os.access(existing, os.W_OK | os.X_OK):
        if existing == path:
            return why_denied(path, "write to")
        if not os.access(existing, os.X_OK):
            return why_denied(path, "write to")
        # The folder above is often the system's, as /var/lib is: its owner is not to change.
        make = f"`sudo install -d -o {user()} -m 750 {path}`"
        return (
            f"user {user()} may not create it in {existing}. Run this as the node's user, or create the folder: {make}"
        )
    return None


def too_small(path: str, wanted_bytes: int) -> tuple[str | None, str | None]:
    """Compare a bound on a folder with the file system that holds it, or will hold it.

    Returns:
        An error when the whole file system is smaller, and a warning when its free space is.
    """
    existing = _existing(path)
    found = os.statvfs(existing)
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    if existing == path:
        free += _bytes_in(path)
    wanted = format_size(wanted_bytes)
    if wanted_bytes > total:
        return f"{wanted} is more than the disk of {path} holds ({approximate_size(total)}). Set a smaller size", None
    if wanted_bytes > free:
        left = f"only {approximate_size(free)} is free on the disk of {path}"
        return None, f"{left}, and the budget is {wanted}. Free some space, or set a smaller budget"
    return None, None


def _existing(path: str) -> str:
    """Return the path, or the nearest of its parents that exists."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _bytes_in(directory: str) -> int:
    try:
        return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())
    except OSError:
        return 0


def why_not_listening(error: OSError, bind: Address | UnixSocket) -> str:
    """Return why nothing can listen at an address, and what to do."""
    if isinstance(error, socket.gaierror):
        return f"the name in {bind} cannot be resolved. Write an address of this machine, or 0.0.0.0 for all"
    match error.errno:
        case errno.EADDRINUSE:
            finds = f"ss -ltnp 'sport = :{bind.port}'" if isinstance(bind, Address) else f"fuser {bind.path}"
            advice = f"Choose another, or stop the program that has it (`{finds}`)"
            return f"cannot listen at {bind}: address already in use. {advice}"
        case errno.EADDRNOTAVAIL:
            return (
                f"{bind} is not an address of this machine. `ip address` lists its addresses; 0.0.0.0 means all of them"
            )
        case errno.EACCES | errno.EPERM if isinstance(bind, Address) and bind.port < _PORT_FREE_FOR_ALL:
            return (
                f"user {user()} may not listen at {bind}: ports below {_PORT_FREE_FOR_ALL} are reserved for root. "
                "Choose a higher port, or give the service CAP_NET_BIND_SERVICE"
            )
        case errno.EACCES | errno.EPERM:
            return f"user {user()} may not listen at {bind}. Choose an address that it may use"
        case errno.ENOENT if isinstance(bind, UnixSocket):
            return f"the folder of {bind} does not exist. Create it, or choose another path"
    return f"cannot listen at {bind}: {(error.strerror or str(error)).lower()}"


def not_listening(bind: Address | UnixSocket) -> str | None:
    """Return ``why_not_listening`` at an address, found by binding it for a moment; None when it is free.

    A port of 0 is always free. For a unix socket only the folder is checked: binding would replace a live socket.
    """
    if isinstance(bind, UnixSocket):
        return folder(os.path.dirname(bind.path) or ".")
    try:
        found = socket.getaddrinfo(bind.to_resolve, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            with socket.socket(family, kind, protocol) as trial:
                # As the listeners do: connections of a node that has just ended do not count.
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                trial.bind(address)
                trial.listen(1)
    except OSError as error:
        return why_not_listening(error, bind)
    return None


# Lines of a doctor, that of an edge or of a hub: good, unknown, or what to do.


class Standing(StrEnum):
    """State of what a line is about."""

    GOOD = "good"
    UNKNOWN = "unknown"
    """It could not be found out here, and the line says why."""
    ACT = "act"
    """The line says what to do."""


class Verdict(NamedTuple):
    """One line."""

    check: str
    """Subject, such as ``disk speed`` or ``link cloud``."""
    state: Standing
    says: str


def good(check: str, says: str) -> Verdict:
    """Return a line about what is as it should be."""
    return Verdict(check, Standing.GOOD, says)


def unknown(check: str, says: str) -> Verdict:
    """Return a line about what could not be found out, with the reason."""
    return Verdict(check, Standing.UNKNOWN, says)


def act(check: str, says: str) -> Verdict:
    """Return a line about what is wrong, with the advice."""
    return Verdict(check, Standing.ACT, says)


def is_well(verdicts: Sequence[Verdict]) -> bool:
    """Return whether there is nothing to do. What is unknown is nothing to do."""
    return all(each.state is not Standing.ACT for each in verdicts)


def of_settings(findings: Sequence[Finding], certificates: Mapping[str, str]) -> Iterator[Verdict]:
    """Yield the lines about a configuration, and about certificates.

    Args:
        certificates: last day of each certificate that is shown to others, by its file.
    """
    of_certificates = list(filter(_is_of_certificate, findings))
    others = [each for each in findings if each not in of_certificates]
    for each in others:
        yield act("configuration", said(each))
    if not others:
        yield good("configuration", "it fits this machine")
    for each in of_certificates:
        yield act("certificates", said(each))
    doubted = " ".join(each.message for each in of_certificates)
    for file, last_day in certificates.items():
        if file not in doubted:
            yield good("certificates", f"{file} is valid until {last_day}")


def of_ports(taken: Sequence[Finding], untried: Sequence[Finding]) -> Iterator[Verdict]:
    """Yield the lines about ports that were bound for a moment."""
    for each in taken:
        yield act("ports", said(each))
    for each in untried:
        yield unknown("ports", each.message)
    if not taken and not untried:
        yield good("ports", "all are free")


def said(finding: Finding) -> str:
    """Return a finding as a line says it."""
    path = format_path(finding.path)
    return f"{path}: {finding.message}" if path else finding.message


def _is_of_certificate(finding: Finding) -> bool:
    return "tls" in finding.path or finding.path[-1:] in (("certificate",), ("key",), ("ca_file",))
