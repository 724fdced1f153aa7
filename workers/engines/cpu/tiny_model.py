"""Writes a tiny Llama model with random weights that a real vLLM serves: `python tiny_model.py DIRECTORY`.

Runs in the engine's own Python (it needs `tokenizers`, nothing else) and imports nothing of this project. The same
seed gives the same bytes on every machine: weights come from a table of normal quantiles, the tokenizer is trained
on a text that is made here. What the model says is gibberish, but reproducible at temperature 0.

The safetensors format is a length (8 bytes, little-endian), a JSON header of that length, and the tensors' bytes:
https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import math
import random
import struct
import sys
from array import array
from pathlib import Path
from statistics import NormalDist

SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<pad>")
BEGIN, END_OF_TURN, PAD = 1, 4, 5  # ids: places in SPECIAL
VOCABULARY = 2048
HIDDEN = 128
LAYERS = 2
HEADS = 4
KEY_VALUE_HEADS = 2
HEAD = HIDDEN // HEADS  # CPU attention takes heads of 32, 64, 80, 96, 112, 128, … only
FEED_FORWARD = 256
POSITIONS = 32768
QUANTILES = 4096

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "<|im_start|>{{ message.role }}\n"
    "{%- if message.content is string -%}{{ message.content }}"
    "{%- elif message.content -%}"
    "{%- for part in message.content if part.type == 'text' -%}{{ part.text }}{%- endfor -%}"
    "{%- endif -%}"
    "<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)

_COMMON = (
    "the of and to in is that it was for on are with as at be this have from or had by not but what all were when we"
    " there can an your which their said if do will each about how up out them then she many some so these would other"
    " into has more her two like him see time could no make than first been its who now people my made over did down"
    " only way find use may water long little very after words called just where most know get through back much go"
    " good new write our me man too any day same right look think also around another came come work three must"
    " because does part even place well such here take why help put different away again off went old number great"
    " tell men say small every found still between name should home big give air line set own under read last never us"
    " left end along while might next sound below saw something thought both few those always show large often together"
    " asked house world going want school important until form food keep children feet land side without boy once"
    " animal life enough took four head above kind began almost live page got earth need far hand high year mother"
    " light country father let night picture being study second soon story since white ever paper hard near sentence"
    " better best across during today however sure knew try told young sun thing whole hear example heard several"
    " change answer room sea against top turned learn point city play toward five himself usually money seen car"
    " morning body upon family later turn move face door cut done group true half red fish plants return import class"
    " def self none print value error request model token engine memory queue worker batch cache prompt stream server"
)
WORDS = tuple(_COMMON.split())
_PARTS = "ba con de er fi gra ha in jo ka li mon ne or pre qui ra st tion ul ver wa xi yo zen ly ing ed ment"
SYLLABLES = tuple(_PARTS.split())


def training_text(seed: int) -> list[str]:
    """Sentences of common and made-up words, numbers and code-like lines, by Zipf's law."""
    rng = random.Random(seed)
    made_up = ["".join(rng.choices(SYLLABLES, k=rng.randint(2, 4))) for _ in range(1500)]
    words = [*WORDS, *made_up]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    lines = []
    for _ in range(4000):
        chosen = rng.choices(words, weights, k=rng.randint(5, 18))
        kind = rng.random()
        if kind < 0.8:
            lines.append(" ".join(chosen).capitalize() + rng.choice([".", "?", ",", "!"]))
        elif kind < 0.9:
            lines.append(f"    {chosen[0]}_{chosen[1]} = {chosen[2]}({chosen[3]}, {rng.randrange(10_000)})")
        else:
            lines.append(json.dumps({chosen[0]: rng.randrange(1000), chosen[1]: chosen[2]}))
    return lines


def tokenizer_json(seed: int) -> str:
    """A byte-level BPE tokenizer: every text has tokens, common English has few."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(seed), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    return str(tokenizer.to_str(pretty=True))


def tensors(seed: int) -> dict[str, tuple[list[int], bytes]]:
    """Shapes and bfloat16 bytes of all weights, by name."""
    rng = random.Random(seed)
    normal = NormalDist()
    quantiles = [normal.inv_cdf((step + 0.5) / QUANTILES) for step in range(QUANTILES)]

    def drawn(*shape: int, spread: float) -> tuple[list[int], bytes]:
        table = [_bfloat16(quantile * spread) for quantile in quantiles]
        return list(shape), _bytes(array("H", rng.choices(table, k=math.prod(shape))))

    ones = [HIDDEN], _bytes(array("H", [_bfloat16(1.0)] * HIDDEN))
    found = {
        "model.embed_tokens.weight": drawn(VOCABULARY, HIDDEN, spread=1.0),
        "lm_head.weight": drawn(VOCABULARY, HIDDEN, spread=1.6 / math.sqrt(HIDDEN)),
        "model.norm.weight": ones,
    }
    projections = {
        "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
        "self_attn.k_proj": (KEY_VALUE_HEADS * HEAD, HIDDEN),
        "self_attn.v_proj": (KEY_VALUE_HEADS * HEAD, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
        "mlp.gate_proj": (FEED_FORWARD, HIDDEN),
        "mlp.up_proj": (FEED_FORWARD, HIDDEN),
        "mlp.down_proj": (HIDDEN, FEED_FORWARD),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns) in projections.items():
            found[f"{prefix}{name}.weight"] = drawn(rows, columns, spread=1 / math.sqrt(columns))
        found[f"{prefix}input_layernorm.weight"] = ones
        found[f"{prefix}post_attention_layernorm.weight"] = ones
    return found


def safetensors(weights: dict[str, tuple[list[int], bytes]]) -> bytes:
    """The file's bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, raw) in weights.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(raw for _, raw in weights.values())


def write_model(directory: Path, seed: int = 1) -> None:
    """Write everything that `vllm serve DIRECTORY` reads."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": POSITIONS,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": BEGIN,
        "eos_token_id": END_OF_TURN,
        "pad_token_id": PAD,
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS,
        "bos_token": SPECIAL[BEGIN],
        "eos_token": SPECIAL[END_OF_TURN],
        "pad_token": SPECIAL[PAD],
        "unk_token": SPECIAL[0],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    generation = {"bos_token_id": BEGIN, "eos_token_id": [END_OF_TURN], "pad_token_id": PAD}
    (directory / "tokenizer.json").write_text(tokenizer_json(seed))
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=1))
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=1))
    (directory / "model.safetensors").write_bytes(safetensors(tensors(seed)))


def _bfloat16(value: float) -> int:
    """The upper half of the single-precision bits, rounded to nearest even."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def _bytes(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: tiny_model.py DIRECTORY")
    write_model(Path(sys.argv[1]))
