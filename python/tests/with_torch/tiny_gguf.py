"""Small random models of the llama architecture in GGUF files, with a byte-level tokenizer."""

import gguf
import numpy as np

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "i n", "Ġ t", "Ġt he", "Ġ a", "e r", "o n", "r e", "Ċ Ċ"]
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}")


def alphabet():
    """The characters that stand for the 256 bytes, in the order of the bytes, as GPT-2 has them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def vocabulary():
    return SPECIAL + alphabet() + [merge.replace(" ", "") for merge in MERGES]


class Shape:
    """Extents of a model; heads and key heads are what most tests vary."""

    def __init__(self, heads=4, heads_kv=2, head_dim=16, layers=2, feed_forward=48, context=256,
                 tied=True, base=10000.0):
        self.heads, self.heads_kv, self.head_dim = heads, heads_kv, head_dim
        self.layers, self.feed_forward, self.context = layers, feed_forward, context
        self.tied, self.base, self.embedding = tied, base, heads * head_dim
        self.vocabulary = len(vocabulary())


def weights(shape, seed=0):
    """{name: f32 array [rows, columns]}. Rows of products have a length of about one."""
    rng = np.random.default_rng(seed)
    made = {}

    def matrix(name, rows, columns, gain=1.0):
        values = rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)
        made[f"{name}.weight"] = values.astype(np.float32)

    def norm(name):
        made[f"{name}.weight"] = (1 + 0.2 * rng.standard_normal(shape.embedding)).astype(np.float32)

    matrix("token_embd", shape.vocabulary, shape.embedding, gain=2.0)
    queries, keys = shape.heads * shape.head_dim, shape.heads_kv * shape.head_dim
    for layer in range(shape.layers):
        name = f"blk.{layer}."
        norm(name + "attn_norm")
        matrix(name + "attn_q", queries, shape.embedding, gain=2.0)
        matrix(name + "attn_k", keys, shape.embedding, gain=2.0)
        matrix(name + "attn_v", keys, shape.embedding)
        matrix(name + "attn_output", shape.embedding, queries)
        norm(name + "ffn_norm")
        matrix(name + "ffn_gate", shape.feed_forward, shape.embedding)
        matrix(name + "ffn_up", shape.feed_forward, shape.embedding)
        matrix(name + "ffn_down", shape.embedding, shape.feed_forward)
    norm("output_norm")
    if not shape.tied:
        matrix("output", shape.vocabulary, shape.embedding, gain=2.0)
    return made


def keys(shape):
    """{key: value} of the architecture; ints are written as uint32, floats as float32."""
    return {
        "llama.context_length": shape.context, "llama.embedding_length": shape.embedding,
        "llama.block_count": shape.layers, "llama.feed_forward_length": shape.feed_forward,
        "llama.attention.head_count": shape.heads, "llama.attention.head_count_kv": shape.heads_kv,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": shape.base,
        "llama.rope.dimension_count": shape.head_dim, "llama.vocab_size": shape.vocabulary,
    }


def _add(writer, key, value):
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def write(path, shape=None, *, seed=0, architecture="llama", replaced=None, tensors=None, eos=2):
    """Writes a file. `replaced`: {key: value}, where None leaves a key out; `tensors`: {name: array}
    in the same way."""
    shape = shape or Shape()
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in (keys(shape) | (replaced or {})).items():
        if value is not None:
            _add(writer, key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary())
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control] * len(SPECIAL) + [normal] * (shape.vocabulary - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(eos)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    for name, values in (weights(shape, seed) | (tensors or {})).items():
        if values is not None:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
