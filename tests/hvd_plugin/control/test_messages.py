"""What comes from outside is read completely or refused; nothing else ever happens."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradsieve_hvd.control.fields import MOST_BYTES, Fields, Refused
from gradsieve_hvd.control.messages import Plan, Registration, Roster
from gradsieve_hvd.control.telemetry import Telemetry

REGISTER = {
    "type": "register",
    "protocol": 1,
    "host": "a100-0",
    "podUID": "0b0-1",
    "generation": 3,
    "slots": 2,
    "gpus": ["A100"],
    "group": "a100",
    "machine": "node-7",
}
ROSTER = {
    "generation": 3,
    "command": ["python", "train.py"],
    "backend": "MPI",
    "env": {"A": "b"},
    "hosts": [{"host": "a100-0", "podUID": "u0", "slots": 2}, {"host": "t4-0", "podUID": "u1", "slots": 1}],
    "minHosts": 1,
}
PLAN = {"generation": 2, "densityPermille": 10, "algorithm": "Laplace"}
TELEMETRY = {
    "generation": 3,
    "step": 12,
    "stepSeconds": 0.5,
    "waitSeconds": 0.1,
    "wireBytesPerStep": 1000,
    "denseBytesPerStep": 40000,
    "densityPermille": 10,
    "appliedPlanGeneration": 2,
    "ranks": [{"rank": 0, "host": "a100-0", "stepSeconds": 0.5, "waitSeconds": 0.25}],
    "loss": -1.5,
    "time": 1.7e9,
}
KINDS = [(Registration, REGISTER), (Roster, ROSTER), (Plan, PLAN), (Telemetry, TELEMETRY)]


def refusal_of(call):
    """Return the refusal with which ``call`` ends, if it does; whatever else it raises is a failure."""
    try:
        call()
    except Refused as refusal:
        return refusal
    return None


def read(kind, value):
    return kind.read(Fields.parse(json.dumps(value), "test"))


def test_good_messages_are_read():
    assert (read(Registration, REGISTER).slots, read(Registration, REGISTER).machine) == (2, "node-7")
    roster = read(Roster, ROSTER)
    assert (roster.size, roster.fewest_ranks, roster.environment) == (3, 1, {"A": "b"})
    assert read(Plan, PLAN).fields == PLAN
    assert read(Telemetry, TELEMETRY).to_json() == TELEMETRY


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (Registration, {"protocol": 2}, "use the same gradsieve"),
        (Registration, {"host": "../h0"}, "host name"),
        (Registration, {"host": "h0\n"}, "host name"),
        (Registration, {"podUID": "a/b"}, "letters, digits"),
        (Registration, {"slots": 0}, "slots"),
        (Registration, {"slots": True}, "slots"),
        (Registration, {"slots": 2.0}, "slots"),
        (Registration, {"generation": -1}, "generation"),
        (Registration, {"gpus": ["x"] * 65}, "gpus"),
        (Registration, {"type": "run"}, "register"),
        (Registration, {"machine": "m" * 65}, "machine"),
        (Roster, {"command": []}, "command"),
        (Roster, {"command": ["a\0b"]}, "command"),
        (Roster, {"command": ["\ud800"]}, "command"),
        (Roster, {"backend": "NCCL"}, "MPI or Gloo"),
        (Roster, {"env": {"A=B": "c"}}, "environment variables"),
        (Roster, {"env": {"A": 1}}, "strings"),
        (Roster, {"hosts": []}, "hosts"),
        (Roster, {"hosts": [ROSTER["hosts"][0]] * 2}, "named twice"),
        (Roster, {"minHosts": 3}, "minHosts"),
        (Plan, {"densityPermille": 0}, "densityPermille"),
        (Plan, {"more": {"nested": 1}}, "more"),
        (Plan, {"algorithm": "x" * 5000}, "algorithm"),
        (Plan, {f"field{n}": n for n in range(70)}, "at most 64"),
        (Telemetry, {"stepSeconds": -1}, "stepSeconds"),
        (Telemetry, {"stepSeconds": "fast"}, "stepSeconds"),
        (Telemetry, {"ranks": [{"rank": 0}]}, "host"),
        (Telemetry, {"step": 10**30}, "step"),
    ],
)
def test_what_does_not_fit_is_refused_with_field_and_reason(kind, change, said):
    good = dict(KINDS)[kind]
    with pytest.raises(Refused, match=said):
        read(kind, {**good, **change})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"a": NaN}',
        '{"a": Infinity}',
        "[" * 100_000,
        '{"a": ' + "1" * 5000 + "}",
        b"\xff",
    ],
)
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(Refused):
        Fields.parse(text, "test")


def test_what_is_too_large_is_refused_before_it_is_parsed():
    with pytest.raises(Refused) as refusal:
        Fields.parse(b" " * (MOST_BYTES + 1), "test")
    assert refusal.value.status == 413


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(("kind", "good"), KINDS, ids=lambda value: getattr(value, "__name__", ""))
@given(data=st.data())
def test_a_changed_message_is_read_or_refused_and_never_anything_else(kind, good, data):
    name = data.draw(st.sampled_from([*good, "extra"]))
    changed = {**good, name: data.draw(VALUES)}
    if data.draw(st.booleans()):
        del changed[name]
    refusal = refusal_of(lambda: kind.read(Fields(changed, "test")))
    assert refusal is None or (refusal.status == 400 and len(str(refusal)) < 400)


@given(st.binary(max_size=200))
@example(b"{}")
def test_any_bytes_are_a_json_object_or_refused(data):
    refusal = refusal_of(lambda: Fields.parse(data, "test"))
    assert refusal is None or "test" in str(refusal)
