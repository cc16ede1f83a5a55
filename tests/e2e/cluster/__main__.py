"""Build what a cluster needs, or start one by hand: `python -m cluster build`, `python -m cluster up`."""

from __future__ import annotations

import argparse
import signal

from cluster import images, prerequisites
from cluster.binaries import OLDEST_PROGRAMS, PROGRAMS, program
from cluster.local import Cluster
from cluster.operator_image import operator_archive


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="compile the programs and make the images that tests use")
    commands.add_parser("packages", help="name the Debian packages that are missing")
    up = commands.add_parser("up", help="start a cluster and keep it until Ctrl-C")
    up.add_argument("--nodes", type=int, default=3)
    up.add_argument("--name", default="e2e")
    up.add_argument("--images", action="store_true", help="load the images that pods of the tests run")
    commands.add_parser("clean", help="remove clusters whose owners are dead")
    chosen = parser.parse_args()
    if chosen.command == "build":
        _build()
    elif chosen.command == "packages":
        print(*prerequisites.packages())
    elif chosen.command == "clean":
        print(f"removed: {Cluster.remove_leftovers()}")
    else:
        _up(chosen.nodes, chosen.name, load=chosen.images)


def _build() -> None:
    prerequisites.require()
    for name in PROGRAMS:
        print(program(name))
    for name in OLDEST_PROGRAMS:
        print(program(name, oldest=True))
    print(images.template().root)
    print(operator_archive(images.base_archive(), images.BASE))


def _up(nodes: int, name: str, *, load: bool) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Cluster.start(nodes=nodes, name=name) as cluster:
        if load:
            print(f"{cluster.training_image}\n{cluster.operator_image}")
        print(
            f"{nodes} nodes after {cluster.boot_seconds:.1f} s\nexport KUBECONFIG={cluster.kubeconfig}",
            flush=True,
        )
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("removing the cluster")


if __name__ == "__main__":
    main()
