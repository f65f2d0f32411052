"""Calls of collectives on the modelled fabric."""
