"""Parallel modes on a virtual clock: decisions of `gradsieve_hvd.server`, real gradients, played delays."""
