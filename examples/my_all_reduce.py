"""An all-reduce of your own: rank 0 folds everyone's vector and publishes the result, which the others retrieve.

cxlemu run --algorithm examples/my_all_reduce.py:my_all_reduce
"""

from collectives import Builder, algorithm

VECTOR, RESULT = 0, 1  # every rank has room for two blocks in the pool


@algorithm("all_reduce")
def my_all_reduce(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, blocks=2, spread="cards"):
        for chunk in chunks:
            mine, result = b.input(chunk.offset), b.output(chunk.offset)
            if b.rank == 0:
                b.fold(result, chunk, mine, block=VECTOR, republish=RESULT)
            else:
                b.publish(chunk, mine, block=VECTOR)
                b.retrieve(result, chunk, 0, block=RESULT)
