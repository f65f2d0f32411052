"""Runs the failure of a token again: a campaign's case, or calls with a mistake."""
