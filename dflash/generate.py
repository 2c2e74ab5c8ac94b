"""Verb: answer one prompt, streamed as the tokens come, and say how fast that went."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import IO, TYPE_CHECKING, cast

from dflash.arguments import OneLineParser
from dflash.command_line import run_verb
from dflash.config import DEFAULT_DATASET, DTYPES, IN_PROCESS_BACKENDS, BenchmarkConfig
from dflash.errors import EXIT_DONE, UsageError
from dflash.text_stream import TextStream

if TYPE_CHECKING:
    from dflash.backends.base import Generation, GenerationRequest, InProcessBackend
    from dflash.results.records import Arm, RequestRecord

STANDARD_INPUT = "-"
DEFAULT_MAX_NEW_TOKENS = 256


def build_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m dflash.generate",
        description="Answer one prompt: the text goes to standard output as it comes, its speed to standard error.",
        allow_abbrev=False,
    )
    parser.add_argument("prompt", metavar="PROMPT", help="what to ask; - reads standard input")
    group = parser.add_argument_group("what decodes")
    group.add_argument(
        "--backend", choices=IN_PROCESS_BACKENDS, default="transformers", help="engine (default: %(default)s)"
    )
    group.add_argument("--model", help="target: model id or folder (default: the quickstart pair)")
    group.add_argument("--draft-model", "--draft", metavar="MODEL", help="draft: model id or folder")
    group.add_argument("--no-draft", action="store_true", help="plain decoding")
    group.add_argument(
        "--block-size",
        type=int,
        metavar="B",
        help="1 known token + B-1 draft tokens (default: the draft's own)",
    )
    group.add_argument(
        "--force-block-size", action="store_true", help="allow a block larger than the draft was trained for"
    )
    group.add_argument(
        "--draft-bits", type=int, metavar="4|8", help="mlx: quantise the draft to 4 or 8 bits a weight"
    )
    group.add_argument("--dtype", choices=DTYPES, help="default: float32 on CPU, the checkpoint's on GPU")
    group.add_argument(
        "--device", help="such as cpu or cuda:0; mlx: cpu or gpu (default: a GPU where there is one)"
    )
    group.add_argument("--attn-implementation", metavar="NAME", help="attention kernel of the target")
    group.add_argument(
        "--trust-remote-code", action="store_true", help="run code that a model repository carries"
    )
    group = parser.add_argument_group("what comes out")
    group.add_argument(
        "--max-new-tokens", type=int, default=DEFAULT_MAX_NEW_TOKENS, metavar="N", help="default: %(default)s"
    )
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (default) is greedy")
    group.add_argument("--top-p", type=float, metavar="P", help="needs a temperature above 0")
    group.add_argument("--top-k", type=int, metavar="K", help="needs a temperature above 0")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of sampling (default: 0)")
    group.add_argument(
        "--reasoning", default="off", metavar="off|on|LEVEL", help="off (default), on, or a level"
    )
    group.add_argument("--quiet", action="store_true", help="print the answer and errors only")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb and return its exit code; what goes wrong is printed as one line."""
    return run_verb(_generate, argv)


def _generate(argv: Sequence[str]) -> int:
    options = build_parser().parse_args(list(argv))
    config = _config(options)
    prompt = _read_prompt(options.prompt)
    from dflash.interrupts import Interrupts

    if config.model is None and not config.quiet:
        print("no --model is given: the quickstart pair is used", file=sys.stderr)
    with Interrupts():  # what was printed stays: the first Ctrl-C ends the answer, not the line
        _answer(config, prompt)
    return EXIT_DONE


def _config(options: argparse.Namespace) -> BenchmarkConfig:
    """The settings, checked as those of a benchmark run are.

    Raises:
        UsageError: a value out of range, or two that contradict each other.
    """
    values = dict(vars(options))
    del values["prompt"]
    no_draft, block_size = values.pop("no_draft"), values.pop("block_size")
    of_the_draft = {
        "--draft-model": options.draft_model,
        "--block-size": block_size,
        "--draft-bits": options.draft_bits,
    }
    for flag, value in of_the_draft.items():
        if no_draft and value is not None:
            raise UsageError(f"{flag} contradicts --no-draft", "drop one of them")
    if options.model not in (None, DEFAULT_DATASET) and options.draft_model is None and not no_draft:
        raise UsageError(
            f"no draft is named for the target {options.model!r}",
            "add --draft-model, or --no-draft for plain decoding",
        )
    return BenchmarkConfig(
        arms=("baseline",) if no_draft else ("dflash",),
        block_sizes=() if block_size is None else (block_size,),
        **values,
    )


def _read_prompt(argument: str) -> str:
    try:
        prompt = sys.stdin.read() if argument == STANDARD_INPUT else argument
        prompt.encode()  # bytes of the command line that are no UTF-8 stand in it as lone surrogates
    except UnicodeError as error:
        raise UsageError("the prompt is not UTF-8 text", "convert it to UTF-8") from error
    if not prompt.strip():
        raise UsageError("the prompt is empty", "give a prompt with text, or - to read standard input")
    return prompt


def _answer(config: BenchmarkConfig, prompt: str) -> None:
    import asyncio

    from dflash.backends import create_backend
    from dflash.execution import backend_settings

    backend = cast("InProcessBackend", create_backend(config.backend, backend_settings(config)))
    try:
        (arm,) = asyncio.run(backend.open((_arm(config),))).arms
        generation = _stream(backend, _request(config, arm, prompt))
    finally:
        asyncio.run(backend.aclose())
    if not config.quiet:
        print(stats_line(generation, arm), file=sys.stderr)


def _arm(config: BenchmarkConfig) -> Arm:
    from dflash import quickstart
    from dflash.plan import planned_arms
    from dflash.results.records import Arm

    (arm,) = planned_arms(config)
    is_quickstart_draft = config.model in (None, DEFAULT_DATASET) and config.draft_model is None
    if arm.is_baseline or arm.block_size is not None or not is_quickstart_draft:
        return arm
    return Arm(arm.name, quickstart.DEFAULT_BLOCK_SIZE)


def _request(config: BenchmarkConfig, arm: Arm, prompt: str) -> GenerationRequest:
    from dflash.backends.base import GenerationRequest, Message, Sampling

    assert config.max_new_tokens is not None
    return GenerationRequest(
        request_id="prompt",
        arm=arm,
        messages=(Message("user", prompt),),
        max_new_tokens=config.max_new_tokens,
        sampling=Sampling(config.temperature, config.top_p, config.top_k),
        seed=config.seed,
        reasoning=config.reasoning,
    )


def _stream(backend: InProcessBackend, request: GenerationRequest) -> Generation:
    with _own_lines(sys.stdout) as write:
        stream = TextStream(backend.detokenise, write)
        generation = backend.run(request, on_tokens=stream.add)
        stream.end()
    return generation


@contextmanager
def _own_lines(output: IO[str]) -> Iterator[Callable[[str], None]]:
    """Writes at once; afterwards the line is ended, so that what follows on the terminal has its own."""
    last = ""

    def write(text: str) -> None:
        nonlocal last
        last = text
        output.write(text)
        output.flush()

    try:
        yield write
    finally:
        if last and not last.endswith("\n"):
            write("\n")


def stats_line(generation: Generation, arm: Arm) -> str:
    """One line: how long the answer is, how fast it came, why it ended."""
    from dflash.results import metrics
    from dflash.results.tables import format_count, format_ms, format_number, format_rate

    records = [_record(generation)]
    parts = [
        f"{format_count(metrics.output_tokens_mean(records))} tokens",
        f"{format_rate(metrics.decode_tok_s(records))} tok/s",
        f"TTFT {format_ms(metrics.ttft_s(records))} ms",
    ]
    if not arm.is_baseline:
        parts.append(f"acceptance length {format_number(metrics.acceptance_length(records))}")
    parts.append(f"{format_count(generation.num_decode_steps)} steps")
    parts.append(f"finish reason {generation.finish_reason}")
    return f"{arm.label}: {', '.join(parts)}"


def _record(generation: Generation) -> RequestRecord:
    from dflash.results.records import RequestRecord

    shared = {item.name for item in fields(RequestRecord)} & {item.name for item in fields(generation)}
    return RequestRecord(
        cell_id="generate", prompt_id="prompt", **{name: getattr(generation, name) for name in shared}
    )


if __name__ == "__main__":
    sys.exit(main())
