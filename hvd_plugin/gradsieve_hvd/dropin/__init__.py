"""The ``compression=`` argument of the stock ``horovod.torch.DistributedOptimizer``."""
