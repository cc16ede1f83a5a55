"""``gradsieve bench modes``: parallel modes on real ranks, of which some are slow."""
