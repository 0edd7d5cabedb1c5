"""A small language model with random weights."""

from __future__ import annotations

from pathlib import Path

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer():
    """Bytes, and three special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate([*SPECIAL, *alphabet])}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )


def tiny_qwen2(folder: Path, **changes) -> str:
    """Qwen2 of two layers; its weights are large enough for its samples to differ."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    words = tokenizer()
    torch.manual_seed(0)
    config = {
        "vocab_size": len(words), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512,
        "initializer_range": 0.2, "tie_word_embeddings": True, "bos_token_id": None,
        "eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id,
    }  # fmt: skip
    Qwen2ForCausalLM(Qwen2Config(**config | changes)).save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)
