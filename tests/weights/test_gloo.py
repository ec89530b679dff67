"""Buckets over gloo, smaller than a tensor, into several receivers."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import torch

from vime_core.config.sections import Config
from vime_core.weights.publisher import Publisher
from vime_core.weights.sources import ReceivedBytes


def test_buckets_reach_every_receiver() -> None:
    sent = {"a": torch.randn(1000, 33), "b": torch.randn(17).bfloat16()}
    publisher = Publisher.create(Config().replace("sync", update_weight_buffer_size=4096))
    for version in (1, 2):
        manifest = publisher.publish(sent.items(), version)
        world = 3
        wire = dataclasses.replace(manifest, kind="gloo").with_source(world=world)
        got: dict[int, ReceivedBytes] = {}

        def receive(rank: int, wire: Any = wire, got: dict[int, ReceivedBytes] = got) -> None:
            got[rank] = ReceivedBytes.of(wire, rank)

        threads = [threading.Thread(target=receive, args=(rank,)) for rank in (1, 2)]
        for thread in threads:
            thread.start()
        publisher.broadcast(version, world)
        for thread in threads:
            thread.join(30)
        assert sorted(got) == [1, 2]
        for source in got.values():
            assert source.intact()
            assert all(torch.equal(tensor, sent[name]) for name, tensor in source.tensors())
    publisher.close()
