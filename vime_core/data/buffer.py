"""The stream of groups: those put back first, then the data set, epoch after epoch.

The order of an epoch follows from (seed, epoch) alone, by a generator of its own. So the whole state is a few numbers
and the groups that were taken and have not ended; after a resume exactly the groups follow that would have followed.
Ids of prompts, groups and rollouts are running numbers, unique in the run.
"""

from __future__ import annotations

import copy
import json
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vime_core.api import CheckpointError, DataError, Group, Sample
from vime_core.data.codec import sample_from_json, sample_to_json
from vime_core.data.dataset import PromptDataset


@dataclass(frozen=True)
class Entry:
    """What a group was made of; enough to make it afresh. Its rollouts are first_rollout ... first_rollout + n - 1."""

    group: int
    prompt_id: int
    row: int
    first_rollout: int


class DataBuffer:
    """Hands out groups of pending samples, and takes back what did not end.

    Args:
        dataset: the prompts.
        seed: of the shuffle.
        shuffle: a new order every epoch; else file order.
        n_samples_per_prompt: samples of a group.
    """

    def __init__(self, dataset: PromptDataset, seed: int, shuffle: bool, n_samples_per_prompt: int) -> None:
        self._dataset = dataset
        self._identity = {
            "dataset": dataset.fingerprint(),
            "rows": len(dataset),
            "rollout_seed": seed,
            "rollout_shuffle": shuffle,
            "n_samples_per_prompt": n_samples_per_prompt,
        }
        self._seed, self._shuffle, self._n = seed, shuffle, n_samples_per_prompt
        self._queue: deque[Group] = deque()
        self._entries: dict[int, Entry] = {}
        self._epoch = self._offset = self._next_prompt = self._next_group = self._next_rollout = 0
        self._order = self._order_of(0)

    @property
    def epoch(self) -> float:
        """Epochs handed out so far, with the fraction of the running one."""
        return self._epoch + self._offset / len(self._dataset)

    def require(self, n_groups: int) -> None:
        """Say at start what would be wrong later.

        Raises:
            DataError: a step asks for more different prompts than there are.
        """
        if n_groups > len(self._dataset):
            raise DataError(
                f"data set {self._dataset.name!r} has {len(self._dataset)} prompts, a step takes {n_groups}: lower "
                "--rollout-batch-size (or --over-sampling-batch-size), or give more prompts"
            )

    def take(self, n_groups: int) -> list[Group]:
        """Exactly ``n_groups`` groups: put-back ones first (finished ones come as they are), then the data set."""
        queued = [self._queue.popleft() for _ in range(min(n_groups, len(self._queue)))]
        return queued + [self._next() for _ in range(n_groups - len(queued))]

    def put_back(self, groups: Iterable[Group]) -> None:
        """To the front, in the order given. Finished groups stay as they are; others start afresh, from their row."""
        again = [group if group.finished else self.renew(group.id) for group in groups]
        self._queue.extendleft(reversed(again))

    def renew(self, group_id: int) -> Group:
        """The group as it was first handed out: same ids, nothing left of an earlier try."""
        return self._make(self._entries[group_id])

    def end(self, group_id: int) -> None:
        """The group is done with: it will be in no state that is saved from now on."""
        del self._entries[group_id]

    # the stream ----------------------------------------------------------------------------------------------
    def _next(self) -> Group:
        if self._offset == len(self._order):
            self._epoch, self._offset = self._epoch + 1, 0
            self._order = self._order_of(self._epoch)
        entry = Entry(self._next_group, self._next_prompt, self._order[self._offset], self._next_rollout)
        self._offset += 1
        self._next_group += 1
        self._next_prompt += 1
        self._next_rollout += self._n
        self._entries[entry.group] = entry
        return self._make(entry)

    def _order_of(self, epoch: int) -> list[int]:
        order = list(range(len(self._dataset)))
        if self._shuffle:
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order

    def _make(self, entry: Entry) -> Group:
        return Group(entry.group, make_samples(self._dataset, entry, self._n))

    # state ---------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """JSON values. Groups that are in flight when this is called will be handed out again, afresh."""
        queued = {group.id for group in self._queue}
        flying = [asdict(entry) for entry in self._entries.values() if entry.group not in queued]
        return {
            "identity": dict(self._identity),
            "epoch": self._epoch,
            "offset": self._offset,
            "next": [self._next_prompt, self._next_group, self._next_rollout],
            "in_flight": flying,
            "queue": [asdict(self._entries[group.id]) | {"samples": _finished(group)} for group in self._queue],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises:
        CheckpointError: the state is of another data set, seed, order or group size, or incomplete.
        """
        try:
            self._check_identity(state["identity"])
            epoch, offset, (prompt, group, rollout) = int(state["epoch"]), int(state["offset"]), state["next"]
            waiting = [*sorted(state["in_flight"], key=lambda e: e["group"]), *state["queue"]]
            entries = {e["group"]: Entry(e["group"], e["prompt_id"], e["row"], e["first_rollout"]) for e in waiting}
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"data state of the checkpoint is incomplete: {error!r}") from error
        self._epoch, self._offset = epoch, offset
        self._next_prompt, self._next_group, self._next_rollout = prompt, group, rollout
        self._order = self._order_of(epoch)
        self._entries = entries
        self._queue = deque(self._restore(entry) for entry in waiting)

    def _check_identity(self, saved: Mapping[str, Any]) -> None:
        changed = [f"{k} was {saved[k]!r}, is {now!r}" for k, now in self._identity.items() if saved[k] != now]
        if changed:
            raise CheckpointError(
                f"the checkpoint's data position belongs to another stream of prompts: {'; '.join(changed)}. Resume "
                "with the same data, seed and group size, or start a new run from the checkpoint's export"
            )

    def _restore(self, values: Mapping[str, Any]) -> Group:
        samples = values.get("samples")
        if samples is None:
            return self.renew(values["group"])
        return Group(values["group"], [sample_from_json(s) for s in samples])


def make_samples(dataset: PromptDataset, entry: Entry, n: int) -> list[Sample]:
    """Pending samples of one prompt. Nothing mutable is shared between them or with the data set."""
    prompt = dataset[entry.row]
    return [
        Sample(
            prompt_id=entry.prompt_id,
            group=entry.group,
            rollout=entry.first_rollout + index,
            index=index,
            prompt=prompt.prompt,
            prompt_tokens=list(prompt.tokens),
            label=prompt.label,
            metadata=copy.deepcopy(prompt.metadata) if prompt.metadata else {},
            tools=prompt.tools,
            source=prompt.source,
        )
        for index in range(n)
    ]


def _finished(group: Group) -> Sequence[dict[str, Any]] | None:
    """The samples of a finished group, or None where the group starts afresh: it is not finished, or a plugin keeps
    something in its metadata that JSON cannot hold (generating it again loses time, a broken checkpoint the run)."""
    if not group.finished:
        return None
    samples = [sample_to_json(sample) for sample in group.samples]
    try:
        return list(json.loads(json.dumps(samples)))
    except (TypeError, ValueError):
        return None
