"""cxlemu is a machine: a pool of CXL memory cards that several hosts map, with no coherence between them."""

__version__ = "0.1.0"
