"""All that an author outside implements or handles: device, weight sync, algorithm, rollout, reward, environment,
sample, errors. Imports nothing heavy: torch and numpy only for typing."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
