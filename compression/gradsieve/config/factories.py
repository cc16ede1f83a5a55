"""The six rules by name, each with its steps, its source and how to tune it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Unpack

from gradsieve.config.adaptive import ImportanceConfig, LayeredConfig
from gradsieve.config.base import CommonSettings, CompressionConfig
from gradsieve.config.constructors import NotACompressor, constructor
from gradsieve.config.fixed import GroupTopKConfig, LaplaceConfig, SampledConfig, TopKConfig
from gradsieve.config.registry import register, registered
from gradsieve.losses import DEFAULT_RECORDER, LossRecorder


class _Constructors(NotACompressor):
    def __getattr__(self, name: str) -> Callable[..., CompressionConfig]:
        """Return the constructor of an algorithm that was registered from elsewhere."""
        return registered(name, self).make


class Compression(metaclass=_Constructors):
    """Constructors of configurations, one per rule; `gradsieve.config.registry` lists them.

    All take ``min_elements``, ``value_dtype``, ``warmup``, ``error_feedback``, ``momentum`` and
    ``clip_norm``, which :class:`gradsieve.CompressionConfig` explains, and raise ConfigurationError for a
    value that is not allowed, TypeError for a setting that they do not have. What a rule does is done to
    a = gradient + residual of one tensor with N elements. **(r)** marks what is reconstructed, the source's
    full text not being public.
    """

    @staticmethod
    @register(title="top-k", kind="TopK")
    @constructor
    def topk(density: float = 0.01, **settings: Unpack[CommonSettings]) -> TopKConfig:
        """Return settings for exact top-k.

        1. Send the k = ceil(density * N) entries of largest magnitude, ties by lowest index.

        To tune: ``density``. The reference that the others approximate, and the slowest.
        """
        return TopKConfig(density=density, **settings)

    @staticmethod
    @register(title="group top-k", kind="GroupTopK")
    @constructor
    def group_topk(
        density: float = 0.01, *, group_size: int = 1024, **settings: Unpack[CommonSettings]
    ) -> GroupTopKConfig:
        """Return settings for group top-k (method C; patent of ICT, Chinese Academy of Sciences, 2024-12).

        1. Cut the tensor into groups of ``group_size`` consecutive elements (1 024 **(r)**). The patent cuts
           the rank's whole flattened gradient; here every tensor is cut by itself **(r)**.
        2. Of each send the max(1, floor(density * group_size)) entries of largest magnitude **(r)**: with the
           defaults 10 of 1 024, 0.98 of what the other rules send.

        **Converges clearly worse than the other rules** while trainings are short: a group whose entries are
        all small sends as many as one whose entries are large. Take it where all payloads must be of one size
        and spread evenly.

        Error feedback is an addition to the patent. To tune: a small ``group_size`` spreads entries evenly
        but keeps less energy; at most 256 makes indexes one byte each.
        """
        return GroupTopKConfig(density=density, group_size=group_size, **settings)

    @staticmethod
    @register(title="Laplace", kind="Laplace")
    @constructor
    def laplace(
        density: float = 0.01,
        *,
        band: tuple[float, float] = (0.8, 1.25),
        **settings: Unpack[CommonSettings],
    ) -> LaplaceConfig:
        """Return settings for the Laplace threshold (method E; Chen, Liu, Han, J. Zhejiang Univ. 2021).

        1. In the first step estimate the k-th magnitude as mean|a| * ln(N / k), k = ceil(density * N).
        2. Later start from the last step's threshold **(r)**.
        3. Correct by bisection until the number of entries is within ``band`` (multiples of k) **(r)**.
        4. Send all that reach the threshold.

        To tune: ``density``; a wider ``band`` saves counting, a narrower one steadies the payload's size.
        """
        return LaplaceConfig(density=density, band=band, **settings)

    @staticmethod
    @register(title="sampled top-k", kind="Sampled")
    @constructor
    def sampled(
        density: float = 0.01,
        *,
        sample: float = 0.01,
        band: tuple[float, float] = (0.8, 1.25),
        seed: int = 0,
        **settings: Unpack[CommonSettings],
    ) -> SampledConfig:
        """Return settings for sampled top-k, the baseline (Deep Gradient Compression, Lin et al. 2018, 3.1).

        1. Look at a fraction ``sample`` of the magnitudes, spread evenly and chosen by ``seed``.
        2. Take as threshold what a fraction ``density`` of them reaches.
        3. If fewer than ``band[0]`` * k of all reach it, lower it; if more than ``band[1]`` * k do, select
           exactly the k largest among them.

        Paper and code differ from this: see :class:`gradsieve.SampledSelector`. To tune: a larger ``sample``
        costs time and saves re-selections.
        """
        return SampledConfig(density=density, sample=sample, band=band, seed=seed, **settings)

    @staticmethod
    @register(title="layered", kind="Layered")
    @constructor
    def layered(
        density: float = 0.01,
        *,
        bounds: tuple[float, float] = (0.001, 0.1),
        layer_min_elements: Mapping[str, int] | None = None,
        band: tuple[float, float] = (0.8, 1.25),
        reanchor_steps: int = 50,
        adapt_steps: int = 100,
        dead_band: float = 0.1,
        **settings: Unpack[CommonSettings],
    ) -> LayeredConfig:
        """Return settings for layered adaptive compression (method A; ALGC, Wang, Zhu 2025).

        1. A layer is compressed if it has at least ``min_elements`` elements (10 000 **(r)**), or what
           ``layer_min_elements`` says for its name: ``{"head.*": 0, "embedding.weight": 10**9}``.
        2. Every layer has its own threshold: send all that reach it.
        3. The threshold follows the layer's k: times clip((kept / k)^(1/2), 1/2, 2) from step to step; set to
           the exact k-th magnitude at first and every ``reanchor_steps`` steps, layers by turns **(r)**;
           corrected in the same step by bisection when the number kept is outside ``band`` **(r)**.
        4. Every ``adapt_steps`` steps a layer that keeps less of its energy than usual gets a density 1.25
           times as high, one that keeps more a lower one; ``dead_band`` is what counts as usual **(r; after
           GraVAC's gain)**. Every layer stays within ``bounds``, the model's mean within ``density``.

        To tune: ``density`` is the budget. Raise ``bounds[1]`` if a small layer needs much of it; widen
        ``dead_band`` if densities wander. A density is decided by each rank for itself.
        """
        return LayeredConfig(
            density=density,
            bounds=bounds,
            layer_min_elements=tuple((layer_min_elements or {}).items()),
            band=band,
            reanchor_steps=reanchor_steps,
            adapt_steps=adapt_steps,
            dead_band=dead_band,
            **settings,
        )

    @staticmethod
    @register(title="importance", kind="Importance")
    @constructor
    def importance(
        density: float = 0.01,
        *,
        bounds: tuple[float, float] = (0.001, 0.25),
        loss_power: float = 1.0,
        network_power: float = 1.0,
        period: int = 10,
        band: tuple[float, float] = (0.8, 1.25),
        recorder: LossRecorder = DEFAULT_RECORDER,
        **settings: Unpack[CommonSettings],
    ) -> ImportanceConfig:
        """Return settings for importance and network (method B; Meng Yugong 2025).

        1. `gradsieve.cross_entropy` records the sample losses of the ordinary forward pass.
        2. Importance I = mean loss / (2 * its moving average) + the fraction of hard samples, those above
           the median of the last 1 024 losses; clipped to [1/2, 2] **(r)**.
        3. Network state D: the exchange's delay per byte, that of an empty exchange taken off **(r)**,
           smoothed by 7/8; D_ref is the median of the first ``period`` exchanges.
        4. Every ``period`` steps: density = clip(density * I^loss_power * (D_ref / D)^network_power, bounds),
           changed only by more than 20 % **(r)**. More important batch: more is sent; slower network: less.
        5. Send what method E's rule selects at that density (``band``).

        To tune: ``loss_power=0`` or ``network_power=0`` switches a part off; ``bounds`` limit both. The
        network's part needs an exchange that reports its delays, as the one for Horovod does.
        """
        return ImportanceConfig(
            density=density,
            bounds=bounds,
            loss_power=loss_power,
            network_power=network_power,
            period=period,
            band=band,
            recorder=recorder,
            **settings,
        )
