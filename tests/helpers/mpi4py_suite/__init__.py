"""mpi4py's own tests on our communicators: `names` stands for mpi4py.MPI, `suite` fetches and runs them."""
