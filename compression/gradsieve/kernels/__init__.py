"""Selection kernels: the functions that run over all elements of a tensor."""
