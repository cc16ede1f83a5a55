"""The paths on which sparse gradients are summed over ranks, written once over any transport.

==============  =================================  ==========================  =======================
path            entries that a rank sends          entries that are applied    rounds of messages
==============  =================================  ==========================  =======================
allgather       (P - 1) k                          up to P k                   P - 1
ring            grows with the union of supports   up to P k                   2 (P - 1)
ring, bounded   2 k (P - 1) / P                    k                           2 (P - 1)
scatter         k (P - 1) / P + applied (P-1) / P  k with a bound              2 (P - 1), direct
==============  =================================  ==========================  =======================

Paths are to be compared at equal numbers of applied entries.
"""

from .allgather import AllgatherExchange
from .base import Exchange, Exchanged
from .ring import RingExchange
from .scatter import ScatterExchange

__all__ = ["AllgatherExchange", "Exchange", "Exchanged", "RingExchange", "ScatterExchange"]
