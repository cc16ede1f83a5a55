"""gradsieve beside what its users would take otherwise, on real ranks behind real links."""
