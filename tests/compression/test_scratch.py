"""Work space is used again, and never shared between results, uses or threads."""

import threading

import torch

from gradsieve import GroupTopKSelector, LaplaceSelector, TopKSelector
from gradsieve.kernels.scratch import borrow

CPU = torch.device("cpu")


def test_a_smaller_tensor_uses_the_memory_of_a_larger_one():
    larger = borrow(5000, "sum", CPU)
    smaller = borrow(100, "sum", CPU)
    assert smaller.numel() == 100
    assert smaller.data_ptr() == larger.data_ptr() == borrow(5000, "sum", CPU).data_ptr()


def test_uses_and_threads_have_memory_of_their_own():
    pointers = {borrow(100, "sum", CPU).data_ptr(), borrow(100, "residual", CPU).data_ptr()}
    thread = threading.Thread(target=lambda: pointers.add(borrow(100, "sum", CPU).data_ptr()))
    thread.start()
    thread.join()
    assert len(pointers) == 3


def test_a_later_selection_does_not_change_an_earlier_one():
    for rule in (TopKSelector(), GroupTopKSelector(64), LaplaceSelector((0.8, 1.25))):
        first = rule.select(torch.arange(1000.0), 0.1, None)
        indices, values = first.indices.clone(), first.values.clone()
        rule.select(torch.arange(1000.0, 0, -1), 0.1, None)
        assert torch.equal(first.indices, indices)
        assert torch.equal(first.values, values)
