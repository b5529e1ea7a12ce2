"""Redirects: what a link tries next when a hub names another node."""

from __future__ import annotations

import logging
import random
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from tests.support.certificates import Authority, Pem
from weft.protocols.link import RefuseCode
from weft.replication.attempts import (
    HOPS_MAX,
    MOVES_S,
    SILENT_S,
    UNREACHABLE_MIN_S,
    ConnectionEnd,
    RedirectHosts,
    Redirects,
    Target,
    refused_by_server,
)
from weft.replication.events import LinkState
from weft.replication.flow_control import SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.runner import connect

FIRST, OTHER, ELSEWHERE = "http://hub:8090", "http://hub:8091", "http://hub-2:8090"
NEXT = "http://hub-3:8090"
BROKEN = ConnectionEnd(LinkState.WAITING, "no connection")
SILENT = ConnectionEnd(LinkState.WAITING, "no answer within 10 s", is_silent=True)
TAKEN_OVER = ConnectionEnd(LinkState.CONFLICT, "another one", RefuseCode.IDENTITY_CONFLICT)


def named(url: str) -> ConnectionEnd:
    return ConnectionEnd(LinkState.WAITING, "elsewhere", RefuseCode.REDIRECT, url)


@pytest.fixture
def redirects() -> Redirects:
    return Redirects(random.Random(1))


def test_an_edge_goes_where_it_is_sent_and_comes_back_when_that_cannot_be_reached(redirects: Redirects) -> None:
    there = redirects.after(Target(FIRST), named(OTHER), taken=False, now=0)
    assert there == Target(OTHER, FIRST, 1)
    back = redirects.after(there, BROKEN, taken=False, now=1)
    assert back is not None
    assert back.url == FIRST
    assert back.stay_s is not None
    # It is not tried again for a while; then it is.
    again = redirects.after(Target(FIRST), named(OTHER), taken=False, now=2)
    assert again is not None
    assert (again.url, again.stay_s is not None) == (FIRST, True)
    assert redirects.after(Target(FIRST), named(OTHER), taken=False, now=2 + UNREACHABLE_MIN_S) == there


def test_a_node_that_fell_silent_is_waited_for_twice_as_long_the_next_time(redirects: Redirects) -> None:
    """Otherwise an edge behind a slow proxy would send the same data again and again, and none would arrive."""
    sender = SenderSettings(beat_timeout=3 * SECOND, ack_timeout=30 * SECOND)

    def waits(url: str = FIRST) -> float:
        return redirects.beat_timeout(Target(url), sender) / SECOND

    found = []
    for _ in range(5):
        found.append(waits())
        redirects.after(Target(FIRST), SILENT, taken=True, now=0)
    assert found == [3, 6, 12, 24, 30]
    assert waits(OTHER) == 3, "of other nodes nothing is known"
    redirects.after(Target(OTHER), SILENT, taken=False, now=0)
    assert waits(OTHER) == 3, "it did not take the link, so nothing is known of its beats"
    redirects.after(Target(FIRST), BROKEN, taken=False, now=0)
    assert waits() == 30, "it has not shown that it is well"
    redirects.after(Target(FIRST), BROKEN, taken=True, now=0)
    assert waits() == 3
    assert redirects.beat_timeout(Target(FIRST), SenderSettings()) == 0, "without a limit there is none"


def test_a_node_that_took_the_link_is_reachable(redirects: Redirects) -> None:
    there = Target(OTHER, FIRST, 1)
    assert redirects.after(there, BROKEN, taken=True, now=0) is None
    assert redirects.after(Target(FIRST), named(OTHER), taken=False, now=1) == there


@pytest.mark.parametrize("taken", [True, False])
def test_a_host_that_fell_silent_is_left_alone_until_the_hub_knows(redirects: Redirects, *, taken: bool) -> None:
    assert redirects.after(Target(OTHER), SILENT, taken=taken, now=0) is None
    assert redirects.best([FIRST, OTHER, ELSEWHERE], 1) == ELSEWHERE
    assert redirects.best([OTHER, FIRST], 1) == OTHER
    for url in (FIRST, OTHER):
        stays = redirects.after(Target(ELSEWHERE), named(url), taken=False, now=1)
        assert stays is not None
        assert stays.url == ELSEWHERE
        assert stays.stay_s is not None
        assert SILENT_S - 1 <= stays.stay_s <= 1.5 * SILENT_S
    assert redirects.best([OTHER, ELSEWHERE], SILENT_S) == OTHER
    there = redirects.after(Target(ELSEWHERE), named(OTHER), taken=False, now=SILENT_S)
    assert there == Target(OTHER, ELSEWHERE, 1)


def test_a_host_that_fell_silent_is_tried_again_at_once_when_the_others_are_gone(redirects: Redirects) -> None:
    """A link continued to nodes that were gone for half a minute, because the one that was left had been slow."""
    assert redirects.after(Target(FIRST), SILENT, taken=True, now=0) is None
    assert redirects.best([FIRST, ELSEWHERE], 1) == ELSEWHERE
    assert redirects.after(Target(ELSEWHERE), BROKEN, taken=True, now=2) is None
    assert redirects.best([FIRST, ELSEWHERE], 3) == ELSEWHERE, "one that took the link is tried first"
    assert redirects.after(Target(ELSEWHERE), BROKEN, taken=False, now=4) is None
    assert redirects.best([FIRST, ELSEWHERE], 5) == FIRST
    assert redirects.best([ELSEWHERE, FIRST], 5) == ELSEWHERE, "each has its turn"
    assert redirects.after(Target(FIRST), BROKEN, taken=True, now=6) is None
    assert redirects.after(Target(ELSEWHERE), SILENT, taken=True, now=7) is None
    assert redirects.best([ELSEWHERE, FIRST], 8) == FIRST, "and what failed before is forgotten"


def test_a_node_that_failed_is_not_tried_again_before_one_that_may_be_left(redirects: Redirects) -> None:
    """A link asked a dead node twice, since it also had the turn of one that had fallen silent."""
    assert redirects.after(Target(FIRST), SILENT, taken=True, now=0) is None
    assert redirects.best([FIRST, NEXT, ELSEWHERE], 1) == NEXT
    assert redirects.after(Target(NEXT), BROKEN, taken=False, now=1) is None
    assert redirects.best([NEXT, ELSEWHERE, FIRST], 2) == ELSEWHERE


def test_an_edge_without_a_network_leaves_no_node_alone_for_long(redirects: Redirects) -> None:
    for hour in range(9):
        for url in (FIRST, ELSEWHERE):
            assert redirects.after(Target(url), SILENT, taken=False, now=3600.0 * hour) is None
    later = 8 * 3600.0 + SILENT_S
    assert redirects.best([ELSEWHERE, FIRST], later) == ELSEWHERE
    there = redirects.after(Target(FIRST), named(ELSEWHERE), taken=False, now=later)
    assert there == Target(ELSEWHERE, FIRST, 1)


def test_a_node_that_was_reached_before_is_tried_again_soon(redirects: Redirects) -> None:
    assert redirects.after(Target(OTHER), BROKEN, taken=True, now=0) is None
    there = redirects.after(Target(FIRST), named(OTHER), taken=False, now=1)
    assert there is not None
    back = redirects.after(there, BROKEN, taken=False, now=1)
    assert back is not None
    assert back.stay_s is not None
    assert back.stay_s <= 1.5 * SILENT_S


def test_a_refusal_of_the_edge_itself_is_not_a_matter_of_reach(redirects: Redirects) -> None:
    assert redirects.after(Target(OTHER, FIRST, 1), TAKEN_OVER, taken=False, now=0) is None
    assert redirects.after(Target(FIRST), BROKEN, taken=False, now=0) is None


def test_nodes_that_name_each_other_end_in_one_of_them(redirects: Redirects) -> None:
    target: Target | None = Target(FIRST)
    tried: list[Target] = []
    while target is not None and len(tried) < 10:
        tried.append(target)
        target = redirects.after(target, named(OTHER if target.url == FIRST else FIRST), taken=False, now=0)
    assert len(tried) == HOPS_MAX + 2
    assert tried[-1].stay_s is not None


def test_nodes_that_take_the_link_and_name_each_other_do_not_pass_it_on_for_good(redirects: Redirects) -> None:
    target: Target | None = Target(FIRST)
    tried: list[Target] = []
    while target is not None and len(tried) < 20:
        tried.append(target)
        target = redirects.after(target, named(OTHER if target.url == FIRST else FIRST), taken=True, now=0)
    assert target is None, "the link waits"
    assert len(tried) == HOPS_MAX + 2
    assert tried[-1].stay_s is not None
    assert redirects.after(Target(FIRST), named(OTHER), taken=True, now=MOVES_S) == Target(OTHER, FIRST, 1)


@pytest.mark.parametrize("url", ["http://hub.example.com", "ftp://x", "https://", "https://x:99999", "", "no url"])
def test_an_edge_never_leaves_tls_and_follows_no_nonsense(redirects: Redirects, url: str) -> None:
    target = redirects.after(Target("https://hub.example.com"), named(url), taken=False, now=0)
    assert target is not None
    assert (target.url, target.stay_s is not None) == ("https://hub.example.com", True)


@pytest.mark.parametrize(
    ("to", "named_hosts", "is_followed"),
    [
        # A host itself, those below it and those beside it.
        ("https://hub.example.com", "hub.example.com HUB.example.com. eu.hub.example.com hub-2.example.com", True),
        ("https://hub.example.com", "example.com evil.com hub.example.com.evil.com xexample.com 10.0.0.1 hub", False),
        ("https://example.com", "hub.example.com", True),
        ("https://example.com", "other.com com 93.184.215.14", False),
        # Addresses and names of an inner network lead to others there, and nowhere else.
        ("http://10.77.0.10", "10.77.0.11 192.168.1.1 hub hub-2.plant.internal weft-hub-0.weft-hub.weft.svc", True),
        ("http://hub", "hub-2 weft-hub-0.weft-hub.weft.svc.cluster.local 10.0.0.1 fd00::7", True),
        ("http://hub", "evil.com 93.184.215.14 2606:2800:21f::1", False),
        ("http://93.184.215.14", "93.184.215.14", True),
        ("http://93.184.215.14", "93.184.215.15 10.0.0.1 evil.com", False),
    ],
)
def test_the_hosts_near_those_of_the_link(to: str, named_hosts: str, is_followed: bool) -> None:
    hosts = RedirectHosts([to], None)
    for host in named_hosts.split():
        url = f"https://[{host}]:8090" if ":" in host else f"https://{host}:8090"
        assert (url in hosts) is is_followed, host


def test_the_hosts_that_an_operator_lists_and_no_others() -> None:
    hosts = RedirectHosts(["https://hub.example.com"], ["*.Hubs.example.net", "10.7.*"])
    for host in ("hub.example.com", "a.hubs.example.net", "10.7.0.1"):
        assert f"https://{host}" in hosts
    for host in ("hub-2.example.com", "hubs.example.net", "10.8.0.1", "a.hubs.example.net.evil.com"):
        assert f"https://{host}" not in hosts
    assert "https://hub-2.example.com" not in RedirectHosts(["https://hub.example.com"], [])


def test_a_link_stays_where_it_is_and_says_once_why(caplog: pytest.LogCaptureFixture) -> None:
    redirects = Redirects(random.Random(1), RedirectHosts([FIRST], None), "cloud")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            target = redirects.after(Target(FIRST), named("https://evil.com\x1b"), taken=False, now=0)
            assert target is not None
            assert (target.url, target.stay_s is not None) == (FIRST, True)
    (said,) = caplog.messages
    assert "evil.com" in said
    assert "\x1b" not in said
    assert "add it to `redirects`" in said


# --- What an operator reads when a link cannot connect: the cause as the system gave it, and what to do


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
