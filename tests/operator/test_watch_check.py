"""A watch that has died silently owes what a list shows."""

from gradsieve_operator.cluster.watch_check import WatchCheck

ONE, TWO = ("research", "one"), ("research", "two")


def test_a_watch_that_tells_everything_owes_nothing():
    check = WatchCheck()
    check.event(ONE, "5")
    check.listed({ONE: "5"}, 100.0)
    assert check.behind(1000.0) == 0.0


def test_what_a_list_has_shown_first_is_owed_until_the_event_comes():
    check = WatchCheck()
    check.listed({ONE: "5"}, 100.0)
    check.listed({ONE: "6"}, 130.0)
    assert check.behind(150.0) == 50.0
    check.event(ONE, "6")
    assert check.behind(151.0) == 0.0


def test_an_event_that_overtakes_the_list_costs_no_more_than_until_the_next_one():
    check = WatchCheck()
    check.event(ONE, "7")
    check.listed({ONE: "6"}, 100.0)
    assert check.behind(110.0) == 10.0
    check.listed({ONE: "7"}, 130.0)
    assert check.behind(140.0) == 0.0


def test_one_object_that_is_told_of_does_not_excuse_another_and_what_is_gone_is_not_owed():
    check = WatchCheck()
    check.listed({ONE: "1", TWO: "2"}, 100.0)
    check.event(ONE, "1")
    assert check.behind(160.0) == 60.0
    check.listed({ONE: "1"}, 170.0)
    assert check.behind(200.0) == 0.0
