"""Sweeps and searches over fused products: measured natively or in virtual time."""
