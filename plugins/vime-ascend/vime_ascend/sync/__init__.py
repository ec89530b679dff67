"""Weights from trainer to engines in buckets, by any carrier that can broadcast a flat run of bytes."""
