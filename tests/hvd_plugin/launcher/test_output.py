"""What the user sees of mpirun's output."""

from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.launcher.output import OutputFilter

RULE = b"-" * 74 + b"\n"
EXITED = (
    b"prterun detected that one or more processes exited with non-zero status,\n"
    b"thus causing the job to be terminated. The first process to do so was:\n\n"
    b"   Process name: [prterun-vm-7098@1,1]\n   Exit code:    3\n"
)
SIGNALLED = b"prterun noticed that process rank 12 with PID 7113 on node vm exited on\nsignal 9 (Killed).\n"
ABORTED = (
    b"MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n  Proc: [[28667,1],1]\n  Errorcode: 5\n"
)
HAS_EXITED = b'prterun has exited due to process rank 1 with PID 0 on node vm calling\n"abort".\n'


def shown(data, step, **settings):
    stream = OutputFilter(**settings)
    pieces = [stream.feed(data[at : at + step]) for at in range(0, len(data), step)]
    return b"".join([*pieces, stream.close()]), stream.failure


@given(st.binary(max_size=200), st.integers(1, 64))
def test_output_without_banners_goes_through_unchanged(data, step):
    assert shown(data, step) == (data, "")


@given(st.integers(1, 500))
def test_banners_about_a_failed_rank_become_one_line(step):
    assert shown(b"a\n" + RULE + EXITED + RULE + b"b\n", step) == (b"a\nb\n", "rank 1 exited with status 3")


def test_a_signal_is_named():
    assert shown(RULE + SIGNALLED + RULE, 99) == (b"", "rank 12 was ended by signal 9 (Killed)")


def test_an_abort_is_reported_with_its_status_in_whatever_order_its_banners_come():
    first, second = RULE + ABORTED + RULE, RULE + HAS_EXITED + RULE
    for banners in (first + second, second + first):
        assert shown(banners, 50) == (b"", "rank 1 called MPI_Abort with status 5")


def test_other_banners_and_users_rules_are_shown():
    data = RULE + b"There are not enough slots available\n" + RULE + RULE + b"my table\n" + RULE
    assert shown(data, 30) == (data, "")


def test_an_unfinished_banner_is_shown_at_the_end():
    assert shown(RULE + EXITED, 10)[0] == RULE + EXITED


def test_a_progress_bar_is_shown_at_once():
    stream = OutputFilter()
    assert stream.feed(b"\r 50%|###") == b"\r 50%|###"


@given(st.integers(1, 50))
def test_tags_are_shortened_and_lines_kept_whole(step):
    data = b"[1,0]<stdout>: a\n[1,13]<stderr>: \n[1,2]<stdout>:   indented"
    assert shown(data, step, tagged=True)[0] == b"[0] a\n[13] \n[2]   indented"


def test_a_prefix_goes_in_front_of_every_line():
    assert shown(b"a\nb\n", 3, prefix=b"[1] ")[0] == b"[1] a\n[1] b\n"
