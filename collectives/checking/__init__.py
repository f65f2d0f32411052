"""What is right: oracles in NumPy, and what a plan computes, in symbols."""
