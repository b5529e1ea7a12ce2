"""Refusals of MQTT brokers as text: their meaning, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from weft.protocols.mqtt.packets import Version
from weft.protocols.mqtt.reason_codes import ConnectCode, ReasonCode

_ADVICE_5: dict[int, str] = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: "it does not know MQTT 5. Set `version: v3.1.1`",
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: "it does not take the client identifier. Set another `client_id`",
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: "user name or password is wrong. Check `username` and the password",
    ReasonCode.NOT_AUTHORIZED: "the client may not connect. Check `username`, the password and the broker's rules",
    ReasonCode.PACKET_TOO_LARGE: "it does not take a CONNECT of this length",
}
_ADVICE_311: dict[int, str] = {
    ConnectCode.UNACCEPTABLE_PROTOCOL_VERSION: "it does not know MQTT 3.1.1",
    ConnectCode.IDENTIFIER_REJECTED: "it does not take the client identifier. Set another `client_id`",
    ConnectCode.SERVER_UNAVAILABLE: "it is not available",
    ConnectCode.BAD_USER_NAME_OR_PASSWORD: "user name or password is wrong. Check `username` and the password",
    ConnectCode.NOT_AUTHORISED: "the client may not connect. Check `username`, the password and the broker's rules",
}


def connect_refused(code: int, version: Version, said: str | None) -> str:
    """Return the reason why a broker refuses a client, by the code of its CONNACK."""
    advice = (_ADVICE_5 if version == Version.V5 else _ADVICE_311).get(code)
    why = advice or _name(code)
    return f"the broker refuses the client: {why} (reason code {code:#04x}){f': {said}' if said else ''}"


def subscribe_refused(filters: Sequence[str], code: int, version: Version) -> str:
    """Return the reason why a broker refuses filters, by a code of its SUBACK."""
    named = ", ".join(filters[:3]) + (f" and {len(filters) - 3} more" if len(filters) > 3 else "")
    why = _name(code) if version == Version.V5 else "it does not say why"
    return (
        f"the broker refuses the subscription to {named}: {why} (reason code {code:#04x}). "
        "Check the broker's access rules"
    )


def _name(code: int) -> str:
    try:
        return ReasonCode(code).name.lower().replace("_", " ")
    except ValueError:
        return "for a reason of its own"
