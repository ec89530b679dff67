"""The column of a step batch that holds the experts which the sampler chose."""

from __future__ import annotations

#: extra field of a StepBatch, axis "token": [T, layers, topk] int16 expert ids, one row a token of prompt and response
ROUTING = "routing"
#: in place of an id, in a whole row: the trainer's own router chooses for this token
FREE_CHOICE = -1
