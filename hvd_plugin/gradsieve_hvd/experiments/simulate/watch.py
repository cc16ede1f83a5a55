"""What a rule kept of what was asked for, layer by layer over a whole training."""

from __future__ import annotations

from dataclasses import dataclass

from gradsieve import CompressionConfig, GroupTopKConfig
from gradsieve.density import entries_per_group, entries_to_keep
from gradsieve_hvd.engine.compressed_layer import CompressedLayer

BAND = (0.8, 1.25)  # of kept / k: what every threshold rule promises


@dataclass(slots=True)
class LayerWatch:
    """Counts over the selections of one layer, all ranks.

    selections: how many. outside: kept / k outside the band. inexact: kept differs from k.
    empty: nothing kept though something was not zero. short: fewer non-zeros than the band asks for, which is
    no fault. kept_least, kept_most: of kept / k. density_least, density_most: asked for.
    """

    layer: str
    elements: int
    selections: int = 0
    outside: int = 0
    inexact: int = 0
    empty: int = 0
    short: int = 0
    kept_least: float = float("inf")
    kept_most: float = 0.0
    density_least: float = 1.0
    density_most: float = 0.0

    def observe(self, config: CompressionConfig, compressor: CompressedLayer) -> None:
        """Note the compressor's last selection, which has been committed."""
        wanted = entries_wanted(config, compressor.density, self.elements)
        ratio = compressor.kept / wanted
        self.selections += 1
        self.inexact += compressor.kept != wanted
        if not BAND[0] <= ratio <= BAND[1]:
            # If too little was kept because there was no more, nothing is left in the residual.
            left = bool(compressor.state_dict()["feedback"]["residual"].any())
            self.outside += left or ratio > BAND[1]
            self.short += not left and ratio < BAND[0]
            self.empty += left and not compressor.kept
        self.kept_least, self.kept_most = min(self.kept_least, ratio), max(self.kept_most, ratio)
        self.density_least = min(self.density_least, compressor.density)
        self.density_most = max(self.density_most, compressor.density)


def entries_wanted(config: CompressionConfig, density: float, elements: int) -> int:
    """Return k: how many entries a rule that is exact keeps of a layer."""
    if not isinstance(config, GroupTopKConfig):
        return entries_to_keep(density, elements)
    groups, rest = divmod(elements, config.group_size)
    return groups * entries_per_group(density, config.group_size) + entries_per_group(density, rest)
