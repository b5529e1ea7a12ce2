"""A configuration error tells the file, the line, the setting, what was expected and what was found."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config.errors import ConfigError
from weft.config.load import FILE_BYTES_MAX, PROBLEMS_MAX, changed_settings, load, parse, without_defaults
from weft.config.models import EdgeConfig, HubConfig
from weft.config.release import SOFTWARE, VERSION
from weft.config.streams import Unrouted
from weft.config.units import Section

MINIMAL = "node: a\ndata_dir: /data\n"


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "edge.yaml", EdgeConfig)
    return str(caught.value)


def test_values_are_read_in_their_units() -> None:
    config = parse(
        MINIMAL + "disk: {budget: 2GiB, segment: 8MiB}\ncommit_interval: 250ms\nlimits: {connect_timeout: 1m}\n",
        "edge.yaml",
        EdgeConfig,
    ).config
    assert (config.disk.budget_bytes, config.disk.segment_bytes) == (2 << 30, 8 << 20)
    assert (config.commit_interval_s, config.limits.connect_timeout_s) == (0.25, 60)


def test_relative_paths_belong_to_the_folder_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "edge.yaml"
    path.write_text("node: a\ndata_dir: data\nlinks: {c: {to: 'https://hub', token_file: ../token}}\n")
    config = load(str(path), EdgeConfig).config
    assert config.data_dir == str(tmp_path / "data")
    assert config.links["c"].token_file == str(tmp_path.parent / "token")


@pytest.mark.parametrize(("store", "expected"), [("s3://b/p", "s3://b/p"), ("data", "/etc/weft/data"), ("/x", "/x")])
def test_a_store_is_a_folder_or_a_uri(store: str, expected: str) -> None:
    assert parse(f"store: {store}", "/etc/weft/hub.yaml", HubConfig).config.store == expected


def test_one_value_may_stand_for_a_list_of_one() -> None:
    streams = parse(MINIMAL + "streams: {one: {from: a}, two: {from: [a, 'b/{c}']}}", "e", EdgeConfig).config.streams
    assert (streams["one"].from_, streams["two"].from_) == (("a",), ("a", "b/{c}"))


def test_a_section_with_every_line_commented_out_has_its_defaults() -> None:
    config = parse(MINIMAL + "disk:\n  # budget: 1GiB\nstreams:\n", "edge.yaml", EdgeConfig).config
    assert config.disk.budget_bytes == 16 << 30
    assert config.streams == {}


class Changed(Section, frozen=True, kw_only=True):
    """A section of a later release, in which one setting has another name, and one is gone."""

    renamed = {"bytes": "size"}
    removed = {"users": "was replaced by size"}
    size: int = 1


def test_a_former_name_is_read_and_a_former_setting_is_refused_with_what_to_write() -> None:
    assert parse("bytes: 2\n", "edge.yaml", Changed).config.size == 2
    with pytest.raises(ConfigError, match="yaml:2: users: was replaced by size"):
        parse("bytes: 2\nusers: 3\n", "edge.yaml", Changed)


def test_one_word_may_stand_for_a_section() -> None:
    def read(text: str) -> Unrouted:
        return parse(MINIMAL + text, "edge.yaml", EdgeConfig).config.unrouted

    assert read("unrouted: live") == read("unrouted: {policy: live}") == Unrouted(policy="live")
    assert read("unrouted:\n  # size: 1GiB\n") == read("") == Unrouted(policy="keep", time_s=86_400, size_bytes=None)
    assert read("unrouted: {time: 7d, size: 1GiB}") == Unrouted(time_s=7 * 86_400, size_bytes=1 << 30)


def test_an_optional_section_can_be_switched_off() -> None:
    config = parse(MINIMAL + "http: null\nlisteners: {mqtt: null}\n", "edge.yaml", EdgeConfig).config
    assert config.http is None
    assert config.listeners == {"mqtt": None}


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (
            "streams:\n  telemetry:\n    from: 3",
            'edge.yaml:5: streams.telemetry.from: expected an MQTT filter such as "plant/{line}/#", got 3',
        ),
        (
            "commit_interval: 10 sec",
            'edge.yaml:3: commit_interval: expected a duration such as 250ms, 10s or 1h30m, got "10 sec"',
        ),
        ("commit_interval: 10", 'a duration such as 250ms, 10s or 1h30m, got "10". Write the unit, such as 10ms'),
        ("disk: {budget: 1KiB}", "edge.yaml:3: disk.budget: expected at least 16MiB, got 1KiB"),
        ("disk: {budgte: 1GiB}", "edge.yaml:3: disk.budgte: is not a setting. Did you mean budget?"),
        ("budget: 1GiB", "edge.yaml:3: budget: is not a setting here. Did you mean disk.budget?"),
        ("disk: {node: b}", "edge.yaml:3: disk.node: is not a setting here. Did you mean node?"),
        (
            "listeners: {mqtt: {bind: ':1', tls: {cert_file: c, key_file: k}}}",
            "tls.cert_file: is not a setting. Did you mean certificate?\n"
            "edge.yaml:3: listeners.mqtt.tls.key_file: is not a setting. Did you mean key?",
        ),
        ("links: {cloud: {url: 'https://h'}}", "links.cloud.url: is not a setting. Did you mean to?"),
        ("listeners: {mqtt: {tls: {ca_file: c}}}", "tls.ca_file: is not a setting. Did you mean client_ca?"),
        ("listeners: {mqtt: {certificate: c}}", "not a setting here. Did you mean listeners.<name>.tls.certificate?"),
        ("listeners: {mqtt: {serial: c}}", "listeners.mqtt.serial: is not a setting. Known here: protocol, bind"),
        (
            "streams: {a: {from_stream: b, functions: [{enrich: {from: f.csv, key: m}}]}, b: {from: b}}",
            "enrich.from: is not a setting. Did you mean file?\n"
            "edge.yaml:3: streams.a.functions[0].enrich.key: is not a setting. Did you mean on?",
        ),
        ("disk: [1]", "edge.yaml:3: disk: expected keys and values (budget, segment, low_water, "),
        ("streams: {a: {from: b, replicate: no}}", "streams.a.replicate: expected true or false, got no"),
        ("streams: {a: {from: b, retain: {size: 1KiB}}}", "streams.a.retain.size: expected at least 1MiB, got 1KiB"),
        ("zzz: 1", "edge.yaml:3: zzz: is not a setting. Known here: node, tenant, data_dir"),
        ("node: b", "edge.yaml:3: node: is given twice, first in line 1: keep one"),
        ("tenant: yes", "edge.yaml:3: tenant: expected text (put it in quotes"),
        ("limits: {inflight: 70000}", "edge.yaml:3: limits.inflight: expected at most 65535, got 70000"),
        ("limits: {inflight: many}", 'edge.yaml:3: limits.inflight: expected a whole number, got "many"'),
        ("streams: {a: {from: []}}", "edge.yaml:3: streams.a.from: expected 1 to 256 entries, got 0"),
        ("streams: {a: {from: [b, [c]]}}", "edge.yaml:3: streams.a.from[1]: expected an MQTT filter"),
        ("streams: {[a]: {from: b}}", "edge.yaml:3: streams: expected a name as key, got a list"),
        ("links: {c: {}}", "edge.yaml:3: links.c.to: is missing. URL, or list of URLs"),
        ("links: {c: {to: 'ftp://x'}}", 'links.c.to: expected a URL such as https://hub.example.com, got "ftp://x"'),
        ("listeners: {mqtt: {bind: '1883'}}", "listeners.mqtt.bind: expected host:port such as 127.0.0.1:1883"),
        ("listeners: {mqtt: {bind: 'a:1', anonymous: all}}", "expected allowed_beyond_loopback or loopback or never"),
        ("unrouted: lives", 'edge.yaml:3: unrouted: expected keep or live or refuse, got "lives"'),
        ("unrouted: [live]", "edge.yaml:3: unrouted: expected keys and values (policy, time, size), got a list"),
        ("unrouted: {size: 1KiB}", "edge.yaml:3: unrouted.size: expected at least 1MiB, got 1KiB"),
        ("a: [", "edge.yaml:4: this is not YAML"),
        ("node: !!python/object:os.system x", "is given twice"),
        ("limits: {message: 1MiB, message: 1MiB}", "edge.yaml:3: limits.message: is given twice, first in line 3"),
        ("http: {hosts: 'edge.example.com:8080'}", "http.hosts: expected a host name without port such as edge."),
    ],
)
def test_an_error_says_where_and_what(lines: str, error: str) -> None:
    assert error in refusal(MINIMAL + lines + "\n")


def test_every_error_is_reported_at_once_in_the_order_of_the_file() -> None:
    errors = refusal("tenant: 3\ndata_dir: /d\ndisk: {budget: x}\nlimit: {}\n").splitlines()
    assert [error.split(": ")[1] for error in errors] == ["tenant", "node", "disk.budget", "limit"]


def test_errors_reported_at_once_are_bounded() -> None:
    text = MINIMAL + "".join(f"unknown{i}: 1\n" for i in range(1000))
    assert len(refusal(text).splitlines()) == PROBLEMS_MAX


@pytest.mark.parametrize("key", ["token", "password", "secret", "api_key"])
def test_a_secret_in_the_file_is_refused_and_not_repeated(key: str) -> None:
    error = refusal(MINIMAL + f"links: {{cloud: {{to: 'https://hub', {key}: hunter2}}}}")
    assert "the configuration never holds secrets" in error
    assert "hunter2" not in error


def test_a_secret_in_a_url_is_refused_and_not_repeated() -> None:
    error = refusal(MINIMAL + "links: {cloud: {to: 'https://me:hunter2@hub'}}")
    assert "without a user name or password" in error
    assert "hunter2" not in error


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "edge.yaml"

    def problem() -> str:
        with pytest.raises(ConfigError) as caught:
            load(str(path), EdgeConfig)
        return str(caught.value)

    assert problem() == f"{path}: there is no such file"
    path.write_bytes(b"")
    assert "empty file" in problem()
    path.write_bytes(b"node: a\ntenant: \xff\n")
    assert f"{path}:2: expected UTF-8 text" in problem()
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    assert "at most" in problem()
    path.write_bytes(b"[" * 100_000)
    assert "nested too deeply" in problem()


@given(st.text(alphabet=" \n:-[]{}'\"#&*!|>%@`ab1,", max_size=60))
@settings(max_examples=300)
def test_any_text_is_a_configuration_or_a_refusal(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text, "edge.yaml", EdgeConfig)


# --- Which settings differ, named as a person wrote them


BASE = """\
node: a
data_dir: data
disk: {budget: 64MiB}
streams: {t: {from: "t/#"}, gone: {from: "g/#"}}
links: {cloud: {to: "https://hub.example.com"}}
"""


def changed(*replacements: tuple[str, str]) -> set[str]:
    text = BASE
    for before, after in replacements:
        assert before in text
        text = text.replace(before, after)
    was, now = (parse(each, "/etc/weft/edge.yaml", EdgeConfig).config for each in (BASE, text))
    return set(changed_settings(was, now))


def test_nothing_has_changed_when_the_file_only_reads_differently() -> None:
    assert changed(("64MiB", "65536KiB"), ("node: a", "# A comment.\nnode: a")) == set()


def test_changed_new_and_gone_settings_are_named_as_in_yaml() -> None:
    assert changed(("64MiB", "128MiB")) == {"disk.budget"}
    assert changed(("t/#", "t/+"), ("hub.example", "other.example")) == {"streams.t.from", "links.cloud.to"}
    assert changed(("gone:", "new:")) == {"streams.gone (gone)", "streams.new (new)"}
    assert changed(("node: a", "node: b\nhttp: null\ncommit_interval: 1s")) == {"node", "http", "commit_interval"}


def test_what_is_said_leaves_defaults_out_wherever_they_are() -> None:
    config = parse(
        BASE.replace('{from: "t/#"}', '{from: "t/#", when_full: refuse, functions: [{where: x}]}'), "e", EdgeConfig
    ).config
    assert without_defaults(config.streams["t"]) == {"from": ["t/#"], "functions": [{"where": "x"}]}
    assert without_defaults(config.streams) == {"t": without_defaults(config.streams["t"]), "gone": {"from": ["g/#"]}}


# --- The release, of which nodes tell each other


def test_it_is_the_one_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert f"weft {VERSION}" == SOFTWARE
