"""What cannot be combined with gradsieve, found out at the first gradient, before anything is exchanged."""

from __future__ import annotations

from typing import Any

from gradsieve import CompressionConfig
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.engine.supported import require_no_double_momentum
from gradsieve_hvd.engine.tensors import require_known_dtype

from . import horovod_internals


def check_supported(optimizer: Any, config: CompressionConfig) -> None:
    """Refuse the ways of using Horovod in which a gradient could not be paired, summed or applied rightly.

    Raises:
        ConfigurationError: Adasum, a reduction other than Average and Sum, ``sparse_as_dense``, parameters of
            a type that cannot be exchanged, or momentum twice.
    """
    import horovod.torch as hvd

    op = getattr(optimizer, "op", hvd.Adasum)  # only the Adasum optimizer has no op
    if op not in (hvd.Average, hvd.Sum):
        raise ConfigurationError(
            f"op={horovod_internals.reduction_name(op)} cannot be combined with gradsieve: sparse gradients "
            "can be averaged or summed. "
            "Use op=hvd.Average or op=hvd.Sum, or train without compression."
        )
    if optimizer.sparse_as_dense:
        raise ConfigurationError(
            "sparse_as_dense=True hands compressors a copy that cannot be traced back to its parameter. "
            "Leave it out (sparse embedding gradients then travel as Horovod's sparse allreduce), or build "
            "the embedding with sparse=False."
        )
    for name, parameter in horovod_internals.reduced_parameters(optimizer):
        require_known_dtype(name, parameter.dtype)
    require_no_double_momentum(optimizer, config)
