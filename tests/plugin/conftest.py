from tests.support.world import names, world

__all__ = ["names", "world"]
