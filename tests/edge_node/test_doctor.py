"""The doctor of an edge, beside planted troubles: each is found, and its line says what to do. It leaves nothing behind
and never waits long.
"""

from __future__ import annotations

import http.server
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support.certificates import Authority, Pem
from weft.config.links import Link
from weft.config.load import parse
from weft.config.machine import Standing, Verdict, act, good, is_well, unknown
from weft.config.models import EdgeConfig
from weft.edge_node import doctor
from weft.edge_node.check.rules import check
from weft.edge_node.doctor import HubCalls, examine, of_sources, open_files
from weft.protocols.lane import NodeName
from weft.storage.host import DiskSpeed, disk_speed, disk_wear, judged, measure

NOW = 1_800_000_000.0
THIS = "weft 0.1.0"
CONFIG = "node: a\ndata_dir: {folder}\nstreams: {{telemetry: {{from: '#'}}}}\nhttp: null\nlisteners: {{}}\n"


def configuration(folder: Path, more: str = "") -> EdgeConfig:
    return parse(CONFIG.format(folder=folder) + more, "edge.yaml", EdgeConfig, check).config


def test_the_disk_is_measured_in_a_file_without_a_name(tmp_path: Path) -> None:
    speed = measure(str(tmp_path), time.monotonic)
    assert 0 < speed.usual_s <= speed.slowest_s
    assert list(tmp_path.iterdir()) == []


def test_a_measurement_ends_in_time_however_slow_the_disk_is(tmp_path: Path) -> None:
    ticks = iter(range(100))
    assert measure(str(tmp_path), lambda: float(next(ticks))).syncs == 1, "each look at this clock takes a second"


@pytest.mark.parametrize(
    ("speed", "state", "words"),
    [
        (DiskSpeed(20, 0.002, 0.011), Standing.GOOD, "a sync takes 2.0 ms, the slowest of 20 took 11.0 ms"),
        (DiskSpeed(8, 0.25, 0.4), Standing.ACT, "use a faster disk"),
        (DiskSpeed(20, 0.002, 1.5), Standing.ACT, "the slowest of 20 took 1.5 s. Look for other programs"),
    ],
)
def test_a_slow_disk_is_something_to_act_on(speed: DiskSpeed, state: Standing, words: str) -> None:
    verdict = judged(speed)
    assert verdict.state is state
    assert words in verdict.says


def test_a_disk_that_does_not_answer_does_not_keep_the_command(tmp_path: Path) -> None:
    healed = threading.Event()

    def stuck(_directory: str, _clock: Callable[[], float]) -> DiskSpeed:
        healed.wait()
        return DiskSpeed(1, 1, 1)

    verdict = disk_speed(str(tmp_path), time.monotonic, 0.01, stuck)
    healed.set()
    assert verdict.state is Standing.ACT
    assert "look at `dmesg`" in verdict.says


def test_a_folder_that_is_not_there_is_unknown_and_is_not_made(tmp_path: Path) -> None:
    lines = list(examine(configuration(tmp_path / "data"), {}, time.monotonic, time.time, software=THIS))
    states = {each.check: each.state for each in lines if each.check.startswith("disk ")}
    assert states == dict.fromkeys(("disk space", "disk speed", "disk wear"), Standing.UNKNOWN)
    assert list(tmp_path.iterdir()) == []


def test_what_the_check_finds_is_in_the_lines_and_a_good_part_has_one(tmp_path: Path) -> None:
    lines = list(
        examine(
            configuration(tmp_path, "auth: {users_file: users}\n"), {}, time.monotonic, time.time, software="weft 0.1.0"
        )
    )
    by_check = {each.check: each for each in lines}
    assert by_check["configuration"].state is Standing.ACT
    assert "weft user add" in by_check["configuration"].says
    assert by_check["ports"] == good("ports", "all are free")
    assert not is_well(lines)
    assert is_well([good("a", "b"), unknown("a", "b")])
    assert not is_well([good("a", "b"), act("a", "b")])


def test_copies_that_a_former_pair_left_are_named(tmp_path: Path) -> None:
    (tmp_path / "pair" / "00000000000000ab-2").mkdir(parents=True)
    (tmp_path / "pair" / "alone").touch()
    found = examine(configuration(tmp_path), (), time.monotonic, lambda: NOW, software=THIS)
    (pair,) = [verdict for verdict in found if verdict.check == "pair"]
    assert pair.state is Standing.ACT
    assert "`pair` is not set: 00000000000000ab-2." in pair.says


def test_open_files_are_counted_for_a_node_that_would_start_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(tmp_path, "limits: {connections: 1000, half_open: 100}\n")
    for hard, state in ((500, Standing.ACT), (5000, Standing.GOOD), (-1, Standing.GOOD)):
        monkeypatch.setattr("resource.getrlimit", lambda _kind, hard=hard: (256, hard))
        assert open_files(config, is_running=False).state is state
    assert open_files(config, is_running=True).state is Standing.UNKNOWN, "there is no node to ask"


class Answers(http.server.BaseHTTPRequestHandler):
    """A server whose answers its ``server`` has, one for readiness and one about tokens."""

    def do_GET(self) -> None:
        answers = self.server.answers  # type: ignore[attr-defined]
        status, headers, body = answers[self.path.startswith("/v1/")]
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@contextmanager
def answering(
    status: int,
    headers: dict[str, str],
    body: bytes = b"",
    *,
    rights: tuple[int, Any] = (404, None),
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
) -> Iterator[str]:
    with http.server.ThreadingHTTPServer((host, 0), Answers) as server:
        about_token = rights[0], {"Date": formatdate(NOW)}, json.dumps(rights[1]).encode()
        server.answers = (status, headers, body), about_token  # type: ignore[attr-defined]
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http{'s' if tls else ''}://{host}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def called(url: str, patience_s: float = 10.0) -> list[Verdict]:
    return HubCalls(
        "cloud",
        Link(to=(url,)),
        time.monotonic,
        lambda: NOW,
        node=NodeName("default", "a"),
        software="weft 0.1.0",
        patience_s=patience_s,
    ).verdicts()


@pytest.mark.parametrize(
    ("status", "headers", "body", "states", "words"),
    [
        (200, {"Date": formatdate(NOW)}, b"ready", [Standing.GOOD, Standing.GOOD], "is ready"),
        (200, {"Date": formatdate(NOW + 3600)}, b"", [Standing.GOOD, Standing.ACT], "60.0 minutes behind"),
        (200, {"Date": formatdate(NOW - 30)}, b"", [Standing.GOOD, Standing.ACT], "30 seconds ahead of"),
        (200, {"Date": "yesterday"}, b"", [Standing.GOOD, Standing.UNKNOWN], "sends no time"),
        (200, {}, b"", [Standing.GOOD, Standing.UNKNOWN], "sends no time"),
        (503, {}, b"a store is silent\nx", [Standing.ACT, Standing.UNKNOWN], "not ready: a store is silent."),
        (302, {"Location": "http://x/"}, b"", [Standing.ACT, Standing.UNKNOWN], "redirects (302)"),
        (404, {}, b"", [Standing.ACT, Standing.UNKNOWN], "answers 404: not a hub"),
    ],
)
def test_the_answer_of_a_hub_and_its_clock_are_two_lines(
    status: int, headers: dict[str, str], body: bytes, states: list[Standing], words: str
) -> None:
    with answering(status, headers, body) as url:
        found = called(url)
    assert [each.state for each in found if each.check != "versions"] == states
    assert words in "\n".join(each.says for each in found)


def test_a_hub_that_cannot_be_reached_is_something_to_act_on() -> None:
    (refused,) = called(f"http://127.0.0.1:{free_port()}")
    assert (refused.check, refused.state) == ("link cloud", Standing.ACT)
    assert "Check that the hub runs" in refused.says
    (unnamed,) = called("http://no.such.name.invalid:1")
    assert "the name no.such.name.invalid cannot be resolved" in unnamed.says
    with answering(200, {}) as url:
        (plain,) = called(url.replace("http", "https"))
    assert "does not speak TLS" in plain.says


def test_the_way_to_each_source_is_tried(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        nodes, devices = "nodes: [{id: i=2256}]", "devices: {meter: {registers: {a: {address: 1}}}}"
        config = configuration(
            tmp_path,
            f"""sources:
  press: {{opcua: {{url: ["opc.tcp://127.0.0.1:{port}", "opc.tcp://127.0.0.1:{free_port()}"], {nodes}}}}}
  plant: {{mqtt: {{url: "mqtt://no.such.name.invalid", topics: ["a/#"]}}}}
  line: {{modbus: {{url: "serial:///dev/no-such-port", {devices}}}}}
""",
        )
        found = list(of_sources(config, time.monotonic, is_running=False))
        running = list(of_sources(config, time.monotonic, is_running=True))
    assert [(each.check, each.state) for each in found] == [
        ("source press", Standing.GOOD),
        ("source press", Standing.ACT),
        ("source plant", Standing.ACT),
        ("source line", Standing.ACT),
    ]
    assert "connection refused. Check that it runs" in found[1].says
    assert "no.such.name.invalid cannot be resolved" in found[2].says
    assert "there is no /dev/no-such-port" in found[3].says
    assert running[3].state == Standing.UNKNOWN, "a line of devices may take one connection, and the node has it"


def test_a_hub_that_is_silent_is_left_after_a_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (verdict,) = called(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.05)
    assert "no answer within 0.05 s" in verdict.says


def linked(folder: Path, url: str, more: str = "", token: str | None = "secret") -> EdgeConfig:
    """A configuration with a link, and its token in a file."""
    if token is not None:
        (folder / "token").write_text(token)
        (folder / "token").chmod(0o600)
        more = f"{more}, token_file: {folder}/token"
    return configuration(folder, f'links: {{cloud: {{to: "{url}"{more}}}}}\n')


def reported(**more: Any) -> tuple[int, Any]:
    """What a hub of this release says of the node's token."""
    this = {"scope": "edge", "tenant": "default", "edge": "a", "software": "weft 0.1.0", "link_protocol": 1}
    return 200, this | more


def hub_of(rights: tuple[int, Any], folder: Path, token: str | None = "secret") -> Iterator[EdgeConfig]:
    with answering(200, {"Date": formatdate(NOW)}, rights=rights) as url:
        yield linked(folder, url, token=token)


def good_hub(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    yield from hub_of(reported(software="weft 0.2.0"), folder)


def revoked_token(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    yield from hub_of((401, {"error": "no valid token"}), folder)


def wanted_token(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    yield from hub_of((401, {"error": "a token is required"}), folder, token=None)


def token_of_another(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    yield from hub_of(reported(edge="press-8"), folder)


def hub_too_new(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    yield from hub_of(reported(software="weft 9.0.0", link_protocol=2), folder)


def hub_too_old(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    patch.setattr(doctor, "PROTOCOL_VERSION", 2)
    yield from hub_of(reported(), folder)


def token_file_gone(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    for config in hub_of(reported(), folder):
        (folder / "token").unlink()
        yield config


def token_for_all(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    for config in hub_of(reported(), folder):
        (folder / "token").chmod(0o644)
        yield config


def wrong_clock(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    with answering(200, {"Date": formatdate(NOW - 7200)}, rights=reported()) as url:
        yield linked(folder, url)


def unset_clock(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    patch.setattr("weft.storage.host.synchronised_reader", lambda: lambda: False)
    yield configuration(folder)


def full_disk(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    yield configuration(folder, "disk: {budget: 900TiB}\n")


def slow_card(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    patch.setattr(doctor, "disk_speed", lambda *_: judged(DiskSpeed(8, 0.25, 0.4)))
    yield configuration(folder)


def worn_card(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    patch.setattr(doctor, "disk_wear", lambda place: disk_wear(place, str(kernel(folder, life_time="0x02 0x0a"))))
    yield configuration(folder)


def damaged_card(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    patch.setattr(doctor, "disk_wear", lambda place: disk_wear(place, str(kernel(folder, errors=7))))
    yield configuration(folder)


def few_files(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    patch.setattr("resource.getrlimit", lambda _: (64, 64))
    yield configuration(folder)


def taken_port(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        yield parse(
            f'node: a\ndata_dir: {folder}\nhttp: null\nlisteners: {{mqtt: {{bind: "{address}"}}}}\n',
            "edge.yaml",
            EdgeConfig,
            check,
        ).config


def data_of_a_later_release(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    (folder / "formats.json").write_text(json.dumps({"release": "9.0.0", "formats": {"sessions": 99}}))
    yield configuration(folder)


def expired_certificate(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    pem = Authority(folder).sign("a", expired=True)
    yield linked(folder, f"https://127.0.0.1:{free_port()}", f", certificate: {pem.certificate}, key: {pem.key}")


def wrong_authority(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    for name in ("of-the-hub", "of-another"):
        (folder / name).mkdir()
    Authority(folder / "of-another")
    pem = Authority(folder / "of-the-hub").sign("hub")
    with answering(200, {}, tls=tls_of(pem)) as url:
        yield linked(folder, url, f", ca_file: {folder}/of-another/authority.pem")


def wrong_name(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    pem = Authority(folder).sign("hub")
    with answering(200, {}, tls=tls_of(pem), host="127.0.0.2") as url:
        yield linked(folder, url, f", ca_file: {folder}/authority.pem")


def dns_gone(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    yield linked(folder, "https://no.such.name.invalid")


def hub_gone(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    yield linked(folder, f"http://127.0.0.1:{free_port()}")


def hub_without_work(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    with answering(503, {}, b"a store is silent") as url:
        yield linked(folder, url)


def not_a_hub(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    with answering(404, {}) as url:
        yield linked(folder, url)


def tls_where_none_is(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    with answering(200, {}) as url:
        yield linked(folder, url.replace("http", "https"))


def firewall(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    patch.setattr(doctor.HubCalls.__init__, "__kwdefaults__", {"patience_s": 0.05})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield linked(folder, f"http://127.0.0.1:{silent.getsockname()[1]}")


def proxy_that_refuses(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    # It answers CONNECT, which it does not know, with a refusal.
    with answering(403, {}) as proxy:
        yield linked(folder, "https://hub.invalid", f', proxy: "{proxy}"')


def proxy_gone(folder: Path, _: pytest.MonkeyPatch) -> Iterator[EdgeConfig]:
    yield linked(folder, "https://hub.invalid", f', proxy: "http://127.0.0.1:{free_port()}"')


def tls_of(pem: Pem) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem.certificate, pem.key)
    return context


def kernel(folder: Path, life_time: str = "", errors: int = 0) -> Path:
    """The kernel's files about a memory card, with the folder on its second partition."""
    sysfs, number = folder / "sys", folder.stat().st_dev
    disk = sysfs / "devices/card0"
    for path, text in {
        disk / "card0p2/partition": "2",
        disk / "device/life_time": life_time,
        disk / "device/pre_eol_info": "0x01",
        sysfs / "fs/ext4/card0p2/errors_count": str(errors),
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    place = sysfs / f"dev/block/{os.major(number)}:{os.minor(number)}"
    place.parent.mkdir(parents=True)
    place.symlink_to(disk / "card0p2")
    return sysfs


@pytest.mark.parametrize(
    ("plant", "check", "words"),
    [
        (unset_clock, "clock", "timedatectl set-ntp true"),
        (wrong_clock, "clock", "2.0 hours ahead of that of"),
        (full_disk, "disk space", "Set a smaller size"),
        (slow_card, "disk speed", "use a faster disk"),
        (worn_card, "disk wear", "up to 100 percent of its life; blocks in reserve: normal. Replace it soon"),
        (damaged_card, "disk wear", "has met 7 errors. Copy what you need"),
        (few_files, "open files", "LimitNOFILE"),
        (taken_port, "ports", "stop the program that has it"),
        (data_of_a_later_release, "configuration", "9.0.0"),
        (expired_certificate, "certificates", "has expired on"),
        (token_file_gone, "configuration", "`weft hub token add` printed at the hub"),
        (token_for_all, "configuration", "chmod"),
        (wrong_authority, "link cloud", "Name the certificate of its authority in the link's `ca_file`"),
        (wrong_name, "link cloud", "Write a name of the certificate in the link's `to`"),
        (dns_gone, "link cloud", "getent hosts no.such.name.invalid"),
        (hub_gone, "link cloud", "Check that the hub runs"),
        (hub_without_work, "link cloud", "a store is silent. Look at the hub"),
        (not_a_hub, "link cloud", "Check host, port and path"),
        (tls_where_none_is, "link cloud", "Write http:// if the hub is without TLS"),
        (firewall, "link cloud", "Check that firewalls let this port through"),
        (proxy_that_refuses, "link cloud", "Have it allow CONNECT"),
        (proxy_gone, "link cloud", "Check the link's `proxy`"),
        (revoked_token, "link cloud", "it was removed, has ended, or is another hub's. `weft hub token pair`"),
        (wanted_token, "link cloud", "which `weft edge pair` takes"),
        (token_of_another, "link cloud", "is for default/press-8, and this is default/a. Name the node as"),
        (hub_too_new, "versions", "weft 9.0.0, which is too new for this node: it speaks link protocol 2"),
        (hub_too_old, "versions", "weft 0.1.0, which is too old for this node: it speaks link protocol 1"),
    ],
)
def test_a_planted_trouble_is_found_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[..., Iterator[EdgeConfig]], check: str, words: str
) -> None:
    for config in plant(tmp_path, monkeypatch):
        found = list(examine(config, {}, time.monotonic, lambda: NOW, software=THIS))
        said = [each.says for each in found if each.check == check and each.state is Standing.ACT]
        assert any(words in each for each in said), "\n".join(f"{each.check}: {each.says}" for each in found)


def test_a_hub_of_another_release_that_fits_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for config in good_hub(tmp_path, monkeypatch):
        found = list(examine(config, {}, time.monotonic, lambda: NOW, software=THIS))
        assert [each.says for each in found if each.says.endswith("runs weft 0.2.0, and they fit")]
        assert {each.state for each in found if each.check in ("link cloud", "versions")} == {Standing.GOOD}


def test_wear_is_unknown_where_the_disk_does_not_say(tmp_path: Path) -> None:
    assert disk_wear(str(tmp_path), str(tmp_path / "none")).state is Standing.UNKNOWN
    assert disk_wear(str(tmp_path), str(kernel(tmp_path, life_time="0x01 0x01"))).state is Standing.GOOD
