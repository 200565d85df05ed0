"""The alert rules ask for metrics and labels that exist, in expressions that can be read."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harn.telemetry.metrics import FAMILIES

FILE = Path(__file__).parents[2] / "deploy" / "prometheus" / "harn.rules.yaml"
WORDS = {"sum", "by", "max", "rate", "increase", "and", "on"}
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


def test_there_is_a_rule_for_each_way_a_queue_goes_wrong() -> None:
    assert set(rules()) == {
        "HarnDeadLettersGrow",
        "HarnJobsWaitTooLong",
        "HarnNoConsumers",
        "HarnAttemptsFail",
        "HarnPausedTooLong",
    }


@pytest.mark.parametrize("name", rules())
def test_an_alert_asks_for_metrics_and_labels_that_exist(name: str) -> None:
    asked = names_of(rules()[name])
    families = [FAMILIES[each] for each in asked if each.startswith("harn_")]
    labels = {label for family in families for label in family.labels}

    assert families
    assert {each for each in asked if not each.startswith("harn_")} - WORDS <= labels
    assert "queue" in labels, "its summary names the queue"


def test_each_rule_has_the_keys_that_prometheus_knows() -> None:
    lines = [line for line in FILE.read_text().splitlines() if line.startswith(" " * 6)]
    keys = {found[1] for line in lines if (found := re.match(r"\s+(?:- )?([a-z]+):( |$)", line))}

    assert keys == KEYS
    assert len(re.findall(r"summary: .*\{\{ \$labels\.queue \}\}", FILE.read_text())) == len(
        rules()
    )


def test_yaml_reads_the_rules_as_they_were_meant() -> None:
    yaml = pytest.importorskip("yaml", reason="comes with the docs group")

    [group] = yaml.safe_load(FILE.read_text())["groups"]

    assert {rule["alert"]: rule["expr"] for rule in group["rules"]} == rules()


def test_promtool_accepts_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")

    checked = subprocess.run(
        [promtool, "check", "rules", str(FILE)], capture_output=True, text=True, timeout=30
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
