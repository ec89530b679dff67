"""Algorithms in five pure stages, and what the framework puts around them: KL, corrections, aggregation."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
