"""How the operator holds many jobs: latency of changes, requests, memory, planning, and a lost leader.

    python benchmarks/operator_scale.py --jobs 1000 --waiting 250 --json FILE

It starts a control plane on this machine (see tests/e2e/README.md), with nodes that exist in its API only,
and two replicas of the operator beside it. Unless options say otherwise there are two jobs to a node of eight
GPUs, ten pods to a job, and a quarter as many jobs that wait; jobs are changed for five minutes, each once
in 50 s, which makes 20 changes a second for 1 000 jobs: half are new densities, a quarter other numbers of
workers, a quarter suspends and resumes. With ``--adapted`` the operator chooses the mode of the jobs that
run, each of which has a slow rank for every other quarter of an hour.

A row of the result:

- ``p99_seconds``: from a change to the coordinator's PUT (density), the pod's creation (more workers), or the
  deletion of the last pod (suspend).
- ``requests_per_job``: the most that the life of a job of four pods took, telemetry and deletions apart.
- ``steady_requests_per_minute``: of one job, while nothing changes; telemetry and the Lease apart.
- ``rss_mib``: the most that all processes of both replicas held together (PSS).
- ``failover_seconds``: from the expiry of a killed leader's Lease to the first child of a job made just then.
- ``gang_seconds``, ``queue_seconds``: processor time of planning the dearest waiting gang alone, and of all.

Beside it stands ``loop_seconds``, what a fixed loop of Python takes of a processor's time before the rest
begins: how far rows of other days or machines can be compared.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sys
from pathlib import Path
from typing import Any

_HARNESS = Path(__file__).resolve().parents[1] / "tests" / "e2e"


def main() -> None:
    """Measure, print, and write what was asked for."""
    sys.path.insert(0, str(_HARNESS))
    from scale import report
    from scale.processors import loop_seconds
    from scale.scenario import measure
    from scale.sizes import Sizes

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1000, help="that run")
    parser.add_argument("--waiting", type=int, help="jobs that wait for places")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--pods", type=int, help="of the jobs that run, and of others")
    parser.add_argument("--minutes", type=float, default=5.0, help="for which jobs are changed")
    parser.add_argument("--rate", type=float, help="changes per second")
    parser.add_argument("--steady-minutes", type=float, default=2.0, help="for which nothing is changed")
    parser.add_argument("--adapted", action="store_true", help="jobs whose mode follows their telemetry")
    parser.add_argument("--json", type=Path, help="file for the result; its rows of other sizes are kept")
    given = parser.parse_args()
    sizes = Sizes(
        jobs=given.jobs,
        waiting=given.jobs // 4 if given.waiting is None else given.waiting,
        nodes=given.nodes or given.jobs // 2,
        pods=given.pods or given.jobs * 10,
        minutes=given.minutes,
        rate=given.rate or given.jobs / 50,
        steady_minutes=given.steady_minutes,
        adapted=given.adapted,
    )
    sizes.check()
    loop = loop_seconds()
    facts = measure(sizes)
    row, details = report.row(facts), {"loop_seconds": loop, **report.details(facts)}
    print(json.dumps({"row": row, **details}, indent=1))
    if given.json is not None:
        _write(given.json, row, details)


def _write(file: Path, row: dict[str, Any], details: dict[str, Any]) -> None:
    known = json.loads(file.read_text()) if file.exists() else {"rows": [], "details": {}}
    rows = [
        each
        for each in known["rows"]
        if (each["jobs"], each.get("adapted")) != (row["jobs"], row.get("adapted"))
    ]
    today = dt.datetime.now(dt.UTC).date().isoformat()
    machine = f"{os.cpu_count()} processors, shared with the control plane"
    adapted = " adapted" if row.get("adapted") else ""
    known["details"][f"{row['jobs']}{adapted}"] = {"date": today, "machine": machine, **details}
    known["rows"] = sorted([*rows, row], key=lambda each: each["jobs"])
    file.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
