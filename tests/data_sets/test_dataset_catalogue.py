"""The catalogue: whole entries, names that stand for several, and the published files where they are at hand."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path

import pytest

from dflash.datasets.catalogue import (
    CATALOGUE,
    CUSTOM,
    GROUPS,
    LARGE_BYTES,
    PublishedFile,
    expand_datasets,
    find_dataset,
    make_prompts,
)
from dflash.datasets.files import check_columns, read_rows
from dflash.errors import UsageError
from dflash.prompts import Prompt

PUBLISHED = {file.path: (spec, file) for spec in CATALOGUE.values() for file in spec.files}
HEX_40, HEX_64 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")
LEFT_OUT_OF_ALL = ("gpqa", "livecodebench", "sharegpt", "longbench")
PREPARED = tuple(name for name in CATALOGUE if name.startswith("speed-bench"))


# Entries


def test_the_catalogue_holds_the_promised_sets() -> None:
    promised = (
        "quickstart gsm8k math500 aime24 aime25 gpqa humaneval mbpp livecodebench swe-bench mt-bench alpaca "
        "sharegpt spec-bench longbench speed-bench speed-bench-1k speed-bench-2k speed-bench-8k "
        "speed-bench-16k speed-bench-32k"
    )
    assert set(CATALOGUE) == set(promised.split())


@pytest.mark.parametrize("name", CATALOGUE)
def test_entries_are_whole(name: str) -> None:
    spec = CATALOGUE[name]
    assert spec.name == name
    assert re.fullmatch(r"[a-z0-9-]+", name), "it is a folder's name"
    assert spec.num_rows is not None
    assert spec.num_rows > 0
    assert spec.title
    assert spec.licence
    assert spec.columns
    assert spec.categories
    assert len(set(spec.categories)) == len(spec.categories)
    assert re.fullmatch(rf"{name}-\d+", spec.template_version)
    assert spec.group in (*GROUPS, None)
    if spec.shipped is None:
        assert spec.revision is not None, "no entry without a pin"
        assert spec.hub is not None or spec.files


@pytest.mark.parametrize("name", [name for name, spec in CATALOGUE.items() if spec.hub is not None])
def test_hub_sources_are_pinned_and_named_in_full(name: str) -> None:
    spec = CATALOGUE[name]
    assert spec.hub is not None
    assert re.fullmatch(r"[\w-]+/[\w.-]+", spec.hub.dataset_id), "bare ids are refused by current hub clients"
    assert spec.hub.revision is not None
    assert HEX_40.fullmatch(spec.hub.revision)
    assert spec.split is not None
    assert spec.hub.files or spec.needs_preparation
    assert not any(file.endswith(".py") for file in spec.hub.files)


@pytest.mark.parametrize("path", PUBLISHED)
def test_published_files_are_whole(path: str) -> None:
    spec, file = PUBLISHED[path]
    folder, _, name = path.partition("/")
    assert folder
    assert name
    assert ".." not in path
    assert file.sha256 is None or HEX_64.fullmatch(file.sha256)
    assert (file.sha256 is None) == (file.num_rows is None) == (file.num_bytes is None)
    if file.github is not None:
        assert file.sha256 is not None, "what is fetched must be checked"
        assert re.fullmatch(r"[\w-]+/[\w.-]+@[0-9a-f]{40}:[^:]+", file.github)
        assert file.num_rows is not None
        assert spec.num_rows is not None
        assert file.num_rows >= spec.num_rows, "a part of the set is never fetched in the place of the whole"


def test_no_file_stands_for_two_sets() -> None:
    files: list[PublishedFile] = [file for spec in CATALOGUE.values() for file in spec.files]
    for facts in ([file.path for file in files], [file.sha256 for file in files if file.sha256]):
        assert len(set(facts)) == len(facts)


def test_template_versions_differ() -> None:
    versions = [spec.template_version for spec in CATALOGUE.values()]
    assert len(set(versions)) == len(versions)


# Names


def test_unknown_data_set_names_the_known_and_the_groups() -> None:
    with pytest.raises(
        UsageError, match=r"choose one of quickstart, gsm8k, .*, custom, or a group: math, code"
    ):
        find_dataset("/etc/passwd")


@pytest.mark.parametrize(
    ("name", "meant"), [("gsmk8", "gsm8k"), ("GSM8K", "gsm8k"), ("mtbench", "mt-bench"), ("maths", "math")]
)
def test_a_close_name_is_suggested(name: str, meant: str) -> None:
    with pytest.raises(UsageError) as error:
        expand_datasets([name])
    assert error.value.mend == f"did you mean {meant!r}? python -m dflash.data list names every one"


def test_a_name_that_is_like_none_gets_no_suggestion() -> None:
    with pytest.raises(UsageError) as error:
        find_dataset("/etc/passwd")
    assert "did you mean" not in str(error.value)


def test_what_no_group_stands_for_is_named_itself() -> None:
    alone = [name for name, spec in CATALOGUE.items() if spec.group is None]
    assert alone == ["quickstart", "longbench", "speed-bench-8k", "speed-bench-16k", "speed-bench-32k"]
    notes = expand_datasets(["all"])[1]
    assert "'all' leaves out longbench: a download of 114 MB; name it to have it" in notes
    assert any("quickstart: it is for a first run" in note for note in notes)


def test_custom_has_no_entry() -> None:
    with pytest.raises(UsageError, match="give its rows by --dataset-file or --dataset-id"):
        find_dataset(CUSTOM)


def test_names_keep_their_order_without_doubles() -> None:
    assert expand_datasets(["custom", "humaneval", "gsm8k", "humaneval"]) == (
        ("custom", "humaneval", "gsm8k"),
        (),
    )
    assert expand_datasets(["aime24", "math"])[0] == ("aime24", "gsm8k", "math500", "aime25")


def test_all_leaves_out_what_is_large_gated_or_to_be_prepared_and_says_so() -> None:
    names, notes = expand_datasets(["all"])
    left_out = {*LEFT_OUT_OF_ALL, *PREPARED, "quickstart", CUSTOM}
    assert set(names) == set(CATALOGUE) - left_out
    assert len(notes) == len(left_out)
    by_name = {name: note for name in left_out for note in notes if f" {name}: " in note}
    assert set(by_name) == left_out
    assert by_name["gpqa"].endswith("accepted its terms; name it to have it")
    assert by_name["livecodebench"] == (
        "'all' leaves out livecodebench: a download of 4,486 MB; name it to have it"
    )
    assert "prepared" in by_name["speed-bench-8k"]


def test_all_holds_no_large_download() -> None:
    for name in expand_datasets(["all"])[0]:
        hub = CATALOGUE[name].hub
        assert hub is None or (hub.num_bytes or 0) <= LARGE_BYTES


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("math", ("gsm8k", "math500", "aime24", "aime25")),
        ("code", ("humaneval", "mbpp", "swe-bench")),
        ("chat", ("mt-bench", "alpaca", "spec-bench")),
    ],
)
def test_groups(group: str, names: tuple[str, ...]) -> None:
    found, notes = expand_datasets([group])
    assert found == names
    assert len(notes) == sum(spec.group == group for spec in CATALOGUE.values()) - len(names)


def test_a_set_that_is_named_itself_is_not_left_out() -> None:
    names, notes = expand_datasets(["math", "gpqa", "all"])
    assert names[:5] == ("gsm8k", "math500", "aime24", "aime25", "gpqa")
    assert "humaneval" in names
    assert not any("gpqa" in note for note in notes)
    assert len(set(notes)) == len(notes)


# The published files, where they are at hand


def _sources(folder: Path) -> dict[str, dict[str, str]]:
    """Rows, bytes and sha256 by path, as SOURCES.md has them."""
    sources: dict[str, dict[str, str]] = {}
    for section in (folder / "SOURCES.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        path = section.splitlines()[0].strip()
        facts = re.findall(r"\b(rows|bytes|sha256): ([0-9a-f]+)", section)
        sources[path] = dict(facts)
    return sources


@pytest.fixture
def datasets_folder(shared_folder: Path) -> Path:
    folder = shared_folder / "datasets"
    if not (folder / "SOURCES.md").is_file():
        pytest.skip("the published data set files are not here")
    return folder


def _prompts(folder: Path, path: str) -> tuple[Prompt, ...]:
    spec, _ = PUBLISHED[path]
    if not (folder / path).is_file():
        pytest.skip(f"{path} is not here")
    rows = read_rows(folder / path)
    check_columns(rows, spec.columns, spec.name, path)
    return make_prompts(spec, rows, path)


def test_every_file_has_the_rows_and_the_checksum_that_its_source_says(datasets_folder: Path) -> None:
    checked = 0
    for path, facts in _sources(datasets_folder).items():
        if (datasets_folder / path).is_file():
            data = (datasets_folder / path).read_bytes()
            found = (hashlib.sha256(data).hexdigest(), len(data), len(read_rows(datasets_folder / path)))
            assert found == (facts["sha256"], int(facts["bytes"]), int(facts["rows"])), path
            checked += 1
    assert checked >= 10


def test_the_catalogue_says_the_same_of_them(datasets_folder: Path) -> None:
    sources = _sources(datasets_folder)
    compared = 0
    for path, (_, file) in PUBLISHED.items():
        if path in sources:
            facts = sources[path]
            assert (file.sha256, file.num_bytes, file.num_rows) == (
                facts["sha256"],
                int(facts["bytes"]),
                int(facts["rows"]),
            ), path
            compared += 1
    assert compared == 12


def test_every_file_at_hand_is_known_or_no_set_of_the_catalogue(datasets_folder: Path) -> None:
    at_hand = {path for path in _sources(datasets_folder) if (datasets_folder / path).is_file()}
    others = {
        "mbpp/mbpp.jsonl",  # the full version, with other columns
        "speed_bench/qualitative_SYNTHETIC.jsonl",
        "speed_bench/throughput_1k_SYNTHETIC.jsonl",
    }
    assert at_hand - set(PUBLISHED) <= others


@pytest.mark.parametrize(
    ("path", "num_prompts"),
    [
        ("gsm8k/test.jsonl", 1319),
        ("math500/test.jsonl", 500),
        ("aime24/test.jsonl", 30),
        ("humaneval/HumanEval.jsonl.gz", 164),
        ("mbpp/sanitized-mbpp.json", 257),
        ("swebench_lite/swebench_lite_origin.jsonl", 300),
        ("mt_bench/question.jsonl", 80),
        ("spec_bench/question.jsonl", 480),
        ("alpaca/alpaca_data.json", 2000),
        ("sharegpt/ShareGPT_V3_filtered_500.json", 500),
    ],
)
def test_number_of_prompts(datasets_folder: Path, path: str, num_prompts: int) -> None:
    prompts = _prompts(datasets_folder, path)
    spec, _ = PUBLISHED[path]
    assert len(prompts) == num_prompts
    assert [prompt.prompt_id for prompt in prompts] == [f"{spec.name}/{i:04}" for i in range(num_prompts)]
    assert {prompt.category for prompt in prompts} == set(spec.categories)
    if spec.name not in ("alpaca", "sharegpt"):  # a part of the set
        assert spec.num_rows == num_prompts


def test_mt_bench_has_two_turns_and_ten_of_each_kind(datasets_folder: Path) -> None:
    prompts = _prompts(datasets_folder, "mt_bench/question.jsonl")
    assert {len(prompt.turns) for prompt in prompts} == {2}
    assert set(Counter(prompt.category for prompt in prompts).values()) == {10}


def test_spec_bench_has_six_categories_of_eighty(datasets_folder: Path) -> None:
    prompts = _prompts(datasets_folder, "spec_bench/question.jsonl")
    categories = Counter(prompt.category for prompt in prompts)
    assert categories == dict.fromkeys(find_dataset("spec-bench").categories, 80)
    assert Counter(len(prompt.turns) for prompt in prompts) == {1: 400, 2: 80}


def test_swe_bench_keeps_its_line_ends(datasets_folder: Path) -> None:
    prompts = _prompts(datasets_folder, "swebench_lite/swebench_lite_origin.jsonl")
    assert sum("\r\n" in prompt.turns[0] for prompt in prompts) == 165


def test_alpaca_has_the_input_where_there_is_one(datasets_folder: Path) -> None:
    prompts = _prompts(datasets_folder, "alpaca/alpaca_data.json")
    assert sum("\n\nInput:\n" in prompt.turns[0] for prompt in prompts) == 455


def test_aime_answers_keep_their_zeros(datasets_folder: Path) -> None:
    answers = [prompt.answer or "" for prompt in _prompts(datasets_folder, "aime24/test.jsonl")]
    assert all(re.fullmatch(r"\d{3}", answer) for answer in answers)
    assert "025" in answers


def test_every_gsm8k_answer_is_a_number(datasets_folder: Path) -> None:
    prompts = _prompts(datasets_folder, "gsm8k/test.jsonl")
    assert all(re.fullmatch(r"-?\d+(\.\d+)?", prompt.answer or "") for prompt in prompts)


@pytest.mark.parametrize("path", ["humaneval/HumanEval.jsonl.gz", "mbpp/sanitized-mbpp.json"])
def test_every_code_check_compiles(datasets_folder: Path, path: str) -> None:
    for prompt in _prompts(datasets_folder, path):
        check = prompt.code_check
        assert check is not None
        solution = "    pass\n" if check.entry_point else ""
        compile(check.preamble + solution + check.tests, prompt.prompt_id, "exec")


def test_the_prepared_form_of_speed_bench_is_read_and_its_placeholders_are_not(datasets_folder: Path) -> None:
    spec = find_dataset("speed-bench")
    path = datasets_folder / "speed_bench" / "qualitative_SYNTHETIC.jsonl"
    if not path.is_file():
        pytest.skip(f"{path.name} is not here")
    rows = read_rows(path)
    with pytest.raises(UsageError, match=f"row 23 of {path.name}: its text is the placeholder.*prepare_data"):
        make_prompts(spec, rows, path.name)
    whole = make_prompts(spec, rows[:22], path.name)
    assert {prompt.category for prompt in whole} == set(spec.categories)
    assert Counter(len(prompt.turns) for prompt in whole) == {1: 11, 2: 11}
    throughput = path.with_name("throughput_1k_SYNTHETIC.jsonl")
    prompts = make_prompts(find_dataset("speed-bench-1k"), read_rows(throughput), throughput.name)
    assert {prompt.category for prompt in prompts} == {"low_entropy", "mixed", "high_entropy"}


def test_the_full_mbpp_is_refused_with_the_columns_that_differ(datasets_folder: Path) -> None:
    path = datasets_folder / "mbpp" / "mbpp.jsonl"
    if not path.is_file():
        pytest.skip(f"{path.name} is not here")
    with pytest.raises(UsageError, match=r"row 1 lacks prompt: expected .* found text, code, task_id"):
        check_columns(read_rows(path), find_dataset("mbpp").columns, "mbpp", path.name)
