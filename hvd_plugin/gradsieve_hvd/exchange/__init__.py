"""The paths on which gradients are summed over ranks, written once over any transport.

Sparse gradients, `Exchange`:

==============  =================================  ==========================  =======================
path            entries that a rank sends          entries that are applied    rounds of messages
==============  =================================  ==========================  =======================
allgather       (P - 1) k                          up to P k                   P - 1
ring            grows with the union of supports   up to P k                   2 (P - 1)
ring, bounded   2 k (P - 1) / P                    k                           2 (P - 1)
scatter         k (P - 1) / P + applied (P-1) / P  k with a bound              2 (P - 1), direct
==============  =================================  ==========================  =======================

Paths are to be compared at equal numbers of applied entries.

Flat buckets, `BucketExchange`:

==============  =================================  ==========================  =======================
path            values that a rank sends           what is lost to residuals   rounds of messages
==============  =================================  ==========================  =======================
dense           2 N (P - 1) / P, fp32              nothing                     2 (P - 1)
fp16, bf16      2 N (P - 1) / P, of two bytes      rounding                    2 (P - 1)
lowrank         2 R (n + m) (P - 1) / P a matrix   what rank R cannot say      4 (P - 1)
==============  =================================  ==========================  =======================
"""

from .allgather import AllgatherExchange
from .base import Exchange, Exchanged, begin_exchange
from .dense import BucketExchange, DenseExchange, Reduced, begin_bucket_exchange
from .lowrank import LowRankExchange
from .ring import RingExchange
from .scatter import ScatterExchange

__all__ = [
    "AllgatherExchange",
    "BucketExchange",
    "DenseExchange",
    "Exchange",
    "Exchanged",
    "LowRankExchange",
    "Reduced",
    "RingExchange",
    "ScatterExchange",
    "begin_bucket_exchange",
    "begin_exchange",
]
