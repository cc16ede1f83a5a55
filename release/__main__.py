"""Make a release: `make release`, or `python release --output FOLDER` with the tests' helpers on the path."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import artifacts
import source_tree


def main() -> None:
    """Parse the command line and build everything anew."""
    parser = argparse.ArgumentParser(prog="python release", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=source_tree.ROOT / "dist", help="an empty or new folder"
    )
    parser.add_argument("--uncommitted", action="store_true", help="take files as they are, to try it out")
    chosen = parser.parse_args()
    if (changed := source_tree.uncommitted()) and not chosen.uncommitted:
        sys.exit("release: not committed:\n" + "\n".join(changed))
    chosen.output.mkdir(parents=True, exist_ok=True)
    if any(chosen.output.iterdir()):
        sys.exit(f"release: {chosen.output} is not empty")
    build(chosen.output)
    print((chosen.output / artifacts.CHECKSUMS).read_text(), end="")


def build(output: Path) -> None:
    """Write all parts of the release, and their checksums, to a folder."""
    time = source_tree.release_time()
    with tempfile.TemporaryDirectory() as scratch:
        sources = Path(scratch)
        names = source_tree.copy_sources(sources, time)
        wheel = artifacts.build_packages(sources, output, time)
        artifacts.build_chart(sources, output)
        artifacts.build_contexts(sources, names, output, time)
        artifacts.build_inventory(sources, wheel, output, time)
    artifacts.write_checksums(output)


if __name__ == "__main__":
    main()
