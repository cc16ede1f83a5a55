"""Changing how a job trains by what is measured while it does: pure, with a clock that is handed in.

`adapt` decides, `expected` says what a plan promises, `plans` what there is to choose from, `window` what was
measured, `memory` what is kept between looks.
"""

from gradsieve_operator.adapt.decision import Change, Hold, adapt, plan_in_force
from gradsieve_operator.adapt.memory import Memory
from gradsieve_operator.adapt.plans import Asked, Plan
from gradsieve_operator.adapt.window import Window, Work, read_window

__all__ = [
    "Asked",
    "Change",
    "Hold",
    "Memory",
    "Plan",
    "Window",
    "Work",
    "adapt",
    "plan_in_force",
    "read_window",
]
