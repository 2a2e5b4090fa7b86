"""Writes tiny llama models with random weights as GGUF files."""

import random
import struct

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, data):
    if kind == STRING:
        return string(data)
    return struct.pack({U32: "<I", F32: "<f", BOOL: "<?"}[kind], data)


def spellings():
    """A character for each byte, as GPT-2 writes them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    codes = dict(zip(plain, plain)) | {byte: 256 + i for i, byte in enumerate(others)}
    return [chr(codes[byte]) for byte in range(256)]


def metadata(layers, width, ffn_width, heads, heads_kv, context):
    tokens = [*spellings(), "<|im_start|>", "<|im_end|>"]
    scalars = [
        ("general.architecture", STRING, "llama"),
        ("llama.block_count", U32, layers),
        ("llama.embedding_length", U32, width),
        ("llama.feed_forward_length", U32, ffn_width),
        ("llama.context_length", U32, context),
        ("llama.attention.head_count", U32, heads),
        ("llama.attention.head_count_kv", U32, heads_kv),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, "smollm"),
        ("tokenizer.ggml.bos_token_id", U32, 256),
        ("tokenizer.ggml.eos_token_id", U32, 257),
        ("tokenizer.chat_template", STRING, TEMPLATE),
    ]
    arrays = [
        ("tokenizer.ggml.tokens", STRING, tokens),
        ("tokenizer.ggml.token_type", U32, [1] * 256 + [3, 3]),
        ("tokenizer.ggml.merges", STRING, []),
    ]
    out = [string(key) + struct.pack("<I", kind) + value(kind, data) for key, kind, data in scalars]
    for key, kind, items in arrays:
        head = struct.pack("<IIQ", ARRAY, kind, len(items))
        out.append(string(key) + head + b"".join(value(kind, item) for item in items))
    return out


def shapes(layers, width, ffn_width, heads, heads_kv):
    kv_width = width // heads * heads_kv
    made = {"token_embd.weight": (258, width), "output_norm.weight": (width,)}
    for layer in range(layers):
        for name, shape in {
            "attn_norm": (width,),
            "attn_q": (width, width),
            "attn_k": (kv_width, width),
            "attn_v": (kv_width, width),
            "attn_output": (width, width),
            "ffn_norm": (width,),
            "ffn_gate": (ffn_width, width),
            "ffn_up": (ffn_width, width),
            "ffn_down": (width, ffn_width),
        }.items():
            made[f"blk.{layer}.{name}.weight"] = shape
    return made


def tiny_model(context=96, layers=2, width=32, ffn_width=48, heads=4, heads_kv=2, seed=1):
    """The bytes of a file. Without a seed all weights are 0."""
    draw = random.Random(seed)
    keys = metadata(layers, width, ffn_width, heads, heads_kv, context)
    infos, data = [], b""
    for name, shape in shapes(layers, width, ffn_width, heads, heads_kv).items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        if seed is None:
            values = bytes(4 * count)
        else:
            spread, middle = (0.3, 0) if len(shape) == 2 else (0.5, 1)
            drawn = [middle + spread * draw.uniform(-1, 1) for _ in range(count)]
            values = struct.pack(f"<{count}f", *drawn)
        infos.append(
            string(name)
            + struct.pack("<I", len(shape))
            + struct.pack(f"<{len(shape)}Q", *reversed(shape))
            + struct.pack("<IQ", 0, len(data))
        )
        data += values
        data += b"\0" * (-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys)) + b"".join(keys + infos)
    return head + b"\0" * (-len(head) % 32) + data
