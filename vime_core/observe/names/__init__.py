"""The metrics that vime logs, by room. ``vime_core.observe.catalog`` joins them."""
