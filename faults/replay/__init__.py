"""Tokens: findings as text that replays elsewhere."""
