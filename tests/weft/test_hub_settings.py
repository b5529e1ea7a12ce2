"""What an operator writes into the hub's YAML is what the hub does."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from examples.demo.fabric import free_port
from tests.support.processes import weft
from weft.cloud_hub.settings import addresses, check_processes, process_count
from weft.commands.common import load_hub
from weft.commands.hub_init import ask
from weft.commands.hub_settings import settings_of
from weft.config.limits import HubLimits
from weft.config.models import HubConfig
from weft.config.units import Address
from weft.network.tls import ClientTlsFiles, TlsFiles
from weft.output import Refused
from weft.storage.cluster import NEW_SHARDS

YAML = """\
listen: 127.0.0.1:7000
store: {store}
shards: 32
shards_max: 48
processes: 2
advertise: ["https://a.example", "https://b.example"]
commit_interval: 125ms
mark_interval: 2m
retain_log: 2d
messages_per_second: 90
ping_interval: 20s
silence: 50s
unavailable_after: 3s
retired_after: 20d
dropped_after: 5d
chunk_bytes_max: 2MiB
tables: {{interval: 3s}}
peers: true
sharing: true
sql: true
kafka: {{listen: "127.0.0.1:9192", advertise: "hub.example.com:19092"}}
hosts: Hub.example.com
anonymous: allowed_beyond_loopback
plain_http: allowed_beyond_loopback
jwt: {{issuer: "https://login.example.com", audience: weft, jwks_file: {store}/keys.json, tenant: acme}}
regions: {{east: {{to: "https://east.example.com", token_file: {store}/east, ca_file: /e.pem, tenant: acme,
  certificate: /e.crt, key: /e.key,
  cluster: 5e1f60a2c3d84b7796a0b1c2d3e4f506, redirects: ["*.example.com"], streams: ["press-*"], forward_relayed: true,
  rate: 2MiB/s, mark_interval: 7s, pin: 3d}}}}
tracing: {{endpoint: "https://traces.example.com:4318", queue: 77}}
tls: {{certificate: /a.crt, key: /a.key, client_ca: /ca.pem, crl_file: /a.crl, client_certificate: optional,
  half_open: 17, connect_timeout: 4s, connection_rate: 18, connection_burst: 19}}
limits: {{links: 5, links_per_token: 3, idle_connections: 6, connections_per_address: 8, window: 1MiB, batch: 3MiB,
  record: 5MiB, pending: 9MiB, response: 1MiB,
  lanes_per_edge: 7, lanes_per_tenant: 70, streams_per_tenant: 60, lanes: 700, edge_topics: 70KiB, edge_origins: 80KiB,
  sharing: 90MiB, sql: 80MiB}}
"""


def test_every_setting_of_the_yaml_reaches_the_hub(tmp_path: Path) -> None:
    path = tmp_path / "hub.yaml"
    path.write_text(YAML.format(store=tmp_path))
    config = load_hub(str(path))
    untouched = [
        name for name in HubConfig.__struct_fields__ if getattr(config, name) == getattr(HubConfig(store="x"), name)
    ]
    assert untouched == [], "give it a value of its own above, and look for it below"
    assert process_count(config, None, cores=1, shards=32) == 2
    settings = settings_of(config)
    assert settings.advertise == ("https://a.example", "https://b.example")
    assert (settings.host, settings.port, settings.store, settings.shards) == ("127.0.0.1", 7000, str(tmp_path), 32)
    assert settings.shards_max == 48
    assert settings.hosts == ("hub.example.com",)
    assert settings.tracing is not None
    assert (settings.tracing.endpoint, settings.tracing.queue) == ("https://traces.example.com:4318", 77)
    assert settings.jwt is not None
    assert (settings.jwt.issuer, settings.jwt.tenant) == ("https://login.example.com", "acme")
    assert settings.open_to_network
    assert (settings.sharing, settings.sharing_bytes_per_s) == (True, 90 << 20)
    assert (settings.sql, settings.sql_bytes) == (True, 80 << 20)
    assert (settings.kafka_host, settings.kafka_port) == ("127.0.0.1", 9192)
    assert settings.kafka_advertise == Address("hub.example.com", 19092)
    assert settings.tls == TlsFiles(
        certificate="/a.crt", key="/a.key", client_ca="/ca.pem", crl_file="/a.crl", client_certificate_required=False
    )
    assert (settings.scheme, settings.edges_need_certificate) == ("https", False)
    admission = settings.admission
    assert (admission.half_open_max, admission.connect_timeout_s) == (17, 4.0)
    assert (admission.connection_rate_per_address, admission.connection_burst_per_address) == (18, 19)
    assert (settings.sequencer.commit_interval_s, settings.sequencer.mark_interval_s) == (0.125, 120.0)
    assert (settings.link_ping_interval_s, settings.link_silence_s) == (20.0, 50.0)
    assert settings.sequencer.unavailable_after_s == 3.0
    assert (settings.sequencer.chunk_bytes_max, settings.sequencer.pending_bytes_max) == (2 << 20, 9 << 20)
    assert (settings.idle_connections_max, settings.connections_per_address_max) == (6, 8)
    assert (settings.links_max, settings.link_window_bytes, settings.batch_bytes_max) == (5, 1 << 20, 3 << 20)
    assert (settings.links_per_token_max, settings.record_bytes_max) == (3, 5 << 20)
    bounds = settings.sequencer
    assert bounds.streams_per_tenant_max == 60
    assert (bounds.lanes_per_edge_max, bounds.lanes_per_tenant_max, bounds.lanes_max) == (7, 70, 700)
    assert (bounds.topic_bytes_per_edge_max, bounds.origin_bytes_per_edge_max) == (70 << 10, 80 << 10)
    untouched = [
        name for name in HubLimits.__struct_fields__ if getattr(config.limits, name) == getattr(HubLimits(), name)
    ]
    assert untouched == [], "give it a value of its own above, and look for it here"
    assert settings.peers is True
    region = settings.regions["east"]
    assert (region.tenant, region.streams, region.forwards, region.rate) == ("acme", ("press-*",), True, 2 << 20)
    assert (region.pin_s, region.link.urls) == (3 * 86_400.0, ("https://east.example.com",))
    assert region.link.tls == ClientTlsFiles(ca_file="/e.pem", certificate="/e.crt", key="/e.key")
    assert region.link.redirects == ("*.example.com",)
    assert region.link.sender.cluster_id == "5e1f60a2c3d84b7796a0b1c2d3e4f506"
    assert region.link.sender.mark_interval == 7 * 10**9
    assert settings.messages_per_s == 90
    assert settings.retain_log_s == 2 * 86_400.0
    assert (settings.retired_after_s, settings.dropped_after_s) == (20 * 86_400.0, 5 * 86_400.0)
    assert (settings.response_bytes_max, settings.table_interval_s) == (1 << 20, 3.0)


def test_a_hub_on_loopback_has_no_name_unless_it_is_given_one() -> None:
    assert settings_of(HubConfig(store="x")).hosts == ()
    assert settings_of(HubConfig(store="x", listen="192.0.2.1:8090")).hosts is None


def test_each_process_has_a_port_of_its_own() -> None:
    config = HubConfig(store="x", listen="127.0.0.1:7000", shards=4)
    assert [address.port for address in addresses(config, 3)] == [7000, 7001, 7002]
    second = settings_of(config, 1, 3)
    assert (second.port, second.process, second.processes) == (7001, 1, 3)


URLS = ("https://a.example", "https://b.example")


@pytest.mark.parametrize(
    ("settings", "asked", "cores", "count"),
    [
        ({}, None, 3, 3),
        ({"advertise": URLS}, None, 3, 2),
        ({"advertise": URLS}, None, 1, 1),
        ({"advertise": URLS}, 3, 3, 3),
        ({"advertise": URLS, "processes": 4}, None, 3, 4),
        ({}, None, 64, 16),
        ({"processes": 2}, None, 8, 2),
        ({"processes": 2}, 1, 8, 1),
        ({"processes": 20}, None, 8, 16),
        ({"listen": "127.0.0.1:0"}, None, 8, 1),
    ],
)
def test_there_is_a_process_for_each_core_unless_told_otherwise(
    settings: dict[str, Any], asked: int | None, cores: int, count: int
) -> None:
    assert process_count(HubConfig(store="x", **settings), asked, cores, NEW_SHARDS) == count


def test_what_keeps_several_processes_from_running_is_told() -> None:
    (high,) = check_processes(HubConfig(store="x", listen="127.0.0.1:65534"), 4)
    assert "need the ports up to 65537, the last is 65535" in high.message
    (few,) = check_processes(HubConfig(store="x", advertise=("https://a.example",)), 2)
    assert (few.path, "each of the 2 processes, got 1" in few.message) == (("advertise",), True)


def test_an_idle_bucket_is_cheap_by_default() -> None:
    assert settings_of(HubConfig(store="s3://bucket")).sequencer.mark_interval_s == 60.0


@pytest.mark.parametrize(
    ("store", "interval_s", "cheap_s"), [("data", 0.25, 0.04), ("file:///data", 0.25, 0.04), ("s3://b/weft", 1.0, None)]
)
def test_a_hub_commits_less_often_where_each_object_costs(store: str, interval_s: float, cheap_s: float | None) -> None:
    usual = settings_of(HubConfig(store=store)).sequencer
    assert (usual.commit_interval_s, usual.commit_interval_min_s) == (interval_s, cheap_s)
    asked = settings_of(HubConfig(store=store, commit_interval_s=0.5)).sequencer
    assert (asked.commit_interval_s, asked.commit_interval_min_s) == (0.5, None)


# --- `weft hub init`: a first configuration that `weft hub check` finds good, and the commands that come next


EXAMPLE = Path(__file__).parents[2] / "config/examples/hub-package.yaml"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub" / "hub.yaml"


def refused(*arguments: object) -> str:
    result = weft("hub", "init", *arguments)
    assert result.exception is not None, result.output
    return str(result.exception)


def test_without_options_the_hub_serves_its_machine_and_demands_a_token(config: Path) -> None:
    said = weft("hub", "init", config)
    assert said.exception is None, said.exception
    made = load_hub(str(config))
    assert (made.listen, made.anonymous) == ("127.0.0.1:8090", "never")
    assert made.store.endswith(str(config.parent / "store"))
    assert [path.name for path in config.parent.iterdir()] == ["hub.yaml"]
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert f"weft hub token pair {config} EDGE" in said.output
    assert weft("hub", "token", "add", config, "admin", "--scope", "admin", "--to", config.parent / "t").exit_code == 0
    add = f"weft hub token add {config} admin --scope admin --to {config.parent / 'admin.token'}"
    assert add in said.output
    assert stat.S_IMODE((config.parent / "t").stat().st_mode) == 0o600
    free = config.read_text().replace(made.listen, f"127.0.0.1:{free_port()}")
    config.write_text(f"{free}processes: 1\n")  # each process takes one more port, which `check` tries
    assert weft("hub", "check", config).stderr == ""


def test_an_authority_makes_a_hub_that_others_may_call(config: Path, tmp_path: Path) -> None:
    weft("ca", "init", tmp_path / "ca")
    reported = weft(
        "hub",
        "init",
        config,
        "--listen",
        f"0.0.0.0:{free_port()}",
        "--ca",
        tmp_path / "ca",
        "--host",
        "hub.test",
        "--edge-certificates",
        "--json",
    )
    assert reported.exception is None, reported.exception
    checked = json.loads(weft("hub", "check", config, "--json").output)
    assert checked["good"], checked
    assert list(checked["certificates"]) == [str(config.parent / "hub.crt")]
    made = load_hub(str(config))
    assert made.tls is not None
    assert made.tls.client_certificate == "optional"
    assert set(json.loads(reported.output)["written"]) == set(map(str, config.parent.iterdir()))


def test_certificates_that_are_there_are_named_from_the_configuration_s_folder(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weft("ca", "init", tmp_path / "ca")
    weft("ca", "hub", tmp_path / "ca", "--host", "hub.test", "--to", tmp_path)
    monkeypatch.chdir(tmp_path)
    weft("hub", "init", config, "--listen", f"0.0.0.0:{free_port()}", "--certificate", "hub.crt", "--key", "hub.key")
    made = load_hub(str(config))
    assert made.tls is not None
    assert (made.tls.certificate, made.tls.key) == (str(tmp_path / "hub.crt"), str(tmp_path / "hub.key"))


def test_what_is_there_is_not_overwritten(config: Path) -> None:
    config.write_text("mine\n")
    assert "already exists" in refused(config)
    assert config.read_text() == "mine\n"


def test_the_package_s_example_is_replaced_while_it_is_unchanged(config: Path) -> None:
    config.write_bytes(EXAMPLE.read_bytes())
    assert weft("hub", "init", config, "--store", "s3://plant/weft").exception is None
    assert load_hub(str(config)).store == "s3://plant/weft"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--listen", "0.0.0.0:8090"), "--listen: tokens would cross the network in clear text"),
        (("--listen", "8090"), "--listen: expected"),
        (("--store", "ftp://x"), "--store: "),
        (("--ca", "ca"), "Give --ca FOLDER and --host NAME"),
        (("--ca", "ca", "--host", "h"), "`weft ca init` makes an authority"),
        (("--certificate", "c"), "Give --certificate and --key"),
        (("--plain-http", "--certificate", "c", "--key", "k"), "exclude each other"),
        (("--edge-certificates",), "needs --ca"),
    ],
)
def test_a_mistake_names_its_option_and_leaves_nothing(config: Path, options: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(config, *options)
    assert list(config.parent.iterdir()) == []


def test_a_wrong_answer_is_asked_for_again() -> None:
    given = dict.fromkeys(("store", "listen", "ca", "certificate", "key"))
    facts = {**given, "hosts": (), "plain_http": False, "edge_certificates": False}

    @click.command()
    def asking() -> None:
        ask(facts, "store")

    result = CliRunner().invoke(asking, input="ftp://x\ns3://plant/weft\n8090\n0.0.0.0:8090\nplant-ca\na.test b.test\n")
    assert result.exit_code == 0, result.output
    assert (facts["store"], facts["listen"]) == ("s3://plant/weft", "0.0.0.0:8090")
    assert (facts["ca"], facts["hosts"]) == ("plant-ca", ("a.test", "b.test"))


def test_a_wrong_token_file_is_no_configuration(tmp_path: Path) -> None:
    result = weft("hub", "init", tmp_path / "admin.token")
    assert isinstance(result.exception, Refused)
