"""vLLM plugin: on a CPU, normalise the context keys of a DFlash draft with each layer's own weight.

The CPU kernel `rms_norm` ignores the layer index of a stacked weight, so that every layer would get the first layer's:
nothing fails and the output stays right, but the draft sees wrong keys and fewer of its tokens are accepted.
"""

import os
import sys


def register():
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    import vllm.model_executor.models.qwen3_dflash as qwen3_dflash

    def _normalize_context_k(self, all_k):  # [layers, ...]
        normalised = torch.empty_like(all_k)
        for layer, weight in enumerate(self._k_norm_weights):
            keys = all_k[layer].contiguous()
            qwen3_dflash.ops.rms_norm(normalised[layer], keys, weight.contiguous(), self._rms_norm_eps)
        return normalised

    qwen3_dflash.DFlashQwen3Model._normalize_context_k = _normalize_context_k
    print(f"dflash_cpu_fix registered in process {os.getpid()}", file=sys.stderr, flush=True)
