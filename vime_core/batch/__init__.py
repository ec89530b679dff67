"""The typed batch of a step, its weights per token, and the plan that packs it into micro-batches."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
