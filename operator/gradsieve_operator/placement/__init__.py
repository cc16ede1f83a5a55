"""Gang placement: nodes and pods in, a node for every pod of a job or what is missing out. Pure.

The planner counts what the scheduler counts (requests, places for pods, host ports) and keeps to taints,
cordons, node selectors and required node affinity. It does not know of affinity between pods, topology spread
constraints, volumes bound to nodes, and dynamic resources: pods pinned against those stay unscheduled.
"""

from gradsieve_operator.placement.cluster import Cluster, Load, Node
from gradsieve_operator.placement.gang import Gang
from gradsieve_operator.placement.planner import Assignment, plan
from gradsieve_operator.placement.queue import PATIENCE, overtaken, place
from gradsieve_operator.placement.shortage import Missing, Shortage

__all__ = [
    "PATIENCE",
    "Assignment",
    "Cluster",
    "Gang",
    "Load",
    "Missing",
    "Node",
    "Shortage",
    "overtaken",
    "place",
    "plan",
]
