"""The core's own rewards."""
