"""Mistakes in what an edge shows to clients of an encrypted listener: certificates, keys, authorities."""

from __future__ import annotations

from tests.weft.mistakes.mistake import NODE, Mistake, edge, hub


def tls(settings: str) -> str:
    """An edge with an encrypted listener, whose ``tls`` stands in line 7."""
    return NODE + (
        "http: null\n"
        "listeners:\n"
        "  mqtts:\n"
        "    bind: 127.0.0.1:0\n"
        f"    tls: {settings}\n"
        "streams: {telemetry: {from: x, retain: {time: 1d}}}\n"
        "disk: {budget: 64MiB}\n"
    )


def link(url: str, settings: str) -> str:
    """An edge with a link, which stands in line 6."""
    return NODE + (
        "http: null\n"
        "streams: {telemetry: {from: x}}\n"
        "disk: {budget: 64MiB}\n"
        f"links: {{cloud: {{to: '{url}', {settings}}}}}\n"
        "listeners: {mqtt: {bind: '127.0.0.1:0'}}\n"
    )


CERTIFICATES = [
    Mistake(
        "a certificate that is not there",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/no.crt: there is no such file",
        files=edge(tls("{certificate: no.crt, key: good.key}"), **{"good.key": "<good.key>"}),
        in_process=True,
    ),
    Mistake(
        "a key that is not there, run",
        "edge run edge.yaml --log-level error",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/no.key: there is no such file",
        exit_status=1,
        files=edge(tls("{certificate: good.crt, key: no.key}"), **{"good.crt": "<good.crt>"}),
    ),
    Mistake(
        "the key of another certificate",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/other.key is not the key of <dir>/good.crt: they do not "
        "belong together. Name a matching pair",
        files=edge(
            tls("{certificate: good.crt, key: other.key}"), **{"good.crt": "<good.crt>", "other.key": "<other.key>"}
        ),
        in_process=True,
    ),
    Mistake(
        "certificate and key the wrong way round",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/good.key is not a certificate in PEM, or <dir>/good.crt "
        "is not a key. Name the certificate with its chain, and its key",
        files=edge(
            tls("{certificate: good.key, key: good.crt}"), **{"good.crt": "<good.crt>", "good.key": "<good.key>"}
        ),
        in_process=True,
    ),
    Mistake(
        "an encrypted key",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/encrypted.key is encrypted, and the node cannot ask for "
        "the password. Decrypt the key (`openssl pkey`)",
        files=edge(
            tls("{certificate: good.crt, key: encrypted.key}"),
            **{"good.crt": "<good.crt>", "encrypted.key": "<encrypted.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "a certificate that has expired",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls.certificate: clients refuse <dir>/expired.crt: it has "
        "expired on <past>. Renew it",
        files=edge(
            tls("{certificate: expired.crt, key: expired.key}"),
            **{"expired.crt": "<expired.crt>", "expired.key": "<expired.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "a certificate that expires tomorrow",
        "edge check edge.yaml",
        "warning: edge.yaml:7: listeners.mqtts.tls.certificate: <dir>/good.crt expires on <soon>. Renew it before",
        exit_status=0,
        files=edge(
            tls("{certificate: good.crt, key: good.key}"), **{"good.crt": "<good.crt>", "good.key": "<good.key>"}
        ),
        in_process=True,
    ),
    Mistake(
        "a key that everyone may read",
        "edge check edge.yaml",
        "warning: edge.yaml:7: listeners.mqtts.tls.key: every user of this machine may read <dir>/long.key "
        "(mode 644). Run `chmod o-rwx <dir>/long.key`",
        exit_status=0,
        files=edge(
            tls("{certificate: long.crt, key: long.key}"), **{"long.crt": "<long.crt>", "long.key@0644": "<long.key>"}
        ),
    ),
    Mistake(
        "an authority that is no certificate",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/ca.pem holds no certificate in PEM. Name the "
        "authorities' PEM file",
        files=edge(
            tls("{certificate: good.crt, key: good.key, client_ca: ca.pem}"),
            **{"good.crt": "<good.crt>", "good.key": "<good.key>", "ca.pem": "none\n"},
        ),
        in_process=True,
    ),
    Mistake(
        "a hub's certificate that has expired",
        "hub check hub.yaml --offline",
        "weft: hub.yaml:3: tls.certificate: edges and readers refuse <dir>/expired.crt: it has expired on <past>. "
        "Renew it",
        files=hub(
            "store: store\nlisten: 127.0.0.1:0\ntls: {certificate: expired.crt, key: expired.key}\n",
            **{"expired.crt": "<expired.crt>", "expired.key@0600": "<expired.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "a hub's certificate as the authority of edges",
        "hub check hub.yaml --offline",
        "warning: hub.yaml:3: tls.client_ca: <dir>/long.crt holds no authority, but the certificate of 'long': no "
        "client is accepted but with that very certificate. Name an authority\n"
        "warning: hub.yaml:3: tls.certificate: <dir>/long.crt has no subjectAltName, so most clients refuse it. Issue "
        "one with the hub's names",
        exit_status=0,
        files=hub(
            "store: store\nlisten: 127.0.0.1:0\ntls: {certificate: long.crt, key: long.key, client_ca: long.crt}\n",
            **{"long.crt": "<long.crt>", "long.key@0600": "<long.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "the key of another certificate at a hub, run",
        "hub run hub.yaml --log-level error",
        "weft: hub.yaml:3: tls: <dir>/other.key is not the key of <dir>/good.crt: they do not belong together. Name a "
        "matching pair",
        exit_status=1,
        files=hub(
            "store: store\nlisten: 127.0.0.1:0\ntls: {certificate: good.crt, key: other.key}\n",
            **{"good.crt": "<good.crt>", "other.key@0600": "<other.key>"},
        ),
    ),
    Mistake(
        "a hub's revocation list without authorities",
        "hub check hub.yaml --offline",
        "weft: hub.yaml:3: tls.crl_file: needs `client_ca`: without it, no edge shows a certificate",
        files=hub("store: store\nlisten: 127.0.0.1:0\ntls: {certificate: a.crt, key: a.key, crl_file: a.crl}\n"),
        in_process=True,
    ),
    Mistake(
        "a link's certificate without its key",
        "edge check edge.yaml",
        "weft: edge.yaml:6: links.cloud.key: is missing: a certificate and its key belong together. Name both files",
        files=edge(link("https://hub.example.com", "certificate: good.crt")),
        in_process=True,
    ),
    Mistake(
        "a link's certificate that has expired",
        "edge check edge.yaml",
        "edge.yaml:6: links.cloud.certificate: the hub refuses the link: <dir>/expired.crt is for 'expired', and this "
        "edge is 'press-shop-7'. Issue one with this common name\n"
        "edge.yaml:6: links.cloud.certificate: the hub refuses <dir>/expired.crt: it has expired on <past>. "
        "Renew it",
        files=edge(
            link("https://127.0.0.1:1", "certificate: expired.crt, key: expired.key"),
            **{"expired.crt": "<expired.crt>", "expired.key@0600": "<expired.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "a link's authorities that are not there",
        "edge check edge.yaml",
        "weft: edge.yaml:6: links.cloud.ca_file: <dir>/ca.pem: there is no such file",
        files=edge(link("https://127.0.0.1:1", "ca_file: ca.pem")),
        in_process=True,
    ),
    Mistake(
        "a link's authorities for a hub without TLS",
        "edge check edge.yaml",
        "weft: edge.yaml:6: links.cloud.ca_file: is for TLS, and no URL of `to` begins with https://. Write https://",
        files=edge(link("http://127.0.0.1:1", "ca_file: good.crt")),
        in_process=True,
    ),
]
