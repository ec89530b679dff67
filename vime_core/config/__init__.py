"""Typed sections, layers, flags, provenance and rules: from a command line to a frozen configuration."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
