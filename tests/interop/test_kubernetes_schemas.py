"""What `kubectl kustomize` makes of deploy/kubernetes is valid by Kubernetes' own schemas."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from yaml import safe_load, safe_load_all

kubernetes_validate: Any = pytest.importorskip(
    "kubernetes_validate", reason="needs the group `interop`"
)

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"


def documents(tmp_path: Path) -> list[Any]:
    """The objects as they are applied, or the files themselves where there is no kubectl."""
    if not shutil.which("kubectl"):
        files = [path for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml"]
        return [safe_load(path.read_text()) for path in files]
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": os.devnull},
    )
    return list(safe_load_all(done.stdout))


@pytest.mark.parametrize("version", ["1.32", "1.37"])
def test_every_object_is_valid_strictly(version: str, tmp_path: Path) -> None:
    found = documents(tmp_path)

    assert {each["kind"] for each in found} >= {"Deployment", "Service", "PodDisruptionBudget"}
    for each in found:
        kubernetes_validate.validate(each, version, strict=True)


def test_a_misspelt_field_is_found() -> None:
    deployment = safe_load((FOLDER / "deployment.yaml").read_text())
    deployment["spec"]["template"]["spec"]["terminationGracePeriod"] = 45

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, "1.37", strict=True)
