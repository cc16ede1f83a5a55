"""Beyond 2^31 elements places are counted in 64 bits.

Memory that is never touched costs nothing, so the loops look at a few elements at the far end of 8 GiB.
"""

import numpy as np
import pytest
import torch

from gradsieve.kernels import groups, numba_kernels

FAR = 1 << 31
START, STOP = FAR - 1024, FAR + 1024 + 100  # the last part is not a multiple of anything
PLACES = [FAR - 1000, FAR - 1, FAR, FAR + 5, FAR + 1100, FAR + 1123]
THREE = 0x40400000
LOWER = THREE - (1 << 21)


@pytest.fixture(scope="module")
def gradient():
    numbers = np.zeros(STOP, np.float32)
    numbers[PLACES] = [4.0, -5.0, 6.0, -7.0, 8.0, 9.0]
    numbers[FAR + 2] = 1.9  # with half of itself added: near, and not listed
    return numbers


@pytest.fixture
def lists():
    return np.empty(4096, np.int64), np.empty(4096, np.float32)


def test_a_pass_lists_places_beyond_2_to_the_31(gradient, lists):
    out = torch.empty(STOP).numpy()
    near = np.empty((STOP - START) // 32 + 1, np.uint32)
    listed = numba_kernels.sum_and_list(
        gradient, 0.5, gradient, out, START, STOP, THREE, LOWER, True, *lists, near
    )
    assert lists[0][:listed].tolist() == PLACES
    assert lists[1][:listed].tolist() == [6.0, -7.5, 9.0, -10.5, 12.0, 13.5]
    assert out[PLACES].tolist() == [0.0] * len(PLACES)
    numba_kernels.put(out, lists[0][:listed], lists[1][:listed])
    assert out[PLACES].tolist() == lists[1][:listed].tolist()


def test_a_second_pass_lists_places_beyond_2_to_the_31(gradient, lists):
    listed = numba_kernels.list_reaching(gradient, START, STOP, THREE, *lists)
    assert lists[0][:listed].tolist() == PLACES


def test_groups_beyond_2_to_the_31_give_their_largest(gradient, lists):
    out = torch.empty(STOP).numpy()
    work = np.empty(2048, np.int32), *np.empty((2, 2048), np.int64)
    listed = groups.group_top_k(gradient, 1.0, gradient, out, True, START, STOP, 1024, 2, 1, *work, *lists)
    assert lists[0][:listed].tolist() == [FAR - 1000, FAR - 1, FAR, FAR + 5, FAR + 1123]


def test_what_is_left_beyond_2_to_the_31_is_put_in_its_place(lists):
    out = torch.empty(STOP).numpy()
    places, values = np.array(PLACES), np.arange(6, dtype=np.float32)
    numba_kernels.put(out, places, values - 1)
    assert out[PLACES].tolist() == [-1.0, 0.0, 1.0, 2.0, 3.0, 4.0]
