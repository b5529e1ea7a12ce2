"""What an operator reads when a link cannot connect: the cause as the system gave it, and what to do."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from tests.support.certificates import Authority, Pem
from weft.replication.attempts import refused_by_server
from weft.replication.events import LinkState
from weft.replication.runner import connect

URL = "https://hub.example.com"
KEY = ConnectionKey("hub.example.com", 443, True, True, None, None, None)


def test_a_refused_certificate_is_told_by_what_was_verified_or_else_by_the_error() -> None:
    verified = ssl.SSLCertVerificationError("certificate verify failed")
    verified.verify_message = "self-signed certificate"
    for error, cause in ((verified, "self-signed certificate"), (ssl.CertificateError("no such name"), "no such name")):
        reported = connect.no_connection(URL, aiohttp.ClientConnectorCertificateError(KEY, error))
        assert reported.state is LinkState.WAITING
        assert reported.reason.startswith(f"{URL}: the hub's certificate is refused (")
        assert cause in reported.reason


def test_a_refused_certificate_has_the_cure_of_its_cause(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, ended = authority.sign("hub"), authority.sign("ended", expired=True)

    def reported(shown: Pem, host: str, **trusted: str) -> str:
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.load_cert_chain(shown.certificate, shown.key)
        if trusted:
            client.load_verify_locations(**trusted)
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        near, far = client.wrap_bio(back, there, server_hostname=host), server.wrap_bio(there, back, server_side=True)
        for end in (near, far):
            with pytest.raises(ssl.SSLWantReadError):
                end.do_handshake()
        with pytest.raises(ssl.SSLCertVerificationError) as refused:
            near.do_handshake()
        return connect.no_connection(URL, aiohttp.ClientConnectorCertificateError(KEY, refused.value)).reason

    assert "Name the certificate of its authority in the link's `ca_file`" in reported(own, "hub.test")
    assert "Write a name of the certificate in the link's `to`" in reported(own, "other.test", cafile=authority.path)
    assert "Write a name of the certificate in the link's `to`" in reported(own, "10.0.0.1", cafile=authority.path)
    assert "Have it renewed" in reported(ended, "hub.test", cafile=authority.path)


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [
        (401, LinkState.REFUSED, "does not accept the token"),
        (403, LinkState.REFUSED, "--scope edge"),
        (404, LinkState.REFUSED, "Check the link's `to`"),
        (400, LinkState.WAITING, "Write https:// if the port speaks TLS"),
        (503, LinkState.WAITING, "accepts no links at the moment"),
        (500, LinkState.WAITING, "HTTP status 500"),
    ],
)
def test_a_status_says_what_to_do(status: int, state: LinkState, words: str) -> None:
    reported = refused_by_server(URL, status, has_token=True)
    assert reported.state is state
    assert words in reported.reason


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
    ("text", "words"),
    [
        ("the hub has no keys of the issuer", "at the moment (503): the hub has no keys of the issuer; the edge tries"),
        (None, "(503). Its log has the reason"),
        ("\x1b[2J", "(503). Its log has the reason"),
        ("x" * 1000, "(503). Its log has the reason"),
    ],
)
def test_the_reason_of_a_hub_that_takes_no_links_is_told(text: str | None, words: str) -> None:
    assert words in refused_by_server(URL, 503, has_token=True, server_reason=text).reason
