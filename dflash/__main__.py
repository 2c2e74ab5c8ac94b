"""`dflash VERB` = `python -m dflash.VERB`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence

import dflash
from dflash.command_line import outlive_readers, report_error
from dflash.errors import EXIT_DONE, UsageError

VERBS = {
    "benchmark": "run the same prompts through plain decoding and through drafting, and report",
    "report": "render stored runs again",
    "compare": "gate a run against a base run, with a verdict and a reason",
    "generate": "answer one prompt, and say how fast",
    "data": "list, fetch and verify data sets; show their prompts",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Hand over to the verb and return its exit code."""
    outlive_readers()
    words = list(sys.argv[1:] if argv is None else argv)
    verb = words[0] if words else "--help"
    if verb in ("-h", "--help", "help"):
        print(_help())
        return EXIT_DONE
    if verb == "--version":
        print(f"dflash {dflash.__version__}")
        return EXIT_DONE
    if verb not in _verbs():
        return report_error(UsageError(f"unknown verb {verb!r}", f"choose one of {', '.join(_verbs())}"))
    code: int = importlib.import_module(f"dflash.{verb}").main(words[1:])
    return code


def _verbs() -> list[str]:
    return [verb for verb in VERBS if importlib.util.find_spec(f"dflash.{verb}") is not None]


def _help() -> str:
    lines = ["usage: dflash VERB [options]", "", "verbs:"]
    lines += [f"  {verb:<12}{VERBS[verb]}" for verb in _verbs()]
    return "\n".join([*lines, "", "`dflash VERB --help` says more; --version prints the version."])


if __name__ == "__main__":
    sys.exit(main())
