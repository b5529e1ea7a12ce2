"""Sessions, links and termini of the engine."""

from __future__ import annotations

from typing import Any

from cproton import addressof
from proton import Condition, Link, ProtonException, Terminus, symbol

from weft.edge_node.servers.amqp1.addresses import Address, BadAddress, Refused, parse


def key(endpoint: Any) -> int:
    """Return a number that identifies a link or session until it is freed."""
    return int(addressof(endpoint._impl))


def fail(endpoint: Any, condition: str, description: str) -> None:
    """Close a link or session with an error."""
    endpoint.condition = Condition(condition, description)
    endpoint.close()


def refuse(link: Any, condition: str, description: str) -> None:
    """Refuse an ``attach``: answered without source and target, then closed (part 2, section 2.6.3)."""
    link.open()
    fail(link, condition, description)


def values(data: Any) -> Any:
    """Return a value that the engine decoded, such as the filters of a source; None where it has no form in Python."""
    try:
        data.rewind()
        return data.get_object() if data.next() else None
    except (ProtonException, ValueError, TypeError, KeyError):
        return None


def is_kept(terminus: Any) -> bool:
    """Return whether the client requests a terminus that outlives its connection."""
    return bool(terminus.durability != Terminus.NONDURABLE or terminus.expiry_policy == Terminus.EXPIRE_NEVER)


def keep_s(terminus: Any) -> float:
    """Return the time for which a terminus is kept after its link was detached."""
    return float("inf") if terminus.expiry_policy == Terminus.EXPIRE_NEVER else float(terminus.timeout)


def is_coordinator(terminus: Any) -> bool:
    """Return whether the link is for transactions."""
    return bool(terminus.type == Terminus.COORDINATOR)


def wants_settled(link: Any) -> bool:
    """Return whether a client requests settled messages: at most once."""
    return bool(link.remote_snd_settle_mode == Link.SND_SETTLED)


def settles_second(link: Any) -> bool:
    """Return whether the receiver of a link settles a delivery after the sender (part 2, section 2.8.3)."""
    return bool(link.remote_rcv_settle_mode == Link.RCV_SECOND)


def keep_filters(terminus: Any, asked: Any, names: tuple[str, ...]) -> None:
    """Set the filters of a source to the ones in force, in the form that the client has sent."""
    terminus.filter.clear()
    found = values(asked.filter) if names else None
    if found:
        terminus.filter.put_dict({symbol(name): found[name] for name in names})


def accept_attach(link: Any) -> None:
    """Answer ``attach`` with the source and target that the client has requested; the caller may change them first."""
    link.snd_settle_mode = link.remote_snd_settle_mode
    link.rcv_settle_mode = link.remote_rcv_settle_mode
    link.open()


def address_of(terminus: Any) -> Address:
    """Return the address of a source or target.

    Raises:
        Refused: it names nothing.
    """
    capabilities = values(terminus.capabilities)
    if isinstance(capabilities, str):
        capabilities = [capabilities]
    elements = getattr(capabilities, "elements", capabilities)
    names = [str(each) for each in elements] if isinstance(elements, list | tuple) else []
    try:
        return parse(terminus.address, names)
    except BadAddress as error:
        raise Refused("amqp:not-found", str(error)) from None
