"""Two-digit addition for a tiny Qwen3: real checkpoint, real tokenizer, about 0.4M parameters, made in a second."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

CHARACTERS = "0123456789+="
#: problems kept out of training, for evaluation
HELD_OUT = 512


def prepare(folder: Path, seed: int) -> dict[str, str]:
    """Write model, tokenizer and data under ``folder``.

    Returns:
        ``model``: Hugging Face folder; ``train`` and ``heldout``: jsonl files with ``prompt`` and ``answer``.
    """
    model, train, heldout = folder / "model", folder / "train.jsonl", folder / "heldout.jsonl"
    build_model(model, seed)
    pairs = [(a, b) for a in range(100) for b in range(100)]
    random.Random(seed).shuffle(pairs)
    write_problems(heldout, pairs[:HELD_OUT])
    write_problems(train, pairs[HELD_OUT:])
    return {"model": str(model), "train": str(train), "heldout": str(heldout)}


def write_problems(path: Path, pairs: Iterable[tuple[int, int]]) -> None:
    """One problem a line. Numbers have a fixed width: "07+95=" and "102"."""
    with path.open("w") as out:
        for a, b in pairs:
            out.write(json.dumps({"prompt": f"{a:02d}+{b:02d}=", "answer": f"{a + b:03d}"}) + "\n")


def build_model(folder: Path, seed: int, dtype: str = "float32") -> None:
    """A random Qwen3 (3 layers, 96 wide) and a character tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=32,
        hidden_size=96,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)


def build_tokenizer():  # type: ignore[no-untyped-def]  # transformers' own type, imported late
    """A Hugging Face tokenizer with one token a character."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<pad>", "<bos>", "<eos>", "<unk>"]
    vocabulary = {token: i for i, token in enumerate([*specials, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
