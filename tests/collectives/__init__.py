"""Tests of collectives."""
