"""Owners: the users, addresses, edges, tenants and tokens that are charged with costs."""

from __future__ import annotations

import enum
from ipaddress import IPv6Address, ip_address, ip_network
from typing import NamedTuple


class OwnerKind(enum.StrEnum):
    """The kind of an owner's identity."""

    USER = "user"
    ADDRESS = "address"
    EDGE = "edge"
    TENANT = "tenant"
    TOKEN = "token"  # noqa: S105 - a word, no secret


class Owner(NamedTuple):
    """An identity that is charged with costs. The node's own work has no owner."""

    kind: OwnerKind
    name: str
    """Name of a user or tenant, ``TENANT/EDGE``, an address (for IPv6 its /64), or the public part of a token."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


LOCAL = "localhost"
"""Name of the owner for clients of this machine without a user."""


def user_or_address(user: str | None, address: str) -> Owner:
    """Return the owner of a connection: its user, or without a login its address.

    Args:
        address: empty for clients of this machine.
    """
    return Owner(OwnerKind.ADDRESS, address or LOCAL) if user is None else Owner(OwnerKind.USER, user)


def address_owner(host: str) -> Owner:
    """Return the owner of a connection by its peer's address: for IPv6 the /64, the usual prefix of one customer."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return Owner(OwnerKind.ADDRESS, host)
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    name = str(ip_network((address, 64), strict=False)) if isinstance(address, IPv6Address) else str(address)
    return Owner(OwnerKind.ADDRESS, name)
