"""Gang placement: nodes and pods in, a node for every pod of a job or what is missing out. Pure.

The planner counts what the scheduler counts (requests, places for pods, host ports) and keeps to taints,
cordons, node selectors, required node affinity, and the required anti-affinity of pods that are there. It
does not know of a gang's own affinity between pods, topology spread constraints, volumes bound to nodes, and
dynamic resources: pods pinned against those stay unscheduled, and their nodes are left out for a while.
"""

from gradsieve_operator.placement.cluster import Cluster, Load, Node
from gradsieve_operator.placement.eligibility import Eligibility
from gradsieve_operator.placement.gang import Gang
from gradsieve_operator.placement.holdings import Holdings
from gradsieve_operator.placement.planner import Assignment, plan, still_fits
from gradsieve_operator.placement.queue import PATIENCE, Known, overtaken, plan_queue, plans_in_turn
from gradsieve_operator.placement.refusals import Refusals, Refused
from gradsieve_operator.placement.shortage import Missing, Shortage

__all__ = [
    "PATIENCE",
    "Assignment",
    "Cluster",
    "Eligibility",
    "Gang",
    "Holdings",
    "Known",
    "Load",
    "Missing",
    "Node",
    "Refusals",
    "Refused",
    "Shortage",
    "overtaken",
    "plan",
    "plan_queue",
    "plans_in_turn",
    "still_fits",
]
