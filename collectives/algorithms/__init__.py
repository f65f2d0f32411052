"""The algorithms we ship, one page each."""

from collectives.algorithms.all_gather import all_gather
from collectives.algorithms.all_gather_batched import all_gather_batched
from collectives.algorithms.all_gather_push import all_gather_push
from collectives.algorithms.all_gatherv import all_gatherv
from collectives.algorithms.all_reduce import all_reduce
from collectives.algorithms.all_reduce_crosswise import all_reduce_crosswise
from collectives.algorithms.all_reduce_doubling import all_reduce_doubling
from collectives.algorithms.all_reduce_rabenseifner import all_reduce_rabenseifner
from collectives.algorithms.all_reduce_two_shot import all_reduce_two_shot
from collectives.algorithms.all_reduce_two_shot_batched import all_reduce_two_shot_batched
from collectives.algorithms.all_to_all import all_to_all
from collectives.algorithms.all_to_all_crosswise import all_to_all_crosswise
from collectives.algorithms.all_to_all_pairwise import all_to_all_pairwise
from collectives.algorithms.all_to_all_push import all_to_all_push
from collectives.algorithms.all_to_all_staggered import all_to_all_staggered
from collectives.algorithms.all_to_allv import all_to_allv
from collectives.algorithms.barrier import barrier
from collectives.algorithms.broadcast import broadcast
from collectives.algorithms.exscan import exscan
from collectives.algorithms.gather import gather
from collectives.algorithms.gather_batched import gather_batched
from collectives.algorithms.gather_push import gather_push
from collectives.algorithms.gatherv import gatherv
from collectives.algorithms.reduce import reduce
from collectives.algorithms.reduce_apart import reduce_apart
from collectives.algorithms.reduce_binomial import reduce_binomial
from collectives.algorithms.reduce_crosswise import reduce_crosswise
from collectives.algorithms.reduce_scatter import reduce_scatter
from collectives.algorithms.reduce_scatter_crosswise import reduce_scatter_crosswise
from collectives.algorithms.reduce_scatterv import reduce_scatterv
from collectives.algorithms.reduce_two_shot import reduce_two_shot
from collectives.algorithms.reduce_two_shot_batched import reduce_two_shot_batched
from collectives.algorithms.scan import scan
from collectives.algorithms.scatter import scatter
from collectives.algorithms.scatter_batched import scatter_batched
from collectives.algorithms.scatter_push import scatter_push
from collectives.algorithms.scatterv import scatterv
from collectives.algorithms.send import send

__all__ = ["PUSHING", "SHIPPED"]

SHIPPED = (
    all_gather,
    all_gather_batched,
    all_gatherv,
    all_reduce,
    all_reduce_crosswise,
    all_reduce_doubling,
    all_reduce_rabenseifner,
    all_reduce_two_shot,
    all_reduce_two_shot_batched,
    all_to_all,
    all_to_all_crosswise,
    all_to_all_pairwise,
    all_to_all_staggered,
    all_to_allv,
    barrier,
    broadcast,
    exscan,
    gather,
    gather_batched,
    gatherv,
    reduce,
    reduce_apart,
    reduce_binomial,
    reduce_crosswise,
    reduce_scatter,
    reduce_scatter_crosswise,
    reduce_scatterv,
    reduce_two_shot,
    reduce_two_shot_batched,
    scan,
    scatter,
    scatter_batched,
    scatterv,
    send,
)

# Whose blocks are whole lines, of results that lie in the heap.
PUSHING = (all_gather_push, all_to_all_push, gather_push, scatter_push)
