"""Which of the operator's requests belong to a job, and which count."""

import datetime as dt
import json

from scale import audited

BEGAN = dt.datetime(2026, 11, 22, 12, 0, tzinfo=dt.UTC).timestamp()


def event(verb, resource, name="", *, uri="/", subresource="", second=0, status=None):
    moment = dt.datetime.fromtimestamp(BEGAN + second, dt.UTC).isoformat().replace("+00:00", ".000000Z")
    found = {"verb": verb, "requestURI": uri, "requestReceivedTimestamp": moment}
    found["objectRef"] = {"resource": resource, "name": name, "subresource": subresource}
    if status is not None:
        found["requestObject"] = {"status": status}
    return found


def requests(*events):
    return [audited.Request.parse(each) for each in events]


def test_of_a_life_all_counts_but_telemetry_and_deletions():
    found = audited.of_lives(
        requests(
            event("patch", "serviceaccounts", "life-0001"),
            event("patch", "secrets", "life-0001-workers-tls"),
            event("create", "events", "life-0001.18a"),
            event("patch", "horovodjobs", "life-0001", subresource="status", status={"record": "1"}),
            event("patch", "horovodjobs", "life-0001", subresource="status", status={"telemetry": {}}),
            event("delete", "pods", "life-0001-workers-0-1"),
            event("patch", "pods", "life-0002-workers-0-1"),
            event("patch", "pods", "run-0001-workers-0-1"),
        )
    )

    assert {job: sorted(kinds) for job, kinds in found.items()} == {
        "life-0001": ["create events", "patch horovodjobs/status", "patch secrets", "patch serviceaccounts"],
        "life-0002": ["patch pods"],
    }
    assert found["life-0001"].total() == 4


def test_telemetry_that_is_written_with_something_else_counts():
    status = {"telemetry": {"step": 1}, "conditions": []}

    (found,) = requests(event("patch", "horovodjobs", "life-0001", subresource="status", status=status))

    assert not found.telemetry


def test_a_list_belongs_to_the_job_in_its_selector():
    uri = "/api/v1/namespaces/team-1/pods?labelSelector=gradsieve.io%2Fjob%3Dlife-0001"

    found = audited.of_lives(requests(event("list", "pods", uri=uri)))

    assert found["life-0001"] == {"list pods": 1}


def test_in_steady_state_all_counts_but_the_lease_and_telemetry_within_its_span():
    found = audited.steady(
        requests(
            event("list", "horovodjobs", second=-1),
            event("list", "horovodjobs", second=1),
            event("get", "secrets", "run-0001-workers-tls", second=2),
            event("update", "leases", "gradsieve-operator", second=3),
            event(
                "patch", "horovodjobs", "run-0001", subresource="status", second=4, status={"telemetry": {}}
            ),
            event("list", "horovodjobs", second=60),
        ),
        BEGAN,
        BEGAN + 60,
    )

    assert found == {"list horovodjobs": 1, "get secrets": 1}


def test_a_job_and_its_events_are_no_children_of_it():
    found = audited.first_child(
        requests(
            event("patch", "horovodjobs", "after-0000", subresource="status", status={}, second=1),
            event("create", "events", "after-0000.18a", second=2),
            event("get", "secrets", "after-0000-workers-tls", second=3),
            event("patch", "configmaps", "after-0000", second=4),
            event("patch", "pods", "after-0000-workers-0-1", second=5),
        ),
        "after-0000",
    )

    assert found == BEGAN + 4


def test_a_line_that_is_being_written_is_left_for_later(tmp_path):
    log = tmp_path / "audit.log"
    line = json.dumps(event("list", "horovodjobs"))
    log.write_text(f"{line}\n{line[:20]}")

    assert len(list(audited.read(log))) == 1
