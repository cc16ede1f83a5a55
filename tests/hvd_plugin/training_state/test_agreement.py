"""Which commit is restored is decided by every rank alike, from the same reports."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.training_state.agreement import Found, Report, Restoration, agree, newer
from gradsieve_hvd.training_state.header import Commit


def commit(step: int, rank: int, run: int = 1, size: int = 2) -> Commit:
    return Commit(step, 0, run, rank, size)


def report(place: str, *commits: Commit, complete: bool = True) -> Report:
    return Report(place, tuple(Found(one, complete) for one in commits))


def test_nothing_anywhere_is_no_restoration() -> None:
    assert agree([report("a"), report("b")]) is None


def test_the_newest_that_all_survivors_have_is_restored() -> None:
    choice = agree([report("a", commit(10, 0), commit(20, 0)), report("b", commit(10, 1)), report("c")])
    assert choice == Restoration(10, (commit(10, 0), commit(10, 1), None), (0, 1))


def test_a_commit_of_another_run_is_not_the_same_step() -> None:
    choice = agree(
        [report("a", commit(10, 0), commit(20, 0)), report("b", commit(10, 1), commit(20, 1, run=2))]
    )
    assert choice is not None
    assert choice.step == 10


def test_without_a_complete_file_there_is_nothing_to_restore() -> None:
    own_only = report("b", commit(10, 1), complete=False)
    assert agree([report("a"), own_only]) is None
    choice = agree([report("a", commit(10, 0)), own_only])
    assert choice is not None
    assert choice.complete == (0,)
    assert choice.source == 0


def test_fewer_ranks_than_before_give_up_a_residual_rather_than_the_training() -> None:
    files = (Found(commit(10, 0), False), Found(commit(10, 1), True))
    choice = agree([Report("a", files)])
    assert choice == Restoration(10, (commit(10, 1),), (0,))


def test_memory_wins_unless_storage_is_newer() -> None:
    old, new = agree([report("a", commit(10, 0))]), agree([report("a", commit(20, 0))])
    assert newer(old, new) is new
    assert newer(new, old) is new
    assert newer(None, old) is old
    assert newer(old, agree([report("b", commit(10, 0))])) is old


def test_a_rank_takes_nothing_that_only_its_neighbour_reports() -> None:
    """It may have found that it cannot read it."""
    choice = agree([report("a", commit(10, 0), commit(10, 1)), report("a", commit(10, 0))])
    assert choice is not None
    assert choice.takes == (commit(10, 0), None)


commits = st.builds(
    commit, st.integers(1, 3), st.integers(0, 4), run=st.integers(1, 2), size=st.integers(1, 4)
)
reports = st.lists(
    st.builds(
        Report,
        st.sampled_from("abc"),
        st.lists(st.builds(Found, commits, st.booleans()), max_size=6, unique_by=lambda one: one.commit).map(
            tuple
        ),
    ),
    min_size=1,
    max_size=5,
)


@given(reports)
def test_a_choice_is_one_commit_whose_files_are_read_once_by_ranks_that_have_them(
    given_reports: list[Report],
) -> None:
    choice = agree(given_reports)
    if choice is None:
        assert not any(found.complete for one in given_reports for found in one.found)
        return
    taken = [(given_reports[rank].place, take) for rank, take in enumerate(choice.takes) if take]
    assert len(set(taken)) == len(taken)
    assert {(take.step, take.run) for _, take in taken} == {(choice.step, taken[0][1].run)}
    for rank, take in enumerate(choice.takes):
        assert take is None or take in [found.commit for found in given_reports[rank].found]
        assert (rank in choice.complete) == (
            take is not None and Found(take, True) in given_reports[rank].found
        )


@given(reports)
def test_a_step_that_every_rank_wrote_is_never_given_up_for_an_older_one(given_reports: list[Report]) -> None:
    whole = [
        Report(one.place, (*one.found, Found(commit(9, rank, run=9), True)))
        for rank, one in enumerate(given_reports)
    ]
    choice = agree(whole)
    assert choice is not None
    assert choice.step == 9
