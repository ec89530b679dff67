from tests.support.bare import bare
from tests.support.world import world

__all__ = ["bare", "world"]
