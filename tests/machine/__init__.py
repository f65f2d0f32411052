"""Tests of cxlemu."""
