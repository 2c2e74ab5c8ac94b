"""What the DFLASH worker needs of attention, KV pool and allocation, in plain torch. Importing it registers all."""

import copy

import sglang.srt.mem_cache.allocation as allocation
import torch
from sglang.srt.arg_groups.choices import add_draft_attention_backend_choices
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool


class SpecTorchNativeAttnBackend(TorchNativeAttnBackend):
    """A verify forward is an extend by one block, which the engine's class does not know."""

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True):
        if forward_batch.forward_mode.is_target_verify():
            num_tokens = int(forward_batch.spec_info.draft_token_num)
            prefix_lens = forward_batch.seq_lens
            forward_batch = copy.copy(forward_batch)
            forward_batch.extend_prefix_lens = prefix_lens
            forward_batch.extend_seq_lens = torch.full_like(prefix_lens, num_tokens)
            forward_batch.seq_lens = prefix_lens + num_tokens
        return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)


@register_attention_backend("torch_native")
def create(runner):
    return SpecTorchNativeAttnBackend(runner)


class CpuMHATokenToKVPool(MHATokenToKVPool):
    """No Triton copy kernel: DFLASH verify is linear, accepted KV never moves."""

    def _init_kv_copy_and_warmup(self):
        self._kv_copy_config = None


def assign_req_to_token_pool(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, batch_size
):
    """Stands for a Triton launch."""
    begin = 0
    ranges = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for request, start, end in ranges:
        stop = begin + end - start
        req_to_token[request, start:end] = out_cache_loc[begin:stop].to(req_to_token.dtype)
        begin = stop


allocation.assign_req_to_token_pool_func = assign_req_to_token_pool
add_draft_attention_backend_choices(["torch_native"])
