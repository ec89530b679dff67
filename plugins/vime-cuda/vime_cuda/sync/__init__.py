"""Weight sync: what carries the core's stream of buckets on NVIDIA devices."""
