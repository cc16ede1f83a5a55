"""Every error that gradsieve raises.

::

    GradsieveError
    ├── ConfigurationError   a setting is wrong, or a feature was combined with one it cannot go with
    ├── PayloadError         bytes from another rank are truncated, corrupted or foreign
    ├── NonFiniteGradient    a gradient holds NaN or infinity
    ├── RankMismatch         ranks run with different settings, different models or different weights
    ├── ExchangeError        a collective failed or did not finish before its deadline
    ├── StateError           a training's state could not be committed or restored
    ├── LaunchError          a job or an emulated link could not be started
    └── BuildError           Horovod could not be built

and HighDensityWarning, a class of its own so that it can be silenced by itself.

Each message says what happened, where (layer, rank, field) and what to do about it. The standard-library base
that each class also has lets code that knows nothing of gradsieve catch it in the usual way.
"""

from __future__ import annotations


class GradsieveError(Exception):
    """Base of all errors raised by gradsieve."""


class ConfigurationError(GradsieveError, ValueError):
    """A setting is out of range, or contradicts another; nothing was changed. Correct it and start again."""


class PayloadError(GradsieveError, ValueError):
    """Received bytes are not a valid payload; the tensor they were meant for is untouched."""


class NonFiniteGradient(GradsieveError, ArithmeticError):
    """A gradient holds NaN or infinity; no residual and no weight was changed, the next step may go on."""


class RankMismatch(GradsieveError, RuntimeError):
    """Ranks disagree: about settings or model, found before the first exchange, or about what the weights are
    by now; raised on every rank.
    """


class ExchangeError(GradsieveError, RuntimeError):
    """A collective failed or missed its deadline; the job cannot go on without a restart."""


class StateError(GradsieveError, RuntimeError):
    """A training's state could not be committed or restored; raised on every rank, older commits stay."""


class LaunchError(GradsieveError, RuntimeError):
    """A training job, or the emulated link under it, could not be started or stopped as asked."""


class BuildError(GradsieveError, RuntimeError):
    """Horovod could not be built; the message names what is missing."""


class HighDensityWarning(UserWarning):
    """A density of a half or more: perhaps a percentage that was meant as one."""
