from tests.support.bare import bare

__all__ = ["bare"]
