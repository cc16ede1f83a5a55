"""A step over one optimizer's gradients, as a transaction; knows neither Horovod nor an optimizer."""
