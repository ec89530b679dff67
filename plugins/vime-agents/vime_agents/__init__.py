"""Environments for multi-turn rollouts of vime."""
