"""What the end-to-end tests read from the API server's audit log about the operator's rights."""

import json
import sys

import pytest
import rights
from manifests import operator_rights
from rights import asked

ROLES = {"apiGroup": "rbac.authorization.k8s.io", "resource": "clusterroles", "name": "gradsieve-operator"}
PODS = {"resource": "pods", "namespace": "a", "name": "p"}
FORBID = {"authorization.k8s.io/decision": "forbid"}


def event(second, verb, about, code=200, message="", decision="allow"):
    return {
        "verb": verb,
        "objectRef": about,
        "responseStatus": {"code": code, "message": message},
        "annotations": {"authorization.k8s.io/decision": decision},
        "requestReceivedTimestamp": f"2026-11-23T00:{second // 60:02}:{second % 60:02}.5Z",
    }


@pytest.fixture
def read(tmp_path):
    def write_and_read(*events):
        log = tmp_path / "audit.log"
        log.write_text("".join(f"{json.dumps(each)}\n" for each in events))
        return asked(log)

    return write_and_read


def test_what_roles_do_not_allow_is_refused(read):
    found = read(event(0, "list", {"resource": "secrets"}, 403, "secrets is forbidden", "forbid"))
    assert found.refused == ["list /secrets: secrets is forbidden"]
    assert found.used == set()


def test_a_quota_is_no_lack_of_rights(read):
    found = read(event(0, "create", PODS, 403, "exceeded quota: small"))
    assert (found.refused, found.used) == ([], {("", "pods", "create")})


def test_an_owner_reference_that_may_not_block_a_deletion_is_a_lack_of_rights(read):
    [said] = read(event(0, "patch", PODS, 403, "cannot set blockOwnerDeletion")).refused
    assert "blockOwnerDeletion" in said


@pytest.mark.parametrize(("code", "used"), [(200, {"patch"}), (201, {"patch", "create"})])
def test_what_was_applied_and_not_there_was_created(read, code, used):
    found = read(event(0, "patch", {**PODS, "subresource": "status"}, code))
    assert found.used == {("", "pods/status", verb) for verb in used}


def test_a_replica_may_outlive_the_roles_that_helm_has_deleted_but_not_for_ever(read):
    refused = (403, "forbidden", "forbid")
    gone = event(10, "delete", ROLES)
    assert read(gone, event(40, "list", PODS, *refused)).refused == []
    assert len(read(gone, event(80, "list", PODS, *refused)).refused) == 1
    assert len(read(event(0, "list", PODS, *refused), gone).refused) == 1


@pytest.mark.parametrize("name", ["gradsieve-operator-crds-system", "somebody-else"])
def test_other_roles_that_are_deleted_excuse_nothing(read, name):
    gone = event(10, "delete", {**ROLES, "name": name})
    assert len(read(gone, event(11, "list", PODS, 403, "forbidden", "forbid")).refused) == 1


@pytest.fixture
def judge(tmp_path, monkeypatch, capsys):
    """Write what parts of the tests have used; return exit status and words of what judges them together."""

    def write_and_judge(*parts):
        for number, used in enumerate(parts):
            log = tmp_path / f"cluster-{number}" / "audit.log"
            log.parent.mkdir()
            told = (
                event(0, verb, dict(zip(("apiGroup", "resource"), (group, resource), strict=True)))
                for group, resource, verb in used
            )
            log.write_text("".join(f"{json.dumps(each)}\n" for each in told))
        monkeypatch.setattr(sys, "argv", ["rights", str(tmp_path)])
        with pytest.raises(SystemExit) as ended:
            rights.main()
        return ended.value.code, capsys.readouterr().out

    return write_and_judge


def granted():
    return operator_rights("ClusterRole") | operator_rights("Role")


def test_two_parts_of_the_tests_use_what_either_uses(judge):
    reading = {right for right in granted() if right[2] in ("get", "list", "watch")}
    status, said = judge(reading, granted() - reading)
    assert (status, said) == (0, "of 2 audit logs; granted and not used in any of them: none\n")


def test_a_right_that_no_part_uses_is_named(judge):
    status, said = judge(granted() - {("", "pods", "patch")}, set())
    assert (status, said.rpartition(": ")[2]) == (1, "patch pods\n")


def test_without_a_log_nothing_is_proved(judge):
    status, said = judge()
    assert status == 1
    assert said.startswith("of 0 audit logs")
