"""Ascend NPUs for vime."""
