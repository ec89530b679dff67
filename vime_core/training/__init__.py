"""The trainer on Megatron-core: passes, optimizer, checkpoint, offload. ``megatron/`` holds the shims, ``models/`` the
families' layers, loading and export."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
