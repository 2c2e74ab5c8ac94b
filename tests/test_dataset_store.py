"""The same prompts for everyone: found in a fixed order of places, selected by data set and seed alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import dflash
import dflash.dataset_store as store
from dflash.dataset_catalogue import DatasetSpec
from dflash.dataset_files import format_rows
from dflash.dataset_sources import Fetched
from dflash.dataset_store import datasets_cache_folder, load_prompts
from dflash.errors import UnavailableError, UsageError
from dflash.prompts import PromptSet


def gsm8k_rows(num_rows: int = 1319) -> list[dict[str, str]]:
    return [{"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"} for n in range(num_rows)]


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the places of the person who runs it, and none fetches."""
    for name in ("DFLASH_DATASETS_DIR", "DFLASH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DFLASH_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "fetch_rows", FakeSource(error=UnavailableError("no network")))


class FakeSource:
    """Stands in for the package index and the hub."""

    def __init__(self, rows: Sequence[dict[str, Any]] = (), error: BaseException | None = None) -> None:
        self.rows, self.error, self.num_fetches = rows, error, 0

    def __call__(self, spec: DatasetSpec, folder: Path) -> Fetched:
        self.num_fetches += 1
        if self.error is not None:
            (folder / "half").write_text("half", encoding="utf-8")
            raise self.error
        return Fetched(self.rows, "a stand-in", spec.revision)


@pytest.fixture
def gsm8k_file(tmp_path: Path) -> Path:
    path = tmp_path / "test.jsonl"
    path.write_bytes(format_rows(gsm8k_rows()))
    return path


def ids(prompt_set: PromptSet) -> list[str]:
    return [prompt.prompt_id for prompt in prompt_set.prompts]


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


class TestSelection:
    def test_a_smaller_number_is_the_beginning_of_a_larger(self, gsm8k_file: Path) -> None:
        everything = ids(load_prompts("gsm8k", dataset_file=gsm8k_file))
        assert len(set(everything)) == len(everything) == 1319
        for num_prompts in (1, 2, 128, 1319):
            few = load_prompts("gsm8k", num_prompts=num_prompts, dataset_file=gsm8k_file)
            assert ids(few) == everything[:num_prompts]
            assert few.num_available == 1319
            assert few.notes == ()

    def test_golden_order(self, gsm8k_file: Path) -> None:
        """Another order would make every stored result one of other prompts."""
        first = ids(load_prompts("gsm8k", num_prompts=4, dataset_file=gsm8k_file))
        assert first == ["gsm8k/0173", "gsm8k/0527", "gsm8k/1219", "gsm8k/0010"]
        other_seed = load_prompts("gsm8k", num_prompts=4, seed=1, dataset_file=gsm8k_file)
        assert ids(other_seed) == ["gsm8k/0144", "gsm8k/0453", "gsm8k/0099", "gsm8k/1105"]

    def test_fewer_than_asked_is_said_and_none_is_repeated(self) -> None:
        prompt_set = load_prompts("quickstart", num_prompts=128)
        assert len(prompt_set.prompts) == len(set(ids(prompt_set))) == prompt_set.num_available == 68
        assert prompt_set.notes == ("asked for 128 prompts, the set has 68",)

    def test_a_category(self) -> None:
        prompt_set = load_prompts("quickstart", num_prompts=30, category="open")
        assert {prompt.category for prompt in prompt_set.prompts} == {"open"}
        assert prompt_set.num_available == 8
        assert prompt_set.notes == ("asked for 30 prompts, the set has 8 of category open",)
        whole = load_prompts("quickstart")
        chosen = [prompt.prompt_id for prompt in whole.prompts if prompt.category == "open"]
        assert ids(prompt_set) == chosen, "the order does not depend on the category"

    def test_an_unknown_category_names_the_known(self) -> None:
        with pytest.raises(UsageError, match="choose one of chat, code, math, open"):
            load_prompts("quickstart", category="poems")

    def test_equal_texts_are_said(self, tmp_path: Path) -> None:
        path = tmp_path / "test.jsonl"
        path.write_bytes(format_rows([*gsm8k_rows(1318), gsm8k_rows(1)[0]]))
        notes = load_prompts("gsm8k", dataset_file=path).notes
        assert notes == ("1 of the 1319 prompts of gsm8k repeat the text of another one",)


class TestFile:
    def test_a_file_is_named_by_its_digest(self, gsm8k_file: Path) -> None:
        prompt_set = load_prompts("gsm8k", dataset_file=gsm8k_file)
        assert prompt_set.revision is not None
        assert prompt_set.revision.startswith("sha256:")
        assert str(gsm8k_file.parent) not in prompt_set.source

    def test_another_number_of_rows_is_said_with_the_pin(self, tmp_path: Path) -> None:
        path = tmp_path / "test.jsonl"
        path.write_bytes(format_rows(gsm8k_rows(7)))
        (note,) = load_prompts("gsm8k", dataset_file=path).notes
        assert note.startswith(
            "test.jsonl has 7 rows, the data set gsm8k has 1319 at the pinned revision 740312a"
        )

    def test_the_file_of_another_data_set_is_refused(self, gsm8k_file: Path) -> None:
        with pytest.raises(UsageError, match=r"expected the columns task_id, .*; found question, answer"):
            load_prompts("humaneval", dataset_file=gsm8k_file)


class TestCache:
    def test_fetched_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gsm8k_file: Path) -> None:
        source = FakeSource(gsm8k_rows())
        monkeypatch.setattr(store, "fetch_rows", source)
        first, second = load_prompts("gsm8k"), load_prompts("gsm8k")
        assert source.num_fetches == 1
        assert first == second
        assert first.revision == "740312add88f781978c0658806c59bc2815b9866"
        assert first.digest == load_prompts("gsm8k", dataset_file=gsm8k_file).digest
        assert visible(tmp_path / "cache") == ["gsm8k"]
        manifest = json.loads((tmp_path / "cache" / "gsm8k" / "manifest.json").read_text(encoding="utf-8"))
        assert manifest["num_rows"] == 1319
        assert manifest["template_version"] == "gsm8k-1"
        assert manifest["licence"] == "MIT"

    def test_the_folder_can_be_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store, "fetch_rows", FakeSource(gsm8k_rows()))
        load_prompts("gsm8k", cache_folder=tmp_path / "elsewhere")
        assert visible(tmp_path / "elsewhere") == ["gsm8k"]

    def test_a_damaged_copy_is_said_and_fetched_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "fetch_rows", FakeSource(gsm8k_rows()))
        whole = load_prompts("gsm8k")
        rows = tmp_path / "cache" / "gsm8k" / "rows.jsonl"
        rows.write_bytes(rows.read_bytes().replace(b"What is 7 ", b"What is 8 "))
        lines: list[str] = []
        assert load_prompts("gsm8k", announce=lines.append) == whole
        assert "rows.jsonl has another sha256 than when it was written" in lines[0]

    def test_a_damaged_copy_without_network_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "fetch_rows", FakeSource(gsm8k_rows()))
        load_prompts("gsm8k")
        rows = tmp_path / "cache" / "gsm8k" / "rows.jsonl"
        rows.write_bytes(rows.read_bytes()[:1000])
        monkeypatch.setattr(store, "fetch_rows", FakeSource(error=UnavailableError("no network")))
        with pytest.raises(UnavailableError, match=r"is damaged \(rows.jsonl has 1000 bytes"):
            load_prompts("gsm8k")
        assert rows.stat().st_size == 1000, "what was there is left as it was"

    def test_another_pin_is_fetched_anew(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = FakeSource(gsm8k_rows())
        monkeypatch.setattr(store, "fetch_rows", source)
        load_prompts("gsm8k")
        manifest = tmp_path / "cache" / "gsm8k" / "manifest.json"
        text = manifest.read_text(encoding="utf-8").replace('"pin": "740', '"pin": "840')
        manifest.write_text(text, encoding="utf-8")
        load_prompts("gsm8k")
        assert source.num_fetches == 2

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), UnavailableError("no network")])
    def test_nothing_half_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
    ) -> None:
        monkeypatch.setattr(store, "fetch_rows", FakeSource(error=error))
        with pytest.raises(type(error)):
            load_prompts("gsm8k")
        assert visible(tmp_path / "cache") == []

    def test_what_was_fetched_must_be_the_data_set(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "fetch_rows", FakeSource([{"question": "?"}]))
        with pytest.raises(UsageError, match="row 1 lacks answer"):
            load_prompts("gsm8k")
        assert visible(tmp_path / "cache") == []


class TestPlaces:
    def test_a_folder_of_published_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gsm8k_file: Path
    ) -> None:
        (tmp_path / "files" / "gsm8k").mkdir(parents=True)
        gsm8k_file.rename(tmp_path / "files" / "gsm8k" / "test.jsonl")
        monkeypatch.setenv("DFLASH_DATASETS_DIR", str(tmp_path / "files"))
        assert load_prompts("gsm8k").source == "file test.jsonl of DFLASH_DATASETS_DIR"
        assert not (tmp_path / "cache").exists()

    def test_a_folder_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DFLASH_DATASETS_DIR", "nowhere")
        with pytest.raises(UsageError, match="DFLASH_DATASETS_DIR names nowhere, which is no folder"):
            load_prompts("gsm8k")

    def test_the_three_ways_are_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DFLASH_DATASETS_DIR", str(tmp_path))
        with pytest.raises(UnavailableError) as raised:
            load_prompts("gsm8k")
        for words in ("gsm8k", "no network", "--dataset-file", "DFLASH_DATASETS_DIR", "HF_ENDPOINT"):
            assert words in str(raised.value)

    def test_an_installed_package_keeps_out_of_its_own_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("DFLASH_DATASETS_CACHE")
        checkout = Path(dflash.__file__).parents[1]
        assert datasets_cache_folder() == checkout / "datasets_cache"
        monkeypatch.setattr(store, "_PACKAGE", tmp_path / "site-packages" / "dflash")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert datasets_cache_folder() == tmp_path / "xdg" / "dflash" / "datasets"
        monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "own"))
        assert datasets_cache_folder() == tmp_path / "own" / "datasets"


class TestPublishedFiles:
    """The original files, where the shared test data is."""

    @pytest.mark.parametrize(
        ("name", "file", "sha256", "num_rows"),
        [
            (
                "gsm8k",
                "gsm8k/test.jsonl",
                "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
                1319,
            ),
            (
                "humaneval",
                "humaneval/HumanEval.jsonl.gz",
                "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
                164,
            ),
        ],
    )
    def test_rows_and_digests(
        self,
        shared_folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        file: str,
        sha256: str,
        num_rows: int,
    ) -> None:
        prompt_set = load_prompts(name, dataset_file=shared_folder / "datasets" / file)
        assert prompt_set.revision == f"sha256:{sha256}"
        assert prompt_set.num_available == len(prompt_set.prompts) == num_rows
        assert prompt_set.notes == ()
        monkeypatch.setenv("DFLASH_DATASETS_DIR", str(shared_folder / "datasets"))
        assert load_prompts(name).digest == prompt_set.digest

    def test_every_gsm8k_row_has_a_number_as_answer(self, shared_folder: Path) -> None:
        prompt_set = load_prompts("gsm8k", dataset_file=shared_folder / "datasets" / "gsm8k" / "test.jsonl")
        assert all(float(prompt.answer or "nan").is_integer() for prompt in prompt_set.prompts)

    def test_another_set_in_a_similar_file_is_refused(self, shared_folder: Path) -> None:
        with pytest.raises(UsageError, match="lacks entry_point"):
            load_prompts(
                "humaneval", dataset_file=shared_folder / "datasets" / "mbpp" / "sanitized-mbpp.json"
            )
