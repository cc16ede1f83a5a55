"""``python -m gradsieve_hvd``: the ``gradsieve`` command where its script is not installed."""

from gradsieve_hvd.cli import main

main(prog_name="gradsieve")
