"""The CPU backend, and what every torch-driven device shares. Reached through the registry only."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
