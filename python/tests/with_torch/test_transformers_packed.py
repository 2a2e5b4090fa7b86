"""Several sequences in one row of a model, held to each sequence by itself."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from packed_models import (
    FORMS,
    INDEX,
    LENGTHS,
    ONES,
    POSITIONS,
    SMALL,
    STARTS,
    WORDS,
    layer_of,
    one_by_one,
    tokens,
)

import regard._packed_rows
import regard.transformers

transformers = pytest.importorskip("transformers")
regard.transformers.register()


def make(name="Mistral", implementation="regard", **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL, **options)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    model.set_attn_implementation(implementation)
    return model.eval()


@pytest.mark.parametrize("window", [4, 8, None])
@pytest.mark.parametrize("form", FORMS)
def test_packed_rows(form, window):
    model, ids = make(sliding_window=window), tokens()
    expected = one_by_one(model, ids)
    for implementation in ("regard", "regard_flash", "regard_math"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found = model(ids, **FORMS[form]).logits
        assert float((found - expected).abs().max()) < 1e-5


@pytest.mark.parametrize("window", [4, None])
def test_several_rows_of_packed_sequences(window):
    model, ids = make(sliding_window=window), tokens()
    other = tokens() + 3
    expected = torch.cat([one_by_one(model, ids), one_by_one(model, other)])
    model.set_attn_implementation("regard")
    both = torch.cat([ids, other])
    starts = torch.tensor([0, 7, 12, 19, 24])
    words = dict(cu_seq_lens_q=starts, cu_seq_lens_k=starts, max_length_q=7, max_length_k=7)
    for given in (dict(position_ids=POSITIONS), dict(position_ids=POSITIONS.expand(2, -1)),
                  words, dict(seq_idx=INDEX.expand(2, -1))):
        with torch.no_grad():
            found = model(both, **given).logits
        assert float((found - expected).abs().max()) < 1e-5


@pytest.mark.parametrize("static", [False, True])
def test_positions_with_a_cache_object(static):
    model, ids = make(), tokens()
    expected = one_by_one(model, ids)
    model.set_attn_implementation("regard")
    cache = (transformers.StaticCache(config=model.config, max_cache_len=20) if static else
             transformers.DynamicCache())
    with torch.no_grad():
        found = model(ids, position_ids=POSITIONS, past_key_values=cache).logits
    assert float((found - expected).abs().max()) < 1e-5


def test_contradictions_are_refused():
    model, ids = make(), tokens()
    other = torch.tensor([0, 6, 12], dtype=torch.int32)
    padded = ONES.clone()
    padded[0, :2] = 0
    for given, word in [
            (dict(WORDS, cu_seq_lens_q=other, cu_seq_lens_k=other, position_ids=POSITIONS),
             "contradict position_ids: sequences begin at .0, 6. and at .0, 7."),
            (dict(WORDS, cu_seq_lens_q=other, cu_seq_lens_k=other, seq_idx=INDEX),
             "contradict seq_idx"),
            (dict(seq_idx=(torch.arange(12)[None] >= 6).int(), position_ids=POSITIONS),
             "contradict position_ids"),
            (dict(WORDS, attention_mask=padded), "attention_mask .* contradicts cu_seq_lens_k"),
            (dict(cu_seq_lens_q=STARTS, position_ids=POSITIONS), "must be both"),
            (dict(cu_seq_lens_q=STARTS, cu_seq_lens_k=STARTS.float()), "cu_seq_lens_k .*int64"),
            (dict(WORDS, max_length_q=6), "max_seqlen of cu_seqlens_q"),
            (dict(cu_seq_lens_q=torch.tensor([0, 14, 12]), cu_seq_lens_k=STARTS), "cu_seqlens_q"),
            (dict(cu_seq_lens_q=STARTS[:2], cu_seq_lens_k=STARTS[:2]), "ends at 7, expected 12"),
            (dict(cu_seq_lens_q=STARTS[:0], cu_seq_lens_k=STARTS), r"cu_seq_lens_q \(of shape \(0,\)"),
            (dict(cu_seq_lens_q=STARTS.to("meta"), cu_seq_lens_k=STARTS),
             "device of cu_seq_lens_q .meta. must be the queries', cpu"),
            (dict(WORDS, max_length_q="7"), "max_length_q .'7'. must be an integer"),
            (dict(WORDS, max_length_k=STARTS), r"max_length_k \(of shape \(3,\)\) must be an"),
            (dict(seq_idx=INDEX[:, :5]), "seq_idx must be")]:
        with pytest.raises(ValueError, match=word):
            model(ids, **given)
    with pytest.raises(ValueError, match="ends at 12, expected 24"):  # counted through all rows
        model(ids.expand(2, -1), **WORDS)


def test_empty_sequences():
    model, ids = make(), tokens()
    starts = torch.tensor([0, 0, 7, 7, 12, 12])
    words = dict(cu_seq_lens_q=starts, cu_seq_lens_k=starts)
    expected = one_by_one(model, ids)
    model.set_attn_implementation("regard")
    for more in ({}, dict(position_ids=POSITIONS), dict(seq_idx=INDEX), dict(attention_mask=ONES)):
        with torch.no_grad():
            torch.testing.assert_close(model(ids, **words, **more).logits, expected, rtol=1e-4,
                                       atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 1, 6, 6), (1, 1, 6, 5), (1, 1, 5, 6)])
def test_masks_of_other_shapes_beside_packed_rows(shape):
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    starts = torch.tensor([0, 4, 6])
    with pytest.raises(ValueError, match=r"attention_mask .* must be \[batch, heads, queries, keys\]"):
        regard.transformers._attention("", layer_of(), q, k, v, torch.ones(shape).bool(),
                                       cu_seq_lens_q=starts, cu_seq_lens_k=starts)


def test_what_marks_no_sequences_stays_a_row():
    """Padding on the left, whose positions repeat, with and without a static cache."""
    model, ids = make(), tokens()
    mask = ONES.clone()
    mask[0, :4] = 0
    for fill in (0, 1):
        positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, fill)
        results = []
        for implementation in ("eager", "regard"):
            model.set_attn_implementation(implementation)
            for cache in (None, transformers.StaticCache(config=model.config, max_cache_len=20)):
                with torch.no_grad():
                    results.append(model(ids, attention_mask=mask, position_ids=positions,
                                         past_key_values=cache).logits[:, 4:])
        for found in results[1:]:
            torch.testing.assert_close(found, results[0], rtol=1e-4, atol=1e-5)
    model.set_attn_implementation("regard")
    generated = model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
    model.set_attn_implementation("eager")
    assert torch.equal(generated, model.generate(ids, attention_mask=mask, max_new_tokens=4,
                                                 do_sample=False))


@pytest.mark.parametrize("name, options", [("Llama", {}), ("Mistral", dict(sliding_window=4))])
@pytest.mark.parametrize("with_words", [False, True])
def test_flattened_batches_train_as_padded_ones(name, options, with_words):
    """DataCollatorWithFlattening: the gradients of a padded batch with the same labels."""
    model = make(name, **options).train()
    torch.manual_seed(2)
    features = [dict(input_ids=torch.randint(4, 90, (n,)).tolist()) for n in (9, 4, 6)]
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=with_words,
                                                      return_seq_idx=with_words)
    longest = max(len(each["input_ids"]) for each in features)
    padded = [each["input_ids"] + [0] * (longest - len(each["input_ids"])) for each in features]
    mask = torch.tensor([[1] * len(each["input_ids"]) + [0] * (longest - len(each["input_ids"]))
                         for each in features])
    labels = torch.tensor(padded).masked_fill(mask == 0, -100)
    results = []
    for implementation, batch in (("eager", dict(input_ids=torch.tensor(padded), labels=labels,
                                                 attention_mask=mask)),
                                  ("regard", collate(features))):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-6)


def test_weights_of_packed_rows():
    model, ids = make(), tokens()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = [model(each, output_attentions=True).attentions for each in ids.split(LENGTHS, 1)]
        model.set_attn_implementation("regard")
        found = model(ids, output_attentions=True, **WORDS).attentions
    for layer, parts in zip(found, zip(*expected)):
        torch.testing.assert_close(layer[0], torch.stack(
            [torch.block_diag(*(part[0, h] for part in parts)) for h in range(4)]),
            rtol=1e-4, atol=1e-5)


def test_packed_rows_in_compiled_layers():
    """Where a layer is compiled, the mask is judged when it runs."""
    layer = layer_of()
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    starts = torch.tensor([0, 4, 6])
    words = dict(cu_seq_lens_q=starts, cu_seq_lens_k=starts, max_length_q=4, max_length_k=4)
    causal = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    apart, other = causal.clone(), causal.clone()
    apart[..., 4:, :4] = False
    other[..., 3:, :3] = False

    @torch.compile(fullgraph=True, backend="aot_eager")
    def attend(mask, words, **keywords):
        return regard.transformers._attention("", layer, q, k, v, mask, **words, **keywords)[0]

    expected = regard.transformers._attention("", layer, q, k, v, apart)[0]
    for mask in (apart, causal, None):
        torch.testing.assert_close(attend(mask, words), expected)
    torch.testing.assert_close(attend(None, dict(seq_idx=torch.tensor([[0, 0, 0, 0, 1, 1]]))),
                               expected)
    with pytest.raises(RuntimeError, match="contradicts cu_seq_lens_k, cu_seq_lens_q"):
        attend(other, words)
    with pytest.raises(RuntimeError, match="position_ids of packed sequences"):
        attend(None, {}, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1]]))
    attend(None, {}, position_ids=torch.arange(6)[None])
    restarting = torch.tensor([[0, 1, 2, 3, 0, 1]])
    for mask in (causal, apart, torch.zeros(1, 1, 6, 6).masked_fill(~causal, float("-inf"))):
        torch.testing.assert_close(attend(mask, {}, position_ids=restarting), expected)
    padded = causal.clone()
    padded[..., :2] = False
    plain = regard.transformers._attention("", layer, q, k, v, padded)[0]
    for positions in ([0, 0, 0, 1, 2, 3], [1, 1, 0, 1, 2, 3]):  # of two places of padding
        found = attend(padded, {}, position_ids=torch.tensor([positions]))
        torch.testing.assert_close(found[:, 2:], plain[:, 2:])


@pytest.mark.parametrize("restarts", [True, False])
def test_position_ids_in_compiled_layers_on_a_fixed_cache(restarts):
    """Its places behind the rows are empty where sequences begin anew, and may hold keys elsewhere.
    """
    layer = layer_of()
    q, k, v = torch.randn(1, 2, 6, 8), *torch.randn(2, 1, 2, 9, 8)
    compiled = torch.compile(regard.transformers._attention, fullgraph=True, backend="aot_eager")
    if restarts:
        positions = torch.tensor([[0, 1, 2, 3, 0, 1]])
        mask = torch.ones(1, 1, 6, 9, dtype=torch.bool).tril()
        apart = mask.clone()
        apart[..., 4:, :4] = False
    else:  # after three keys
        positions = torch.arange(3, 9)[None]
        apart = mask = torch.ones(1, 1, 6, 9, dtype=torch.bool).tril(3)
    expected = regard.transformers._attention("", layer, q, k, v, apart)[0]
    found = compiled("", layer, q, k, v, mask, position_ids=positions)[0]
    torch.testing.assert_close(found, expected)


def test_sequences_are_found_once_for_all_layers(monkeypatch):
    model, ids = make(), tokens()
    made = []
    of_shape = regard._packed_rows._make_sequences
    monkeypatch.setattr(regard._packed_rows, "_make_sequences",
                        lambda *args: made.append(1) or of_shape(*args))
    for given in (dict(position_ids=POSITIONS.clone()), {k: v.clone() if torch.is_tensor(v) else v
                                                         for k, v in WORDS.items()}):
        made.clear()
        with torch.no_grad():
            model(ids, **given)
        assert len(made) == 1


def test_an_encoder_with_cu_seq_lens():
    layer = layer_of(False)
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    starts = torch.tensor([0, 4, 6])
    words = dict(cu_seq_lens_q=starts, cu_seq_lens_k=starts)
    attend = regard.transformers._attention
    expected = torch.cat([attend("", layer, q[:, :, part], k[:, :, part], v[:, :, part], None)[0]
                          for part in (slice(0, 4), slice(4, 6))], 1)
    torch.testing.assert_close(attend("", layer, q, k, v, None, **words)[0], expected)
    ones = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    torch.testing.assert_close(attend("", layer, q, k, v, ones, **words)[0], expected)
    restarting = torch.tensor([[0, 1, 2, 3, 0, 1]])  # of the queries alone, where keys may be others
    alone = attend("", layer, q, k, v, None)[0]
    assert torch.equal(attend("", layer, q, k, v, None, position_ids=restarting)[0], alone)
