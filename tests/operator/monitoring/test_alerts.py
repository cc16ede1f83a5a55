"""Every alert fires when it should, says what to do, and is made of metrics that there are."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from manifests import ROOT

FILE = ROOT / "helm/gradsieve/files/alerts.yaml"
CASES = Path(__file__).with_name("alerts.yaml")
ALERTS = {
    rule["alert"]: rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
}
RUNBOOK = (ROOT / "docs/runbook.md").read_text()


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_leads_to_its_section_of_the_runbook(name):
    assert ALERTS[name]["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL)
    assert section is not None
    assert "\n1. " in section[1], "what to do"


def test_the_runbook_has_no_section_without_an_alert():
    assert re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE) == list(ALERTS)


def test_every_alert_is_seen_to_fire_by_the_cases_below():
    cases = yaml.safe_load(CASES.read_text())["tests"]
    fired = {
        test["alertname"] for case in cases for test in case["alert_rule_test"] if test.get("exp_alerts")
    }
    assert fired == set(ALERTS)


def test_the_rules_do_what_their_cases_say(promtool):
    for command in (["check", "rules", str(FILE)], ["test", "rules", str(CASES)]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
