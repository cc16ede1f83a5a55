"""What ``DistributedDataParallel.register_comm_hook`` takes."""

# Without postponed annotations: DDP compares them with the types themselves.
import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket  # mypy does not find it in torch.distributed

from .state import DdpState


def ddp_hook(state: DdpState, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Exchange a bucket's gradients by gradsieve::

        model = torch.nn.parallel.DistributedDataParallel(model)
        model.register_comm_hook(gradsieve_hvd.DdpState(model), gradsieve_hvd.ddp_hook)

    1. DDP hands over each bucket when its gradients are there, in the same order on all ranks. What is sent
       of them is selected, and leaves at once, while backward goes on.
    2. With its last bucket wait for all, overwrite the gradients with their means over the ranks,
       and complete what was returned.
    3. Commit the residuals; or, if a gradient was not finite on some rank, leave them as they were, and raise
       when backward has ended.

    Args:
        state: the model's; not shared with another one.
        bucket: overwritten with the means.

    Raises:
        ConfigurationError: the bucket is not of the state's model, or is sparse.
        RankMismatch: in the first backward pass: the ranks' settings differ.
        ExchangeError, PayloadError: a rank did not answer, or sent what cannot be decoded. No gradient was
            applied, and this process's model cannot be trained further.
    """
    return state.rounds.add(bucket)
