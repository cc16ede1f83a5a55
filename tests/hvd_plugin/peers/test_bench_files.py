"""``gradsieve bench exchange`` and ``bench train`` refuse files and options before any rank starts."""

import json

import pytest
from click.testing import CliRunner

from gradsieve_hvd.cli import main
from gradsieve_hvd.experiments.peers import exchange_command, jobs, train_command

EXCHANGE = ("exchange", "--task", "digits", "--links", "none", "--ranks", "2", "--contenders", "ddp")
TRAIN = ("train", "--task", "digits", "--link", "none", "--ranks", "2", "--contenders", "ddp", "--seeds", "1")
MEASURED = {
    "link": "unshaped", "ranks": 2, "contender": "ddp", "task": "digits", "optimizer": "task",
    "density": 0.01, "recorded": False, "step_seconds": 0.1, "compute_seconds": 0.1, "wire_bytes": 1e6,
    "spread": 0.0, "user_seconds": 0.1, "system_seconds": 0.0, "predicted_seconds": 0.1,
}  # fmt: skip
TRAINED = {
    "link": "unshaped", "ranks": 2, "contender": "ddp", "task": "digits", "optimizer": "task",
    "density": 0.01, "until": 0.8, "seed": 0, "learning_rate": 0.1, "steps": 10, "seconds": 1.0,
    "steps_to_target": 10, "seconds_to_target": 1.0, "step_seconds": 0.1, "bytes_per_step": 1e6,
}  # fmt: skip
DAMAGED = {
    "empty": b"", "truncated": b'{"rows": [', "list": b"[]", "object": b"{}", "null": b"null",
    "not-text": b"\xff\xfe", "rows-of-numbers": b'{"rows": [1]}', "rows-of-another": b'{"rows": [{}]}',
}  # fmt: skip


@pytest.fixture(autouse=True)
def started(monkeypatch):
    """Return the numbers of ranks that were started; none really are."""
    numbers = []
    for command in (exchange_command, train_command):
        monkeypatch.setattr(
            command, "measure_on_ranks", lambda worker, plan, ranks, *_: numbers.append(ranks)
        )
    return numbers


@pytest.fixture
def kept(tmp_path):
    def write(*rows):
        file = tmp_path / "rows.json"
        file.write_text(json.dumps({"rows": rows}))
        return file

    return write


@pytest.fixture
def rates(tmp_path):
    def write(content='{"ddp": 0.1}'):
        file = tmp_path / "rates.json"
        file.write_text(content)
        return file

    return write


def bench(*arguments):
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


def refused(started, *arguments):
    result = bench(*arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit), result.exception  # said, not a traceback
    assert started == []
    return " ".join(result.output.split())


def test_what_a_file_holds_is_shown_and_not_measured_again(kept, rates, started):
    for command, row in ((EXCHANGE, MEASURED), ((*TRAIN, "--until", "0.8", "--rates", rates()), TRAINED)):
        result = bench(*command, "--json", kept(row))
        assert result.exit_code == 0, result.output
    assert started == []


@pytest.mark.parametrize(("setting", "other"), [("task", "charlm"), ("density", 0.05), ("recorded", True)])
@pytest.mark.parametrize("contender", ["ddp", "alone"])
def test_steps_measured_with_other_settings_are_refused(kept, started, setting, other, contender):
    file = kept(MEASURED | {"contender": contender, setting: other})
    before = file.read_bytes()
    said = refused(started, *EXCHANGE, "--json", file)
    assert f"measured with {setting} {other}, and {setting} {MEASURED[setting]} is asked for" in said
    assert "take another file" in said
    assert file.read_bytes() == before


@pytest.mark.parametrize(("setting", "other"), [("task", "charlm"), ("density", 0.05), ("until", 0.9)])
def test_trainings_with_other_settings_are_refused(kept, started, setting, other):
    said = refused(started, *TRAIN, "--until", "0.8", "--json", kept(TRAINED | {setting: other}))
    assert f"measured with {setting} {other}, and {setting} {TRAINED[setting]} is asked for" in said


def test_what_a_contender_reached_is_not_a_setting(kept, rates):
    wanted = (*TRAIN, "--until", "ddp@10", "--rates", rates())
    assert bench(*wanted, "--json", kept(TRAINED | {"until": 0.93})).exit_code == 0


def test_rows_of_before_a_setting_was_written_count_as_alike(kept):
    older = {name: value for name, value in MEASURED.items() if name != "density"}
    assert bench(*EXCHANGE, "--density", "0.05", "--json", kept(older)).exit_code == 0


def test_a_file_may_hold_other_links_ranks_and_optimizers(kept, started):
    others = [MEASURED | other for other in ({"link": "10mbit"}, {"ranks": 4}, {"optimizer": "adamw"})]
    result = bench(*EXCHANGE, "--json", kept(*others))
    assert result.exit_code == 0, result.output
    assert started == [2]


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("option", ["--json", "--step-times"])
def test_a_file_that_holds_no_rows_is_refused_and_left_as_it_is(tmp_path, started, content, option):
    file = tmp_path / "damaged.json"
    file.write_bytes(content)
    said = refused(started, *TRAIN, "--until", "0.8", option, file)
    assert option in said
    assert "damaged.json" in said
    assert file.read_bytes() == content


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_folder_that_does_not_exist_is_refused(tmp_path, started, option):
    said = refused(started, *TRAIN, "--until", "0.8", option, tmp_path / "nowhere" / "file.png")
    assert option in said
    assert "there is no folder" in said


def test_rows_are_whole_in_a_file_when_writing_the_next_is_interrupted(kept, tmp_path, monkeypatch):
    file = kept(MEASURED)
    results, before = jobs.Results(file), file.read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(file), "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        results.add([MEASURED])
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--ranks", "2,x"),
        ("--ranks", "2,0"),
        ("--ranks", "2,"),
        ("--links", "none,fast"),
        ("--links", "none,"),
    ],
)
def test_every_link_and_number_of_ranks_is_read_before_the_first_is_measured(started, option, value):
    assert repr(value.partition(",")[2]) in refused(started, *EXCHANGE, option, value)


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"dpp": 0.1}', '{"ddp": []}', '{"ddp": [0.1, NaN]}', '{"ddp": Infinity}', '{"ddp": 0}',
     '{"ddp": -1}', '{"ddp": "0.1"}', '{"ddp": true}'],
)  # fmt: skip
def test_learning_rates_that_cannot_be_trained_with_are_refused(rates, started, content):
    assert "--rates" in refused(started, *TRAIN, "--until", "0.8", "--rates", rates(content))


@pytest.mark.parametrize("until", ["nan", "inf", "-inf"])
def test_a_target_that_is_not_finite_is_refused(started, until):
    assert "finite number" in refused(started, *TRAIN, f"--until={until}")


@pytest.mark.parametrize("seconds", ["nan", "inf", "0"])
def test_ranks_are_ended_after_a_finite_time(started, seconds):
    assert "--timeout" in refused(started, *EXCHANGE, "--timeout", seconds)
