"""How the command line is written, and what is said of a line that is written wrongly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vime_core.api.errors import ConfigError
from vime_core.config.catalogue import Catalogue
from vime_core.config.flags import split
from vime_core.config.resolution import resolve
from vime_core.config.sections import Config


def read(*argv: str, **environ: str) -> Config:
    return resolve(argv, environ).stages[0].config


def refused(*argv: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(argv, environ)
    return caught.value.violations


def test_spellings() -> None:
    assert read("--lr=2e-5").megatron.lr == 2e-5
    assert read("--lr", "1", "--lr", "2").megatron.lr == 2.0
    assert read("--colocate").cluster.colocate
    assert not read("--colocate", "--no-colocate").cluster.colocate
    assert not read("--colocate=false").cluster.colocate
    assert read("--rollout-top-k", "-1").rollout.rollout_top_k == -1
    assert read("--rollout-stop=--", "--rollout-stop", "a", "b").rollout.rollout_stop == ["--", "a", "b"]
    assert read("--prompt-data", "a", "b", "--prompt-data", "c").data.prompt_data == ["a", "b", "c"]
    assert read("--algorithm-options", '{"delta": 4.0}').algorithm.algorithm_options == {"delta": 4.0}


def test_no_flag_is_a_double_negative() -> None:
    """What Megatron spells --no-save-optim is the negative of --save-optim."""
    assert not read("--no-save-optim", "--no-load-optim").model.save_optim
    assert read().model.save_optim
    assert read().model.load_optim
    negative = [key.name for key in Catalogue().all() if key.name.startswith(("no_", "not_", "without_"))]
    assert negative == []
    with pytest.raises(ConfigError, match="--no-no-save-optim"):
        read("--no-no-save-optim")


def test_a_flag_replaces_the_list_of_a_lower_layer(recipe: Callable[[str], str]) -> None:
    path = recipe('prompt_data = ["a", "b"]')
    assert read(path, "--prompt-data", "c").data.prompt_data == ["c"]
    assert read(path, VIME_PROMPT_DATA="[]").data.prompt_data == []


def test_names_of_vime() -> None:
    for flag in ("--rm-type", "--custom-rm-path", "--reward"):
        config = read(flag, "math")
        assert config.rollout.reward == "math"
        assert config.provenance["reward"] == f"flag {flag}"
    assert read(VIME_RM_TYPE="math").rollout.reward == "math"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--lrr", "1"], "unknown flag --lrr; did you mean --lr?"),
        (["--rollout-batch", "4"], "unknown flag --rollout-batch; did you mean --rollout-batch-size?"),
        (["--load-debug", "x"], "unknown flag --load-debug"),
        (["--lo", "x"], "unknown flag --lo"),
        (["--rollout_batch_size", "4"], "flags are written with dashes: --rollout-batch-size"),
        (["--no-lr"], "unknown flag --no-lr"),
        (["--lr"], "flag --lr: takes one value (float), got 0"),
        (["--lr", "1", "2"], "flag --lr: takes one value (float), got 2"),
        (["--lr", "fast"], "flag --lr: expected a finite number, got 'fast'"),
        (["--rollout-batch-size", "4.0"], "flag --rollout-batch-size: expected an int, got '4.0'"),
        (["--prompt-data"], "flag --prompt-data: needs at least one value"),
        (["--colocate", "true"], "flag --colocate: takes no value, got 'true'"),
        (["--no-colocate=true"], "takes no value"),
        (["--loss-type", "sft"], "expected one of policy_loss, sft_loss, got 'sft'"),
        (["--algorithm-options", "{"], "not JSON"),
        (["--lr", "1", "-x"], "takes one value (float), got 2"),
    ],
)
def test_wrong_flag(argv: list[str], message: str) -> None:
    (violation,) = refused(*argv)
    assert message in violation


def test_the_recipe_comes_first(recipe: Callable[[str], str]) -> None:
    path = recipe("lr = 1")
    assert "the recipe comes first" in refused("--lr=1", path, path)[0]
    assert "the recipe comes first" in refused("-x", path)[0]
    assert "--plugin takes one value" in refused("--plugin")[0]


def test_all_errors_come_together(recipe: Callable[[str], str]) -> None:
    path = recipe('lr = "1e-5"\n[rollout]\nmin_lr = 1\nrollout_bach_size = 3\nrollout_top_k = 1.5\n[bogus]\nx = 1\n')
    lines = refused(path, "--lrr", "1", "--seed", "x", VIME_SEED="y", VIME_ROLOUT_BATCH_SIZE="4")
    assert lines == [
        "recipe recipe.toml: lr: expected float, got the text '1e-5'",
        "recipe recipe.toml: [rollout] min_lr: min_lr belongs to [megatron], not to [rollout]",
        "recipe recipe.toml: [rollout] rollout_bach_size: unknown key rollout_bach_size; "
        "did you mean rollout_batch_size?",
        "recipe recipe.toml: [rollout] rollout_top_k: expected int, got the float 1.5",
        lines[4],
        "environment: unknown variable VIME_ROLOUT_BATCH_SIZE; did you mean VIME_ROLLOUT_BATCH_SIZE?",
        "environment VIME_SEED: expected an int, got 'y'",
        "unknown flag --lrr; did you mean --lr?",
        "flag --seed: expected an int, got 'x'",
    ]
    assert lines[4].startswith("recipe recipe.toml: bogus: unknown key bogus")


def test_variables_of_others_are_left_alone() -> None:
    assert read(VIME_HOME="/x", VIME_PLUGINS="", VIME_DISABLE_PLUGIN_AUTOLOAD="1", LR="3") == Config()


@pytest.mark.parametrize(
    "words",
    [
        ["r.toml", "--plugin", "a", "--lr", "1"],
        ["--plugin", "a", "r.toml", "--lr", "1"],
        ["--lr=1", "r.toml", "--plugin", "a"],
    ],
)
def test_a_recipe_may_stand_where_no_flag_could_mean_it(words: list[str]) -> None:
    line = split(words)
    assert (line.recipe, line.plugins) == ("r.toml", ["a"])
    assert [name for name, _, _ in line.flags] == ["--lr"]


def test_one_recipe_is_all_there_is() -> None:
    with pytest.raises(ConfigError, match=r"unexpected 's\.toml'"):
        split(["r.toml", "--lr=1", "s.toml"])
    with pytest.raises(ConfigError, match="--plugin takes one value"):
        split(["r.toml", "--plugin", "a", "s.toml"])
