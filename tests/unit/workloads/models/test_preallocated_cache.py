"""A cache with room for the whole answer: same contents as one that grows by copying, without the copies."""

from __future__ import annotations

import torch
from transformers import DynamicCache, LlamaConfig, MistralConfig
from transformers.cache_utils import DynamicSlidingWindowLayer

from llm_perf_opt.workloads.models.cache_layers import PreallocatedLayer, preallocated_cache

CONFIG = LlamaConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2)


def states(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, 2, tokens, 4), torch.randn(1, 2, tokens, 4)


def test_contents_equal_those_of_a_growing_cache() -> None:
    ours, theirs = preallocated_cache(CONFIG, 8), DynamicCache(config=CONFIG)
    for tokens in (5, 1, 1, 1):
        for layer in range(2):
            new = states(tokens)
            for mine, other in zip(ours.update(*new, layer), theirs.update(*new, layer), strict=True):
                assert torch.equal(mine, other)
    assert ours.get_seq_length() == theirs.get_seq_length() == 8


def test_tokens_are_written_in_place() -> None:
    layer = PreallocatedLayer(6)
    first, _ = layer.update(*states(5))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        second, _ = layer.update(*states(1))
    assert second.data_ptr() == first.data_ptr()
    assert "aten::cat" not in {row.key for row in profiler.key_averages()}


def test_more_than_there_is_room_for_still_fits() -> None:
    layer = PreallocatedLayer(2)
    one, two = states(2), states(1)
    layer.update(*one)
    keys, values = layer.update(*two)
    assert torch.equal(keys, torch.cat([one[0], two[0]], -2))
    assert torch.equal(values, torch.cat([one[1], two[1]], -2))
    assert torch.equal(layer.update(*states(1))[0][..., :3, :], keys)


def test_reordered_keys_are_not_written_over() -> None:
    """What was moved out of the room goes on from where it is."""
    layer = PreallocatedLayer(6)
    keys = torch.randn(2, 2, 3, 4)
    layer.update(keys, keys)
    layer.reorder_cache(torch.tensor([1, 0]))
    new = torch.randn(2, 2, 1, 4)
    assert torch.equal(layer.update(new, new)[0], torch.cat([keys.flip(0), new], -2))


def test_after_a_reset_it_begins_anew() -> None:
    layer = PreallocatedLayer(4)
    layer.update(*states(3))
    layer.reset()
    assert layer.get_seq_length() == 0
    new = states(2)
    assert torch.equal(layer.update(*new)[0], new[0])


def test_layers_that_keep_a_window_stay_as_they_are() -> None:
    config = MistralConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, sliding_window=4)
    assert all(isinstance(layer, DynamicSlidingWindowLayer) for layer in preallocated_cache(config, 8).layers)
