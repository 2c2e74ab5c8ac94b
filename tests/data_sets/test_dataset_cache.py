"""Fetched data sets: whole or not there, verified, of this version, and never lost to what goes wrong."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dflash
import dflash.datasets.cache as cache
from dflash.built_folder import find_fault
from dflash.cache_folder import user_cache_folder
from dflash.data import main
from dflash.datasets.cache import datasets_cache_folder, fetch_dataset, folder_of
from dflash.datasets.catalogue import CATALOGUE
from dflash.datasets.custom import CustomSource, custom_spec
from dflash.datasets.files import Row, format_rows, iter_rows, read_rows
from dflash.datasets.sources import Fetched
from dflash.datasets.stored import read_stored, verify_stored
from dflash.errors import EXIT_UNAVAILABLE, UnavailableError, UsageError
from dflash.folder_manifest import facts_sha256

SPEC = replace(CATALOGUE["gsm8k"], num_rows=3)
ROWS = [
    {"question": "one\r\ntwo\u2028three", "answer": "#### 1", "n": 12345678901234567890, "reference": ["a"]},
    {"question": "four\x85", "answer": "#### 2", "reference": [["b"], None]},
    {"question": "five " * 400_000, "answer": "#### 3"},
]


class FakeSource:
    """Stands in for everything that rows are fetched from."""

    def __init__(self, rows: Iterable[Row] = ROWS, error: BaseException | None = None) -> None:
        self.rows, self.error, self.num_fetches = rows, error, 0

    def __call__(self, spec: object, scratch: Path, announce: object) -> Fetched:
        self.num_fetches += 1
        (scratch / "half").write_text("half", encoding="utf-8")
        if self.error is not None:
            raise self.error
        return Fetched(self.rows, "a stand-in", SPEC.revision)


Use = Callable[..., FakeSource]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    def use(rows: Iterable[Row] = ROWS, error: BaseException | None = None) -> FakeSource:
        source = FakeSource(rows, error)
        monkeypatch.setattr(cache, "fetch_rows", source)
        return source

    return use


def fetch(folder: Path, spec: Any = SPEC, **options: Any) -> list[str]:
    lines: list[str] = []
    fetch_dataset(spec, folder, announce=lines.append, **options)
    return lines


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def change_manifest(folder: Path, **facts: Any) -> None:
    """As another version might have written it. The list of files is of the rows, and stays right."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8")) | facts
    manifest = {name: value for name, value in manifest.items() if value is not ...}
    if facts.get("facts_sha256") is not ...:
        manifest["facts_sha256"] = facts_sha256(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


class TestFetch:
    def test_rows_are_kept_as_they_were_published(self, tmp_path: Path, use: Use) -> None:
        """Line ends inside texts, U+2028, numbers of any size, types that differ, two megabytes in one text."""
        use()
        assert fetch(tmp_path) == [f"fetching the data set gsm8k into {tmp_path}"]
        assert visible(tmp_path) == ["gsm8k"]
        assert visible(tmp_path / "gsm8k") == ["manifest.json", "rows.jsonl"]
        assert read_rows(tmp_path / "gsm8k" / "rows.jsonl") == ROWS

    def test_what_is_stored_is_told(self, tmp_path: Path, use: Use) -> None:
        assert read_stored(SPEC, tmp_path) is None
        use()
        fetch(tmp_path)
        stored = read_stored(SPEC, tmp_path)
        assert stored is not None
        assert stored == verify_stored(SPEC, tmp_path)
        assert (stored.name, stored.folder) == ("gsm8k", tmp_path / "gsm8k")
        assert (stored.num_rows, stored.num_prompts) == (3, 3)
        assert stored.num_bytes == len(format_rows(ROWS))
        assert (stored.source, stored.revision, stored.pin) == ("a stand-in", SPEC.revision, SPEC.revision)
        assert (stored.template_version, stored.licence) == ("gsm8k-1", "MIT")
        assert stored.fetched_at.endswith("+00:00")

    def test_rows_that_are_no_prompts_are_counted_apart(self, tmp_path: Path, use: Use) -> None:
        def to_prompt(row: Row, prompt_id: str) -> Any:
            return SPEC.to_prompt(row, prompt_id) if "reference" in row else None

        use()
        spec = replace(SPEC, to_prompt=to_prompt, num_rows=2)
        fetch(tmp_path, spec)
        stored = verify_stored(spec, tmp_path)
        assert (stored.num_rows, stored.num_prompts) == (3, 2)

    def test_what_nobody_reads_is_not_kept(self, tmp_path: Path, use: Use) -> None:
        use()
        spec = replace(SPEC, unused_columns=("reference", "n"))
        fetch(tmp_path, spec)
        rows = read_rows(tmp_path / "gsm8k" / "rows.jsonl")
        assert rows == [{"question": row["question"], "answer": row["answer"]} for row in ROWS]

    def test_another_number_of_rows_is_said_with_the_pin(self, tmp_path: Path, use: Use) -> None:
        use(ROWS[:2])
        assert fetch(tmp_path)[1] == (
            f"a stand-in gives 2 prompts, the data set gsm8k has 3 at the pinned revision {SPEC.revision}"
        )

    def test_replaced_when_asked(self, tmp_path: Path, use: Use) -> None:
        use(ROWS[:1])
        fetch(tmp_path)
        source = use()
        fetch(tmp_path)
        assert source.num_fetches == 0
        fetch(tmp_path, replace=True)
        assert source.num_fetches == 1
        assert verify_stored(SPEC, tmp_path).num_rows == 3

    def test_out_of_a_file_that_is_named(self, tmp_path: Path, use: Use) -> None:
        source = use()
        fetch(tmp_path)
        file = tmp_path / "mine.jsonl"
        file.write_bytes(format_rows(ROWS[:2]))
        for _ in range(2):
            fetch(tmp_path, dataset_file=file)
            stored = verify_stored(SPEC, tmp_path)
            assert (stored.num_rows, stored.source) == (2, "file mine.jsonl")
        assert source.num_fetches == 1
        with pytest.raises(UsageError, match=r"missing.jsonl cannot be read"):
            fetch(tmp_path, dataset_file=tmp_path / "missing.jsonl")

    def test_out_of_a_file_whose_name_is_no_text(self, tmp_path: Path) -> None:
        file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jsonl"))
        try:
            file.write_bytes(format_rows(ROWS))
        except OSError:
            pytest.skip("this file system takes only names that are UTF-8")
        fetch(tmp_path / "cache", dataset_file=file)
        stored = verify_stored(SPEC, tmp_path / "cache")
        assert stored.source == r"file caf\xe9.jsonl"
        assert stored.doubt is not None
        assert stored.doubt.isprintable()

    @pytest.mark.parametrize(
        ("name", "data"),
        [
            ("x.parquet", b"<html>no such page</html>"),
            ("x.parquet", b"PAR1 and no more"),
            ("x.jsonl", b'{"question": "?"}\n'),
        ],
    )
    def test_what_a_mirror_gives_is_the_fault_of_the_mirror(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
    ) -> None:
        kept = tmp_path / name
        kept.write_bytes(data)

        def give(spec: object, scratch: Path, announce: object) -> Fetched:
            return Fetched(
                iter_rows(kept), "openai/gsm8k", SPEC.revision, host="the model hub http://x", kept_in=kept
            )

        monkeypatch.setattr(cache, "fetch_rows", give)
        with pytest.raises(UnavailableError) as raised:
            fetch(tmp_path / "cache")
        assert "the model hub http://x gives something else than the data set gsm8k: " in raised.value.fault
        assert raised.value.mend.startswith(f"remove {kept}, which the client keeps, and give its original")
        for way in ("--dataset-file", "DFLASH_DATASETS_DIR", "HF_ENDPOINT"):
            assert way in raised.value.mend
        assert visible(tmp_path / "cache") == []

    def test_what_is_shipped_needs_no_cache(self, tmp_path: Path) -> None:
        spec = CATALOGUE["quickstart"]
        assert fetch(tmp_path / "cache", spec) == []
        assert not (tmp_path / "cache").exists()
        stored = read_stored(spec, tmp_path)
        assert stored == verify_stored(spec, tmp_path)
        assert stored is not None
        assert (stored.num_prompts, stored.source) == (68, "shipped with dflash")

    @pytest.mark.parametrize(
        ("rows", "fault"),
        [
            (
                [{"question": "?"}],
                r"row 1 lacks answer: expected the columns question, answer; found question",
            ),
            ([{"question": " ", "answer": "1"}], r"row 1 of a stand-in: question is empty"),
            ([{"question": ["?"], "answer": "1"}], r"row 1 of a stand-in: question is a list and no text"),
        ],
    )
    def test_what_is_not_the_data_set_leaves_the_old_one(
        self, tmp_path: Path, use: Use, rows: list[Row], fault: str
    ) -> None:
        use()
        fetch(tmp_path)
        use(rows)
        with pytest.raises(UsageError, match=fault):
            fetch(tmp_path, replace=True)
        assert visible(tmp_path) == ["gsm8k"]
        assert verify_stored(SPEC, tmp_path).num_rows == 3


class TestOtherVersions:
    @pytest.mark.parametrize(
        ("facts", "words"),
        [
            (
                {"store_format": ...},
                "was written by an older version of dflash (format 0, this one writes 2)",
            ),
            ({"num_prompts": ...}, "was written by an older version of dflash"),
            ({"store_format": 7}, "was written by a newer version of dflash (format 7, this one writes 2)"),
            (
                {"store_format": 1, "doubt": ...},
                "was written by an older version of dflash (format 1, this one",
            ),
            ({"facts_sha256": ...}, "was written by an older version of dflash"),
            (
                {"format": 2},
                "cannot be used (manifest.json has format 2 of a newer version, this one writes 1)",
            ),
            ({"format": 0}, "cannot be used (no readable manifest.json)"),
            ({"pin": "840"}, f"is of the pinned revision 840 and not {SPEC.revision}"),
            ({"template_version": "gsm8k-0"}, "was made for the template gsm8k-0 and not gsm8k-1"),
        ],
    )
    def test_said_and_fetched_anew(self, tmp_path: Path, use: Use, facts: dict[str, Any], words: str) -> None:
        use(ROWS[:1])
        fetch(tmp_path)
        folder = tmp_path / "gsm8k"
        change_manifest(folder, **facts)
        old = (folder / "manifest.json").read_bytes()
        with pytest.raises(UnavailableError) as raised:
            verify_stored(SPEC, tmp_path)
        assert f"{folder} {words}" in raised.value.fault
        assert raised.value.mend == "fetch it: python -m dflash.data fetch gsm8k"

        use(error=UnavailableError("no network", "connect"))
        with pytest.raises(UnavailableError) as raised:
            fetch(tmp_path)
        assert f"{folder} {words}" in raised.value.fault, "what is there is said"
        assert raised.value.fault.endswith("; no network"), "and why there is no other"
        assert raised.value.mend == "connect"
        assert (folder / "manifest.json").read_bytes() == old, "and it stays as it was"
        assert len(read_rows(folder / "rows.jsonl")) == 1

        use()
        lines = fetch(tmp_path)
        assert f"{folder} {words}" in lines[0]
        assert verify_stored(SPEC, tmp_path).num_rows == 3
        assert visible(tmp_path) == ["gsm8k"]

    @pytest.mark.parametrize(
        ("facts", "fault"),
        [
            ({"num_rows": float("nan")}, "no readable num_rows"),
            ({"num_rows": "many"}, "no readable num_rows"),
            ({"num_rows": -5}, "no readable num_rows"),
            ({"num_rows": True}, "no readable num_rows"),
            ({"num_prompts": 3.0}, "no readable num_prompts"),
            ({"source": {"a": 1}}, "no readable source"),
            ({"source": None}, "no readable source"),
            ({"revision": 7}, "no readable revision"),
            ({"pin": []}, "no readable pin"),
            ({"licence": None}, "no readable licence"),
            ({"template_version": 1}, "no readable template_version"),
            ({"fetched_at": 0}, "no readable fetched_at"),
            ({"doubt": False}, "no readable doubt"),
            ({"store_format": "2"}, "no readable store_format"),
            ({"store_format": [2]}, "no readable store_format"),
            ({"dataset": "math500"}, "is of the data set math500"),
        ],
    )
    def test_what_cannot_be_true_is_damage(
        self, tmp_path: Path, use: Use, facts: dict[str, Any], fault: str
    ) -> None:
        use()
        fetch(tmp_path)
        change_manifest(tmp_path / "gsm8k", **facts)
        assert read_stored(SPEC, tmp_path) is None
        with pytest.raises(
            UnavailableError, match=rf"cannot be used \(manifest.json (has )?{fault}\): fetch it"
        ):
            verify_stored(SPEC, tmp_path)
        assert f"{fault})" in fetch(tmp_path)[0]
        assert verify_stored(SPEC, tmp_path).num_rows == 3

    @pytest.mark.parametrize("fact", ["revision", "pin", "source", "licence", "num_rows", "facts_sha256"])
    def test_a_bit_of_the_manifest_that_flipped(self, tmp_path: Path, use: Use, fact: str) -> None:
        use()
        fetch(tmp_path)
        path = tmp_path / "gsm8k" / "manifest.json"
        text = path.read_text(encoding="utf-8")
        place = text.index('": ', text.index(f'"{fact}"')) + 3 + (fact != "num_rows")
        path.write_text(text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :], encoding="utf-8")
        with pytest.raises(UnavailableError, match=r"manifest.json is not as it was written"):
            verify_stored(SPEC, tmp_path)
        assert read_stored(SPEC, tmp_path) is None
        fetch(tmp_path)
        assert verify_stored(SPEC, tmp_path).revision == SPEC.revision

    def test_only_what_can_be_read_is_told(self, tmp_path: Path, use: Use) -> None:
        use()
        fetch(tmp_path)
        change_manifest(tmp_path / "gsm8k", pin="840")
        stored = read_stored(SPEC, tmp_path)
        assert stored is not None
        assert stored.pin == "840"
        change_manifest(tmp_path / "gsm8k", store_format=0)
        assert read_stored(SPEC, tmp_path) is None


class TestDamageInTheList:
    """One folder that nothing can be made of keeps no other from being listed or verified."""

    @pytest.mark.parametrize("kind", ["deep", "pipe", "file", "link", "other set", "NaN"])
    def test_the_others_are_told(
        self, tmp_path: Path, use: Use, capsys: pytest.CaptureFixture[str], kind: str
    ) -> None:
        use()
        for name in ("gsm8k", "aime24"):
            fetch(tmp_path, replace(SPEC, name=name))
        folder = tmp_path / "aime24"
        manifest = folder / "manifest.json"
        if kind == "deep":
            manifest.write_text("[" * 200_000, encoding="utf-8")
        elif kind == "pipe":
            manifest.unlink()
            os.mkfifo(manifest)
        elif kind == "NaN":
            change_manifest(folder, num_rows=float("nan"))
        elif kind == "other set":
            change_manifest(folder, dataset="gsm8k")
        else:
            shutil.rmtree(folder)
            if kind == "file":
                folder.write_text("", encoding="utf-8")
            else:
                folder.symlink_to(tmp_path / "nothing")
        assert main(["list", "gsm8k", "aime24", "--datasets-cache", str(tmp_path), "--json", "-"]) == 0
        listed = json.loads(capsys.readouterr().out)["datasets"]
        assert [document["in_cache"] for document in listed] == [True, False]
        assert listed[0]["error"] is None
        assert f"{folder} cannot be used" in listed[1]["error"]
        main(["verify", "--datasets-cache", str(tmp_path), "--json", "-"])
        verified = json.loads(capsys.readouterr().out)["datasets"]
        assert [document["name"] for document in verified] == ["gsm8k", "aime24"]
        assert f"{folder} cannot be used" in verified[1]["error"]

    def test_a_doubt_is_told(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "mine.jsonl"
        file.write_bytes(format_rows(ROWS))
        fetch(tmp_path, dataset_file=file)
        for words in (["list", "gsm8k"], ["verify", "gsm8k"]):
            assert main([*words, "--datasets-cache", str(tmp_path)]) in (0, EXIT_UNAVAILABLE)
            assert "these rows are not the published ones" in " ".join(capsys.readouterr().out.split())
        assert main(["list", "--datasets-cache", str(tmp_path)]) == 0
        assert "in the cache, 3 rows, not known to be as published" in capsys.readouterr().out


class TestVerify:
    def test_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(
            UnavailableError, match=r"gsm8k is not in .*: fetch it: python -m dflash.data fetch"
        ):
            verify_stored(SPEC, tmp_path)

    @pytest.mark.parametrize(
        ("change", "fault"),
        [
            (lambda data: data.replace(b"four", b"five"), "rows.jsonl has another sha256 than when"),
            (lambda data: data[:1000], "rows.jsonl has 1000 bytes and not"),
        ],
    )
    def test_damaged(self, tmp_path: Path, use: Use, change: Callable[[bytes], bytes], fault: str) -> None:
        use()
        fetch(tmp_path)
        rows = tmp_path / "gsm8k" / "rows.jsonl"
        rows.write_bytes(change(rows.read_bytes()))
        with pytest.raises(UnavailableError, match=fault):
            verify_stored(SPEC, tmp_path)
        lines = fetch(tmp_path)
        assert fault in lines[0]
        assert verify_stored(SPEC, tmp_path).num_rows == 3

    def test_a_template_that_changed_without_its_version(self, tmp_path: Path, use: Use) -> None:
        use()
        fetch(tmp_path)
        fewer = replace(SPEC, to_prompt=lambda row, id: SPEC.to_prompt(row, id) if "n" in row else None)
        with pytest.raises(UnavailableError, match="holds 3 rows and 1 prompts, its manifest says 3 and 3"):
            verify_stored(fewer, tmp_path)

        def refuse(row: Row, prompt_id: str) -> None:
            raise ValueError("question is odd")

        with pytest.raises(UnavailableError, match=r"row 1 of .*rows.jsonl: question is odd"):
            verify_stored(replace(SPEC, to_prompt=refuse), tmp_path)


class TestPlaces:
    @pytest.mark.parametrize("name", ["DFLASH_DATASETS_CACHE", "DFLASH_CACHE"])
    def test_the_home_of_nobody(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.setattr(cache, "PACKAGE", tmp_path / "dflash")
        monkeypatch.delenv("DFLASH_DATASETS_CACHE", raising=False)
        monkeypatch.setenv(name, "~nope/x")
        with pytest.raises(UsageError, match=f"{name} names ~nope/x, and it is not known whose home"):
            datasets_cache_folder()

    def test_no_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        for name in ("DFLASH_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", no_home)
        with pytest.raises(
            UsageError, match="no home folder to keep things in: name a folder in DFLASH_CACHE"
        ):
            user_cache_folder()

    def test_an_empty_variable_counts_as_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("DFLASH_DATASETS_CACHE", raising=False)
        expected = datasets_cache_folder()
        monkeypatch.setenv("DFLASH_DATASETS_CACHE", "")
        assert datasets_cache_folder() == expected

    @pytest.mark.parametrize("folder", ["n" * 300, "a/" * 3000], ids=["name", "path"])
    def test_a_name_that_is_too_long(self, tmp_path: Path, use: Use, folder: str) -> None:
        use()
        with pytest.raises(UnavailableError, match="File name too long: choose a cache folder that can be"):
            fetch(tmp_path / folder)
        assert read_stored(SPEC, tmp_path / folder) is None

    @pytest.mark.parametrize("kind", ["file", "link to nothing", "link to a folder"])
    def test_what_stands_in_the_place_is_replaced(self, tmp_path: Path, use: Use, kind: str) -> None:
        target, place = tmp_path / "target", tmp_path / "cache" / "gsm8k"
        for folder in (target, place.parent):
            folder.mkdir()
        (target / "kept").touch()
        if kind == "file":
            place.write_text("a file", encoding="utf-8")
        else:
            place.symlink_to(target if kind == "link to a folder" else tmp_path / "nothing")
        use()
        assert "cannot be used (no readable manifest.json) and is built anew" in fetch(place.parent)[0]
        assert visible(place.parent) == ["gsm8k"]
        assert verify_stored(SPEC, place.parent).num_rows == 3
        assert (target / "kept").exists()

    def test_never_inside_an_installed_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("DFLASH_DATASETS_CACHE", "DFLASH_CACHE"):
            monkeypatch.delenv(name, raising=False)
        checkout = Path(dflash.__file__).parents[1]
        assert datasets_cache_folder() == checkout / "datasets_cache"
        site_packages = tmp_path / "site-packages"
        (site_packages / "datasets_cache").mkdir(parents=True)
        monkeypatch.setattr(cache, "PACKAGE", site_packages / "dflash")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert datasets_cache_folder() == tmp_path / "xdg" / "dflash" / "datasets"
        monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "own"))
        assert datasets_cache_folder() == tmp_path / "own" / "datasets"
        monkeypatch.setenv("DFLASH_DATASETS_CACHE", str(tmp_path / "chosen"))
        assert datasets_cache_folder() == tmp_path / "chosen"

    @pytest.mark.parametrize(
        "hub_id", ["../../etc/passwd", "a/../b", "a/b", "a/b\x00", "/abs/olute", "...", "a" * 300 + "/b", ""]
    )
    def test_no_name_leaves_the_cache(self, tmp_path: Path, hub_id: str) -> None:
        spec = replace(SPEC, name="custom")
        folder = folder_of(spec, CustomSource(hub_id=hub_id), tmp_path)
        assert folder.parent == tmp_path
        assert folder.resolve().parent == tmp_path.resolve()
        assert len(folder.name) < 100

    def test_own_data_sets_are_told_apart(self, tmp_path: Path) -> None:
        sources = [
            CustomSource(hub_id="a/b"),
            CustomSource(hub_id="a/b", hub_config="c"),
            CustomSource(hub_id="a/b", hub_split="c"),
            CustomSource(hub_id="a/b", hub_revision="c"),
            CustomSource(hub_id="a-b/c"),
            CustomSource(hub_id="a/b-c"),
        ]
        folders = {folder_of(custom_spec(source), source, tmp_path) for source in sources}
        assert len(folders) == len(sources)
        same = [CustomSource(hub_id="a/b", prompt_field=field) for field in ("x", "y")]
        assert len({folder_of(custom_spec(source), source, tmp_path) for source in same}) == 1


class TestOwnDataSets:
    def test_rows_are_fetched_once_whatever_their_columns_are_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fetched: list[CustomSource] = []

        def fetch_custom(source: CustomSource, announce: object) -> Fetched:
            fetched.append(source)
            return Fetched([{"x": "one", "y": "two"}], "someone/things, split test", "c0ffee")

        monkeypatch.setattr(cache, "fetch_custom_rows", fetch_custom)
        for field in ("x", "y"):
            source = CustomSource(hub_id="someone/things", prompt_field=field)
            fetch(tmp_path, custom_spec(source), custom=source)
            stored = verify_stored(custom_spec(source), tmp_path, custom=source)
            assert stored.revision == "c0ffee"
            assert read_stored(custom_spec(source), tmp_path, custom=source) == stored
        assert len(fetched) == 1


class TestDisk:
    def test_a_cache_that_cannot_be_written(self, tmp_path: Path, use: Use) -> None:
        """A file stands where the folder should be: that binds even those whom permissions do not."""
        source = use()
        (tmp_path / "file").write_text("", encoding="utf-8")
        with pytest.raises(UnavailableError) as raised:
            fetch(tmp_path / "file" / "cache")
        assert "--datasets-cache or DFLASH_DATASETS_CACHE" in raised.value.mend
        assert source.num_fetches == 0, "found before anything is downloaded"

    def test_what_is_read_is_not_blamed_on_the_cache(self, tmp_path: Path, use: Use) -> None:
        def rows() -> Iterator[Row]:
            yield ROWS[0]
            raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "elsewhere" / "source"))

        use(rows())
        with pytest.raises(PermissionError, match="elsewhere/source"):
            fetch(tmp_path / "cache")
        assert visible(tmp_path / "cache") == []

    def test_a_read_only_cache_is_read(
        self, tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use()
        fetch(tmp_path)
        open_file = Path.open

        def refuse(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if mode != "r" and mode != "rb":
                raise OSError(errno.EROFS, "Read-only file system")
            return open_file(path, mode, *arguments, **options)

        monkeypatch.setattr(Path, "open", refuse)
        fetch(tmp_path)
        assert verify_stored(SPEC, tmp_path).num_rows == 3
        with pytest.raises(UnavailableError, match=r"Read-only file system: choose a cache folder that can"):
            fetch(tmp_path, replace=True)

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk_leaves_the_old_one(self, tmp_path: Path, use: Use, number: int) -> None:
        def rows() -> Iterator[Row]:
            yield ROWS[0]
            raise OSError(number, os.strerror(number))  # as the write of this row would

        use()
        fetch(tmp_path)
        use(rows())
        with pytest.raises(UnavailableError, match=os.strerror(number)) as raised:
            fetch(tmp_path, replace=True)
        assert raised.value.mend.startswith(
            "free some space or choose another cache folder (--datasets-cache"
        )
        assert visible(tmp_path) == ["gsm8k"]
        assert verify_stored(SPEC, tmp_path).num_rows == 3


PROCESS = """
import sys, time
from dataclasses import replace
from pathlib import Path
import dflash.datasets.cache as cache
from dflash.datasets.catalogue import CATALOGUE
from dflash.datasets.sources import Fetched
from dflash.datasets.stored import read_stored, verify_stored
from dflash.errors import UnavailableError

folder, log, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

def rows():
    for number in range(1000):
        yield {"question": "What? " * 200, "answer": "#### 1"}
        if number == 500 and kind == "slow":
            with log.open("a") as stream:
                stream.write("fetching\\n")
            while not (log.parent / "go").exists():
                time.sleep(0.01)

def fetch_rows(spec, scratch, announce):
    (scratch / "half").write_text("half")
    return Fetched(rows(), "a stand-in", spec.revision)

cache.fetch_rows = fetch_rows
if kind == "limited":  # the kernel refuses what is longer, in the midst of the rows
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    spec = replace(CATALOGUE["gsm8k"], num_rows=1000)
    cache.fetch_dataset(spec, folder, announce=lambda line: print(line, flush=True), replace=kind == "limited")
except UnavailableError as error:
    print(error, flush=True)
"""


class TestProcesses:
    """Real processes that are killed, wait for each other, and may write no more."""

    def start(self, tmp_path: Path, kind: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROCESS, str(tmp_path / "cache"), str(tmp_path / "log"), kind]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def wait_until_fetching(self, tmp_path: Path) -> None:
        deadline = time.monotonic() + 60
        while not (tmp_path / "log").exists():
            assert time.monotonic() < deadline, "the fetch never began"
            time.sleep(0.01)

    def test_a_fetch_that_is_killed_half_way(self, tmp_path: Path, use: Use) -> None:
        process = self.start(tmp_path, "slow")
        self.wait_until_fetching(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        (left,) = visible(tmp_path / "cache")
        assert left.startswith(".gsm8k."), "it was killed in the midst of its rows"
        assert read_stored(SPEC, tmp_path / "cache") is None
        use()
        fetch(tmp_path / "cache")
        assert visible(tmp_path / "cache") == ["gsm8k"], "what the killed one left is removed"
        assert verify_stored(SPEC, tmp_path / "cache").num_rows == 3

    def test_a_kill_while_an_old_one_is_replaced(self, tmp_path: Path, use: Use) -> None:
        use()
        fetch(tmp_path / "cache", replace(SPEC, template_version="gsm8k-0"))
        process = self.start(tmp_path, "slow")
        self.wait_until_fetching(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        assert find_fault(tmp_path / "cache" / "gsm8k", hashes=True) is None, "the old one is whole"
        fetch(tmp_path / "cache")
        assert visible(tmp_path / "cache") == ["gsm8k"]
        assert verify_stored(SPEC, tmp_path / "cache").num_rows == 3

    def test_two_at_once_fetch_once(self, tmp_path: Path) -> None:
        first = self.start(tmp_path, "slow")
        self.wait_until_fetching(tmp_path)
        second = self.start(tmp_path, "slow")
        assert second.stdout is not None
        assert second.stdout.readline() == "another process is building gsm8k: waiting for it\n"
        (tmp_path / "go").touch()
        assert "fetching the data set gsm8k" in first.communicate(timeout=60)[0]
        assert second.communicate(timeout=60)[0] == ""
        assert (first.returncode, second.returncode) == (0, 0)
        assert (tmp_path / "log").read_text(encoding="utf-8") == "fetching\n"
        assert verify_stored(replace(SPEC, num_rows=1000), tmp_path / "cache").num_rows == 1000

    def test_a_disk_that_takes_no_more(self, tmp_path: Path, use: Use) -> None:
        use()
        fetch(tmp_path / "cache")
        said = self.start(tmp_path, "limited").communicate(timeout=60)[0].splitlines()
        assert "cannot write" in said[-1]
        assert "free some space or choose another cache folder (--datasets-cache" in said[-1]
        assert visible(tmp_path / "cache") == ["gsm8k"]
        assert verify_stored(SPEC, tmp_path / "cache").num_rows == 3
