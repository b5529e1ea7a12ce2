"""The charts in deploy/helm: rendered by Helm, judged by Kubernetes' schemas and by the nodes that read the files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.tools.chart_schemas import CHARTS as CHART_SCHEMAS_CHARTS
from docs.tools.chart_schemas import chart_schemas
from tests.support.third_party import HELM, KUBECONFORM, KUBERNETES_SCHEMAS, Go
from weft.cloud_hub.check import check as check_hub
from weft.config.load import parse
from weft.config.models import EdgeConfig, HubConfig
from weft.edge_node.check.rules import check as check_edge
from weft.service.serving import STOP_S_MAX

CHARTS = Path(__file__).parents[2] / "deploy" / "helm"
KUBERNETES = "1.37.0"
LOOK_S_MAX = 60
PLAIN = ("plainHttp=allowed_beyond_loopback",)
TLS = ("tls.secret=hub-tls", "tls.clientCaSecret=edges-ca", "tls.hasCrl=true")
EVERYTHING = (
    *TLS,
    "replicas=3",
    "storeSecret=s3",
    "operatorSecret=ops",
    "env.AWS_REGION=eu-central-1",
    "podServices.enabled=true",
    "advertise=https://$(POD).hubs.example.com:8090",
    "antiAffinity=preferred",
    "nodeSelector.disk=ssd",
    "service.type=LoadBalancer",
    "serviceAccount.annotations.role=arn",
    "podAnnotations.a=b",
    "priorityClassName=high",
    "networkPolicy.from[0].ipBlock.cidr=10.0.0.0/8",
    "networkPolicy.egress[0].ports[0].port=443",
    "tolerations[0].key=hub",
    "imagePullSecrets[0].name=registry",
    "hub.commit_interval=500ms",
)
EDGE = (
    "service.type=NodePort",
    "ports.mqtts=8883",
    "edge.listeners.mqtts.tls.certificate=/etc/weft-secrets/tls.crt",
    "edge.listeners.mqtts.tls.key=/etc/weft-secrets/tls.key",
    "networkPolicy.statusFrom[0].podSelector.matchLabels.a=b",
    "networkPolicy.from[0].ipBlock.cidr=10.0.0.0/8",
    "networkPolicy.egress[0].ports[0].port=8090",
)
Render = Callable[..., list[dict[str, Any]]]


def tool(package: Go) -> str:
    try:
        return package.program()
    except LookupError as error:
        pytest.skip(str(error))


def helm(chart: str, values: Sequence[str]) -> subprocess.CompletedProcess[str]:
    settings = [word for value in values for word in ("--set", value)]
    command = [tool(HELM), "template", "weft", str(CHARTS / chart), "--kube-version", KUBERNETES, *settings]
    return subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S_MAX, check=False)


def rendered(chart: str, *values: str) -> tuple[str, list[dict[str, Any]]]:
    done = helm(chart, values)
    assert done.returncode == 0, done.stderr
    return done.stdout, [each for each in yaml.safe_load_all(done.stdout) if each]


def of_kind(objects: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("chart", "values", "count"),
    [
        ("weft-hub", PLAIN, 7),
        ("weft-hub", (*PLAIN, "replicas=1", "networkPolicy.enabled=false"), 5),
        ("weft-hub", TLS, 7),
        ("weft-hub", EVERYTHING, 10),
        ("weft-edge", (), 4),
        ("weft-edge", ("secret=", "storage.className=fast", "plainText=allowed_beyond_cluster", *EDGE), 4),
    ],
)
def test_kubernetes_takes_what_the_chart_makes(chart: str, values: tuple[str, ...], count: int) -> None:
    text, objects = rendered(chart, *values)
    assert len(objects) == count
    try:
        schemas = KUBERNETES_SCHEMAS.obtain()
    except LookupError as error:
        pytest.skip(str(error))
    location = f"{schemas}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    command = [tool(KUBECONFORM), "-strict", "-output", "json", "-summary", "-schema-location", location, "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=LOOK_S_MAX, check=False)
    answer = json.loads(done.stdout)
    assert answer.get("resources", []) == []
    assert answer["summary"] == {"valid": count, "invalid": 0, "errors": 0, "skipped": 0}
    wrong = subprocess.run(
        command,
        input=text.replace("serviceName:", "serviceNam:"),
        capture_output=True,
        text=True,
        timeout=LOOK_S_MAX,
        check=False,
    )
    assert json.loads(wrong.stdout)["summary"]["invalid"] == 1


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("values", [PLAIN, TLS, EVERYTHING])
def test_the_hub_takes_its_file(values: tuple[str, ...]) -> None:
    _, objects = rendered("weft-hub", *values)
    config = parse(of_kind(objects, "ConfigMap")["data"]["hub.yaml"], "hub.yaml", HubConfig, check_hub).config
    assert (config.listen, config.processes) == ("*:8090", 1)
    assert (config.tls is not None) == (values != PLAIN)
    assert config.anonymous == "never"
    pod = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]
    mounted = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    files = [] if config.tls is None else [config.tls.certificate, config.tls.crl_file]
    files.append("/etc/weft-operator/token" if values == EVERYTHING else None)
    for path in files:
        assert path is None or any(path.startswith(f"{place}/") for place in mounted)


@pytest.mark.slow
@pytest.mark.processes
def test_the_edge_takes_its_file() -> None:
    _, objects = rendered("weft-edge")
    config = parse(of_kind(objects, "ConfigMap")["data"]["edge.yaml"], "edge.yaml", EdgeConfig, check_edge).config
    container = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert config.data_dir in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert container["args"] == ["weft", "edge", "run", "/etc/weft/edge.yaml"]


@pytest.mark.slow
@pytest.mark.processes
def test_a_node_has_the_time_to_leave_and_never_do_two_leave_at_once() -> None:
    _, objects = rendered("weft-hub", *EVERYTHING)
    spec = of_kind(objects, "StatefulSet")["spec"]
    pod = spec["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= STOP_S_MAX + 10
    assert of_kind(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert of_kind(objects, "PodDisruptionBudget")["spec"]["selector"] == spec["selector"]
    container = pod["containers"][0]
    assert container["args"][-2:] == ["--advertise", "https://$(POD).hubs.example.com:8090"]
    probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert [(each["path"], each["scheme"]) for each in probes] == [
        ("/healthz", "HTTPS"),
        ("/healthz", "HTTPS"),
        ("/readyz", "HTTPS"),
    ]
    names = [each["metadata"]["name"] for each in objects if each["kind"] == "Service"]
    assert names == ["weft-weft-hub", "weft-weft-hub-pods", *(f"weft-weft-hub-{pod}" for pod in range(3))]


@pytest.mark.slow
@pytest.mark.processes
def test_passwords_do_not_leave_the_cluster_in_clear_text_and_the_status_page_is_closed() -> None:
    _, objects = rendered("weft-edge")
    assert of_kind(objects, "Service")["spec"]["type"] == "ClusterIP"
    (open_to_all,) = of_kind(objects, "NetworkPolicy")["spec"]["ingress"]
    assert open_to_all == {"ports": [{"port": "mqtt", "protocol": "TCP"}]}
    _, objects = rendered("weft-edge", "plainText=allowed_beyond_cluster", *EDGE)
    _, status = of_kind(objects, "NetworkPolicy")["spec"]["ingress"]
    assert status == {
        "ports": [{"port": "status", "protocol": "TCP"}],
        "from": [{"podSelector": {"matchLabels": {"a": "b"}}}],
    }
    with_tls = ("service.type=LoadBalancer", "ports.mqtt=null", *EDGE[1:])
    assert of_kind(rendered("weft-edge", *with_tls)[1], "Service")["spec"]["type"] == "LoadBalancer"


@pytest.mark.slow
@pytest.mark.processes
def test_a_hubs_pods_are_reached_at_their_port_alone() -> None:
    _, objects = rendered("weft-hub", *PLAIN)
    policy = of_kind(objects, "NetworkPolicy")["spec"]
    assert policy["podSelector"] == of_kind(objects, "StatefulSet")["spec"]["selector"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"ports": [{"port": "hub", "protocol": "TCP"}]}]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("chart", "values", "message"),
    [
        ("weft-hub", (), "Set it, or plainHttp: allowed_beyond_loopback"),
        ("weft-hub", (*PLAIN, "replica=3"), "replica"),
        ("weft-hub", (*PLAIN, "hub.stoer=x"), "'stoer'"),
        ("weft-hub", (*PLAIN, "hub.shards=0"), "/hub/shards"),
        ("weft-hub", (*PLAIN, "hub.limits.pnding=1GiB"), "'pnding'"),
        ("weft-hub", (*PLAIN, "hub.listen=0.0.0.0:1"), "hub.listen: the chart writes this setting: a pod listens at"),
        ("weft-hub", (*PLAIN, "hub.tokens_file=t"), "'tokens_file'"),
        ("weft-hub", (*TLS, "advertise=http://$(POD).x:1"), "with tls.secret a pod takes nothing but https:"),
        ("weft-hub", (*TLS, "advertise=https://x:1"), "advertise: is the same URL for all pods. Write $(POD)"),
        ("weft-hub", (*PLAIN, "tls.clientCaSecret=ca"), "tls.clientCaSecret: needs tls.secret"),
        ("weft-hub", (*PLAIN, "hub.store=/var/lib/weft"), "store"),
        ("weft-hub", (*PLAIN, "terminationGracePeriodSeconds=5"), "terminationGracePeriodSeconds"),
        ("weft-edge", ("edge.data_dir=/data",), "edge.data_dir: the chart writes this setting"),
        ("weft-edge", ("edge.links.cloud.tokenfile=x",), "'tokenfile'"),
        ("weft-edge", ("ports.amqp=5672",), "ports.amqp: edge.listeners has no amqp"),
        ("weft-edge", ("service.type=LoadBalancer",), "would carry passwords of listener mqtt over the network in"),
    ],
)
def test_what_cannot_work_is_refused(chart: str, values: tuple[str, ...], message: str) -> None:
    done = helm(chart, values)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("chart", ["weft-hub", "weft-edge"])
def test_the_chart_is_good_by_helms_own_rules(chart: str) -> None:
    values = ["--set", PLAIN[0]] if chart == "weft-hub" else []
    command = [tool(HELM), "lint", "--strict", str(CHARTS / chart), "--kube-version", KUBERNETES, *values]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- Values of the charts: their schemas refuse what is misspelt, and know the settings of this release


def test_the_schemas_have_the_settings_of_this_release() -> None:
    for file, text in chart_schemas().items():
        assert (CHART_SCHEMAS_CHARTS / file).read_text() == text, "run: ./run docs"


@pytest.mark.parametrize(
    ("chart", "within", "name"),
    [
        ("weft-hub", (), "replica"),
        ("weft-hub", ("hub",), "stoer"),
        ("weft-hub", ("hub", "limits"), "pnding"),
        ("weft-hub", ("networkPolicy",), "form"),
        ("weft-edge", ("edge",), "lnks"),
        ("weft-edge", ("edge", "links", "cloud"), "tokenfile"),
        ("weft-edge", ("service",), "typ"),
    ],
)
def test_what_a_chart_does_not_know_is_refused(chart: str, within: tuple[str, ...], name: str) -> None:
    import jsonschema  # compiles forty grammars, which every worker would wait for

    values: Any = yaml.safe_load((CHART_SCHEMAS_CHARTS / chart / "values.yaml").read_text())
    judge = jsonschema.Draft7Validator(json.loads((CHART_SCHEMAS_CHARTS / chart / "values.schema.json").read_text()))
    assert list(judge.iter_errors(values)) == []
    section = values
    for each in within:
        section = section.setdefault(each, {})
    section[name] = "x"
    (error,) = judge.iter_errors(values)
    assert f"'{name}' was unexpected" in error.message
