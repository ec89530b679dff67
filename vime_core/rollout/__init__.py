"""Groups in flight: generation, rewards, filters, evaluation, and the batch that comes of them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
