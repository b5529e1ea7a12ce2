"""Which settings differ, named as a person wrote them."""

from __future__ import annotations

from weft.config.load import changed_settings, parse, without_defaults
from weft.config.models import EdgeConfig

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
