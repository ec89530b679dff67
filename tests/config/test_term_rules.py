"""Rules about what an algorithm needs and what the framework adds around it: each kept, and each broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vime_core.config import rules
from vime_core.config.dump import to_toml
from vime_core.config.facts import Facts
from vime_core.config.resolution import resolve
from vime_core.config.rules import needs, terms, violations
from vime_core.config.sections import Config

Make = Callable[..., Config]
SUPPLIES = frozenset({"old_logp", "rollout_logp", "reward", "entropy", "ref_logp", "values"})


def facts(*columns: str, reads: tuple[str, ...] = ("reward", "old_logp"), more: tuple[str, ...] = ()) -> Facts:
    """Of a run that needs these columns, beside what its algorithm reads."""
    return Facts(needs=frozenset({*columns, *reads}), supplies=SUPPLIES | set(more), reads=frozenset(reads))


PLAIN = facts()
REFERENCE, CRITIC, TEACHER = facts("ref_logp"), facts("values"), facts("teacher_logp", more=("teacher_logp",))
KL = "--use-kl-loss "
CENTRED, SMALL = "--pg-loss-type reinforce --use-score-centering ", replace(PLAIN, model={"vocab_size": 16})
OPD = "--use-opd --opd-type megatron --opd-teacher-load t "

#: rule, flags that keep it, facts
KEPT: list[tuple[rules.Rule, str, Facts]] = [
    (needs.needs_are_met, "", PLAIN),
    (needs.needs_are_met, KL, REFERENCE),
    (needs.needs_are_met, "--advantage-estimator ppo", CRITIC),
    (needs.needs_are_met, OPD, TEACHER),
    (needs.models_are_needed, "", PLAIN),
    (needs.models_are_needed, KL + "--ref-load r --ref-update-interval 5", REFERENCE),
    (needs.models_are_needed, "--critic-load c --critic-lr 1e-5 --num-critic-only-steps 2", CRITIC),
    (needs.models_are_needed, OPD, TEACHER),
    (needs.teacher_is_named, OPD, TEACHER),
    (needs.teacher_is_named, "--use-opd --opd-type engine --opd-teacher-model t", TEACHER),
    (terms.switched_on, KL + "--kl-loss-coef 0.1 --kl-loss-type k3 --use-unbiased-kl", REFERENCE),
    (terms.switched_on, "--use-tis --tis-clip 3 --tis-clip-low 0.1", PLAIN),
    (terms.switched_on, "--use-opsm --opsm-delta 0.1", PLAIN),
    (terms.switched_on, OPD + "--opd-kl-coef 0.5", TEACHER),
    (terms.switched_on, "--overlong-buffer-len 4 --overlong-penalty-factor 0.5", PLAIN),
    (terms.switched_on, '--correction mis --correction-options {"veto":0.1}', PLAIN),
    (terms.switched_on, "--no-use-unbiased-kl", PLAIN),
    (terms.kl_in_one_place, "--kl-coef 0.1", REFERENCE),
    (terms.kl_in_one_place, KL + "--kl-coef 0", REFERENCE),
    (terms.kl_loss_pulls, KL, REFERENCE),
    (terms.kl_loss_pulls, KL + "--kl-loss-type k1 --use-unbiased-kl", REFERENCE),
    (terms.one_correction, "--use-tis --use-opsm", PLAIN),
    (terms.one_correction, "--correction icepop", PLAIN),
    (terms.one_correction, "--use-rollout-logprobs", PLAIN),
    (terms.one_teacher, OPD + "--normalize-advantages", TEACHER),
    (terms.overlong, "--overlong-buffer-len 15", PLAIN),
    (terms.plain_gradient, "--pg-loss-type reinforce", PLAIN),
    (terms.plain_gradient, "--pg-loss-type ppo --eps-clip 0.1", PLAIN),
    (terms.score_centring, CENTRED + "--score-centering-top-k 8", SMALL),
    (terms.score_centring, CENTRED + "--use-tis", PLAIN),
    (terms.score_centring, CENTRED + '--correction icepop --correction-options {"low":0.1}', PLAIN),
]

#: rule, flags that break it, facts, what the violation says
BROKEN: list[tuple[rules.Rule, str, Facts, str]] = [
    (needs.needs_are_met, "--use-opd", facts("teacher_logp"), "needs teacher_logp (give --opd-type engine and"),
    (
        needs.needs_are_met,
        "",
        facts("teacher_logp", "topk"),
        "--opd-teacher-load FOLDER); topk (nothing in this run computes it)",
    ),
    (
        needs.models_are_needed,
        "--ref-load r --ref-update-interval 5",
        PLAIN,
        "--ref-load r (flag --ref-load) and --ref-update-interval 5 (flag --ref-update-interval): nothing in this run "
        "needs a reference",
    ),
    (needs.models_are_needed, "--critic-load c", PLAIN, "needs a critic; leave it out"),
    (needs.models_are_needed, "--critic-lr 1e-5", PLAIN, "--critic-lr 1e-05 (flag --critic-lr): nothing"),
    (needs.models_are_needed, "--num-critic-only-steps 2", PLAIN, "--num-critic-only-steps 2 (flag"),
    (needs.models_are_needed, "--opd-type engine --opd-teacher-model t", PLAIN, "needs a teacher (--use-opd asks"),
    (
        needs.teacher_is_named,
        "--use-opd --opd-type megatron",
        TEACHER,
        "has no teacher: give --opd-teacher-load FOLDER",
    ),
    (needs.teacher_is_named, "--use-opd --opd-type engine", TEACHER, "has no teacher: give --opd-teacher-model FOLDER"),
    (
        needs.teacher_is_named,
        OPD + "--opd-teacher-model t",
        TEACHER,
        "belongs to --opd-type engine; --opd-type megatron",
    ),
    (terms.plain_gradient, "--pg-loss-type reinforce --eps-clip 0.1", PLAIN, "which has no ratio to clip"),
    (terms.score_centring, "--use-score-centering", PLAIN, "give --pg-loss-type reinforce"),
    (terms.score_centring, CENTRED + "--use-opsm", PLAIN, "drops whole sequences"),
    (terms.score_centring, CENTRED + "--correction mis", PLAIN, "is no weight of single tokens"),
    (
        terms.score_centring,
        CENTRED + '--correction icepop --correction-options {"leave_denominator":true}',
        PLAIN,
        "reads low and high, not leave_denominator",
    ),
    (terms.score_centring, CENTRED + OPD, TEACHER, "do not go together"),
    (terms.score_centring, CENTRED + "--use-rollout-logprobs", PLAIN, "reads the policy's own log-probs"),
    (terms.score_centring, CENTRED + "--score-centering-top-k 0", PLAIN, "must be at least 1"),
    (terms.score_centring, CENTRED + "--score-centering-top-k 16", SMALL, "at least 1, below the vocabulary's 16"),
    *[
        (terms.switched_on, flags, PLAIN, f"is not read without {switch}")
        for flags, switch in (
            ("--kl-loss-coef 0.1", "--use-kl-loss"),
            ("--kl-loss-type k3", "--use-kl-loss"),
            ("--use-unbiased-kl", "--use-kl-loss"),
            ("--tis-clip 3", "--use-tis"),
            ("--score-centering-top-k 3", "--use-score-centering"),
            ("--log-probs-max-tokens-per-gpu 64", "--use-dynamic-batch-size"),
            ("--tis-clip-low 0.1 --correction tis", "--use-tis"),
            ('--use-tis --correction-options {"high":3}', "--correction"),
            ("--opsm-delta 0.1", "--use-opsm"),
            ("--opd-kl-coef 0.1", "--use-opd"),
            ("--overlong-penalty-factor 0.1", "--overlong-buffer-len"),
        )
    ],
    (terms.kl_in_one_place, KL + "--kl-coef 0.1", REFERENCE, "put the KL in the reward and in the loss; choose one"),
    (terms.kl_in_one_place, KL + '--algorithm-options {"kl_coef":0.1}', REFERENCE, "put the KL in both; choose one"),
    (terms.kl_loss_pulls, KL + "--kl-loss-coef 0", REFERENCE, "must be above 0 with --use-kl-loss"),
    (terms.kl_loss_pulls, KL + "--kl-loss-type k1", REFERENCE, "as a loss pulls nowhere"),
    (terms.one_correction, "--use-tis --correction icepop", PLAIN, "two corrections of one gap"),
    (terms.one_correction, "--use-opsm --correction opsm", PLAIN, "are the same; give one of them"),
    (terms.one_correction, "--use-tis --tis-clip 1 --tis-clip-low 2", PLAIN, "must be bounds: 0 <= low <= high"),
    (terms.one_correction, "--use-tis --use-rollout-logprobs", PLAIN, "nothing is left to correct"),
    (terms.one_correction, "--use-opsm --use-rollout-logprobs", PLAIN, "--use-opsm (flag --use-opsm): nothing is left"),
    (terms.one_correction, "--use-tis", facts(reads=("rollout_logp",)), "compares with the sampler itself"),
    (terms.one_teacher, OPD, facts(reads=("teacher_logp",), more=("teacher_logp",)), "has a teacher's term already"),
    (terms.one_teacher, OPD + "--opd-kl-coef 0", TEACHER, "must be above 0"),
    (
        terms.one_teacher,
        "--normalize-advantages",
        facts(reads=("teacher_logp",), more=("teacher_logp",)),
        "would rescale the teacher's term",
    ),
    (terms.overlong, "--overlong-buffer-len 16", PLAIN, "must be above 0 and below --rollout-max-response-len 16"),
    (terms.overlong, "--overlong-buffer-len=-1", PLAIN, "--overlong-buffer-len -1 (flag"),
    (terms.overlong, "--overlong-buffer-len 4 --overlong-penalty-factor 0", PLAIN, "must be above 0"),
    (terms.overlong, "--overlong-buffer-len 4", facts(reads=("teacher_logp",)), "reads no reward"),
]


def found(rule: rules.Rule, made: Config, known: Facts) -> list[str]:
    broken = rule(made, known)
    return [broken] if isinstance(broken, str) else list(broken or [])


@pytest.mark.parametrize(("rule", "flags", "known"), KEPT, ids=lambda v: getattr(v, "__name__", None))
def test_kept(rule: rules.Rule, flags: str, known: Facts, config: Make) -> None:
    assert found(rule, config(*flags.split()), known) == []


@pytest.mark.parametrize(("rule", "flags", "known", "message"), BROKEN, ids=lambda v: getattr(v, "__name__", None))
def test_broken(rule: rules.Rule, flags: str, known: Facts, message: str, config: Make) -> None:
    made = config(*flags.split())
    lines = found(rule, made, known)
    assert len(lines) == 1, lines
    assert message in lines[0]
    assert lines[0] in violations(made, known)


def test_every_rule_is_kept_and_broken() -> None:
    every = {rule.__name__ for rule in (*needs.RULES, *terms.RULES)}
    assert {case[0].__name__ for case in KEPT} == {case[0].__name__ for case in BROKEN} == every


def test_a_supervised_stage_may_share_flags_with_others(config: Make) -> None:
    """They are the next stage's business."""
    flags = "--loss-type sft_loss --rollout-function sft --label-key label "
    flags += "--kl-loss-coef 0 --use-tis --correction mis --use-rollout-logprobs --critic-lr 1 --overlong-buffer-len 99"
    assert violations(config(*flags.split()), Facts(needs=frozenset(), supplies=SUPPLIES, reads=frozenset())) == []


def test_all_are_reported_together(config: Make) -> None:
    flags = "--use-tis --correction mis --use-kl-loss --kl-loss-type k1 --critic-lr 1 --overlong-buffer-len 99"
    lines = violations(config(*flags.split()), REFERENCE)
    assert len(lines) == 4


@pytest.mark.parametrize("flags", ["", "--use-tis", KL, "--advantage-estimator ppo"])
def test_a_written_out_run_asks_for_nothing_more(flags: str, tmp_path: Path) -> None:
    """A run's config.toml says every value, those that nobody reads too, and runs again."""
    first = resolve(flags.split(), {}).stages[0].config
    path = tmp_path / "config.toml"
    path.write_text(to_toml(first))
    again = resolve([str(path)], {}).stages[0].config
    assert len(violations(again, PLAIN)) == len(violations(first, PLAIN))


def test_a_recipe_is_told_what_nobody_reads(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[algorithm]\ntis_clip = 3.0\n")
    config = resolve([str(path)], {}).stages[0].config
    assert list(terms.switched_on(config, PLAIN)) == ["--tis-clip 3.0 (recipe mine.toml) is not read without --use-tis"]
