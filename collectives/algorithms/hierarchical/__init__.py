"""Algorithms on two levels, one page each: inside clusters of consecutive ranks, and between clusters.

A cluster is what has a faster way among its ranks than the pool: accelerators behind one XLink switch, ranks of one
host. Source: the composition of collectives over two levels as in MPI and NCCL trees (Karonis et al., IPDPS 2000; Cho
et al., BlueConnect, MLSys 2019), here over shared memory on both levels, which ScalePool (arXiv 2510.14580) joins.
"""

from collectives.algorithms.hierarchical.all_gather import all_gather
from collectives.algorithms.hierarchical.all_reduce import all_reduce
from collectives.algorithms.hierarchical.all_to_all import all_to_all
from collectives.algorithms.hierarchical.broadcast import broadcast
from collectives.algorithms.hierarchical.gather import gather
from collectives.algorithms.hierarchical.reduce import reduce
from collectives.algorithms.hierarchical.reduce_scatter import reduce_scatter
from collectives.algorithms.hierarchical.scatter import scatter

__all__ = ["PAGES"]

PAGES = (all_gather, all_reduce, all_to_all, broadcast, gather, reduce, reduce_scatter, scatter)
