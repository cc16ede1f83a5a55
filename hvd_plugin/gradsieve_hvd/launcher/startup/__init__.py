"""Goes on every rank's ``PYTHONPATH``, for the sake of its ``sitecustomize``."""
