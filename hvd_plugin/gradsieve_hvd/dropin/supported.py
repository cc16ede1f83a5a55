"""What cannot be combined with gradsieve, found out at the first gradient, before anything is exchanged."""

from __future__ import annotations

from typing import Any

from gradsieve import CompressionConfig
from gradsieve.errors import ConfigurationError
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
    if config.momentum is not None and not config.momentum.allow_double_momentum:
        _require_no_momentum(optimizer)


def _require_no_momentum(optimizer: Any) -> None:
    for number, group in enumerate(optimizer.param_groups):
        for setting in ("momentum", "betas"):
            value = group.get(setting)
            momentum = value[0] if isinstance(value, tuple | list) else value
            if momentum:
                raise ConfigurationError(
                    f"momentum=MomentumCorrection(...) and {setting}={value!r} of the optimizer (parameter "
                    f"group {number}) would apply momentum twice. Give one of them up: SGD without momentum, "
                    "or no MomentumCorrection with Adam and its kind. Those who mean both say "
                    "MomentumCorrection(allow_double_momentum=True)."
                )


def refuse_closure(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Refuse ``optimizer.step(closure)``; the arguments are those of a step pre-hook, the optimizer first.

    Raises:
        ConfigurationError: there is one. Horovod runs it after the exchange, so that every rank would apply
            the gradients of its own closure alone; and where the closure exchanges them itself, what is
            checked before the update has been checked before them.
    """
    closure = keywords.get("closure", arguments[1] if len(arguments) > 1 else None)
    if closure is not None:
        raise ConfigurationError(
            "optimizer.step(closure): Horovod calls the closure after it has exchanged gradients, and after "
            "they were checked, so those that it computes would be applied on this rank alone, or unchecked. "
            "Call it yourself before step(): loss = closure(); optimizer.step()."
        )
