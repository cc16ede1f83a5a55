"""``gradsieve advise``: which path is likely to be fastest, without a cluster."""
