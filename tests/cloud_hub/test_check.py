"""What a hub's configuration must keep to, and how it becomes the hub's own settings."""

from __future__ import annotations

import pytest

from weft.cloud_hub.check import check
from weft.config.errors import ConfigError
from weft.config.load import parse
from weft.config.models import HubConfig


def hub(text: str) -> HubConfig:
    return parse(text, "hub.yaml", HubConfig, check).config


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("store: s\nlisten: 0.0.0.0:80", "hub.yaml:2: listen: 0.0.0.0:80 can be reached from other machines"),
        ("store: s\nlisten: 0.0.0.0:80\ntokens_file: t", "tokens would cross the network in clear text to 0.0.0.0:80"),
        ("store: s\ntls: {certificate: a, key: b, crl_file: c}", "tls.crl_file: needs `client_ca`"),
        ("store: s\nchunk_bytes_max: 128MiB", "hub.yaml:2: chunk_bytes_max: expected at most limits.pending"),
        ("store: ftp://x", "hub.yaml:1: store: expected a folder, s3://bucket/prefix"),
        ("store: s3://key:secret@bucket", "hub.yaml:1: store: expected a store without credentials"),
        ("listen: 127.0.0.1:1", "hub.yaml:1: store: is missing."),
    ],
)
def test_what_cannot_work_is_refused(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hub(text)
    assert error in str(caught.value)


@pytest.mark.parametrize(
    "permission",
    [
        "tokens_file: tokens\ntls: {certificate: a.crt, key: a.key}",
        "tokens_file: tokens\nplain_http: allowed_beyond_loopback",
        "tls: {certificate: a.crt, key: a.key, client_ca: ca.pem}",
        "anonymous: allowed_beyond_loopback",
    ],
)
def test_a_hub_beyond_loopback_needs_tokens_or_the_words_for_it(permission: str) -> None:
    assert hub(f"store: s\nlisten: 0.0.0.0:80\n{permission}").listen == "0.0.0.0:80"
