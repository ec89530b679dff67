"""A real tokenizer that needs no download: one token a byte, an end of sequence, and a plain chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime_core.data import Tokenizer

EOS, PAD = "<eos>", "<pad>"
_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}{{ eos_token }}{% endgeneration %}{% else %}{{ m['content'] }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """A ``transformers`` tokenizer over bytes. Encodes and decodes every text without loss."""
    from tokenizers import Tokenizer as Raw
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    letters = sorted(ByteLevel.alphabet())
    raw = Raw(BPE(vocab={letter: place for place, letter in enumerate([*letters, EOS, PAD])}, merges=[]))
    raw.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = Decoder()
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=EOS, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    made.chat_template = _TEMPLATE
    return made
