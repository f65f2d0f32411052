"""This machine's latencies and bandwidths, measured and written as a topology."""
