"""Tiny random targets and drafts, drafts whose proposals are scripted, and a plain greedy reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from dflash.draft_config import DraftConfig, parse_draft_config
from dflash.model import DFlashDraftModel
from dflash.rollback_cache import DraftCache

HIDDEN, NUM_LAYERS, VOCABULARY, MASK_ID = 32, 4, 64, 63
LAYER_IDS = (0, 2)
KINDS = ("qwen3", "llama")
PROMPT_LENGTH = 7
NUM_DISTINCT = 17  # the anchor and every slot of a block of 16
REFERENCE_LENGTH = 44


def tiny_target(kind: str, seed: int = 0, *, tied: bool = False) -> Any:
    """A random causal language model, float32. Rows of its head have length 1, so that row t has argmax t."""
    import transformers

    shape: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": tied,
    }
    torch.manual_seed(seed)
    if kind.startswith("gemma"):
        # windows shorter than the prompt and every output
        shape |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 6}
    if kind == "gemma4":
        # the last two layers use the keys and values of the two before
        shape |= {"num_kv_shared_layers": 2, "vocab_size_per_layer_input": VOCABULARY}
        shape |= {"hidden_size_per_layer_input": 8, "global_head_dim": 16}
    family, text = {
        "qwen3": ("Qwen3", ""),
        "llama": ("Llama", ""),
        "gemma3": ("Gemma3", "Text"),
        "gemma4": ("Gemma4", "Text"),
    }[kind]
    config = getattr(transformers, f"{family}{text}Config")(**shape)
    model: Any = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head.copy_(functional.normalize(head, dim=-1))
        if not tied:
            model.get_input_embeddings().weight.mul_(3.0)  # the last token weighs more: fewer repetitions
    return model.eval()


def draft_config_json(**changes: Any) -> dict[str, Any]:
    """Content of the tiny draft's config.json; a change to None leaves the key out."""
    content = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 16,
        "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": list(LAYER_IDS)},
        "num_target_layers": NUM_LAYERS,
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "vocab_size": VOCABULARY,
    }
    return {key: value for key, value in {**content, **changes}.items() if value is not None}


def tiny_config(**changes: Any) -> DraftConfig:
    return parse_draft_config(draft_config_json(**changes))


def tiny_draft(seed: int = 0, **changes: Any) -> DFlashDraftModel:
    """A random draft, norm weights and biases included, so that no norm is a mere scaling."""
    torch.manual_seed(seed)
    draft = DFlashDraftModel(tiny_config(**changes))
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, 0.3)
    return draft.eval()


def greedy_reference(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Plain greedy decoding without a cache: a forward over everything for each token."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(num_tokens):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


def case_with_distinct_tokens(kind: str) -> SimpleNamespace:
    """A target, a prompt whose first outputs all differ (a stop fits in every slot), and its reference."""
    for seed in range(16):
        model = tiny_target(kind, seed)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(3, VOCABULARY - 1, (256, PROMPT_LENGTH), generator=generator)
        with torch.inference_mode():
            for num_new in range(1, NUM_DISTINCT + 1):
                chosen = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1].argmax(dim=-1)
                ids = torch.cat((ids, chosen[:, None]), dim=1)
                fits = [len(set(row[PROMPT_LENGTH:])) == num_new for row in ids.tolist()]
                ids = ids[torch.tensor(fits)]
                if not len(ids):
                    break
        if len(ids):
            prompt = ids[0, :PROMPT_LENGTH].tolist()
            reference = greedy_reference(model, prompt, REFERENCE_LENGTH)
            return SimpleNamespace(kind=kind, seed=seed, model=model, prompt=prompt, reference=reference)
    raise AssertionError(f"no prompt gives {NUM_DISTINCT} different tokens with the tiny {kind}")


class ScriptedDraft:
    """Stands in for a draft: makes the loop propose chosen tokens through the real target's head."""

    def __init__(self, model: Any, config: DraftConfig | None = None) -> None:
        self.config = config or tiny_config()
        self.block_size = self.config.block_size
        self.target_layer_ids = self.config.target_layer_ids
        self.num_calls = 0
        self._head = model.get_output_embeddings().weight

    def new_cache(self, capacity: int) -> DraftCache:
        self.num_calls = 0
        return DraftCache(0, capacity)

    def proposals(self, num_slots: int, num_committed: int) -> list[int]:
        raise NotImplementedError

    def __call__(self, block: torch.Tensor, features: torch.Tensor, cache: DraftCache) -> torch.Tensor:
        cache.commit(features.shape[1])
        proposals = self.proposals(block.shape[1] - 1, cache.length)
        self.num_calls += 1
        return self._head[torch.tensor([0, *proposals])][None]


class OracleDraft(ScriptedDraft):
    """Proposes what the target will say, in step s for exactly `script[s]` slots, then wrong tokens."""

    def __init__(
        self, model: Any, prompt: Sequence[int], reference: Sequence[int], script: Sequence[int]
    ) -> None:
        super().__init__(model)
        self._num_prompt, self._reference, self._script = len(prompt), reference, script

    def proposals(self, num_slots: int, num_committed: int) -> list[int]:
        anchor = num_committed - self._num_prompt  # output index of the anchor
        right = self._script[self.num_calls % len(self._script)]
        return [
            (self._reference[anchor + slot] + (slot > right)) % VOCABULARY for slot in range(1, num_slots + 1)
        ]


class ConstantDraft(ScriptedDraft):
    """Proposes one token in every slot."""

    def __init__(self, model: Any, token_id: int, config: DraftConfig | None = None) -> None:
        super().__init__(model, config)
        self._token_id = token_id

    def proposals(self, num_slots: int, num_committed: int) -> list[int]:
        return [self._token_id] * num_slots


def save_tiny_draft(folder: Path, draft: DFlashDraftModel, **changes: Any) -> Path:
    """Write config.json (with the changes that the draft was made with) and model.safetensors."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(draft_config_json(**changes)), encoding="utf-8")
    weights = {name: tensor.contiguous() for name, tensor in draft.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    return folder


def save_tiny_tokenizer(folder: Path) -> None:
    """Word-level, 64 words, with a chat template; the mask id is a reserved row without a word of text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<bos>", "<eos>", "<unk>", "<user>", "<assistant>"]
    words = ["what", "is", "one", "two", "three", "plus", "the", "sum", "of", "and"]
    vocabulary = {word: index for index, word in enumerate(special + words)}
    for index in range(len(vocabulary), VOCABULARY):
        vocabulary[f"w{index}"] = index
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<user>", "<assistant>"],
    )
    fast.chat_template = (
        "{{ bos_token }}{% for message in messages %} <{{ message['role'] }}> {{ message['content'] }} <eos>"
        "{% endfor %}{% if add_generation_prompt %} <assistant>{% endif %}"
    )
    fast.save_pretrained(folder)


def save_tiny_pair(root: Path, kind: str = "qwen3") -> SimpleNamespace:
    """Folders `target` (with tokenizer, chat template, two stop ids) and `draft`, and the models in them."""
    target, draft = tiny_target(kind), tiny_draft()
    target.generation_config.eos_token_id = [2, 5]
    target.save_pretrained(root / "target")
    save_tiny_tokenizer(root / "target")
    save_tiny_draft(root / "draft", draft)
    return SimpleNamespace(target=root / "target", draft=root / "draft", model=target, draft_model=draft)
