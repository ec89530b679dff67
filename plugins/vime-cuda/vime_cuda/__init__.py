"""NVIDIA devices for vime."""
