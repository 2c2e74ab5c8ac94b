"""The platform: which backend, algorithm and pool the engine takes, and what of a loaded model is changed."""

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

ALGORITHMS = {"DFLASH"}


def extend_cache_locs(
    *, req_pool_indices, req_to_token, start_offset, end_offset, batch_size, draft_token_num, device
):
    columns = start_offset.to(torch.int64)[:, None] + torch.arange(draft_token_num, device=device)
    return req_to_token[req_pool_indices.to(torch.int64)[:, None], columns].reshape(-1).to(torch.int64)


class CpuNativePlatform(CpuDeviceMixin, SRTPlatform):
    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()

    def is_pin_memory_available(self, device=None):
        return False

    def get_default_attention_backend(self):
        return "torch_native"

    def get_default_speculative_draft_attention_backend(self, algorithm):
        return "torch_native"

    def supports_speculative_algorithm(self, algorithm):
        return algorithm in ALGORITHMS

    def supports_speculative_draft_attention_backend(self, algorithm, backend):
        return algorithm in ALGORITHMS and backend == "torch_native"

    def get_speculative_cache_locs_fn(self):
        return extend_cache_locs

    def get_dispatch_key_name(self):
        return "native"

    def init_backend(self):
        from . import backend  # noqa: F401 - registers the attention backend

        ignore_streams_of_cpu_tensors()

    def get_kv_pool_cls(self, *, kind):
        if kind == "mha":
            from .backend import CpuMHATokenToKVPool

            return CpuMHATokenToKVPool
        return None

    def post_load_model(self, model):
        for module in model.modules():  # the rope table kernel is Triton
            if hasattr(module, "use_table_qk_norm_rope"):
                module.use_table_qk_norm_rope = False
        if type(model).__name__ == "DFlashDraftModel":
            keep_dtype_of_embeddings(model)


def ignore_streams_of_cpu_tensors():
    record_stream = torch.Tensor.record_stream
    if getattr(record_stream, "_cpu_native", False):
        return

    def record_stream_of_devices(self, stream):
        return None if self.device.type == "cpu" else record_stream(self, stream)

    record_stream_of_devices._cpu_native = True
    torch.Tensor.record_stream = record_stream_of_devices


def keep_dtype_of_embeddings(model):
    """The engine's runner hands a draft its embeddings in bfloat16, whatever the draft was loaded in."""
    dtype = next(model.parameters()).dtype
    forward = model.forward

    def forward_in_own_dtype(*args, **kwargs):
        embeddings = kwargs.get("input_embeds")
        if embeddings is not None:
            kwargs["input_embeds"] = embeddings.to(dtype)
        return forward(*args, **kwargs)

    model.forward = forward_in_own_dtype
