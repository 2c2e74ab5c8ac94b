"""The same prompts for everyone: found in a fixed order of places, selected by data set and seed alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bound_user import folder_of_bound_user

import dflash.datasets.cache as cache
from dflash.built_folder import file_sha256
from dflash.dataset_store import fetch_dataset, load_prompts, read_stored, verify_stored
from dflash.datasets.catalogue import CATALOGUE
from dflash.datasets.custom import CustomSource
from dflash.datasets.files import format_rows, read_rows
from dflash.datasets.sources import Fetched
from dflash.errors import UnavailableError, UsageError
from dflash.prompts import PromptSet

ALTERED = "these rows are not the published ones"
HUB_ROWS = [  # as the tables of the model hub have them
    (
        "math500",
        {"problem": "?", "solution": "", "answer": "1", "subject": "Algebra", "level": 1, "unique_id": "a"},
    ),
    (
        "aime24",
        {"id": 60, "problem": "?", "solution": "", "answer": "204", "url": "https://", "year": "2024"},
    ),
    ("aime25", {"problem_idx": 1, "problem": "?", "answer": 70, "problem_type": ["Algebra"]}),
]


def gsm8k_rows(num_rows: int = 1319) -> list[dict[str, str]]:
    return [{"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"} for n in range(num_rows)]


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the places of the person who runs it, and none fetches."""
    for name in ("DFLASH_DATASETS_DIR", "DFLASH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DFLASH_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "fetch_rows", FakeSource(error=UnavailableError("no network", "connect")))


class FakeSource:
    """Stands in for everything that rows are fetched from."""

    def __init__(self, rows: Sequence[dict[str, Any]] = (), error: BaseException | None = None) -> None:
        self.rows, self.error, self.num_fetches = rows, error, 0

    def __call__(self, spec: object, scratch: Path, announce: object) -> Fetched:
        self.num_fetches += 1
        if self.error is not None:
            (scratch / "half").write_text("half", encoding="utf-8")
            raise self.error
        return Fetched(self.rows, "a stand-in", CATALOGUE["gsm8k"].revision)


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
            assert [note.partition(" as far as")[0] for note in few.notes] == [ALTERED]

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
        assert prompt_set.num_requests is None

    def test_repeating_is_asked_for_and_stamped(self) -> None:
        prompt_set = load_prompts("quickstart", num_prompts=128, repeat=True)
        assert (len(prompt_set.prompts), prompt_set.num_requests) == (68, 128)
        assert prompt_set.digest == load_prompts("quickstart").digest
        (note,) = prompt_set.notes
        assert note.startswith("--repeat: 68 prompts are used up to 2 times for 128 requests an arm")

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

    def test_a_length(self) -> None:
        short = load_prompts("quickstart", max_prompt_chars=60)
        assert 0 < short.num_available < 68
        assert max(prompt.num_chars for prompt in short.prompts) <= 60
        with pytest.raises(UsageError, match=r"the shortest there has .* characters, the longest"):
            load_prompts("quickstart", min_prompt_chars=100_000)

    def test_equal_texts_are_said(self, tmp_path: Path) -> None:
        path = tmp_path / "test.jsonl"
        path.write_bytes(format_rows([*gsm8k_rows(1318), gsm8k_rows(1)[0]]))
        _, note = load_prompts("gsm8k", dataset_file=path).notes
        assert note == "1 of the 1319 prompts of gsm8k repeat the text of another one"

    def test_a_caution_of_the_catalogue_is_a_note(self, tmp_path: Path) -> None:
        row = {"task_id": 11, "prompt": "Add.", "test_imports": [], "test_list": ["assert f(1) == 2"]}
        path = tmp_path / "mbpp.jsonl"
        path.write_bytes(format_rows([row]))
        notes = load_prompts("mbpp", dataset_file=path).notes
        assert notes[-1] == (
            "the published prompts of mbpp do not name the function that its tests call: its task score compares "
            "arms and says nothing of the model"
        )


class TestFile:
    def test_a_file_is_named_by_its_digest(self, gsm8k_file: Path) -> None:
        prompt_set = load_prompts("gsm8k", dataset_file=gsm8k_file)
        assert prompt_set.revision is not None
        assert prompt_set.revision.startswith("sha256:")
        assert str(gsm8k_file.parent) not in prompt_set.source
        assert (prompt_set.template_version, prompt_set.licence) == ("gsm8k-1", "MIT")

    def test_another_number_of_rows_is_said_with_the_pin(self, tmp_path: Path) -> None:
        path = tmp_path / "test.jsonl"
        path.write_bytes(format_rows(gsm8k_rows(7)))
        _, note = load_prompts("gsm8k", dataset_file=path).notes
        assert note.startswith(
            "test.jsonl gives 7 prompts, the data set gsm8k has 1319 at the pinned revision 740312a"
        )

    def test_the_file_of_another_data_set_is_refused(self, gsm8k_file: Path) -> None:
        with pytest.raises(UsageError, match=r"expected the columns task_id, .*; found question, answer"):
            load_prompts("humaneval", dataset_file=gsm8k_file)

    def test_a_truncated_file(self, gsm8k_file: Path) -> None:
        gsm8k_file.write_bytes(gsm8k_file.read_bytes()[:-20])
        with pytest.raises(UsageError, match=r"line 1319 of .*test.jsonl is no JSON .*: fetch it again"):
            load_prompts("gsm8k", dataset_file=gsm8k_file)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"missing.jsonl cannot be read \(No such file"):
            load_prompts("gsm8k", dataset_file=tmp_path / "missing.jsonl")
        with pytest.raises(UsageError, match=r"cannot be read \(no regular file: it is a folder\)"):
            load_prompts("gsm8k", dataset_file=tmp_path)

    @pytest.mark.parametrize("name", ["../gsm8k", "a/b", "..", "/etc/passwd", "", "GSM8K"])
    def test_no_name_is_a_path(self, name: str) -> None:
        with pytest.raises(UsageError, match=f"unknown data set {re.escape(repr(name))}"):
            load_prompts(name)


class TestDoubt:
    """Rows that are not known to be the published ones are never used without a word."""

    def test_an_altered_file_is_named_every_time(self, tmp_path: Path, gsm8k_file: Path) -> None:
        def notes(**options: Any) -> list[str]:
            found = load_prompts("gsm8k", announce=lines.append, **options).notes
            return [note for note in found if note.startswith(ALTERED)]

        lines: list[str] = []
        (note,) = notes(dataset_file=gsm8k_file)
        assert file_sha256(gsm8k_file) in note
        assert str(CATALOGUE["gsm8k"].files[0].sha256) in note
        fetch_dataset(CATALOGUE["gsm8k"], tmp_path / "cache", announce=lines.append, dataset_file=gsm8k_file)
        assert note in lines, "said when it is fetched"
        stored = verify_stored(CATALOGUE["gsm8k"], tmp_path / "cache")
        assert stored.doubt == note, "kept"
        assert notes() == notes() == [note], "and said at every use"

    def test_a_plain_fetch_takes_the_published_rows_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gsm8k_file: Path
    ) -> None:
        spec, folder, lines = CATALOGUE["gsm8k"], tmp_path / "cache", []
        fetch_dataset(spec, folder, announce=lambda line: None, dataset_file=gsm8k_file)
        with pytest.raises(UnavailableError, match=f"is of a file test.jsonl, and {ALTERED}.*; no network"):
            fetch_dataset(spec, folder, announce=lambda line: None)
        assert verify_stored(spec, folder).doubt is not None, "which stay until there are others"
        monkeypatch.setattr(cache, "fetch_rows", FakeSource(gsm8k_rows()))
        fetch_dataset(spec, folder, announce=lines.append)
        assert lines[0].startswith(f"{folder / 'gsm8k'} is of a file test.jsonl, and {ALTERED}")
        assert lines[0].endswith("and is fetched anew")
        assert verify_stored(spec, folder).doubt is None
        assert load_prompts("gsm8k").notes == ()

    def test_where_no_digest_is_known_that_is_said(self, tmp_path: Path) -> None:
        """And a plain fetch keeps it: it may be the only way to have the set."""
        path = tmp_path / "qualitative.jsonl"
        path.write_bytes(format_rows([{"question_id": "1", "category": "math", "turns": ["What?"]}]))
        fetch_dataset(
            CATALOGUE["speed-bench"], tmp_path / "cache", announce=lambda line: None, dataset_file=path
        )
        fetch_dataset(CATALOGUE["speed-bench"], tmp_path / "cache", announce=lambda line: None)
        for notes in (
            load_prompts("speed-bench").notes,
            load_prompts("speed-bench", dataset_file=path).notes,
        ):
            assert notes[0].startswith(
                "whether these rows are the published ones could not be checked: quali"
            )

    def test_of_the_folder_of_files_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "files" / "speed_bench" / "qualitative.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(format_rows([{"question_id": "1", "category": "math", "turns": ["What?"]}]))
        monkeypatch.setenv("DFLASH_DATASETS_DIR", str(tmp_path / "files"))
        assert "could not be checked" in load_prompts("speed-bench").notes[0]

    def test_rows_of_the_user_are_what_they_are(self, tmp_path: Path) -> None:
        path = tmp_path / "own.jsonl"
        path.write_bytes(format_rows([{"prompt": "one"}]))
        assert load_prompts("custom", custom=CustomSource(file=path)).notes == ()

    def test_what_is_shipped_can_be_told_too(self, tmp_path: Path) -> None:
        path = tmp_path / "own.jsonl"
        path.write_bytes(format_rows([{"prompt_id": "1", "category": "math", "turns": ["What?"]}]))
        assert load_prompts("quickstart", dataset_file=path).notes[0].startswith(ALTERED)
        assert load_prompts("quickstart").notes == ()


class TestOwnRows:
    @pytest.mark.parametrize(
        ("name", "data"),
        [
            ("own.jsonl", b'{"text": "one\\r\\n"}\n{"text": "two"}\n'),
            ("own.json", b'[{"text": "one\\r\\n"}, {"text": "two"}]'),
            ("own.csv", b'text\n"one\r\n"\ntwo\n'),
        ],
    )
    def test_a_file_of_any_form_is_the_same_set(self, tmp_path: Path, name: str, data: bytes) -> None:
        path = tmp_path / name
        path.write_bytes(data)
        prompt_set = load_prompts("custom", custom=CustomSource(file=path, prompt_field="text"))
        assert sorted(prompt.turns for prompt in prompt_set.prompts) == [("one\r\n",), ("two",)]
        assert prompt_set.source == f"file {name}"
        assert prompt_set.notes == ()
        again = load_prompts("custom", custom=CustomSource(file=path, prompt_field="text"), dataset_file=path)
        assert again == prompt_set

    @pytest.mark.parametrize("row", [{"turns": []}, {"turns": [" "]}, {"turns": None}, {"turns": [1]}])
    def test_empty_turns_are_refused(self, tmp_path: Path, row: dict[str, Any]) -> None:
        path = tmp_path / "own.jsonl"
        path.write_bytes(format_rows([{"turns": ["one"]}, row]))
        with pytest.raises(UsageError, match=r"row 2 of own.jsonl: "):
            load_prompts("custom", custom=CustomSource(file=path, turns_field="turns"))

    def test_a_prompt_of_two_megabytes(self, tmp_path: Path) -> None:
        path = tmp_path / "own.jsonl"
        path.write_bytes(format_rows([{"prompt": "word " * 400_000}]))
        (prompt,) = load_prompts("custom", custom=CustomSource(file=path)).prompts
        assert prompt.num_chars == 2_000_000

    def test_of_the_hub_once(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        sources: list[CustomSource] = []

        def fetch(source: CustomSource, announce: object) -> Fetched:
            sources.append(source)
            return Fetched([{"prompt": "one"}], "a/b, split test", "c0ffee")

        monkeypatch.setattr(cache, "fetch_custom_rows", fetch)
        first, second = (load_prompts("custom", custom=CustomSource(hub_id="a/b")) for _ in range(2))
        assert first == second
        assert first.revision == "c0ffee"
        assert len(sources) == 1
        (folder,) = visible(tmp_path / "cache")
        assert folder.startswith("custom-a-b-")


class TestCache:
    def test_fetched_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gsm8k_file: Path) -> None:
        source = FakeSource(gsm8k_rows())
        monkeypatch.setattr(cache, "fetch_rows", source)
        first, second = load_prompts("gsm8k"), load_prompts("gsm8k")
        assert source.num_fetches == 1
        assert first == second
        assert first.revision == "740312add88f781978c0658806c59bc2815b9866"
        assert first.digest == load_prompts("gsm8k", dataset_file=gsm8k_file).digest
        assert visible(tmp_path / "cache") == ["gsm8k"]

    def test_the_folder_can_be_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cache, "fetch_rows", FakeSource(gsm8k_rows()))
        load_prompts("gsm8k", cache_folder=tmp_path / "elsewhere")
        assert visible(tmp_path / "elsewhere") == ["gsm8k"]

    def test_a_damaged_copy_is_said_and_fetched_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache, "fetch_rows", FakeSource(gsm8k_rows()))
        whole = load_prompts("gsm8k")
        rows = tmp_path / "cache" / "gsm8k" / "rows.jsonl"
        rows.write_bytes(rows.read_bytes().replace(b"What is 7 ", b"What is 8 "))
        lines: list[str] = []
        assert load_prompts("gsm8k", announce=lines.append) == whole
        assert "rows.jsonl has another sha256 than when it was written" in lines[0]

    def test_a_damaged_copy_without_network_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache, "fetch_rows", FakeSource(gsm8k_rows()))
        load_prompts("gsm8k")
        rows = tmp_path / "cache" / "gsm8k" / "rows.jsonl"
        rows.write_bytes(rows.read_bytes()[:1000])
        monkeypatch.setattr(cache, "fetch_rows", FakeSource(error=UnavailableError("no network")))
        with pytest.raises(
            UnavailableError, match=r"cannot be used \(rows.jsonl has 1000 bytes .*; no network"
        ):
            load_prompts("gsm8k")
        assert rows.stat().st_size == 1000, "what was there is left as it was"

    @pytest.mark.parametrize(
        ("closed", "fault"),
        [
            ("cache/gsm8k/rows.jsonl", "rows.jsonl cannot be read: Permission denied"),
            ("cache/gsm8k/manifest.json", "no readable manifest.json: Permission denied"),
            ("cache/gsm8k", "no readable manifest.json: Permission denied"),
            ("cache", "no readable manifest.json: Permission denied"),
        ],
    )
    def test_what_may_not_be_read_is_said_and_passed_over(
        self, monkeypatch: pytest.MonkeyPatch, shared_folder: Path, closed: str, fault: str
    ) -> None:
        source = FakeSource(gsm8k_rows())
        monkeypatch.setattr(cache, "fetch_rows", source)
        with folder_of_bound_user() as parent:
            folder = parent / "cache"
            load_prompts("gsm8k", cache_folder=folder)
            (parent / closed).chmod(0)
            source.error = UnavailableError(
                "no network", "give its file by --dataset-file, DFLASH_DATASETS_DIR"
            )
            with pytest.raises(UnavailableError) as raised:
                load_prompts("gsm8k", cache_folder=folder)
            assert f"{folder / 'gsm8k'} cannot be used ({fault})" in raised.value.fault
            for way in ("--dataset-file", "DFLASH_DATASETS_DIR"):
                assert way in raised.value.mend
            assert ("--datasets-cache" in raised.value.mend) == (closed == "cache")
            with pytest.raises(UnavailableError, match=re.escape(f"cannot be used ({fault})")):
                verify_stored(CATALOGUE["gsm8k"], folder)
            assert read_stored(CATALOGUE["gsm8k"], folder) is None
            lines: list[str] = []
            monkeypatch.setenv("DFLASH_DATASETS_DIR", str(shared_folder / "datasets"))
            found = load_prompts("gsm8k", cache_folder=folder, announce=lines.append)
            assert found.source == "file test.jsonl of DFLASH_DATASETS_DIR"
            assert lines == [
                f"{folder / 'gsm8k'} cannot be used ({fault}): test.jsonl of DFLASH_DATASETS_DIR is read in its place"
            ]

    def test_read_again_where_it_is_replaced_meanwhile(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between the two renames of `fetch --force` there is no folder; its reader does not fail over that."""
        monkeypatch.setattr(cache, "fetch_rows", FakeSource(gsm8k_rows()))
        whole, folder = load_prompts("gsm8k"), tmp_path / "cache" / "gsm8k"
        outgoing = folder.with_name(".gsm8k.1.old.tmp")
        folder.rename(outgoing)
        monkeypatch.setattr("dflash.folder_manifest.time.sleep", lambda seconds: outgoing.rename(folder))
        assert load_prompts("gsm8k") == whole

        read_manifest = cache.read_manifest

        def read_and_move(folder: Path) -> Any:
            found = read_manifest(folder)
            folder.rename(outgoing)
            return found

        monkeypatch.setattr(cache, "read_manifest", read_and_move)
        rows = cache.read_cached(folder).rows
        assert len(list(rows)) == 1319, "moved between the manifest and the rows"

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), UnavailableError("no network")])
    def test_nothing_half_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
    ) -> None:
        monkeypatch.setattr(cache, "fetch_rows", FakeSource(error=error))
        with pytest.raises(type(error)):
            load_prompts("gsm8k")
        assert visible(tmp_path / "cache") == []


class TestNoNetwork:
    def test_the_three_ways_are_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the real sources, each of which is asked in vain."""
        import dflash.datasets.sources as sources
        from dflash import reachability

        monkeypatch.setattr(cache, "fetch_rows", sources.fetch_rows)
        monkeypatch.setattr(reachability, "_ask", lambda url: "no network")
        monkeypatch.setattr(reachability, "_unreachable", {})
        monkeypatch.setenv("DFLASH_DATASETS_DIR", str(tmp_path))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        with pytest.raises(UnavailableError) as raised:
            load_prompts("gsm8k")
        message = str(raised.value)
        assert message.startswith("the data set gsm8k cannot be had: DFLASH_DATASETS_DIR has no file of it; ")
        assert "test.jsonl of raw.githubusercontent.com cannot be reached (no network); " in message
        assert "openai/gsm8k cannot be had from the model hub (no network): " in message
        for way in ("--dataset-file", "DFLASH_DATASETS_DIR", "HF_ENDPOINT"):
            assert way in raised.value.mend

    def test_nothing_is_there_and_the_cache_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("", encoding="utf-8")
        monkeypatch.setenv("DFLASH_DATASETS_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(UnavailableError, match="--datasets-cache or DFLASH_DATASETS_CACHE"):
            load_prompts("gsm8k")


class TestPublishedFiles:
    """The original files, where the shared test data is."""

    def test_every_file_is_what_its_sources_say(self, shared_folder: Path) -> None:
        """Row counts and digests of the list that came with them."""
        folder = shared_folder / "datasets"
        text = (folder / "SOURCES.md").read_text(encoding="utf-8")
        num_files = 0
        for section in text.split("\n## ")[1:]:
            path = folder / section.split("\n")[0].strip()
            rows = re.search(r"rows: (\d+)", section)
            sha256 = re.search(r"sha256: ([0-9a-f]{64})", section)
            if not path.is_file() or rows is None or sha256 is None:
                continue
            num_files += 1
            assert file_sha256(path) == sha256[1], path
            assert len(read_rows(path)) == int(rows[1]), path
        assert num_files >= 10

    def published(self, folder: Path) -> list[tuple[str, Path, int | None]]:
        return [
            (spec.name, folder / file.path, file.num_rows)
            for spec in CATALOGUE.values()
            for file in spec.files
            if (folder / file.path).is_file()
        ]

    def test_every_file_gives_its_prompts_by_name_and_by_folder(
        self, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = self.published(shared_folder / "datasets")
        assert {"gsm8k", "humaneval", "math500", "mbpp", "mt-bench", "spec-bench"} <= {
            name for name, _, _ in found
        }
        for name, path, num_rows in found:
            named = load_prompts(name, dataset_file=path)
            assert named.num_available == len(named.prompts) > 0
            monkeypatch.setenv("DFLASH_DATASETS_DIR", str(shared_folder / "datasets"))
            if num_rows == CATALOGUE[name].num_rows:
                assert all(
                    "repeat the text" in note or note == CATALOGUE[name].caution for note in named.notes
                )
                assert load_prompts(name).digest == named.digest
        assert not (tmp_path / "cache").exists(), "a file at hand needs no cache"

    def test_fetched_out_of_the_folder(
        self, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every set that is there goes into the cache, and gives the same prompts from it."""
        import dflash.datasets.sources as sources

        monkeypatch.setattr(cache, "fetch_rows", sources.fetch_rows)
        monkeypatch.setenv("DFLASH_DATASETS_DIR", str(shared_folder / "datasets"))
        for name in dict.fromkeys(name for name, _, _ in self.published(shared_folder / "datasets")):
            spec, lines = CATALOGUE[name], []
            direct = load_prompts(name)
            fetch_dataset(spec, tmp_path / "cache", announce=lines.append)
            stored = verify_stored(spec, tmp_path / "cache")
            assert stored == read_stored(spec, tmp_path / "cache")
            cached = load_prompts(name)
            assert (cached.digest, cached.revision) == (direct.digest, direct.revision)
            assert stored.num_prompts == cached.num_available
            assert (len(lines) == 1) == (stored.num_prompts == spec.num_rows), "a changed count is said"

    def test_every_gsm8k_row_has_a_number_as_answer(self, shared_folder: Path) -> None:
        prompt_set = load_prompts("gsm8k", dataset_file=shared_folder / "datasets" / "gsm8k" / "test.jsonl")
        assert all(float(prompt.answer or "nan").is_integer() for prompt in prompt_set.prompts)

    def test_line_ends_inside_texts_are_kept(self, shared_folder: Path) -> None:
        path = shared_folder / "datasets" / "swebench_lite" / "swebench_lite_origin.jsonl"
        prompt_set = load_prompts("swe-bench", dataset_file=path)
        assert sum("\r\n" in prompt.turns[0] for prompt in prompt_set.prompts) == 165

    def test_another_set_in_a_similar_file_is_refused(self, shared_folder: Path, tmp_path: Path) -> None:
        """Known by its digest; and one that is not known, by its columns where they differ."""
        path = shared_folder / "datasets" / "mbpp" / "sanitized-mbpp.json"
        with pytest.raises(UsageError, match="is not the data set humaneval: that is the file of mbpp"):
            load_prompts("humaneval", dataset_file=path)
        copy = tmp_path / "copy.json"
        copy.write_bytes(path.read_bytes() + b"\n")
        with pytest.raises(UsageError, match="lacks entry_point"):
            load_prompts("humaneval", dataset_file=copy)

    def test_no_file_passes_for_another_set(self, shared_folder: Path, tmp_path: Path) -> None:
        """Every file for every other set: by its digest, and changed by a line end by its columns.

        These pairs have the same columns, or all that are asked for: the note says what they are not.
        """
        alike = {("mt-bench", "spec-bench"), ("spec-bench", "mt-bench"), ("aime24", "gsm8k")}
        found = self.published(shared_folder / "datasets")
        for owner, path, _ in found:
            for name in {name for name, _, _ in found} - {owner}:
                with pytest.raises(
                    UsageError, match=f"is not the data set {name}: that is the file of {owner}"
                ):
                    load_prompts(name, dataset_file=path)
                if path.suffix == ".gz":
                    continue
                copy = tmp_path / f"copy{path.suffix}"
                copy.write_bytes(path.read_bytes() + b"\n")
                try:
                    notes = load_prompts(name, dataset_file=copy).notes
                except UsageError:
                    continue
                assert (owner, name) in alike
                assert notes[0].startswith(ALTERED)

    @pytest.mark.parametrize(("name", "row"), HUB_ROWS)
    def test_the_columns_of_the_hub_are_taken(self, tmp_path: Path, name: str, row: dict[str, Any]) -> None:
        path = tmp_path / "rows.jsonl"
        path.write_bytes(format_rows([row]))
        assert load_prompts(name, dataset_file=path).num_available == 1
