"""The folder of what is fetched or built, as it is named on a command line or in the environment."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from dflash.arguments import parse_benchmark_arguments
from dflash.cache_folder import expand_path, parse_folder
from dflash.data import main
from dflash.errors import EXIT_USAGE, UsageError


def test_an_empty_argument_is_not_the_working_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_folder("a b") == Path("a b")
    for text in ("", " "):
        with pytest.raises(argparse.ArgumentTypeError, match="it is empty"):
            parse_folder(text)
    with pytest.raises(UsageError, match="--datasets-cache: it is empty: name a folder"):
        parse_benchmark_arguments(["--datasets-cache", ""])
    assert main(["list", "--datasets-cache", ""]) == EXIT_USAGE
    assert "--datasets-cache: it is empty" in capsys.readouterr().err


def test_the_home_of_nobody() -> None:
    assert expand_path("~", "X") == Path.home()
    with pytest.raises(UsageError, match="X names ~nope/a, and it is not known whose home folder that is"):
        expand_path("~nope/a", "X")
