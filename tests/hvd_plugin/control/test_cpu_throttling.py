"""What a rank says of its container's CPU limit, by files that kernels have written."""

import pytest

from gradsieve_hvd.control.cpu_throttling import CpuThrottling

V2 = """usage_usec 48143213
user_usec 45110340
system_usec 3032873
nice_usec 0
core_sched.force_idle_usec 0
nr_periods {periods}
nr_throttled {throttled}
throttled_usec 8123456
nr_bursts 0
burst_usec 0
"""
V1 = "nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 8123456000\nnr_bursts 0\nburst_time 0\n"
V1_OWN = """12:cpuset:/kubepods/burstable/pod1/abc
4:cpu,cpuacct:/kubepods/burstable/pod1/abc
1:name=systemd:/kubepods/burstable/pod1/abc
"""
# Version, what the process is in, file below the mount: in a container, in a cgroup of the host, and hybrid.
PLACES = [
    pytest.param(V2, "0::/\n", "cpu.stat", id="v2 container"),
    pytest.param(V2, "0::/user.slice/job.scope\n", "user.slice/job.scope/cpu.stat", id="v2 host"),
    pytest.param(V1, V1_OWN, "cpu,cpuacct/cpu.stat", id="v1 container"),
    pytest.param(V1, V1_OWN, "cpu,cpuacct/kubepods/burstable/pod1/abc/cpu.stat", id="v1 host"),
    pytest.param(V1, "9:cpu:/a\n0::/b\n", "cpu/a/cpu.stat", id="v1 beside v2"),
]


@pytest.fixture
def own(tmp_path):
    return tmp_path / "self-cgroup"


def written(mount, file, text):
    (mount / file).parent.mkdir(parents=True, exist_ok=True)
    (mount / file).write_text(text)


@pytest.mark.parametrize(("version", "of_process", "file"), PLACES)
def test_it_is_the_share_of_throttled_periods_since_the_last_reading(
    tmp_path, own, version, of_process, file
):
    own.write_text(of_process)
    mount = tmp_path / "cgroup"
    written(mount, file, version.format(periods=1000, throttled=900))
    throttling = CpuThrottling(mount, own)
    assert throttling.read() is None
    written(mount, file, version.format(periods=1020, throttled=905))
    assert throttling.read() == pytest.approx(0.25)
    written(mount, file, version.format(periods=1040, throttled=905))
    assert throttling.read() == 0.0


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("usage_usec 1\nuser_usec 1\nsystem_usec 0\n", id="no limit"),
        pytest.param("", id="empty"),
        pytest.param("nr_periods many\nnr_throttled 1\n", id="no number"),
        pytest.param("nr_periods\n", id="cut short"),
    ],
)
def test_without_a_limit_or_with_a_damaged_file_nothing_is_said(tmp_path, own, text):
    own.write_text("0::/\n")
    written(tmp_path, "cpu.stat", text)
    throttling = CpuThrottling(tmp_path, own)
    assert [throttling.read(), throttling.read()] == [None, None]


def test_without_cgroups_nothing_is_said(tmp_path, own):
    throttling = CpuThrottling(tmp_path / "nowhere", own)
    assert throttling.read() is None


def test_counts_that_fall_are_no_share_below_zero(tmp_path, own):
    own.write_text("0::/\n")
    written(tmp_path, "cpu.stat", V2.format(periods=10, throttled=9))
    throttling = CpuThrottling(tmp_path, own)
    written(tmp_path, "cpu.stat", V2.format(periods=20, throttled=3))
    assert throttling.read() == 0.0
    written(tmp_path, "cpu.stat", V2.format(periods=5, throttled=3))
    assert throttling.read() is None
