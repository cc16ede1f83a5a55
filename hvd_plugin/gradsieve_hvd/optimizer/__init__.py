"""gradsieve's own distributed optimizer: Horovod's signature, buckets, and a choice of exchanges."""
