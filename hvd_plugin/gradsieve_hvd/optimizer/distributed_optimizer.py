"""gradsieve's own ``DistributedOptimizer``: Horovod's signature and habits, over any transport."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import Parameter

import gradsieve
from gradsieve import Steering
from gradsieve.config.base import is_positive
from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.control.plan import has_coordinator
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.engine.supported import refuse_closure, require_no_double_momentum
from gradsieve_hvd.engine.tensors import require_known_dtype
from gradsieve_hvd.transport.base import Transport

from .momentum import TakenOverMomentum, is_to_be_taken_over
from .paths import ExchangeName, path_named
from .synchronizer import Synchronizer


class _Methods(torch.optim.Optimizer):
    """What a class derived from that of the user's optimizer has instead of its methods.

    synchronizer: sums the gradients. should_synchronize: whether ``step()`` has it do so.
    """

    synchronizer: Synchronizer
    should_synchronize: bool

    def synchronize(self) -> None:
        """Wait until all gradients are the mean (or sum) over ranks; see `Synchronizer.synchronize`."""
        self.synchronizer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Have ``step()`` not call ``synchronize()``, which the caller has done::

        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        """
        self.should_synchronize = False
        try:
            yield
        finally:
            self.should_synchronize = True

    def step(self, closure: None = None) -> Any:  # type: ignore[override]
        """Synchronize, then make the update.

        Raises:
            ConfigurationError: there is a closure.
            NonFiniteGradient: on all ranks, if a gradient was not finite on one; nothing was changed.
            ExchangeError: a rank did not answer.
        """
        refuse_closure((self, closure), {})
        if self.should_synchronize:
            self.synchronize()
        with self.synchronizer.updating():
            return super(type(self), self).step()

    def join(self) -> int:
        """Call it when this rank's data have run out: it helps the others on until theirs have, too.

        Until then this rank takes part with nothing; sums go on being divided by all ranks. Its residual
        waits for its next gradient. At the end it takes over the weights and the state of the rank that
        called it last.

        Returns:
            that rank's number.

        Raises:
            ConfigurationError: gradients are being exchanged.
            NonFiniteGradient: on all ranks; those that go on join again, or train on.
            ExchangeError: a rank did not take its next step in time.
        """
        return self.synchronizer.join(self)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients.

        Raises:
            AssertionError: they are being exchanged.
        """
        if self.synchronizer.in_round:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(): the gradients are being exchanged."
            )
        super(type(self), self).zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, on all ranks the same; they get names from their position.

        Raises:
            ConfigurationError: gradients are being exchanged.
        """
        if self.synchronizer.in_round:
            raise ConfigurationError(
                "add_param_group() was called between backward() and synchronize(), while gradients are "
                "exchanged. Add parameters between two steps."
            )
        super(type(self), self).add_param_group(param_group)
        i = len(self.param_groups) - 1
        for j, parameter in enumerate(self.param_groups[i]["params"]):
            self.synchronizer.add(f"added.{i}.{j}", parameter)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate so many backward passes before gradients are exchanged; between two steps."""
        self.synchronizer.passes = passes


_NAMES = (
    "add_param_group",
    "join",
    "set_backward_passes_per_step",
    "skip_synchronize",
    "step",
    "synchronize",
    "zero_grad",
)
# Else torch would wrap it, and the user's step hooks ran twice.
_Methods.step.hooked = True  # type: ignore[attr-defined]


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Parameter]] | None = None,
    compression: Settings | None = None,
    backward_passes_per_step: int = 1,
    op: Any = "average",
    gradient_predivide_factor: float = 1.0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
    *,
    exchange: ExchangeName = "allgather",
    rank: int | None = None,
    momentum_correction: bool = True,
    transport: Transport | None = None,
) -> Any:
    """Return ``optimizer`` as one that applies the mean of all ranks' gradients.

    The result shares state and parameter groups with ``optimizer``, and is an instance of its class.
    Gradients are selected as backward produces them, travel in buckets, and are summed while it goes on.

    Args:
        optimizer: any of ``torch.optim``'s or like them; it must not be used any more.
        named_parameters: as from ``model.named_parameters()``; names must be the same on all ranks. None
            numbers them.
        compression: one of `gradsieve_hvd.Compression`; None for ``Compression.laplace()``.
        backward_passes_per_step: backward passes whose gradients are added up before they are exchanged.
        op: ``hvd.Average`` or ``hvd.Sum``, or "average" or "sum".
        gradient_predivide_factor: Horovod's, with op=Average: gradients that travel whole are divided by it
            before they are added up, and by the rest of the number of ranks after. That matters in "fp16",
            where large sums overflow; fp32 sums have room.
        groups: Horovod's, a number or lists of parameters: tensors of one group leave in one bucket, those
            that are compressed and those that are not in one each.
        sparse_as_dense: make sparse gradients (of embeddings) dense ones, and exchange them as such.
        process_set: Horovod's, for ranks that talk through Horovod; None for all ranks.
        exchange: "allgather": every rank sends its entries to all; for few ranks. "ring": sums travel around
            a ring (method C). "scatter": every rank sums a part and selects again, so that as many entries
            are applied as one rank selects; for many ranks. "lowrank": matrices travel as two thin factors
            (PowerSGD), and nothing is selected: of ``compression`` hold min_elements, error_feedback,
            residual_dtype, momentum, clip_norm and what does not concern selection. "dense", "fp16",
            "bf16": nothing is compressed, all of it travels in that type (fp32 for "dense").
        rank: columns of the factors of "lowrank", 1 to 8; None for 4.
        momentum_correction: apply the momentum and weight decay of a plain ``torch.optim.SGD`` on each rank
            before entries are selected, rather than after; see `gradsieve_hvd.optimizer.momentum`.
        transport: to the other ranks, for this optimizer alone; None for the best one among Horovod's ranks
            (see `choose_transport`), which all of them choose together, here.

    Raises:
        ConfigurationError: a setting is not allowed, parameters are not named, or momentum would be applied
            twice.
    """
    path = path_named(exchange, rank)
    settings = path.applied_to(_settings(compression))
    named = _named(optimizer, named_parameters)
    group_of = _group_of(groups, named)
    for name, parameter in named:
        require_known_dtype(name, parameter.dtype)
    require_no_double_momentum(optimizer, settings.config)
    averages = _averages(op)
    _require_predivide_factor(gradient_predivide_factor, averages=averages)
    used = transport or _chosen_transport(process_set, settings.timeout_seconds)
    made: Any = object.__new__(_derived(type(optimizer)))
    # A scheduler puts a step of its own onto an optimizer, which is not to hide ours.
    made.__dict__.update({key: value for key, value in vars(optimizer).items() if key not in _NAMES})
    wants = momentum_correction and path.sparse is not None
    takes_over = wants and is_to_be_taken_over(optimizer, settings.config, used.rank)
    made.should_synchronize = True
    made.synchronizer = Synchronizer(
        named,
        settings,
        used,
        path,
        averages=averages,
        passes=backward_passes_per_step,
        sparse_as_dense=sparse_as_dense,
        compared={
            "op": "Average" if averages else "Sum",
            "exchange": exchange,
            "rank": path.rank,
            "momentum_correction": takes_over,
            "gradient_predivide_factor": gradient_predivide_factor,
            "groups": group_of,
        },
        group_of=group_of,
        predivide=gradient_predivide_factor,
        momentum=TakenOverMomentum(made, 1 if averages else used.size) if takes_over else None,
        steering=Steering() if transport is None and process_set is None and has_coordinator() else None,
    )
    return made


def _derived(plain: type[torch.optim.Optimizer]) -> type:
    """Return a class with `_Methods` directly above ``plain``.

    It says that it is Horovod's: then ``hvd.broadcast_optimizer_state()`` initialises state by the step of
    the class below, rather than by one that would wait for all ranks.
    """
    methods = {name: vars(_Methods)[name] for name in _NAMES}
    return type(plain.__name__, (plain,), {**methods, "__module__": "horovod.torch.optimizer"})


def _settings(compression: Any) -> Settings:
    if compression is None:
        return Settings(config=gradsieve.Compression.laplace())
    if not isinstance(compression, Settings):
        raise ConfigurationError(
            f"compression={compression!r}: expected one of gradsieve_hvd.Compression, such as "
            "gradsieve_hvd.Compression.laplace(density=0.01)"
        )
    return compression


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Parameter]] | None
) -> list[tuple[str, Parameter]]:
    """Return the optimizer's parameters with their names.

    Raises:
        ConfigurationError: a name comes twice, or a parameter has none.
    """
    own = {
        parameter: f"parameter.{i}.{j}"
        for i, group in enumerate(optimizer.param_groups)
        for j, parameter in enumerate(group["params"])
    }
    if named_parameters is None:
        return [(name, parameter) for parameter, name in own.items()]
    given = list(named_parameters)
    names = [name for name, _ in given]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"named_parameters: names must be unique, and {', '.join(twice)} are not")
    known = {parameter for _, parameter in given}
    missing = [tuple(parameter.shape) for parameter in own if parameter not in known]
    if missing:
        raise ConfigurationError(
            f"named_parameters: {len(missing)} of the optimizer's parameters have no name, the first of "
            f"shape {missing[0]}. Pass model.named_parameters() with every parameter of the optimizer."
        )
    return [(name, parameter) for name, parameter in given if parameter in own]


def _group_of(groups: Any, named: list[tuple[str, Parameter]]) -> dict[str, int]:
    """Return the number of each parameter's group, by name; those in no group are left out.

    Raises:
        ConfigurationError: ``groups`` is neither a number nor lists of the optimizer's parameters, or one is
            in two of them.
    """
    if groups is None:
        return {}
    if is_count(groups, 1):
        return {name: number * groups // len(named) for number, (name, _) in enumerate(named)}
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in named}
    numbered: dict[str, int] = {}
    for number, group in enumerate(groups if isinstance(groups, list | tuple) else [groups]):
        for each in group if isinstance(group, list | tuple) else [group]:
            name = names.get(each) if isinstance(each, torch.Tensor) else None
            if name is None or name in numbered:
                problem = "which is in two groups" if name else "which is not a parameter of the optimizer"
                raise ConfigurationError(
                    f"groups: found {name or type(each).__name__!r}, {problem}; expected a number of groups, "
                    "or lists of parameters"
                )
            numbered[name] = number
    return numbered


def _require_predivide_factor(factor: Any, *, averages: bool) -> None:
    if not is_positive(factor):
        raise ConfigurationError(f"gradient_predivide_factor={factor!r}: expected a positive number")
    if factor != 1.0 and not averages:
        raise ConfigurationError(
            f"gradient_predivide_factor={factor!r} splits the division of a mean, and op=Sum divides nothing"
        )


def _averages(op: Any) -> bool:
    if isinstance(op, str) and op in ("average", "sum"):
        return op == "average"
    import horovod.torch as hvd

    if op not in (hvd.Average, hvd.Sum):
        raise ConfigurationError(
            f"op={op!r}: sparse gradients can be averaged or summed. Use op=hvd.Average or op=hvd.Sum"
        )
    return bool(op == hvd.Average)


def _chosen_transport(process_set: Any, timeout: float) -> Transport:
    """Return a transport among Horovod's ranks; all of them make their optimizers in the same order."""
    import horovod.torch as hvd

    from gradsieve_hvd.transport.choose import choose_transport

    ranks = hvd.global_process_set if process_set is None else process_set
    return choose_transport(ranks, timeout).transport
