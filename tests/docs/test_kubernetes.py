"""The manifests and the dashboard of docs/how-to/kubernetes: what they name is there."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import HANGS_S

from llmsim.export.benchmark_formats.vllm_metrics import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    REJECTIONS,
    SPECULATION,
    STEP_TOKENS,
    SUCCESS,
)

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "kubernetes"
SERIES = {
    *(f"vllm:{one.name}" for one in GAUGES),
    *(f"vllm:{one.name}_total" for one in (*COUNTERS, *SPECULATION, SUCCESS, REJECTIONS)),
    *(
        f"vllm:{one.name}_{part}"
        for one in (*HISTOGRAMS, STEP_TOKENS)
        for part in ("bucket", "sum", "count")
    ),
    "vllm:lora_requests_info",
    "vllm:cache_config_info",
}
"""What Prometheus scrapes."""


def documents(name: str) -> dict[str, Any]:
    """The documents of a file by their kind."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    found = list(yaml.safe_load_all(text))
    assert all(one["apiVersion"] and one["metadata"]["name"] for one in found)
    kinds = [one["kind"] for one in found]
    assert len(set(kinds)) == len(kinds)
    return dict(zip(kinds, found, strict=True))


def pod(deployment: dict[str, Any]) -> dict[str, Any]:
    """The template's spec, whose labels the selector finds and whose volumes are mounted."""
    template = deployment["spec"]["template"]
    selected = deployment["spec"]["selector"]["matchLabels"]
    assert selected.items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in template["spec"]["volumes"]}
    return template["spec"]  # type: ignore[no-any-return]


def test_the_server_and_its_service_fit_together() -> None:
    found = documents("llmsim.yaml")
    spec = pod(found["Deployment"])
    (container,) = spec["containers"]
    (volume,) = spec["volumes"]
    assert volume["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    (port,) = container["ports"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": port["name"]}
    template = found["Deployment"]["spec"]["template"]["metadata"]
    assert found["Service"]["spec"]["selector"] == template["labels"]
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert template["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    assert f"--port={port['containerPort']}" in container["args"]


def test_the_command_of_the_pod_serves_its_cluster(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra serve)")
    found = documents("llmsim.yaml")
    (container,) = pod(found["Deployment"])["containers"]
    (mount,) = container["volumeMounts"]
    for name, text in found["ConfigMap"]["data"].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = [word.replace(mount["mountPath"], str(tmp_path)) for word in container["args"]]
    words = [re.sub(r"^--port=\d+$", "--port=0", word) for word in words]
    words = [re.sub(r"^--host=.*$", "--host=127.0.0.1", word) for word in words]
    process = subprocess.Popen(
        [sys.executable, "-m", "llmsim", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    ready = process.stdout.readline()
    assert ready.startswith("ready "), process.stderr.read()
    address = ready.split()[1]
    for path in ("/health", "/metrics"):
        with urllib.request.urlopen(address + path, timeout=HANGS_S) as answer:
            assert answer.status == 200
            body = answer.read().decode()
    scraped = {line.split("{")[0].split()[0] for line in body.splitlines() if line[:1] != "#"}
    counters = {f"vllm:{one.name}_total" for one in SPECULATION}
    assert SERIES - counters - {"vllm:lora_requests_info"} <= scraped
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANGS_S)
    assert process.returncode == 0


def test_the_autoscaler_reads_what_the_adapter_gives() -> None:
    scaler = documents("autoscaling.yaml")["HorizontalPodAutoscaler"]
    rules = yaml.safe_load((FOLDER / "prometheus_adapter.yaml").read_text(encoding="utf-8"))
    (rule,) = rules["rules"]["custom"]
    (metric,) = scaler["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    deployment = documents("llmsim.yaml")["Deployment"]
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])


def test_the_pool_finds_the_pods_and_the_picker() -> None:
    found = documents("gateway.yaml")
    server = documents("llmsim.yaml")["Deployment"]
    labels = server["spec"]["template"]["metadata"]["labels"]
    (container,) = pod(server)["containers"]
    pool = found["InferencePool"]["spec"]
    assert pool["selector"]["matchLabels"] == labels
    assert [one["number"] for one in pool["targetPorts"]] == [
        one["containerPort"] for one in container["ports"]
    ]
    service = found["Service"]
    assert pool["endpointPickerRef"]["name"] == service["metadata"]["name"]
    assert pool["endpointPickerRef"]["port"]["number"] == service["spec"]["ports"][0]["port"]
    spec = pod(found["Deployment"])
    (picker,) = spec["containers"]
    picked = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == picked
    assert service["spec"]["ports"][0]["targetPort"] in {one["name"] for one in picker["ports"]}
    assert spec["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    assert f"--pool-name={found['InferencePool']['metadata']['name']}" in picker["args"]
    (backend,) = found["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == (
        "InferencePool",
        found["InferencePool"]["metadata"]["name"],
    )
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    plugins = yaml.safe_load(found["ConfigMap"]["data"]["plugins.yaml"])
    defined = {one["type"] for one in plugins["plugins"]}
    for profile in plugins["schedulingProfiles"]:
        assert {one["pluginRef"] for one in profile["plugins"]} == defined


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_every_metric_that_is_named_is_one_of_the_server(path: Path) -> None:
    named = set(re.findall(r"vllm:\w+", path.read_text(encoding="utf-8")))
    assert named <= SERIES
    assert named or path.name in ("llmsim.yaml", "autoscaling.yaml")


def test_the_dashboard_shows_what_one_asks_of_a_server() -> None:
    board = json.loads((FOLDER / "grafana_dashboard.json").read_text(encoding="utf-8"))
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    for query in queries:
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
    variables = {one["name"] for one in board["templating"]["list"]}
    used = {name for query in queries for name in re.findall(r"\$(?!__)(\w+)", query)}
    assert used < variables
    named = " ".join(queries)
    for name in (
        "time_to_first_token_seconds_bucket",
        "request_time_per_output_token_seconds_bucket",
        "e2e_request_latency_seconds_bucket",
        "num_requests_running",
        "num_requests_waiting_by_reason",
        "kv_cache_usage_perc",
        "prefix_cache_hits_total",
        "generation_tokens_total",
        "num_preemptions_total",
        "request_success_total",
    ):
        assert f"vllm:{name}" in named
