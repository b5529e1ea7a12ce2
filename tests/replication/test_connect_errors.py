"""What an operator reads when a link cannot connect: the cause as the system gave it, and what to do."""

from __future__ import annotations

import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from weft.replication.attempts.outcome import refused_by_server
from weft.replication.runner import connect_errors
from weft.replication.status import LinkState

URL = "https://hub.example.com"
KEY = ConnectionKey("hub.example.com", 443, True, True, None, None, None)


def test_a_refused_certificate_is_told_by_what_was_verified_or_else_by_the_error() -> None:
    verified = ssl.SSLCertVerificationError("certificate verify failed")
    verified.verify_message = "self-signed certificate"
    for error, cause in ((verified, "self-signed certificate"), (ssl.CertificateError("no such name"), "no such name")):
        told = connect_errors.no_connection(URL, aiohttp.ClientConnectorCertificateError(KEY, error))
        assert told.state is LinkState.WAITING
        assert told.reason.startswith(f"{URL}: the hub's certificate is refused (")
        assert cause in told.reason


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [
        (401, LinkState.REFUSED, "does not accept the token"),
        (403, LinkState.REFUSED, "--scope edge"),
        (404, LinkState.REFUSED, "Check the link's `to`"),
        (400, LinkState.WAITING, "Write https:// if the port speaks TLS"),
        (503, LinkState.WAITING, "takes no links at the moment"),
        (500, LinkState.WAITING, "HTTP status 500"),
    ],
)
def test_a_status_says_what_to_do(status: int, state: LinkState, words: str) -> None:
    told = refused_by_server(URL, status, has_token=True)
    assert told.state is state
    assert words in told.reason


@pytest.mark.parametrize(
    ("challenge", "words"),
    [
        (
            'Bearer error="invalid_token", error_description="the token \'x\' ended at noon"',
            "(401): the token 'x' ended",
        ),
        ("Bearer", "mistyped"),
        ('Bearer error_description="\x1b[2J"', "mistyped"),
        ('Bearer error_description="' + "x" * 100_000 + '"', "mistyped"),
    ],
)
def test_the_hubs_reason_for_a_refused_token_is_told(challenge: str, words: str) -> None:
    assert words in refused_by_server(URL, 401, has_token=True, challenge=challenge).reason


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("the hub has no keys of the issuer", "at the moment (503): the hub has no keys of the issuer; the edge tries"),
        (None, "(503). Its log says why"),
        ("\x1b[2J", "(503). Its log says why"),
        ("x" * 1000, "(503). Its log says why"),
    ],
)
def test_the_reason_of_a_hub_that_takes_no_links_is_told(told: str | None, words: str) -> None:
    assert words in refused_by_server(URL, 503, has_token=True, told=told).reason
