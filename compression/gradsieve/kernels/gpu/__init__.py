"""What computes the accumulated gradient on GPUs; needs triton, which torch for Linux brings along."""

from gradsieve.kernels.gpu.sums import GpuSum

__all__ = ["GpuSum"]
