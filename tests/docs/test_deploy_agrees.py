"""The systemd units, the image, compose, Kubernetes and the page describe one deployment."""

from __future__ import annotations

import configparser
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from yaml import safe_load

import harn
from harn.orchestrator import read_manifest
from tests.orchestrator.processes import serving

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs/how-to/deploy.md").read_text()
DOCKERFILE = (DEPLOY / "docker/Dockerfile").read_text()
COMPOSE: Any = safe_load((DEPLOY / "docker/compose.yaml").read_text())
IMAGE = f"harn:{harn.__version__}"
KEY = "HARN_ADMIN_KEY"


def unit(name: str) -> dict[str, list[str]]:
    """The settings of a unit's service, each with all its values."""
    found: dict[str, list[str]] = {}
    text = (
        (DEPLOY / "systemd" / name).read_text().partition("[Service]")[2].partition("[Install]")[0]
    )
    for line in text.splitlines():
        setting, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(setting, []).append(value)
    return found


def pod(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod of a deployment, and its container."""
    spec = safe_load((DEPLOY / "kubernetes" / name).read_text())["spec"]["template"]["spec"]
    [container] = spec["containers"]
    return spec, container


PODS = [pod("deployment.yaml"), pod("worker.yaml")]
UNITS = [unit("harn.service"), unit("harn-worker.service")]
SERVICES = [COMPOSE["services"]["harn"], COMPOSE["services"]["worker"]]


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def commands() -> list[list[str]]:
    """What each deployment runs: the service's command of all three, then the worker's."""
    units = [shlex.split(each["ExecStart"][0])[1:] for each in UNITS]
    made = [each["command"] for each in SERVICES]
    pods = [container["args"] for _, container in PODS]
    [image] = re.findall(r"^CMD \[(.*)\]$", DOCKERFILE, re.M)
    of_image = [word.strip(' "') for word in image.split(",")]
    return [*units, *made, *pods, of_image]


def test_the_same_image_is_built_run_and_told() -> None:
    assert {each["image"] for each in SERVICES} == {IMAGE}
    assert {container["image"] for _, container in PODS} == {IMAGE}
    built = re.findall(r"docker build -f deploy/docker/Dockerfile -t (\S+) \.", PAGE + DOCKERFILE)
    assert set(built) == {IMAGE}
    assert len(built) == 3


def test_every_deployment_runs_the_same_two_commands() -> None:
    serve = [words for words in commands() if words[:2] == ["orchestrator", "serve"]]
    work = [words for words in commands() if words[0] == "worker"]

    assert (len(serve), len(work)) == (4, 3)
    assert {option(words, "--bind").partition(":")[2] for words in serve} == {"8080"}
    assert {Path(option(words, "--config")).name for words in serve} == {"harn.toml"}
    assert {(words[1], option(words, "--queue")) for words in work} == {("jobs", "reviews")}
    assert {option(words, "--shutdown-timeout") for words in [*serve, *work]} == {"30s"}


def test_each_gives_the_same_time_to_stop_and_more_than_the_command_takes() -> None:
    times = {each["TimeoutStopSec"][0] for each in UNITS}
    times |= {each["stop_grace_period"] for each in SERVICES}
    times |= {f"{spec['terminationGracePeriodSeconds']}s" for spec, _ in PODS}

    assert times == {"45s"}


def test_the_container_has_one_user_everywhere() -> None:
    [uid] = re.findall(r"useradd --uid (\d+) .* harn\b", DOCKERFILE)

    assert re.findall(r"^USER (\S+)$", DOCKERFILE, re.M) == ["harn"]
    for spec, _ in PODS:
        context = spec["securityContext"]
        assert (context["runAsUser"], context["fsGroup"]) == (int(uid), int(uid))
        assert context["runAsNonRoot"] is True
    assert f"number {uid}" in PAGE
    assert {each["User"][0] for each in UNITS} == {"harn"}
    assert {each["DynamicUser"][0] for each in UNITS} == {"yes"}


def test_the_state_is_where_the_volume_is() -> None:
    [state] = re.findall(r"HARN_STATE_DIR=(\S+)", DOCKERFILE)
    assert re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.M) == [state]
    for each in SERVICES:
        assert f"state:{state}" in each["volumes"]
    for _, container in PODS:
        environ = {each["name"]: each.get("value") for each in container["env"]}
        mounts = [each["mountPath"] for each in container["volumeMounts"]]
        assert state in mounts
        assert environ["HARN_STATE_DIR"] == f"{state}/harn"
    for each in UNITS:
        [folder] = each["StateDirectory"]
        assert f"HARN_STATE_DIR=/var/lib/{folder}" in each["Environment"]
        assert each["StateDirectoryMode"] == ["0700"]
    assert "/var/lib/harn" in PAGE


def test_what_is_mounted_at_app_is_what_the_commands_read() -> None:
    config = safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())
    [generated] = config["configMapGenerator"]

    assert re.findall(r"^WORKDIR (\S+)$", DOCKERFILE, re.M)[-1] == "/app"
    for each in SERVICES:
        assert "./app:/app:ro" in each["volumes"]
    for spec, container in PODS:
        assert {"name": "app", "mountPath": "/app", "readOnly": True} in container["volumeMounts"]
        assert {"name": "app", "configMap": {"name": generated["name"]}} in spec["volumes"]
    assert set(generated["files"]) == {"harn.toml", "handlers.py", "jobs.py"}
    for name in generated["files"]:
        assert (DEPLOY / "kubernetes" / name).exists()
        assert f"deploy/kubernetes/{name}" in PAGE
        assert f"../kubernetes/{name}" in PAGE
    assert {each["WorkingDirectory"][0] for each in UNITS} == {"/etc/harn"}


def test_the_admin_key_has_one_name_from_the_page_to_the_manifest() -> None:
    manifest = read_manifest(DEPLOY / "kubernetes" / "harn.toml")
    service, (_, container) = UNITS[0], PODS[0]
    secrets = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"][:2]}

    assert [each.name for each in manifest.serve.keys] == [KEY]
    assert service["LoadCredential"] == ["admin-key:/etc/harn/secrets/admin-key"]
    assert f"{KEY}_FILE=%d/admin-key" in service["Environment"]
    assert "> /etc/harn/secrets/admin-key" in PAGE
    for each in SERVICES:
        assert each["environment"][f"{KEY}_FILE"] == "/run/secrets/admin-key"
        assert "admin-key" in each["secrets"]
    assert COMPOSE["secrets"]["admin-key"] == {"file": "./secrets/admin-key"}
    assert "> secrets/admin-key" in PAGE
    assert "> secrets/database-password" in PAGE
    assert secrets == {
        "HARN_STORAGE": {"name": "harn", "key": "storage"},
        KEY: {"name": "harn", "key": "admin-key"},
    }
    [command] = re.findall(r"kubectl create secret generic (.*)", PAGE)
    name, *words = shlex.split(command.replace("$(openssl rand -hex 24)", "x"))
    keys = [each.partition("=")[2].partition("=")[0] for each in words if "literal" in each]
    assert {(name, key) for key in keys} == {
        (each["name"], each["key"]) for each in secrets.values()
    }


def test_what_listens_is_probed_and_what_does_not_is_not() -> None:
    (_, served), (_, works) = PODS
    [checked] = re.findall(r"urlopen\('http://127.0.0.1:8080(/\w+)'", DOCKERFILE)

    assert checked == served["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert served["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert served["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert served["ports"] == [{"name": "http", "containerPort": 8080}]
    assert not [name for name in works if name.endswith("Probe")]
    assert "ports" not in works
    assert SERVICES[1]["healthcheck"] == {"disable": True}
    assert SERVICES[1]["ports"] == []
    assert SERVICES[0]["ports"] == ["127.0.0.1:8080:8080"]


def test_nothing_runs_with_more_rights_than_another() -> None:
    same = (
        "ProtectSystem",
        "NoNewPrivileges",
        "CapabilityBoundingSet",
        "SystemCallFilter",
        "UMask",
    )
    assert [{key: each[key] for key in same} for each in UNITS] == [
        {key: UNITS[0][key] for key in same}
    ] * 2
    for each in SERVICES:
        assert (each["read_only"], each["cap_drop"]) == (True, ["ALL"])
    for spec, container in PODS:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert spec["automountServiceAccountToken"] is False


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"\bdeploy/[\w./-]+\.\w+", PAGE))
    made = {path for path in named if not (ROOT / path).exists()}

    assert len(named) >= 8
    assert made == set()


@pytest.mark.parametrize("unit_file", ["harn.service", "harn-worker.service"])
def test_a_unit_is_a_file_that_systemds_own_format_allows(unit_file: str) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "systemd" / unit_file)

    assert parser.sections() == ["Unit", "Service", "Install"]


def test_the_deployed_manifest_serves_its_probes_and_guards_its_metrics(tmp_path: Path) -> None:
    key = tmp_path / "admin-key"
    key.write_text("a key of more than sixteen bytes\n")
    config = DEPLOY / "kubernetes" / "harn.toml"
    environ = {f"{KEY}_FILE": str(key), "HARN_LOG": "json"}
    with serving(tmp_path, "--config", str(config), "--json", env=environ) as process:
        with httpx2.Client(base_url=process.url, timeout=30) as client:
            answers = [client.get(path).status_code for path in ("/healthz", "/readyz", "/metrics")]
            held = {"Authorization": f"Bearer {key.read_text().strip()}"}
            shown = client.get("/metrics", headers=held).status_code
        process.signal(signal.SIGTERM)
        ended = process.ends()

    assert answers == [200, 200, 401]
    assert (shown, ended) == (200, 0)
