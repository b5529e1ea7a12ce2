"""The charts in deploy/helm: rendered by Helm, judged by Kubernetes' schemas and by the nodes that read the files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.third_party import HELM, KUBECONFORM, KUBERNETES_SCHEMAS, Go
from weft.cloud_hub.checks.check import check as check_hub
from weft.config.load import parse
from weft.config.models import EdgeConfig, HubConfig
from weft.edge_node.check import check as check_edge
from weft.service.supervisor import STOP_S_MAX

CHARTS = Path(__file__).parents[2] / "deploy" / "helm"
KUBERNETES = "1.37.0"
LOOK_S_MAX = 60
PLAIN = ("plainHttp=allowed_beyond_loopback",)
TLS = ("tls.secret=hub-tls", "tls.clientCaSecret=edges-ca", "tls.hasCrl=true")
EVERYTHING = (
    *TLS, "replicas=3", "tokensSecret=weft-tokens", "storeSecret=s3", "env.AWS_REGION=eu-central-1",
    "podServices.enabled=true",
    "advertise=https://$(POD).hubs.example.com:8090", "antiAffinity=preferred", "nodeSelector.disk=ssd",
    "service.type=LoadBalancer", "serviceAccount.annotations.role=arn", "podAnnotations.a=b", "priorityClassName=high",
    "tolerations[0].key=hub", "imagePullSecrets[0].name=registry", "hub.commit_interval=500ms",
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.processes]
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


@pytest.mark.parametrize(
    ("chart", "values", "count"),
    [
        ("weft-hub", PLAIN, 6),
        ("weft-hub", (*PLAIN, "replicas=1", "tokensSecret=weft-tokens"), 5),
        ("weft-hub", TLS, 6),
        ("weft-hub", EVERYTHING, 9),
        ("weft-edge", (), 3),
        ("weft-edge", ("secret=", "service.type=ClusterIP", "storage.className=fast", "ports.mqtts=8883"), 3),
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
        command, input=text.replace("serviceName:", "serviceNam:"), capture_output=True, text=True, timeout=LOOK_S_MAX,
        check=False,
    )  # fmt: skip
    assert json.loads(wrong.stdout)["summary"]["invalid"] == 1


@pytest.mark.parametrize("values", [PLAIN, TLS, EVERYTHING])
def test_the_hub_takes_its_file(values: tuple[str, ...]) -> None:
    _, objects = rendered("weft-hub", *values)
    config = parse(of_kind(objects, "ConfigMap")["data"]["hub.yaml"], "hub.yaml", HubConfig, check_hub).config
    assert (config.listen, config.processes) == ("*:8090", 1)
    assert (config.tls is not None) == (values != PLAIN)
    assert (config.anonymous, config.tokens_file) == (
        ("loopback", "/etc/weft-tokens/tokens") if "tokensSecret=weft-tokens" in values else ("never", None)
    )
    pod = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]
    mounted = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    files = [config.tokens_file, *([] if config.tls is None else [config.tls.certificate, config.tls.crl_file])]
    for path in files:
        assert path is None or any(path.startswith(f"{place}/") for place in mounted)


def test_the_edge_takes_its_file() -> None:
    _, objects = rendered("weft-edge")
    config = parse(of_kind(objects, "ConfigMap")["data"]["edge.yaml"], "edge.yaml", EdgeConfig, check_edge).config
    container = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert config.data_dir in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert container["args"] == ["weft", "edge", "run", "/etc/weft/edge.yaml"]


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
        ("/healthz", "HTTPS"), ("/healthz", "HTTPS"), ("/readyz", "HTTPS"),
    ]  # fmt: skip
    names = [each["metadata"]["name"] for each in objects if each["kind"] == "Service"]
    assert names == ["weft-weft-hub", "weft-weft-hub-pods", *(f"weft-weft-hub-{pod}" for pod in range(3))]


@pytest.mark.parametrize(
    ("chart", "values", "message"),
    [
        ("weft-hub", (), "Set tls.secret, or plainHttp: allowed_beyond_loopback"),
        ("weft-hub", (*PLAIN, "replica=3"), "replica"),
        ("weft-hub", (*PLAIN, "hub.listen=0.0.0.0:1"), "hub"),
        ("weft-hub", (*PLAIN, "hub.store=/var/lib/weft"), "store"),
        ("weft-hub", (*PLAIN, "terminationGracePeriodSeconds=5"), "terminationGracePeriodSeconds"),
        ("weft-edge", ("edge.data_dir=/data",), "edge"),
    ],
)
def test_what_cannot_work_is_refused(chart: str, values: tuple[str, ...], message: str) -> None:
    done = helm(chart, values)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize("chart", ["weft-hub", "weft-edge"])
def test_the_chart_is_good_by_helms_own_rules(chart: str) -> None:
    values = ["--set", PLAIN[0]] if chart == "weft-hub" else []
    command = [tool(HELM), "lint", "--strict", str(CHARTS / chart), "--kube-version", KUBERNETES, *values]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
