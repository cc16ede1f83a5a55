"""Which connections a port holds, and which make room: laws, for any order in which they come and go."""

from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.control.connection_limits import Owners, Strangers, Waits

ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"])
STEPS = st.lists(st.tuples(ADDRESSES, st.booleans()), max_size=80)


@given(STEPS, st.integers(1, 8), st.integers(1, 4))
def test_strangers_are_never_too_many_and_a_newcomer_is_always_let_in(steps, most, most_per_address):
    strangers, held = Strangers(most, most_per_address), []
    for number, (address, leaves) in enumerate(steps):
        if leaves and held:
            gone = held.pop(number % len(held))
            strangers.leave(gone, gone[1])
            strangers.leave(gone, gone[1])
            continue
        new = (number, address)
        oldest = strangers.enter(new, address)
        held.append(new)
        if oldest is not None:
            assert oldest == next(each for each in held if each[1] == oldest[1])
            held.remove(oldest)
        assert new in held or most_per_address == 0
        assert len(strangers) == len(held) <= most
        assert all(sum(each[1] == one for each in held) <= most_per_address for _, one in held)


def test_who_holds_most_makes_room_for_others():
    strangers = Strangers(6, 4)
    for number in range(4):
        assert strangers.enter(("greedy", number), "10.0.0.66") is None
    assert strangers.enter("first", "10.0.0.1") is None
    assert strangers.enter("second", "10.0.0.2") is None
    assert strangers.enter("third", "10.0.0.3") == ("greedy", 0)
    assert strangers.enter(("greedy", 4), "10.0.0.66") == ("greedy", 1)


@given(STEPS, st.integers(1, 3))
def test_an_owner_has_as_many_as_allowed_and_gets_another_once_one_has_closed(steps, most):
    owners, held = Owners(most), []
    for number, (owner, leaves) in enumerate(steps):
        if leaves and held:
            gone = held.pop(0)
            owners.leave(*gone)
            owners.leave(*gone)
        else:
            theirs = sum(each[1] == owner for each in held)
            assert owners.enter(number, owner) == (theirs < most)
            held += [(number, owner)] if theirs < most else []


def test_a_connection_without_a_request_is_overdue_sooner_before_its_first_one():
    waits = Waits(first_seconds=10.0, idle_seconds=75.0)
    waits.opened("silent", 0.0)
    waits.opened("busy", 0.0)
    waits.opened("polite", 0.0)
    waits.opened("gone", 0.0)
    waits.asked("busy")
    waits.asked("polite")
    waits.answered("polite", 5.0)
    waits.closed("gone")
    assert waits.overdue(9.9) == []
    assert waits.overdue(10.0) == ["silent"]
    assert waits.overdue(79.9) == ["silent"]
    assert waits.overdue(80.0) == ["silent", "polite"]
