"""Which other models a run has beside the policy, and which passes it makes, told from the source of its algorithm.

An algorithm's module imports torch, and a plan must not: so its class attributes are read, not executed. One that does
not spell them as literals is imported after all.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.algorithms.terms import Terms
from vime_core.config.source import Source
from vime_core.targets import load_target, looks_like_path, split_target

if TYPE_CHECKING:
    from vime_core.config.sections import Config

_READ = ("needs", "early_old_logp")


@dataclass(frozen=True)
class Needs:
    """reference, teacher: weight sets that take turns with the policy; critic: a model with its own optimizer;
    old_logp: the policy's own log-probs are computed in a pass of their own; entropy: the loss has an entropy term."""

    reference: bool = False
    teacher: bool = False
    critic: bool = False
    old_logp: bool = False
    entropy: bool = False

    @property
    def sets(self) -> int:
        """Copies of the policy's weights: one a set, and one where the policy waits."""
        count = int(self.reference) + int(self.teacher)
        return count + 1 if count else 0

    @property
    def forward_passes(self) -> int:
        """Passes over the whole step before training."""
        return int(self.reference) + int(self.teacher) + int(self.critic) + int(self.old_logp)


def needs_of(config: Config, plugins: Any) -> Needs:
    """Of a stage. Raises PluginError for an algorithm that is not there."""
    supervised = config.train.loss_type == "sft_loss"
    name = "sft" if supervised else config.algorithm.advantage_estimator
    facts = _facts(name if looks_like_path(name) else plugins.algorithms.get(name).target_text)
    terms = Terms.of(config)
    columns = frozenset(facts["needs"]) | terms.needs
    steps = config.samples_per_step // max(config.global_batch, 1)
    early = bool(facts["early_old_logp"]) or terms.early_old_logp
    return Needs(
        reference="ref_logp" in columns or bool(config.algorithm.kl_coef and not supervised),
        teacher="teacher_logp" in columns and config.algorithm.opd_type == "megatron",
        critic="values" in columns,
        old_logp="old_logp" in columns and not terms.use_rollout_logprobs and (steps > 1 or early),
        entropy=terms.entropy_coef != 0.0,
    )


def _facts(target: str) -> dict[str, Any]:
    place, name = split_target(target)
    found: dict[str, Any] = {}
    for key, node in _assigned(place, name):
        if key in _READ and key not in found:
            found[key] = _literal(node)
    if any(found.get(key) is None for key in _READ):
        kind = load_target(target)
        return {key: getattr(kind, key) for key in _READ}
    return found


def _assigned(place: str, name: str) -> Iterator[tuple[str, ast.expr]]:
    """Class attributes, the class's own before those of its bases."""
    source = _source(place)
    where, node = source.find(name, depth=6) if source else (None, None)
    if where is None or not isinstance(node, ast.ClassDef):
        return
    for item in node.body:
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            yield item.targets[0].id, item.value
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
            yield item.target.id, item.value
    for base in node.bases:
        if isinstance(base, ast.Name):
            yield from _bases(where, base.id)


def _bases(where: Source, name: str) -> Iterator[tuple[str, ast.expr]]:
    home, node = where.find(name, depth=6)
    if isinstance(node, ast.ClassDef):
        yield from _assigned(str(home.path), name)


def _source(place: str) -> Source | None:
    if place.endswith(".py"):
        path = Path(place)
    else:
        spec = importlib.util.find_spec(place)
        if spec is None or spec.origin is None:
            return None
        path = Path(spec.origin)
    root = next((p for p in path.parents if not (p / "__init__.py").is_file()), path.parent)
    top = path.relative_to(root).parts[0]
    return Source(root / top if (root / top).is_dir() else root, path)


def _literal(node: ast.expr) -> Any:
    """The value of a literal, or of ``frozenset({...})``; None for anything else."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "frozenset":
        return frozenset() if not node.args else _literal(node.args[0])
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
