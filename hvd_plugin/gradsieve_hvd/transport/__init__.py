"""How bytes travel: one interface, an implementation per library.

A module is imported by who uses it: each needs a library that need not be there.
"""
