"""A Qwen2 of two layers with random weights, and a tokenizer with a token per word."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rolltape.examples.grpo import task

PAD, END = "<pad>", "<end>"
WORDS = [PAD, END, ":", *task.WORDS]


def make_tokenizer() -> Any:
    """One token per word, one for the colon, one for padding, one for the end."""
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token=PAD))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=PAD, eos_token=END)


def make_model(seed: int, hidden: int = 64, layers: int = 2) -> Any:
    """The policy before training; the same weights for the same seed."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(WORDS), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
        pad_token_id=0, eos_token_id=1, bos_token_id=None, attention_dropout=0.0,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    model.config._attn_implementation = "eager"  # takes any mask, and adds in a fixed order
    return model


def weights_hash(model: Any) -> str:
    """A hash over all weights, names, dtypes and bits."""
    state = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return state.hexdigest()
