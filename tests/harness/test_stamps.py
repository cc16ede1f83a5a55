"""What ranks have written down is told once, as it is written."""

from history import Worked
from stamps import Stamps

POD = "0d1e"


def stamped(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def test_begin_last_sign_and_end_are_told_and_each_once(tmp_path):
    file, stamps = tmp_path / f"1_2_3_{POD}", Stamps(tmp_path)
    file.write_text(stamped("10.0 began", "10.1 works", "10.2 works"))
    told = {"job": "job", "pod": POD, "rank": 1, "ranks": 2, "generation": 3}
    assert list(stamps.read({POD: "job"})) == [Worked(10.0, began=True, **told), Worked(10.2, **told)]
    assert list(stamps.read({POD: "job"})) == []
    with file.open("a") as more:
        more.write(stamped("10.3 works", "10.4 works", "10.5 0") + "10.")
    assert list(stamps.read({POD: "job"})) == [Worked(10.3, **told), Worked(10.5, status=0, **told)]


def test_what_a_pod_says_that_nobody_has_seen_is_told_later(tmp_path):
    (tmp_path / f"0_1_1_{POD}").write_text(stamped("10.0 began"))
    stamps = Stamps(tmp_path)
    assert list(stamps.read({})) == []
    assert [each.began for each in stamps.read({POD: "job"})] == [True]


def test_a_program_that_begins_again_in_the_same_pod_says_so(tmp_path):
    (tmp_path / f"0_1_1_{POD}").write_text(stamped("10.0 began", "10.1 works", "11.0 began", "11.1 works"))
    assert [each.began for each in Stamps(tmp_path).read({POD: "job"})] == [True, True, False]
