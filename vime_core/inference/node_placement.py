"""Where a trainer rank lives, so that an engine can be put on the devices of some ranks.

Ray cannot lend one device twice in whole numbers, and an engine of several devices cannot ask for half of each. So an
engine that shares asks for none: it goes to the node of its ranks, and is told their devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.api import ConfigError, by_number

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend


@dataclass(frozen=True)
class NodePlacement:
    """A node by Ray's id, and the ids of devices on it, as the node's own list names them; none where Ray has none
    (a process slot of the CPU)."""

    node: str
    devices: tuple[str, ...] = ()

    @classmethod
    def here(cls) -> NodePlacement:
        """Of this actor."""
        import ray

        context = ray.get_runtime_context()
        ids = [one for kind in context.get_accelerator_ids().values() for one in kind]
        return cls(context.get_node_id(), tuple(ids))

    def options(self, device: DeviceBackend) -> dict[str, Any]:
        """Ray actor options: on this node, and nothing reserved there."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {
            **device.ray_options(0),
            "scheduling_strategy": NodeAffinitySchedulingStrategy(self.node, soft=False),
        }

    def environment(self, device: DeviceBackend) -> Mapping[str, str]:
        """The devices, by number. Ray must not empty the list because it reserved nothing."""
        if not self.devices or device.visible_devices is None:
            return {}
        return {
            device.visible_devices.variable: by_number(self.devices),
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }


def shared_placement(ranks: Sequence[NodePlacement], index: int, size: int) -> NodePlacement:
    """That of engine ``index``, ``size`` devices wide: engines take the trainer ranks in order.

    Raises:
        ConfigError: its ranks are on several nodes, and an engine has one.
    """
    mine = ranks[index * size : (index + 1) * size]
    if len({place.node for place in mine}) != 1:
        raise ConfigError(
            f"--colocate: engine {index} would take the devices of trainer ranks {index * size} to "
            f"{(index + 1) * size - 1}, which are not on one node; --rollout-num-gpus-per-engine must divide "
            "--actor-num-gpus-per-node"
        )
    return NodePlacement(mine[0].node, tuple(one for place in mine for one in place.devices))
