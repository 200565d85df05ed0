"""What lies under deploy/, checked as far as it can be without an engine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from yaml import safe_load

from harn.cli.commands import harn as tree
from harn.orchestrator import read_manifest
from harn.settings import variables

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
UNITS = [DEPLOY / "systemd" / name for name in ("harn.service", "harn-worker.service")]
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
COMPOSE = DEPLOY / "docker" / "compose.yaml"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def yaml(path: Path) -> Any:
    return safe_load(path.read_text())


@pytest.mark.parametrize(
    "path", [*UNITS, DOCKERFILE, COMPOSE, DEPLOY / "kubernetes/kustomization.yaml"], ids=str
)
def test_each_says_at_its_top_whether_it_was_run(path: Path) -> None:
    head = path.read_text()[:700]

    assert "# Checked: " in head
    assert "# Not run: " in head or "# Run: " in head


@pytest.mark.parametrize("path", [*UNITS, DOCKERFILE, COMPOSE, *KUBERNETES], ids=lambda p: p.name)
def test_variables_that_are_set_exist(path: Path) -> None:
    known = {variable.name for variable in variables()}
    known |= {"HARN_ADMIN_KEY", "HARN_ADMIN_KEY_FILE"}  # a secret's name, from the manifest

    assert set(re.findall(r"\bHARN_[A-Z_]+\b", path.read_text())) <= known


def accepted(arguments: list[str]) -> bool:
    """Tell whether the command line understands *arguments*; nothing is run."""
    command, words = tree, list(arguments)
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))  # type: ignore[assignment]
    command.make_context(str(command.name), words)
    return command.name in ("serve", "worker")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_units_command_is_understood_and_stops_in_time(path: Path) -> None:
    text = path.read_text()
    program, *arguments = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M)[1])  # type: ignore[index]

    assert program.endswith("/harn")
    assert accepted(arguments)
    assert grace(text, r"TimeoutStopSec=(\d+)s") > grace(text, r"--shutdown-timeout (\d+)s")


def grace(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    assert found, pattern
    return int(found[1])


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_nothing_wrong_with_the_unit(path: Path, tmp_path: Path) -> None:
    unit = tmp_path / path.name
    unit.write_text(path.read_text().replace("/opt/harn/bin/harn", "/bin/true"))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(None, 1)[1]) for line in lines]


def test_the_dockerfile_copies_what_exists_and_runs_as_an_ordinary_user() -> None:
    steps = instructions()
    words = {word for word, _ in steps}

    assert steps[0][0] == "FROM"
    assert words <= {
        *("FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME"),
        *("EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
    }
    for word, rest in steps:
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (DEPLOY.parent / source).exists(), source
    users = [rest for word, rest in steps if word == "USER"]
    assert users == ["harn"]
    assert ("STOPSIGNAL", "SIGTERM") in steps


def test_the_images_command_is_understood() -> None:
    [command] = [rest for word, rest in instructions() if word == "CMD"]

    assert accepted(shlex.split(command.strip("[]").replace(",", " ")))


def test_compose_builds_this_image_and_keeps_secrets_out_of_urls() -> None:
    document = yaml(COMPOSE)
    service = document["services"]["harn"]

    build = service["build"]
    assert (COMPOSE.parent / build["context"] / build["dockerfile"]).resolve() == DOCKERFILE
    assert accepted(service["command"])
    assert accepted(document["services"]["worker"]["command"])
    assert not re.search(r"://[^/@\s]+:[^/@\s]+@", COMPOSE.read_text())
    for each in document["services"].values():
        assert set(each["secrets"]) <= set(document["secrets"])
        named = [volume.split(":")[0] for volume in each["volumes"]]
        assert {name for name in named if not name.startswith(".")} <= set(document["volumes"])
    assert set(service["depends_on"]) <= set(document["services"])


def test_kubernetes_manifests_agree_with_each_other() -> None:
    documents = {path.name: yaml(path) for path in KUBERNETES}
    deployment = documents["deployment.yaml"]["spec"]
    pod = deployment["template"]["spec"]
    [container] = pod["containers"]
    labels = deployment["template"]["metadata"]["labels"]

    assert set(documents["kustomization.yaml"]["resources"]) == {
        name for name in documents if name != "kustomization.yaml"
    }
    assert deployment["selector"]["matchLabels"] == labels
    assert documents["service.yaml"]["spec"]["selector"] == labels
    assert documents["disruption.yaml"]["spec"]["selector"]["matchLabels"] == labels
    assert accepted(container["args"])
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    patience = int(container["args"][container["args"].index("--shutdown-timeout") + 1][:-1])
    assert pod["terminationGracePeriodSeconds"] > patience
    probes = {container[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")}
    assert probes == {"/healthz", "/readyz"}


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl here")
def test_kustomize_puts_it_together(tmp_path: Path) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes")],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": os.devnull},
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("kind: ") >= 4


def test_the_manifest_that_is_deployed_is_right() -> None:
    manifest = read_manifest(DEPLOY / "kubernetes" / "harn.toml")
    [trigger] = manifest.triggers

    assert manifest.bound(trigger, manifest.resolver())


def test_a_mounted_config_map_is_read_through_its_links(tmp_path: Path) -> None:
    real = tmp_path / "..2026_11_15"
    real.mkdir()
    (tmp_path / "..data").symlink_to(real.name)
    for name in ("harn.toml", "handlers.py"):
        shutil.copy(DEPLOY / "kubernetes" / name, real)
        (tmp_path / name).symlink_to(f"..data/{name}")

    manifest = read_manifest(tmp_path / "harn.toml")

    assert manifest.bound(manifest.triggers[0], manifest.resolver())
