"""The verb `data`: what it lists, fetches and verifies, the prompts that it shows, and the code it ends with."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import dflash.dataset_store
from dflash.built_folder import file_sha256
from dflash.data import _fetch, main
from dflash.data_arguments import build_parser
from dflash.dataset_store import load_prompts
from dflash.datasets.catalogue import CATALOGUE, GROUPS, expand_datasets
from dflash.datasets.listing import printable
from dflash.errors import UnavailableError, UsageError
from dflash.prompts import prompts_digest

QUIET_ROWS = [
    {"question": f"What is {number} + {number}?", "answer": f"Add.\n#### {2 * number}"} for number in range(5)
]
NASTY = "red \x1b[31m bell \x07 c1 \x9b31m back\r bidi \u202e next\u2028 tab\t nbsp\u00a0 zwj \u200d end"


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine is seen: no cache, no files at hand, no hub, no package index."""
    monkeypatch.setenv("DFLASH_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DFLASH_DATASETS_DIR", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def gsm8k_file(tmp_path: Path) -> Path:
    path = tmp_path / "made-up.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in QUIET_ROWS), encoding="utf-8")
    return path


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON document of a call, which is all that stands on standard output."""
    assert main([*arguments, "--json", "-"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code
    return document


def only(document: dict[str, Any]) -> dict[str, Any]:
    (entry,) = document["datasets"]
    assert isinstance(entry, dict)
    return entry


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one line that a call ends with; nothing is on standard output."""
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    return line


# --- list


def test_every_entry_is_listed_with_what_is_known_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    entries = {entry["name"]: entry for entry in run_json(capsys, "list")["datasets"]}
    assert list(entries) == list(CATALOGUE)
    for name, spec in CATALOGUE.items():
        entry = entries[name]
        assert entry["expected_num_prompts"] == entry["num_rows"] == spec.num_rows
        assert entry["licence"] == spec.licence
        assert entry["template_version"] == spec.template_version
        assert entry["categories"] == list(spec.categories)
        assert entry["pin"] == spec.revision
        assert entry["in_cache"] is False
        assert entry["error"] is None
        assert entry["shipped"] is (spec.shipped is not None)
        assert (entry["sha256"] is None) is (entry["source"] is None) is not entry["shipped"]
    assert entries["gsm8k"]["origin"] == "openai/gsm8k"
    assert entries["gsm8k"]["config"] == "main"


def test_one_line_for_each_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    table, end = capsys.readouterr().out.split("\n\n")
    head, *lines = table.splitlines()
    assert head.split() == ["name", "group", "prompts", "size", "state"]
    assert [line.split()[0] for line in lines] == list(CATALOGUE)
    assert max(map(len, lines)) <= 80
    by_name = {line.split()[0]: line for line in lines}
    assert by_name["gsm8k"].endswith("  math      1319  749.7 kB  not in the cache")
    assert by_name["quickstart"].endswith("  shipped")
    assert by_name["gpqa"].endswith("not in the cache, gated")
    assert by_name["speed-bench-8k"].split()[1:3] == ["-", "1536"]
    assert by_name["speed-bench-8k"].endswith("not in the cache, to be prepared")
    assert "python -m dflash.data list --long" in end
    assert len(end.splitlines()) == 2


def test_a_file_at_hand_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    monkeypatch.setenv("DFLASH_DATASETS_DIR", str(folder))
    (folder / "gpqa").mkdir(parents=True)
    (folder / "gpqa" / "gpqa_diamond.csv").write_text("Question\n")  # taken by its name
    (folder / "gsm8k").mkdir()
    (folder / "gsm8k" / "test.jsonl").write_text("{}")  # not as published
    assert main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert lines["gpqa"].endswith("  in DFLASH_DATASETS_DIR")
    assert lines["gsm8k"].endswith("  not in the cache")
    assert main(["list", "gpqa", "gsm8k"]) == 0
    flat = " ".join(capsys.readouterr().out.split())
    assert f"DFLASH_DATASETS_DIR has its file {folder}/gpqa/gpqa_diamond.csv" in flat
    assert "gsm8k/test.jsonl in DFLASH_DATASETS_DIR is not as published" in flat
    entries = {entry["name"]: entry for entry in run_json(capsys, "list")["datasets"]}
    assert entries["gpqa"]["file_at_hand"] == str(folder / "gpqa" / "gpqa_diamond.csv")
    assert entries["gsm8k"]["file_at_hand"] is None
    assert "is not as published" in entries["gsm8k"]["file_at_hand_fault"]
    monkeypatch.setenv("DFLASH_DATASETS_DIR", str(tmp_path / "none"))
    assert "which is no folder" in refused(capsys, "list")


def test_a_part_of_a_set_at_hand_is_said_to_be_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shared_folder: Path
) -> None:
    monkeypatch.setenv("DFLASH_DATASETS_DIR", str(shared_folder / "datasets"))
    assert main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert lines["gsm8k"].endswith("  in DFLASH_DATASETS_DIR")
    assert lines["mbpp"].endswith("  in DFLASH_DATASETS_DIR")
    assert lines["sharegpt"].endswith("  in DFLASH_DATASETS_DIR, 500 rows")
    assert max(len(lines[name]) for name in CATALOGUE) <= 80


def test_how_sets_are_prepared_stands_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--long"]) == 0
    assert capsys.readouterr().out.count("prepare_data.py") == 1
    assert main(["list", "speed-bench"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--dataset speed --config qualitative; " in out
    entries = {entry["name"]: entry for entry in run_json(capsys, "list")["datasets"]}
    assert "--config throughput_8k" in entries["speed-bench-8k"]["needs_preparation"]


def test_a_caution_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert only(run_json(capsys, "list", "mbpp"))["caution"] == CATALOGUE["mbpp"].caution
    assert main(["list", "mbpp"]) == 0
    assert str(CATALOGUE["mbpp"].caution) in " ".join(capsys.readouterr().out.split())


def test_the_full_listing_fits_the_terminal_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--long"]) == 0
    out = capsys.readouterr().out
    flat = " ".join(out.split())
    for name, spec in CATALOGUE.items():
        assert f"\n{name} " in f"\n{out}"
        assert f"template {spec.template_version}" in flat
        assert f"licence {spec.licence}" in flat
        if spec.hub is not None:
            assert spec.hub.dataset_id in flat
    entries, _, end = out.rpartition("\n\n")
    assert max(map(len, entries.splitlines())) <= 80
    for note in expand_datasets(["all"])[1]:
        assert note in end


def test_names_and_groups_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    names = [entry["name"] for entry in run_json(capsys, "list", "humaneval", "math")["datasets"]]
    assert tuple(names) == expand_datasets(["humaneval", "math"])[0]
    assert {"humaneval", "gsm8k"} < set(names)


@pytest.mark.parametrize("name", ["../gsm8k", "a/b", "/etc", "..", "GSM8K", "nothing", ""])
@pytest.mark.parametrize("action", ["list", "fetch", "verify", "show"])
def test_a_name_that_is_not_in_the_catalogue_is_unknown(
    capsys: pytest.CaptureFixture[str], action: str, name: str
) -> None:
    assert f"unknown data set {name!r}" in refused(capsys, action, name)


# --- fetch and verify


def test_a_file_is_taken_into_the_cache_and_found_whole(
    capsys: pytest.CaptureFixture[str], gsm8k_file: Path, tmp_path: Path
) -> None:
    assert main(["fetch", "gsm8k", "--dataset-file", str(gsm8k_file)]) == 0
    assert capsys.readouterr().out.startswith("gsm8k: 5 rows, ")
    listed = only(run_json(capsys, "list", "gsm8k"))
    assert (listed["in_cache"], listed["num_rows"], listed["num_prompts"]) == (True, 5, 5)
    assert listed["expected_num_prompts"] == 1319
    assert len(listed["sha256"]) == 64
    assert Path(listed["folder"]).parent == tmp_path / "cache"
    verified = only(run_json(capsys, "verify"))
    assert {**verified, "num_prompts": 5} == listed
    assert main(["list", "gsm8k"]) == 0
    assert "in the cache, 5 rows" in capsys.readouterr().out


def test_the_cache_folder_can_be_named(
    capsys: pytest.CaptureFixture[str], gsm8k_file: Path, tmp_path: Path
) -> None:
    there = ("--datasets-cache", str(tmp_path / "other"))
    fetched = only(run_json(capsys, "fetch", "gsm8k", "--dataset-file", str(gsm8k_file), *there))
    assert Path(fetched["folder"]).parent == tmp_path / "other"
    assert only(run_json(capsys, "verify", *there))["name"] == "gsm8k"
    assert run_json(capsys, "verify")["datasets"] == []


def test_what_is_damaged_is_named_with_the_mend(
    capsys: pytest.CaptureFixture[str], gsm8k_file: Path, tmp_path: Path
) -> None:
    main(["fetch", "gsm8k", "--dataset-file", str(gsm8k_file), "--quiet"])
    assert capsys.readouterr().out == ""
    rows = tmp_path / "cache" / "gsm8k" / "rows.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b"4 + 4", b"4 + 5"))
    line = refused(capsys, "verify", code=4)
    assert "gsm8k" in line
    assert "fetch" in line
    entry = only(run_json(capsys, "verify", "gsm8k", code=4))
    assert entry["error"] in line
    assert entry["in_cache"] is False
    (rows.parent / "manifest.json").write_text("{")
    assert "gsm8k" in refused(capsys, "verify", code=4)
    assert main(["list", "gsm8k"]) == 0
    assert "damaged in the cache" in capsys.readouterr().out


def test_nothing_in_the_cache_is_said_and_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 0
    assert "no data set is in the cache" in capsys.readouterr().out
    assert run_json(capsys, "verify")["datasets"] == []


def test_what_is_named_and_not_there_is_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gsm8k" in refused(capsys, "verify", "gsm8k", code=4)


@pytest.mark.parametrize(
    ("error", "code"), [(UnavailableError("no way", "connect"), 4), (UsageError("not it", "another"), 2)]
)
def test_one_failure_keeps_no_other_from_being_fetched(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    gsm8k_file: Path,
    error: Exception,
    code: int,
) -> None:
    real, tried = dflash.dataset_store.fetch_dataset, []

    def fetch(spec: Any, cache: Path, **options: Any) -> Path:
        tried.append(spec.name)
        if spec.name != "gsm8k":
            raise error
        return real(spec, cache, **{**options, "dataset_file": gsm8k_file})

    monkeypatch.setattr(dflash.dataset_store, "fetch_dataset", fetch)
    names = expand_datasets(["math"])[0]
    assert main(["fetch", "math", "--json", "-"]) == code
    captured = capsys.readouterr()
    entries = {entry["name"]: entry for entry in json.loads(captured.out)["datasets"]}
    assert tuple(tried) == tuple(entries) == names
    assert entries["gsm8k"]["num_rows"] == 5
    assert entries["gsm8k"]["error"] is None
    faults = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(faults) == len(names) - 1
    assert all(entries[name]["error"] == str(error) for name in names if name != "gsm8k")


def test_all_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(spec: Any, cache: Path, **options: Any) -> Path:
        options["announce"](f"fetching {spec.name}")
        return cache / spec.name

    monkeypatch.setattr(dflash.dataset_store, "fetch_dataset", fetch)
    names, notes = expand_datasets(["all"])
    assert notes
    assert main(["fetch", "all"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert tuple(lines[: len(notes)]) == notes
    assert lines[len(notes)] == f"[1/{len(names)}] fetching {names[0]}"
    assert run_json(capsys, "fetch", "all", "--quiet")["notes"] == list(notes)
    assert main(["fetch", "all", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_fetching_again_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(
        dflash.dataset_store, "fetch_dataset", lambda spec, cache, **options: asked.append(options["replace"])
    )
    main(["fetch", "gsm8k"])
    main(["fetch", "gsm8k", "--force"])
    assert asked == [False, True]


def test_a_reader_of_the_output_that_has_gone_is_no_fault_of_a_data_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(*arguments: Any, **options: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(dflash.dataset_store, "fetch_dataset", gone)
    with pytest.raises(BrokenPipeError):
        _fetch(build_parser().parse_args(["fetch", "gsm8k", "humaneval"]))
    assert capsys.readouterr() == ("", "")


def test_what_is_shipped_needs_no_fetching(capsys: pytest.CaptureFixture[str]) -> None:
    assert only(run_json(capsys, "fetch", "quickstart"))["shipped"] is True
    assert only(run_json(capsys, "verify", "quickstart"))["error"] is None
    assert main(["fetch", "quickstart"]) == 0
    assert "nothing to fetch" in capsys.readouterr().err


# --- show


def test_a_prompt_is_shown_as_it_would_be_sent(capsys: pytest.CaptureFixture[str], gsm8k_file: Path) -> None:
    file = ("--dataset-file", str(gsm8k_file))
    prompt_set = load_prompts("gsm8k", num_prompts=2, seed=3, dataset_file=gsm8k_file)
    shown = only(run_json(capsys, "show", "gsm8k", "--num-prompts", "2", "--seed", "3", *file))
    assert shown["name"] == "gsm8k"
    assert shown["num_rows"] == 5
    assert shown["revision"] == prompt_set.revision
    assert shown["prompts_digest"] == prompt_set.digest
    assert shown["sha256"] == file_sha256(gsm8k_file)
    assert shown["template_version"] == CATALOGUE["gsm8k"].template_version
    assert [prompt["prompt_id"] for prompt in shown["prompts"]] == [p.prompt_id for p in prompt_set.prompts]
    for entry, prompt in zip(shown["prompts"], prompt_set.prompts, strict=True):
        assert tuple(entry["turns"]) == prompt.turns
        assert entry["answer"] == prompt.answer
        assert entry["digest"] == prompts_digest(CATALOGUE["gsm8k"].template_version, [prompt])
        assert entry["rendered"] is entry["num_tokens"] is entry["token_digest"] is None
    assert main(["show", "gsm8k", "--seed", "3", *file]) == 0
    out = capsys.readouterr().out
    (first, *_) = prompt_set.prompts
    assert f"\n{first.prompt_id}, category math, {first.num_chars} characters\n" in out
    assert f"-- turn 1 of 1\n| What is {int(first.answer or 0) // 2} + " in out
    assert "\\boxed{}" in out
    assert f"-- reference answer\n| {first.answer}\n" in out
    assert out.count("-- turn") == 1


def test_the_digests_are_those_of_what_was_read(
    capsys: pytest.CaptureFixture[str], gsm8k_file: Path, tmp_path: Path
) -> None:
    fetched = only(run_json(capsys, "fetch", "gsm8k", "--dataset-file", str(gsm8k_file)))
    shown = only(run_json(capsys, "show", "gsm8k", "--prompt-id", "gsm8k/0003"))
    assert shown["sha256"] == fetched["sha256"] == file_sha256(tmp_path / "cache" / "gsm8k" / "rows.jsonl")
    assert shown["prompts_digest"] == shown["prompts"][0]["digest"]
    shipped = only(run_json(capsys, "list", "quickstart"))
    assert only(run_json(capsys, "show", "quickstart"))["sha256"] == shipped["sha256"] is not None
    own = write_rows(tmp_path / "own.jsonl", [{"prompt": "Hi"}])
    shown = only(run_json(capsys, "show", "custom", "--dataset-file", str(own)))
    assert shown["sha256"] == file_sha256(own)


def test_one_prompt_is_chosen_by_its_id(capsys: pytest.CaptureFixture[str], gsm8k_file: Path) -> None:
    file = ("--dataset-file", str(gsm8k_file))
    shown = only(run_json(capsys, "show", "gsm8k", "--prompt-id", "gsm8k/0004", *file))
    assert [prompt["answer"] for prompt in shown["prompts"]] == ["8"]
    line = refused(capsys, "show", "gsm8k", "--prompt-id", "gsm8k/0005", *file)
    assert "no prompt 'gsm8k/0005'" in line
    assert "gsm8k/0000" in line


def test_every_turn_and_the_given_context_are_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one\n\ntwo\n"}]
    path = write_rows(tmp_path / "own.jsonl", [{"messages": messages}])
    assert main(["show", "custom", "--dataset-file", str(path)]) == 0
    out = capsys.readouterr().out
    assert "-- context, system\n| Be brief.\n-- turn 1 of 1\n| one\n| \n| two\n| \n" in out
    write_rows(path, [{"turns": ["one", "two"]}])
    assert main(["show", "custom", "--dataset-file", str(path), "--num-prompts", "99"]) == 0
    out = capsys.readouterr().out
    assert (
        "-- turn 1 of 2\n| one\n-- turn 2 of 2 (after the turns before it and their answers)\n| two\n" in out
    )
    assert "\nnote: asked for 99 prompts, the set has 1\n" in out
    assert out.endswith("\n\nTurns are counted from 1 here, and from 0 in records and reports.\n")


def test_what_a_terminal_would_obey_is_written_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "own.jsonl", [{"question": f"first\nsecond {NASTY}"}])
    own = ("custom", "--dataset-file", str(path), "--prompt-field", "question")
    shown = only(run_json(capsys, "show", *own))["prompts"][0]
    assert shown["turns"] == [f"first\nsecond {NASTY}"]
    assert main(["show", *own]) == 0
    out = capsys.readouterr().out
    assert set(out) & {character for character in NASTY if not character.isprintable()} == {"\u00a0"}
    assert (
        "\n| first\n| second red \\x1b[31m bell \\x07 c1 \\x9b31m back\\r bidi \\u202e next\\u2028 tab\\t "
        in out
    )


def test_half_a_surrogate_pair_is_written_out_too() -> None:
    assert printable("a\ud83d b\U0001f600") == "a\\ud83d b\U0001f600"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: ACTION"),
        (["lst"], "invalid choice: 'lst'"),
        (["fetch"], "NAME"),
        (["fetch", "math", "--dataset-file", "x.jsonl"], "--dataset-file goes with one data set"),
        (["show"], "NAME"),
        (["show", "math"], "'math' stands for several data sets: show one: gsm8k, "),
        (
            ["show", "gsm8k,mt-bench"],
            "show takes one data set, not 'gsm8k,mt-bench': name one, such as gsm8k",
        ),
        (["fetch", "custom", "--dataset-file", "x.jsonl"], "show custom --dataset-file FILE"),
        (["show", "gsm8k", "--prompt-id", "a", "--num-prompts", "1"], "--prompt-id contradicts"),
        (["show", "gsm8k", "--num-prompts", "0"], "--num-prompts 0"),
        (["show", "gsm8k", "--prompt-field", "a"], "name it custom"),
        (["show", "custom"], "--dataset-file FILE or --dataset-id"),
        (["show", "gsm8k", "--reasoning", "on"], "add --model"),
        (["show", "gsm8k", "--model", "m", "--reasoning", "off", "--enable-thinking"], "contradicts"),
        (["show", "gsm8k", "--num", "1"], "unrecognized arguments"),
        (["show", "quickstart", "--category", "none"], "no prompts of category 'none'"),
        (["list", "--json", ""], "--json is empty"),
        (["list", "--json", "no/such/folder/a.json"], "there is no folder"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert words in refused(capsys, *arguments)


def test_json_goes_to_a_file_beside_the_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    assert main(["list", "gsm8k", "--json", str(path)]) == 0
    assert "\ngsm8k " in capsys.readouterr().out
    assert only(json.loads(path.read_text()))["name"] == "gsm8k"


# --- show, as a model sees it


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder with a tokenizer and no weights; its template knows `enable_thinking`, and writes the begin token."""
    pytest.importorskip("transformers")
    from backends.byte_tokenizer import make_tokenizer
    from backends.test_chat_template import ADDS_BEGIN, SWITCH

    folder = tmp_path / "model"
    make_tokenizer("{{ bos_token }}" + SWITCH, adds=ADDS_BEGIN).save_pretrained(folder)
    return str(folder)


def test_the_rendered_prompt_is_what_the_engines_get(
    capsys: pytest.CaptureFixture[str], model: str, gsm8k_file: Path
) -> None:
    from dflash.backends.base import Message
    from dflash.backends.chat_template import load_tokenizer, render_prompt
    from dflash.digests import digest_of_ids

    arguments = ("show", "gsm8k", "--dataset-file", str(gsm8k_file), "--model", model)
    shown = only(run_json(capsys, *arguments))
    (prompt,) = shown["prompts"]
    ids = render_prompt(load_tokenizer(model), [Message("user", prompt["turns"][0])], "off")
    assert prompt["rendered"] == (
        f"<s><|start|>user\n{prompt['turns'][0]}<|end|>\n<|start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert prompt["num_tokens"] == len(ids)
    assert prompt["token_digest"] == digest_of_ids(ids)
    assert (shown["model"], shown["reasoning"]) == (model, "off")
    assert shown["reasoning_arguments"] == {"enable_thinking": False}
    for more in (["--reasoning", "on"], ["--enable-thinking"]):
        shown = only(run_json(capsys, *arguments, *more))
        assert shown["reasoning_arguments"] == {"enable_thinking": True}
        assert shown["prompts"][0]["rendered"].endswith("<|start|>assistant\n")
        assert shown["prompts"][0]["token_digest"] != prompt["token_digest"]
    assert main(list(arguments)) == 0
    out = capsys.readouterr().out
    assert "reasoning off: its template is told enable_thinking=False\n" in out
    assert f"{len(ids)} tokens, digest {prompt['token_digest']}\n| <s><|start|>user\n| What is " in out
    assert out.endswith("| <think>\n| \n| </think>\n| \n| \n")


def test_of_several_turns_the_first_is_rendered_and_the_rest_explained(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "own.jsonl", [{"turns": ["one", "two"]}])
    assert main(["show", "custom", "--dataset-file", str(path), "--model", model]) == 0
    out = capsys.readouterr().out
    assert out.count("<|start|>user") == 1
    assert "The later turns come after their history" in out


def test_a_level_that_the_template_does_not_know_is_refused(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    line = refused(capsys, "show", "quickstart", "--model", model, "--reasoning", "low")
    assert "knows no --reasoning low" in line
    assert "off or on" in line


def test_messages_that_the_template_refuses_are_a_usage_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    from backends.byte_tokenizer import make_tokenizer

    make_tokenizer("{{ raise_exception('no') }}").save_pretrained(tmp_path / "model")
    line = refused(capsys, "show", "quickstart", "--model", str(tmp_path / "model"))
    assert "refuses the messages (no)" in line


def test_a_template_that_writes_the_date_is_said_to(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    from backends.byte_tokenizer import make_tokenizer
    from backends.test_chat_template import LEVEL

    make_tokenizer(LEVEL).save_pretrained(tmp_path / "model")
    arguments = ("show", "quickstart", "--model", str(tmp_path / "model"))
    shown = only(run_json(capsys, *arguments, "--reasoning", "low"))
    assert any("today's date" in note for note in shown["notes"])
    assert "low, medium or high" in refused(capsys, *arguments)


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert "is no folder" in refused(capsys, "show", "quickstart", "--model", str(tmp_path / "none"))


def test_the_extra_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    line = refused(capsys, "show", "quickstart", "--model", "some/model")
    assert "'transformers'" in line
    assert "pip install 'dflash[transformers]'" in line


@pytest.mark.real_model
def test_the_quickstart_target_can_be_named(
    capsys: pytest.CaptureFixture[str], quickstart_target: Path
) -> None:
    shown = only(run_json(capsys, "show", "quickstart", "--model", "quickstart"))
    (prompt,) = shown["prompts"]
    assert shown["reasoning_arguments"] == {}
    assert prompt["turns"][0] in prompt["rendered"]
    assert prompt["rendered"].count("<|im_start|>user") == 1
    assert prompt["num_tokens"] > 0


# --- the original files


def test_the_original_files_are_fetched_and_verified(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shared_folder: Path
) -> None:
    monkeypatch.setenv("DFLASH_DATASETS_DIR", str(shared_folder / "datasets"))
    names = ("gsm8k", "math500", "humaneval", "mt-bench", "spec-bench")
    fetched = {entry["name"]: entry for entry in run_json(capsys, "fetch", *names)["datasets"]}
    assert {name: fetched[name]["num_rows"] for name in names} == {
        "gsm8k": 1319,
        "math500": 500,
        "humaneval": 164,
        "mt-bench": 80,
        "spec-bench": 480,
    }
    verified = run_json(capsys, "verify")["datasets"]
    assert [entry["sha256"] for entry in verified] == [entry["sha256"] for entry in fetched.values()]
    assert all(entry["num_prompts"] == entry["expected_num_prompts"] for entry in verified)


def test_groups_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fetch", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert f"the groups {', '.join(GROUPS)}; or all, but the large ones" in out
    assert "long" not in out
