"""``gradsieve bench``: what selecting and encoding cost here, beside what this machine's memory allows."""
