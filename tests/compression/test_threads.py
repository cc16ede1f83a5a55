"""How many threads work on a step shows in nothing that leaves it, and a failing part fails the step."""

import pytest
import torch
from kernel_laws import using_threads
from sole_tensor import SoleTensor

from gradsieve import Compression
from gradsieve.kernels.parts import both, parallel_map

CONFIGS = {
    "group top-k": Compression.group_topk(density=0.05, group_size=256),
    "exact top-k": Compression.topk(density=0.05),
    "Laplace": Compression.laplace(density=0.05),
    "Laplace, fp16": Compression.laplace(density=0.05, value_dtype="float16"),
    "all elements": Compression.topk(density=1.0),
}


def sent(config, threads: int) -> list[bytes]:
    """Return the payloads of some steps, each with what former steps have left."""
    draw = torch.Generator().manual_seed(3)
    compressor = SoleTensor(config, 20_011)
    payloads = []
    with using_threads(threads):
        for step in range(4):
            payloads.append(compressor.compress(torch.randn(20_011, generator=draw), step=step))
            compressor.commit()
    return [payload.numpy().tobytes() for payload in payloads]


@pytest.mark.parametrize("name", CONFIGS)
def test_payloads_are_the_same_bytes_with_one_thread_two_and_five(name):
    alone = sent(CONFIGS[name], 1)
    assert sent(CONFIGS[name], 2) == alone
    assert sent(CONFIGS[name], 5) == alone


def fail_at(bad: int):
    def work(part: int) -> int:
        if part == bad:
            raise ValueError(f"part {part}")
        return part

    return work


@pytest.mark.parametrize("bad", range(6))
def test_what_a_part_raises_is_raised_and_the_next_pass_works(bad):
    with using_threads(3):
        with pytest.raises(ValueError, match=f"part {bad}"):
            parallel_map(fail_at(bad), range(6))
        assert parallel_map(fail_at(-1), range(6)) == list(range(6))


def test_of_two_that_fail_beside_each_other_the_first_one_is_told():
    with using_threads(2), pytest.raises(ValueError, match="part 1"):
        both(lambda: fail_at(1)(1), lambda: fail_at(2)(2), 100)
