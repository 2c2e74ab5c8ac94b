"""Settings: what contradicts itself or cannot be is refused with one line, before anything is loaded."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from dflash.arguments import benchmark_command, benchmark_parser, parse_benchmark_arguments
from dflash.config import BenchmarkConfig, check_concurrency
from dflash.errors import EXIT_USAGE, UsageError
from dflash.server_options import endpoints_of, with_named_servers


def parse(line: str) -> BenchmarkConfig:
    return parse_benchmark_arguments(shlex.split(line))


def test_no_arguments_give_the_defaults() -> None:
    assert parse("") == BenchmarkConfig()


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("--draft d --model m", "draft_model", "d"),
        ("--draft-model d --model m", "draft_model", "d"),
        ("--max-samples 3", "num_prompts", 3),
        ("--num-prompts 3", "num_prompts", 3),
        ("--dataset gsm8k,humaneval,mt-bench", "datasets", ("gsm8k", "humaneval", "mt-bench")),
        ("--dataset 'gsm8k, humaneval'", "datasets", ("gsm8k", "humaneval")),
        ("--concurrency 1,8,32", "concurrencies", (1, 8, 32)),
        ("--block-size 8,16", "block_sizes", (8, 16)),
        ("--no-baseline", "arms", ("dflash",)),
        ("--arms dflash --no-baseline", "arms", ("dflash",)),
        ("--backend vllm --arm eagle3=h --no-baseline", "arms", ("eagle3",)),
        ("--enable-thinking", "reasoning", "on"),
        ("--reasoning low", "reasoning", "low"),
        ("--no-save-outputs", "save_outputs", False),
        ("--warmup 0", "num_warmup", 0),
        ("--temperature 0.7 --top-p 1", "top_p", 1.0),
        ("--temperature 0.7 --top-k 1", "top_k", 1),
        ("--json -", "json_file", "-"),
        ("--output-dir a/b", "output_dir", Path("a/b")),
        ("--run 2026-01-01.x", "run_name", "2026-01-01.x"),
        ("--smoke --num-prompts 1", "smoke", True),
        ("--run a --no-resume", "resume", False),
        ("--run a --resume", "resume", True),
        ("--cooldown 2.5", "cooldown_s", 2.5),
        ("--time-budget 1h30m", "time_budget_s", 5400.0),
        ("--time-budget 90", "time_budget_s", 90.0),
        ("--list --json -", "json_file", "-"),
    ],
)
def test_flags(line: str, field: str, value: object) -> None:
    assert getattr(parse(line), field) == value


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--top-p 0.9", "--top-p has no effect at temperature 0"),
        ("--top-k 5", "--top-k has no effect at temperature 0"),
        ("--temperature 0 --top-k 1", "--top-k has no effect at temperature 0"),
        ("--temperature 1 --top-p 0", r"--top-p 0 is outside \(0, 1\]"),
        ("--temperature 1 --top-p 1.1", r"--top-p 1\.1 is outside"),
        ("--temperature 1 --top-p nan", "--top-p nan is outside"),
        ("--temperature 1 --top-k 0", "--top-k 0 is below 1"),
        ("--temperature -1", "--temperature -1 is no temperature"),
        ("--temperature nan", "--temperature nan is no temperature"),
        ("--temperature inf", "--temperature inf is no temperature"),
        ("--block-size 1", "--block-size 1 is below 2"),
        ("--block-size 8,1", "--block-size 1 is below 2"),
        ("--block-size 8,8", "--block-size names 8 twice"),
        ("--block-size 8,", "argument --block-size: invalid list of int value"),
        ("--block-size 8 --arms baseline", "--block-size has no meaning for the baseline alone"),
        (
            "--backend mlx --draft-bits 4 --arms baseline",
            "--draft-bits has no meaning for the baseline alone",
        ),
        ("--num-prompts 0", "--num-prompts 0 is below 1"),
        ("--num-prompts -3", "--num-prompts -3 is below 1"),
        ("--num-prompts many", "argument --num-prompts/--max-samples: invalid int value"),
        ("--max-new-tokens 0", "--max-new-tokens 0 is below 1"),
        ("--repeats 0", "--repeats 0 is below 1"),
        ("--warmup -1", "--warmup -1 is below 0"),
        ("--seed -1", "--seed -1 is below 0"),
        (f"--seed {2**64}", "--seed 18446744073709551616 is above"),
        (f"--num-prompts {10**30}", "is above"),
        ("--concurrency 0", "--concurrency 0 is below 1"),
        ("--concurrency ''", "invalid list of int value"),
        ("--dataset ''", "unknown data set ''"),
        ("--dataset ../secrets", "unknown data set '../secrets'"),
        ("--dataset gsm8k/../x", "unknown data set 'gsm8k/../x'"),
        ("--dataset gsm", "unknown data set 'gsm'"),
        ("--dataset math --dataset-file f", "--dataset-file goes with one data set"),
        ("--dataset-file f", "--dataset custom for one of your own"),
        ("--dataset custom", "give either --dataset-file FILE or --dataset-id NAMESPACE/NAME"),
        ("--dataset custom --dataset-file f --dataset-id a/b", "takes its rows from one place"),
        (
            "--dataset custom --dataset-file f --dataset-split test",
            "--dataset-split has no meaning for a file",
        ),
        ("--dataset custom --dataset-file f --prompt-field p --turns-field t", "contradicts --turns-field"),
        ("--dataset gsm8k --prompt-field question", "--prompt-field is for a data set of your own"),
        ("--dataset-id a/b", "--dataset-id is for a data set of your own: add --dataset custom"),
        ("--min-prompt-chars 0", "--min-prompt-chars 0 is below 1"),
        ("--min-prompt-chars 9 --max-prompt-chars 8", "--min-prompt-chars 9 is above --max-prompt-chars 8"),
        ("--execute-code --no-save-outputs", "--execute-code contradicts --no-save-outputs"),
        ("--dataset gsm8k,gsm8k", "--dataset names 'gsm8k' twice"),
        ("--dataset gsm8k,humaneval --dataset-file f", "--dataset-file goes with one data set"),
        ("--dataset-file f", "--dataset-file cannot replace the data set 'quickstart'"),
        ("--arms ''", "unknown arm ''"),
        ("--arms eagle9", "unknown arm 'eagle9'"),
        ("--arms dflash,dflash", "--arms names 'dflash' twice"),
        ("--no-baseline --arms baseline,dflash", "--no-baseline contradicts --arms"),
        ("--no-baseline --arms baseline", "--no-baseline contradicts --arms"),
        ("--reasoning off --enable-thinking", "--enable-thinking contradicts --reasoning"),
        ("--reasoning ''", "--reasoning '' is no setting"),
        ("--max-error-rate 2", "--max-error-rate 2 is no share"),
        ("--max-error-rate nan", "--max-error-rate nan is no share"),
        ("--backend vllm --timeout-s 0", "--timeout-s 0 is not above 0"),
        ("--timeout-s 3", "--timeout-s contradicts --backend transformers"),
        ("--serve", "--serve contradicts --backend transformers"),
        ("--backend vllm --serve", "--serve must know what to serve"),
        ("--backend vllm --serve --model m", "--serve must know the draft"),
        (
            "--backend vllm --base-url h --arms baseline,eagle3",
            "--arms baseline,eagle3 starts and leaves out no running server",
        ),
        (
            "--backend vllm --arm eagle3=h --arms dflash",
            "--arms dflash starts and leaves out no running server",
        ),
        (
            "--backend vllm --base-url h --baseline-url i --no-baseline",
            "--arms dflash.?, and --baseline-url names one",
        ),
        ("--backend vllm --arm baseline=h --arm eagle3=i --no-baseline", "and --arm baseline=URL names one"),
        ("--backend vllm --base-url h --baseline-url i --arms dflash", "and --baseline-url names one"),
        ("--backend vllm --draft-model d", "--draft-model says nothing to a server that is running"),
        ("--backend sglang --base-url h --device cpu", "--device says nothing to a server that is running"),
        ("--backend vllm --attn-implementation sdpa", "--attn-implementation says nothing to a server"),
        ("--backend vllm --force-block-size", "--force-block-size says nothing to a server"),
        ("--backend vllm --trust-remote-code", "--trust-remote-code says nothing to a server"),
        ("--backend vllm --serve --model quickstart --force-block-size", "--force-block-size says nothing"),
        (
            "--backend vllm --serve --model quickstart --attn-implementation x",
            "server that is started: drop it",
        ),
        (
            "--backend vllm --serve --model quickstart --metrics-url h",
            "--metrics-url says nothing to a server",
        ),
        (
            "--backend vllm --serve --model m --arms baseline --base-url x",
            "--serve starts the servers itself",
        ),
        ("--backend vllm --block-size 4,8", "a running server has one block size"),
        ("--backend vllm --server-arg=--x", "--server-arg is for servers that dflash starts"),
        ("--backend vllm --arm eagle3", "--arm 'eagle3' is not NAME=URL"),
        ("--backend vllm --arm a=x --arm a=y", "two servers are named 'a'"),
        ("--backend vllm --arm a=x --metrics-url b=y", "--metrics-url names 'b'"),
        ("--backend vllm --arm a=x --arm b=z --metrics-url y", "does not say of which server"),
        ("--backend vllm --slo ttft:5", "--slo 'ttft:5' is no limit"),
        ("--backend vllm --slo itl:5ms", "--slo 'itl:5ms' is no limit"),
        ("--backend vllm --slo ttft:1s,ttft:2s", "--slo limits ttft_s twice"),
        ("--backend vllm --request-rate 0", "--request-rate 0 is not above 0"),
        ("--backend vllm --arrivals constant", "--arrivals has no meaning for a closed loop"),
        ("--backend vllm --route generate", "--route generate is SGLang's own"),
        ("--backend vllm --header nonsense", "a --header is not of the form NAME: VALUE"),
        ("--backend vllm --api-key a --api-key-env B", "--api-key contradicts --api-key-env"),
        ("--smoke --num-prompts 4", "--smoke runs one prompt per cell"),
        ("--dtype int3", "invalid choice: 'int3'"),
        ("--model ''", "--model is empty"),
        ("--model some/model", "no draft is named for the target 'some/model'"),
        ("--base-url http://x", "--base-url contradicts --backend transformers"),
        ("--script s.toml", "--script contradicts --backend transformers"),
        ("--run ''", "is no run name"),
        ("--run ../x", "is no run name"),
        ("--run /x", "is no run name"),
        ("--run ..", "is no run name"),
        ("--run a/b", "is no run name"),
        ("--run .hidden", "is no run name"),
        ("--run 'a\nb'", "is no run name"),
        (f"--run {'x' * 200}", "is no run name"),
        ("--quiet --list", "--quiet contradicts --list"),
        ("--json ''", "--json is empty"),
        ("--no-resume", "--no-resume has no meaning for a run without a name"),
        ("--resume --no-resume --run a", "--resume contradicts --no-resume"),
        ("--cooldown -1", "--cooldown -1 is no time"),
        ("--time-budget soon", "'soon' is no time"),
        ("--time-budget 0m", "'0m' is no time"),
        ("--nonsense", "unrecognized arguments: --nonsense"),
        ("--data x", "unrecognized arguments: --data x"),
        ("--temperature", "argument --temperature: expected one argument"),
    ],
)
def test_what_is_refused(line: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse(line)
    assert caught.value.exit_code == EXIT_USAGE
    assert "\n" not in str(caught.value)
    assert caught.value.mend, "an error says what to do about it"


def test_a_model_without_a_draft_is_fine_for_plain_decoding() -> None:
    assert parse("--model some/model --arms baseline").arms == ("baseline",)


def test_settings_in_python_are_checked_as_well() -> None:
    with pytest.raises(UsageError, match="--top-k has no effect"):
        BenchmarkConfig(top_k=3)
    with pytest.raises(UsageError, match="--dataset is empty"):
        BenchmarkConfig(datasets=())


def test_a_load_above_the_engines_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="--concurrency 8: backend 'transformers' runs at most 1"):
        check_concurrency((1, 8), "transformers", 1)
    check_concurrency((1, 8), "vllm", None)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--backend simulated --no-baseline --block-size 4,8",
        "--dataset gsm8k,humaneval --num-prompts 7 --temperature 0.6 --top-p 0.95 --top-k 20 --seed 3",
        "--model m --draft 'my draft' --dtype bfloat16 --trust-remote-code --force-block-size --device cpu",
        "--no-save-outputs --quiet --json out.json --run a --output-dir x --repeats 2 --warmup 0",
        "--dataset gsm8k --dataset-file f.jsonl --datasets-cache c --category math --max-error-rate 0.5",
        "--dataset custom --dataset-file f.csv --prompt-field q --min-prompt-chars 5 --max-prompt-chars 90",
        "--dataset custom --dataset-id a/b --dataset-config c --dataset-split s --dataset-revision r --turns-field t",
        "--dataset math,humaneval --repeat --num-prompts 2000 --execute-code",
        "--run a --no-resume --cooldown 3 --time-budget 90m --repeats 3",
        "--reasoning low --smoke --concurrency 1,2 --attn-implementation sdpa",
        "--backend vllm --base-url a --baseline-url b --timeout-s 3 --concurrency 1,8 --slo ttft:1s --insecure",
        "--backend sglang --arm a=x --arm b=y --metrics-url a=z --route generate --request-rate 2.5",
        "--backend vllm --serve --model m --draft d --server-arg=--max-num-seqs=8 --server-arg=dflash:--x",
    ],
)
def test_a_command_repeats_its_settings(line: str) -> None:
    config = parse(line)
    words = shlex.split(benchmark_command(config))
    assert words[:3] == ["python", "-m", "dflash.benchmark"]
    assert parse_benchmark_arguments(words[3:]) == config


def test_every_setting_has_a_flag() -> None:
    known = {action.dest for action in benchmark_parser()._actions}
    of_suites = {"parts", "typed"}  # what --suite is made into
    assert {item.name for item in fields(BenchmarkConfig)} <= known | of_suites


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--base-url h", [None]),
        ("--base-url h --arms eagle3", ["eagle3"]),
        ("--base-url h --baseline-url i", ["baseline", None]),
        ("--base-url h --baseline-url i --arms baseline,eagle3", ["baseline", "eagle3"]),
        (
            "--base-url h --baseline-url i --metrics-url eagle3=m --metrics-url baseline=n",
            ["baseline", "eagle3"],
        ),
        ("--base-url h --arm baseline=i --arm ngram=j", ["baseline", "ngram", None]),
    ],
)
def test_a_server_that_the_user_gives_no_name_is_asked_for_it(line: str, named: list[str | None]) -> None:
    assert [endpoint.arm for endpoint in endpoints_of(parse(f"--backend vllm {line}"))] == named


def test_named_servers_are_those_that_were_given() -> None:
    line = "--backend vllm --base-url http://h:1 --metrics-url http://m:2 --block-size 4"
    named = with_named_servers(parse(line), "eagle3")
    assert (named.base_url, named.arm_urls) == (None, ("eagle3=http://h:1",))
    assert named.metrics_urls == ("eagle3=http://m:2",)
    assert parse(benchmark_command(named).removeprefix("python -m dflash.benchmark")) == named
    several = parse("--backend vllm --baseline-url h --base-url i --arm ngram=j --metrics-url ngram=k")
    assert with_named_servers(several, "mtp").arm_urls == ("baseline=h", "ngram=j", "mtp=i")
