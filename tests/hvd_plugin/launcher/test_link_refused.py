"""Where no namespaces are allowed, the launcher says what it needs."""

import shutil

import pytest

pytestmark = pytest.mark.timeout(60)

# A user namespace inside which no further namespace may be made.
FORBIDDEN = [
    "unshare",
    "-Ur",
    "sh",
    "-c",
    'for kind in net user; do echo 0 > /proc/sys/user/max_${kind}_namespaces; done && exec "$@"',
    "-",
]


def test_a_link_that_is_not_allowed_is_an_error_of_one_line_that_says_what_is_needed(
    launcher, emulated_link_allowed
):
    if shutil.which("unshare") is None:
        pytest.skip("NO unshare(1) HERE: cannot take the permission away")
    launcher.prefix = FORBIDDEN
    done = launcher.run("-np", "2", "--link", "100mbit", "--", "true")
    assert done.returncode == 2
    assert done.stderr.startswith("error: an emulated link needs network namespaces")
    assert "CAP_SYS_ADMIN" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert launcher.left_over() == []
