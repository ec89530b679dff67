"""Weight sync: one transaction, sender and receiver side by side, and the transports that carry the bytes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
