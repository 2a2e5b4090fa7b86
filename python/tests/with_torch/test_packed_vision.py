"""Vision towers that compute all images of a batch in one call a layer."""

import importlib
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

import regard
import regard._as_flash
import regard.transformers

transformers = pytest.importorskip("transformers")
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen2_5
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3

TOWERS = {  # of two layers; the first of Qwen2.5-VL's is in windows
    "Qwen2-VL": (qwen2.Qwen2VisionTransformerPretrainedModel, qwen2.Qwen2VLVisionConfig,
                 dict(embed_dim=64, hidden_size=32, mlp_ratio=2)),
    "Qwen2.5-VL": (qwen2_5.Qwen2_5_VisionTransformerPretrainedModel,
                   qwen2_5.Qwen2_5_VLVisionConfig,
                   dict(hidden_size=64, out_hidden_size=32, intermediate_size=64, window_size=56,
                        fullatt_block_indexes=[1])),
    "Qwen3-VL": (qwen3.Qwen3VLVisionModel, qwen3.Qwen3VLVisionConfig,
                 dict(hidden_size=64, out_hidden_size=32, intermediate_size=64,
                      num_position_embeddings=64, deepstack_visual_indexes=[1])),
}
GRID = torch.tensor([[1, 8, 8], [1, 4, 12], [2, 4, 4]])  # frames, rows and columns of patches
SIZES = (64, 48, 16, 16)                                 # patches of each image


@pytest.fixture(autouse=True)
def enabled():
    regard.transformers.enable_packed_vision()
    yield
    regard.transformers.unregister()
    regard.transformers.register()


def make(name, implementation):
    tower, config, options = TOWERS[name]
    torch.manual_seed(0)
    model = tower(config(depth=2, num_heads=4, initializer_range=0.2, **options)).eval()
    model.set_attn_implementation(implementation)
    return model


def pixels(config):
    torch.manual_seed(1)
    channels = getattr(config, "in_channels", 3)
    size = channels * config.temporal_patch_size * config.patch_size ** 2
    return torch.randn(sum(SIZES), size)


def run(model):
    with regard.trace() as trace:
        out = model(pixels(model.config), grid_thw=GRID)
    return out.pooler_output, [record.layer for record in trace.records]


@pytest.mark.parametrize("name", TOWERS)
def test_one_call_a_layer(name):
    with torch.no_grad():
        expected, _ = run(make(name, "sdpa"))
        model = make(name, "regard")
        found, layers = run(model)
        assert model.config._attn_implementation == "regard_as_flash"
        assert layers == ["blocks.0.attn", "blocks.1.attn"]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        regard.transformers.unregister()
        regard.transformers.register()
        model = make(name, "regard")
        found, layers = run(model)  # one by one
        assert model.config._attn_implementation == "regard"
        assert layers.count("blocks.1.attn") == len(SIZES)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TOWERS)
def test_gradients(name):
    results = []
    for implementation in ("sdpa", "regard"):
        model = make(name, implementation).train()
        run(model)[0].square().sum().backward()
        results.append([p.grad for p in model.parameters() if p.grad is not None])
    for expected, found in zip(*results, strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5 * max(scale, 1.0))


def test_towers_by_name_of_a_backend_and_when_made():
    tower, config, options = TOWERS["Qwen2.5-VL"]
    given = config(depth=2, num_heads=4, **options)
    given._attn_implementation = "regard_math"
    model = tower(given).eval()
    assert model.config._attn_implementation == "regard_math_as_flash"
    with torch.no_grad(), regard.trace() as trace:
        model(pixels(given), grid_thw=GRID)
    assert [record.backend for record in trace.records] == ["math", "math"]


@pytest.mark.parametrize("name, forces", [("regard", False), ("regard_math", True)])
def test_what_explain_says_of_a_tower(name, forces):
    model = make("Qwen2.5-VL", name)
    found = regard.transformers.explain(model, inputs=dict(
        hidden_states=pixels(model.config), grid_thw=GRID))
    assert [group.layers for group in found.layers] == [("blocks.0.attn",),
                                                           ("blocks.1.attn",)]
    assert ("attn_implementation 'regard_math' forces math" in str(found)) == forces
    assert "as_flash" not in str(found)


@pytest.mark.parametrize("module, name, splits", [
    ("glm4v", "Glm4vVisionModel", True),
    ("paddleocr_vl", "PaddleOCRVisionModel", True),
    ("qwen3_5", "Qwen3_5VisionModel", True),
    ("qwen2_5_omni", "Qwen2_5OmniVisionEncoder", True),
    ("qwen2_5_omni", "Qwen2_5OmniAudioEncoder", True),
    ("qwen2_5_vl", "Qwen2_5_VLTextModel", False),
    ("pixtral", "PixtralVisionModel", False),
    ("siglip", "SiglipVisionModel", False)])
def test_which_towers_are_found(module, name, splits):
    found = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    assert regard._as_flash.splits_unless_flash(getattr(found, name)) == splits


def whole_model():
    torch.manual_seed(0)
    _, _, options = TOWERS["Qwen2.5-VL"]
    config = transformers.Qwen2_5_VLConfig(
        vision_config=dict(depth=2, num_heads=4, initializer_range=0.2,
                           **{**options, "out_hidden_size": 64}),
        text_config=dict(vocab_size=120, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2,
                         pad_token_id=0,
                         rope_parameters=dict(rope_type="default", mrope_section=[2, 2, 4])),
        image_token_id=110, video_token_id=111, vision_start_token_id=112, vision_end_token_id=113)
    return transformers.Qwen2_5_VLForConditionalGeneration(config).eval()


def names_of(model):
    return {part: getattr(model.config, part)._attn_implementation
            for part in ("vision_config", "text_config")}


def test_the_text_part_keeps_its_name():
    model = whole_model()
    ids = torch.tensor([[5, 112] + [110] * 16 + [113, 6, 7]])
    grid = torch.tensor([[1, 8, 8]])
    images = pixels(model.config.vision_config)[:64]
    results = []
    for implementation in ("sdpa", "regard"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            results.append(model(input_ids=ids, pixel_values=images, image_grid_thw=grid,
                                 mm_token_type_ids=(ids == 110).int()).logits)
    assert names_of(model) == dict(vision_config="regard_as_flash", text_config="regard")
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("vision", ["regard_as_flash", "eager"])
def test_generate_batch_puts_both_names_back(vision):
    regard.transformers.enable_continuous_batching()
    model = whole_model()
    model.set_attn_implementation("regard" if vision == "regard_as_flash" else
                                  {"": "regard", "vision_config": vision, "text_config": "regard"})
    before = dict(vision_config=vision, text_config="regard")
    assert names_of(model) == before
    config = transformers.generation.ContinuousBatchingConfig(num_blocks=16, page_size=16,
                                                              max_batch_tokens=10)
    with model.continuous_batching_context_manager(
            transformers.GenerationConfig(max_new_tokens=2, pad_token_id=0, eos_token_id=-1),
            continuous_batching_config=config):
        assert names_of(model) == dict(vision_config=vision, text_config="regard_as_flash")
    assert names_of(model) == before
