"""Beside a measured step of gradsieve's own paths stands what ``gradsieve advise`` predicts of it."""

import pytest

from gradsieve_hvd.experiments.peers.predicted import predict


def row(contender, **fields):
    usual = {"task": "digits", "density": 0.01, "link": "10mbit", "ranks": 2, "compute_seconds": 0.01}
    return usual | {"contender": contender, "recorded": False} | fields


def test_own_paths_are_predicted_auto_as_the_best_of_those_it_takes_and_others_not_at_all():
    names = ("allgather", "allgather#2", "ring", "scatter", "dense", "auto")
    rows = {name: row(name) for name in (*names, "ddp", "alone", "int4")}
    predict([*rows.values()])
    found = {name: each["predicted_seconds"] for name, each in rows.items() if "predicted_seconds" in each}
    assert found.keys() == {*names}
    assert found["allgather"] == found["allgather#2"]
    assert found["auto"] == min(found.values())
    # With two ranks a ring sends 458 250 values once, and 10 Mbit/s are 1.25 MB/s.
    assert found["dense"] == pytest.approx(458_250 * 4 / 1.25e6, rel=0.2)


def test_neither_replayed_gradients_nor_what_has_a_prediction_is_predicted():
    replayed, known = row("ring", recorded=True), row("ring", predicted_seconds=7.0)
    predict([replayed, known])
    assert "predicted_seconds" not in replayed
    assert known["predicted_seconds"] == 7.0
