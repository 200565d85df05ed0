"""Prometheus can read its configuration; its rules ask for metrics and labels that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from harn.telemetry.metrics import FAMILIES

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
FILE = FOLDER / "harn.rules.yaml"
CASES = Path(__file__).parent / "alert_cases.yaml"
WORDS = {"sum", "by", "max", "rate", "increase", "and", "on"}
# What Prometheus adds to every series of a target that it scrapes.
OF_THE_TARGET = {"up", "job", "instance"}
TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<text>"[^"]*")|(?P<range>\[\d+[smhd]\])|(?P<number>\d+(\.\d+)?)"""
    r"""|(?P<name>[a-zA-Z_]\w*)|(?P<sign>=~|==|>=|<=|[-+/*(){},=<>])"""
)
KEYS = {"alert", "expr", "for", "labels", "severity", "annotations", "summary", "description"}


def rules() -> dict[str, str]:
    """Read the expression of each alert, a folded one as one line."""
    found: dict[str, str] = {}
    name, folding = "", False
    for line in FILE.read_text().splitlines():
        text = line.strip()
        if folding and line.startswith(" " * 10):
            found[name] = f"{found[name]} {text}".strip()
            continue
        folding = False
        if text.startswith("- alert: "):
            name = text.removeprefix("- alert: ")
        elif text.startswith("expr: "):
            expr = text.removeprefix("expr: ")
            folding = expr == ">-"
            found[name] = "" if folding else expr
    return found


def names_of(expression: str) -> set[str]:
    """Split *expression* into tokens, all of which must be PromQL's, and return the names."""
    at, found, depth = 0, set(), 0
    while at < len(expression):
        token = TOKEN.match(expression, at)
        assert token, expression[at:]
        at = token.end()
        if token["name"]:
            found.add(token["name"])
        depth += (token["sign"] or "") in ("(", "{")
        depth -= (token["sign"] or "") in (")", "}")
        assert depth >= 0, expression
    assert depth == 0, expression
    return found


def test_there_is_a_rule_for_each_way_a_queue_or_the_service_goes_wrong() -> None:
    assert set(rules()) == {
        "HarnDeadLettersGrow",
        "HarnJobsWaitTooLong",
        "HarnNoConsumers",
        "HarnAttemptsFail",
        "HarnPausedTooLong",
        "HarnDown",
        "HarnRecordsDamaged",
        "HarnDispatchesFail",
    }


@pytest.mark.parametrize("name", rules())
def test_an_alert_asks_for_metrics_and_labels_that_exist(name: str) -> None:
    asked = names_of(rules()[name])
    families = [FAMILIES[each] for each in asked if each.startswith("harn_")]
    labels = {label for family in families for label in family.labels}

    assert families or "up" in asked
    plain = {each for each in asked if not each.startswith("harn_")}
    assert plain - WORDS - OF_THE_TARGET <= labels
    assert plain & {"queue", "instance", "up"}, "its summary names the queue or the instance"


def test_the_page_lists_every_alert() -> None:
    page = (FOLDER.parents[1] / "docs" / "how-to" / "observe.md").read_text()

    assert re.findall(r"^\| `(Harn\w+)` \|", page, re.M) == list(rules())


def test_each_rule_has_the_keys_that_prometheus_knows() -> None:
    lines = [line for line in FILE.read_text().splitlines() if line.startswith(" " * 6)]
    keys = {found[1] for line in lines if (found := re.match(r"\s+(?:- )?([a-z]+):( |$)", line))}

    assert keys == KEYS
    named = re.findall(r"summary: .*\{\{ \$labels\.(queue|instance) \}\}", FILE.read_text())
    assert len(named) == len(rules())


def test_yaml_reads_the_rules_as_they_were_meant() -> None:
    groups = yaml.safe_load(FILE.read_text())["groups"]

    read = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}
    assert read == rules()


def test_the_scrape_configuration_agrees_with_the_rules_and_the_service() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    [scrape] = config["scrape_configs"]

    assert [(FOLDER / each).resolve() for each in config["rule_files"]] == [FILE.resolve()]
    assert f'up{{job="{scrape["job_name"]}"}}' in rules()["HarnDown"]
    assert scrape["metrics_path"] == "/metrics"
    [targets] = scrape["static_configs"]
    assert targets["targets"] == ["127.0.0.1:8080"], "the address of the units and of compose"


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed")
    return found


def test_promtool_accepts_the_configuration_and_the_rules(promtool: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k")
    text = (FOLDER / "prometheus.yaml").read_text()
    (tmp_path / "prometheus.yaml").write_text(
        re.sub(r"credentials_file: .*", f"credentials_file: {key}", text)
    )
    shutil.copy(FILE, tmp_path)

    checked = _run([promtool, "check", "config", str(tmp_path / "prometheus.yaml")])

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules())} rules found" in checked.stdout


def test_promtool_sees_the_alerts_fire_when_they_should(promtool: str) -> None:
    tested = _run([promtool, "test", "rules", str(CASES)])

    assert tested.returncode == 0, tested.stdout + tested.stderr


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60)
