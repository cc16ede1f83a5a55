"""``gradsieve reproduce``: the papers' headline claims, measured under conditions of our own."""
