"""Tokens: what was found, as text that replays elsewhere."""
