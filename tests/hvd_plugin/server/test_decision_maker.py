"""What the decision-maker writes to shards and workers when it is told something; times are scripted."""

import pytest

from gradsieve_hvd.server.decision_maker import DecisionMaker
from gradsieve_hvd.server.events import Contribution
from gradsieve_hvd.server.letters import (
    Answer,
    AskBatch,
    AskWeights,
    Leave,
    MakeVersion,
    Orders,
    Push,
    Send,
    Stop,
    order_from_json,
)
from gradsieve_hvd.server.modes import MODES, DynamicAdaptive, SharesBySpeed
from gradsieve_hvd.server.ranges import count

RATES = [{"lr": 0.1}]


def push(number, version=0, seconds=1.0, **more):
    return Push(number=number, version=version, samples=8, seconds=seconds, **more)


def orders(outgoing):
    return [
        order_from_json(each)
        for to, letter in outgoing
        if isinstance(letter, Orders) and list(to) == [0, 1]
        for each in letter.each
    ]


def answers(outgoing):
    return {to[0]: letter for to, letter in outgoing if isinstance(letter, Answer)}


def test_a_release_is_ordered_before_the_weights_that_come_of_it_are_sent():
    maker = DecisionMaker(MODES["synchronous"], 2, now=0.0, shards=[0, 1])
    assert maker.hear(0, push(0, hyperparameters=RATES), 1.0) == []
    outgoing = maker.hear(1, push(1), 1.5)
    release = MakeVersion(1, (Contribution(0), Contribution(1)), RATES)
    assert orders(outgoing) == [release, Send((0, 1), (0, 0))]
    assert {rank: (each.version, each.samples) for rank, each in answers(outgoing).items()} == {
        0: (1, 16),
        1: (1, 16),
    }


def test_an_answer_says_for_how_long_the_mode_had_a_worker_wait_for_others():
    maker = DecisionMaker(MODES["synchronous"], 2, now=0.0, shards=[0, 1])
    maker.hear(0, push(0), 1.0)
    held = {rank: each.held_seconds for rank, each in answers(maker.hear(1, push(1), 1.75)).items()}
    assert held == {0: 0.75, 1: 0.0}
    asked = answers(maker.hear(0, AskWeights(), 2.0))
    assert asked[0].held_seconds == 0.0


def test_nobody_is_held_who_is_let_compute_another_batch():
    maker = DecisionMaker(MODES["dasp"], 3, now=0.0, shards=[0, 1])
    for rank, seconds in enumerate((1.0, 4.0, 4.0)):
        maker.hear(rank, push(rank), seconds)
    (another,) = answers(maker.hear(0, push(3, version=1), 5.0)).values()
    assert (another.version, another.held_seconds) == (None, 0.0)


def test_hyperparameters_are_those_of_rank_0s_last_push():
    maker = DecisionMaker(MODES["asp"], 2, now=0.0, shards=[0, 1])
    maker.hear(0, push(0, hyperparameters=RATES), 1.0)
    (release, _) = orders(maker.hear(1, push(1), 1.1))
    assert release.hyperparameters == RATES


def test_staleness_is_the_mean_of_missed_releases():
    maker = DecisionMaker(MODES["asp"], 2, now=0.0, shards=[0, 1])
    maker.hear(0, push(0), 1.0)
    outgoing = maker.hear(1, push(1), 1.1)
    assert answers(outgoing)[1].staleness == 0.5
    assert orders(outgoing)[1] == Send((1,), (0,))


def test_who_asks_for_weights_gets_the_newest_and_changes_nothing_else():
    maker = DecisionMaker(MODES["asp"], 2, now=0.0, shards=[0, 1])
    maker.hear(0, push(0), 1.0)
    assert orders(maker.hear(1, AskWeights(), 1.1)) == [Send((1,), (0,))]
    assert orders(maker.hear(1, push(1), 1.2))[0].version == 2


def test_the_last_to_leave_has_everybody_sent_the_last_version():
    maker = DecisionMaker(MODES["synchronous"], 2, now=0.0, shards=[0, 1])
    maker.hear(0, push(0), 1.0)
    first = maker.hear(1, Leave(), 1.1)  # nobody is waited for any more
    assert [each.version for each in orders(first) if isinstance(each, MakeVersion)] == [1]
    last = maker.hear(0, Leave(), 2.0)
    assert orders(last) == [Send((0, 1), (1, 0), last=True)]
    assert last[-1][1] == Stop(version=1, samples=8)


def test_it_asks_to_be_woken_when_time_alone_may_decide():
    maker = DecisionMaker(MODES["dasp"], 2, now=0.0, shards=[0, 1])
    for number in range(8):
        maker.hear(0, push(2 * number, number), number + 0.9)
        maker.hear(1, push(2 * number + 1, number), number + 1.0)
    maker.hear(0, push(16, 8), 8.9)
    assert maker.wake_at is not None
    late = maker.wake_at
    assert 9.0 < late < 20.0
    maker.wake(late)
    assert maker.wake_at is None or maker.wake_at > late


BY_SPEED = DynamicAdaptive(shares=SharesBySpeed())
DATA = {"samples": 800, "batch_size": 8, "resume": []}


def dealt(maker, rank, now=0.0):
    """Return the number of samples that a rank is dealt."""
    ((to, letter),) = maker.hear(rank, AskBatch(iteration=1, turn=0, epoch=0, data=DATA), now)
    assert to == [rank]
    return count(letter.places)


def test_batches_follow_speed_from_those_on_that_are_not_dealt_yet():
    maker = DecisionMaker(BY_SPEED, 2, now=0.0, shards=[0, 1])
    # Each has one more than the one that it computes.
    assert [dealt(maker, rank) for rank in (0, 0, 1, 1)] == [8] * 4
    maker.hear(0, push(0, dealt=True), 1.0)  # 8 samples a second
    slow = Push(number=1, version=0, samples=8, seconds=3.0, encoding_seconds=1.0, dealt=True)
    told = answers(maker.hear(1, slow, 4.0))
    assert told[1].share == 0.5  # 8 samples in 3 s: what is encoded takes as long for a small batch
    assert [dealt(maker, rank, 4.0) for rank in (0, 1)] == [12, 4]


def test_what_an_iteration_takes_goes_by_the_batch_that_it_is_of():
    maker = DecisionMaker(BY_SPEED, 2, now=0.0, shards=[0, 1])
    assert [dealt(maker, rank) for rank in (0, 0, 1, 1)] == [8] * 4
    maker.hear(0, push(0, dealt=True), 1.0)
    maker.hear(1, push(1, dealt=True, seconds=3.0), 3.0)
    (fast, slow) = maker._table.nodes
    assert (fast.share, slow.share) == (1.5, 0.5)
    assert (fast.iteration_seconds, slow.iteration_seconds) == (1.0, 3.0)  # of what they had before
    assert [dealt(maker, rank, 3.0) for rank in (0, 1)] == [12, 4]
    maker.hear(0, push(2, version=1, dealt=True), 4.0)
    maker.hear(1, push(3, version=1, dealt=True, seconds=3.0), 6.0)
    assert (fast.iteration_seconds, slow.iteration_seconds) == (1.5, 1.5)


def ask(samples=24, turn=0, resume=()):
    """Return a rank's question for a batch of an epoch of so many samples."""
    data = {"samples": samples, "batch_size": 8, "resume": list(resume)}
    return AskBatch(iteration=turn + 1, turn=turn, epoch=turn, data=data)


def versions(outgoing):
    return [each.version for each in orders(outgoing) if isinstance(each, MakeVersion)]


def test_who_has_no_batch_left_of_an_epoch_holds_nobody_up_until_it_begins_another():
    maker = DecisionMaker(MODES["synchronous"], 2, now=0.0, shards=[0, 1])
    for rank in (0, 1, 1):  # rank 1 has the third one, too
        maker.hear(rank, ask(), 0.0)
    maker.hear(0, ask(), 0.1)  # there is none left
    maker.hear(0, push(0, dealt=True), 1.0)
    assert versions(maker.hear(1, push(1, dealt=True), 1.1)) == [1]
    # Rank 0 waits somewhere, as in a collective at the epoch's end.
    assert versions(maker.hear(1, push(2, version=1, dealt=True), 2.0)) == [2]
    maker.hear(1, ask(), 2.0)
    for rank in (0, 1):
        maker.hear(rank, ask(turn=1), 3.0)
    assert maker.hear(1, push(3, version=2, dealt=True), 4.0) == []  # rank 0 computes again
    assert versions(maker.hear(0, push(4, version=1, dealt=True), 4.1)) == [3]


def test_who_rests_is_no_slowest_worker():
    maker = DecisionMaker(MODES["ssp"], 2, now=0.0, shards=[0, 1])
    maker.hear(1, ask(80), 0.0)
    for _ in range(9):
        maker.hear(0, ask(80), 0.0)
    maker.hear(1, ask(80), 0.1)  # there is none left
    maker.hear(1, push(0, dealt=True), 1.0)
    for number in range(1, 10):
        assert 0 in answers(maker.hear(0, push(number, dealt=True), 1.0 + number))


def test_a_rank_that_rests_may_leave():
    maker = DecisionMaker(MODES["asp"], 1, now=0.0, shards=[0, 1])
    maker.hear(0, ask(8), 0.0)
    maker.hear(0, ask(8), 0.0)
    maker.hear(0, push(0, dealt=True), 1.0)
    assert any(isinstance(letter, Stop) for _, letter in maker.hear(0, Leave(), 2.0))


@pytest.mark.parametrize("ranks", [2, 3])
def test_who_rests_before_the_first_push_says_nothing_about_a_round(ranks):
    """As ranks do that go on from the last step of an epoch: its iteration is empty."""
    maker = DecisionMaker(MODES["dasp"], ranks, now=0.0, shards=[0, 1])
    used_up = [(0, [(0, 80)])]
    for rank in range(ranks):
        assert not dealt_of(maker, rank, ask(80, resume=used_up), 0.0)
    for rank in range(ranks):
        assert dealt_of(maker, rank, ask(80, turn=1, resume=used_up), 1.0 + rank / 100)
    outgoing = [maker.hear(rank, push(rank, dealt=True), 2.0 + rank / 100) for rank in range(ranks)]
    assert [versions(each) for each in outgoing] == [*[[]] * (ranks - 1), [1]]


def dealt_of(maker, rank, question, now):
    (letter,) = [letter for to, letter in maker.hear(rank, question, now) if to == [rank]]
    return count(letter.places)
