"""The command line of `python -m dflash.compare`: its flags, and which of them go together. Pure but for a look at
the folders that outputs go to."""

from __future__ import annotations

import argparse
from pathlib import Path

from dflash.arguments import OneLineParser
from dflash.cache_folder import parse_folder
from dflash.command_line import STANDARD_OUTPUT, check_json_file
from dflash.errors import UsageError


def build_parser() -> argparse.ArgumentParser:
    """The parser with its help."""
    parser = OneLineParser(
        prog="python -m dflash.compare",
        description="Compare run NEW with run BASE, or with the accepted baseline of --suite, under gates.",
        epilog="Exit codes: 0 nothing is worse, 1 something is worse (--strict: or cannot be told), 2 usage, "
        "5 nothing could be compared, or a gated cell could not.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        type=Path,
        help="BASE NEW; NEW alone with --suite; A/A runs to --calibrate",
    )
    gates = parser.add_argument_group("gates")
    gates.add_argument(
        "--fail-if",
        dest="fail_if",
        metavar="GATE",
        action="append",
        default=[],
        help="such as speedup:-5%%, tpot_s:+5%%, agreement:<0.99, error_rate:>0; may be repeated",
    )
    gates.add_argument(
        "--gates", metavar="FILE", type=_file, help="TOML file with a [gate] table, such as a suite"
    )
    gates.add_argument(
        "--allow",
        metavar="FIELD",
        action="append",
        default=[],
        help="compare although this field differs, as a refusal names it; may be repeated",
    )
    gates.add_argument("--strict", action="store_true", help="fail where nothing can be told, too")
    stored = parser.add_argument_group("baselines")
    stored.add_argument(
        "--suite", metavar="NAME", help="whose baseline (default: the suite that NEW was made from)"
    )
    stored.add_argument(
        "--baselines",
        metavar="FOLDER",
        type=parse_folder,
        help="where baselines are kept (default: reports/baselines)",
    )
    stored.add_argument(
        "--accept",
        action="store_true",
        help="make one run the baseline of its suite and machine, as it is; of two, NEW unless it fails; with "
        "--calibrate all runs together",
    )
    stored.add_argument(
        "--record", action="store_true", help="note NEW in the history of its suite, for the trend"
    )
    stored.add_argument(
        "--calibrate",
        action="store_true",
        help="RUN... are runs in which nothing changed: how often do the gates cry wolf, and what can they see?",
    )
    stored.add_argument(
        "--calibration",
        metavar="FILE",
        type=_file,
        help="use this calibration (default: that of the suite and machine)",
    )
    output = parser.add_argument_group("what comes out")
    output.add_argument(
        "--markdown", metavar="FILE", help="write the page here; - for standard output (default)"
    )
    output.add_argument(
        "--json", dest="json_file", metavar="FILE", help="the same as JSON; - for standard output"
    )
    output.add_argument("--junit", metavar="FILE", help="the same as JUnit XML")
    output.add_argument("--annotations", action="store_true", help="print annotations for GitHub Actions")
    output.add_argument("--quiet", action="store_true", help="print nothing but errors, and annotations")
    return parser


def check_mode(options: argparse.Namespace) -> None:
    """Refuse flags that would have no effect.

    Raises:
        UsageError: there is one.
    """
    judging = {
        "--strict": options.strict,
        "--junit": options.junit,
        "--annotations": options.annotations,
    }
    comparing = {
        "--fail-if": options.fail_if,
        "--gates": options.gates,
        "--allow": options.allow,
        "--markdown": options.markdown,
        "--json": options.json_file,
    }
    if options.calibrate:
        judging |= {"--record": options.record, "--calibration": options.calibration}
        given = [flag for flag, value in judging.items() if value]
        if given:
            raise UsageError(
                f"--calibrate gives no verdict, and {given[0]} needs one", f"leave {given[0]} out"
            )
    elif options.accept and len(options.runs) == 1:
        comparing |= {**judging, "--calibration": options.calibration}
        given = [flag for flag, value in comparing.items() if value]
        if given:
            raise UsageError(
                f"--accept of one run compares nothing, and {given[0]} would have no effect",
                "compare it first, without --accept; or leave the flag out",
            )


def check_outputs(options: argparse.Namespace) -> None:
    """Refuse outputs that could not be written, or that would be mixed, before anything is done.

    Raises:
        UsageError: there is one.
    """
    files = {"--json": options.json_file, "--markdown": options.markdown, "--junit": options.junit}
    for flag, file in files.items():
        check_json_file(file, flag)
    places = [Path(file).resolve() for file in files.values() if file not in (None, STANDARD_OUTPUT)]
    if len(set(places)) < len(places):
        raise UsageError("two outputs go to one file", "give each of --markdown, --json, --junit its own")
    printed = [flag for flag, file in files.items() if file == STANDARD_OUTPUT]
    printed += ["--annotations"] if options.annotations and printed else []
    if len(printed) > 1:
        raise UsageError(
            f"{printed[0]} and {printed[1]} both go to standard output", "write one of them to a file"
        )


def _file(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: name a file, or leave it out")
    return Path(text)
