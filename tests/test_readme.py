"""The README's commands and calls are real: the parsers and signatures that they name take them."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import dflash
from dflash.__main__ import VERBS
from dflash.arguments import parse_benchmark_arguments
from dflash.config import BenchmarkConfig
from dflash.errors import UsageError
from dflash.results import summary
from dflash.results.markdown import MEANINGS

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "METHODOLOGY.md")


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shell_lines() -> list[str]:
    found = [line for block in blocks(page("README.md"), "sh") for line in block.splitlines()]
    return [line for line in found if line.strip()]


COMMANDS = [line for line in shell_lines() if line.startswith("python -m dflash.")]


class Parsed(BaseException):
    """Ends a verb once its arguments are read; no handler of the verb catches it."""


def parse_only(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand the command's arguments to its verb, and stop where the verb would begin to work.

    Raises:
        UsageError: the verb does not take them.
    """
    _, _, module, *arguments = shlex.split(command)
    if module == "dflash.benchmark":
        parse_benchmark_arguments(arguments)  # contradictions included
        return
    verb = pytest.importorskip(module)
    read = argparse.ArgumentParser.parse_args

    def parse_and_stop(self, argv=None, namespace=None):
        read(self, argv, namespace)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    try:
        exit_code = verb.main(arguments)
    except Parsed:
        return
    raise UsageError(f"{command}: exit code {exit_code} before anything was parsed")


def test_the_readme_shows_every_verb():
    modules = {command.split()[2] for command in COMMANDS}
    assert {name for name in modules if name.count(".") == 1} == {f"dflash.{verb}" for verb in VERBS}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_is_understood(command, monkeypatch):
    parse_only(command, monkeypatch)


def test_the_example_with_simulated_servers_runs(tmp_path):
    (example,) = [block for block in blocks(page("README.md"), "sh") if "dflash.backends.simulated" in block]
    *servers, benchmark = example.splitlines()
    with ExitStack() as stack:
        for command in servers:
            port = shlex.split(command)[shlex.split(command).index("--port") + 1]
            words = [*shlex.split(command)[1:], "--port", "0", "--time-scale", "0"]
            server = stack.enter_context(
                subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
            )
            stack.callback(server.terminate)
            assert server.stdout is not None
            free_port = int(server.stdout.readline())
            benchmark = benchmark.replace(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port}")
        words = [*shlex.split(benchmark)[1:], "--max-new-tokens", "8", "--quiet", "--json", "-"]
        done = subprocess.run(
            [sys.executable, *words, "--output-dir", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    ends = {cell["arm"]: cell["num_completed"] for cell in json.loads(done.stdout)["cells"]}
    assert ends == {"baseline": 8, "dflash": 8}


@pytest.mark.parametrize(
    "command",
    [
        "python -m dflash.benchmark --num-promts 3",
        "python -m dflash.benchmark --top-p 0.9",
        "python -m dflash.report reports/x --qiet",
    ],
)
def test_a_wrong_command_would_be_found(command, monkeypatch):
    with pytest.raises(UsageError):
        parse_only(command, monkeypatch)


@pytest.mark.parametrize("line", [line for line in shell_lines() if line not in COMMANDS])
def test_other_shell_lines_are_make_targets_or_installs(line):
    if line.startswith("make "):
        makefile = ROOT / "Makefile"
        if not makefile.exists():
            pytest.skip("there is no Makefile")
        assert re.search(rf"^{line.split()[1]}:", makefile.read_text(encoding="utf-8"), re.MULTILINE)
    elif line.startswith("torchrun "):
        words = shlex.split(line)
        assert words[3:6] == ["-m", "--", "dflash.benchmark"], (
            "without -- torchrun takes --run for one of its own"
        )
        parse_benchmark_arguments(words[6:])
    else:
        extras = re.fullmatch(r"pip install '\.\[(.+)\]'", line)
        assert extras, line
        assert f"\n{extras[1]} = [" in page("pyproject.toml")


def calls_in_readme(name: str) -> list[ast.Call]:
    """The calls of `name` or `something.name` in the README's Python."""
    return [
        node
        for block in blocks(page("README.md"), "python")
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == name
    ]


def bind(call: ast.Call, signature: inspect.Signature) -> None:
    signature.bind(*call.args, **{str(keyword.arg): keyword.value for keyword in call.keywords})


def test_public_names_of_the_readme_exist():
    names = {
        node.attr
        for block in blocks(page("README.md"), "python")
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "dflash"
    }
    assert names == {"run_benchmark", "BenchmarkConfig", "load_run"}
    assert names <= set(dflash.__all__)


def test_settings_of_the_readme_are_settings():
    (call,) = calls_in_readme("BenchmarkConfig")
    BenchmarkConfig(**{str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords})


def test_calls_of_the_loop_fit_its_signature():
    model = pytest.importorskip("dflash.model")
    calls = calls_in_readme("dflash_generate")
    assert len(calls) == 2
    for call in calls:
        bind(call, inspect.signature(model.dflash_generate))
    (load,) = [call for call in calls_in_readme("from_pretrained") if "Draft" in ast.unparse(call.func)]
    bind(load, inspect.signature(model.DFlashDraftModel.from_pretrained))


def anchors(text: str) -> set[str]:
    """What a page's headings are called in links: lower case, hyphens for blanks, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    for link in re.findall(r"\]\(([^)\s]+)\)", page(name)):
        path, _, anchor = link.partition("#")
        if not link.startswith("https://"):
            assert (ROOT / (path or name)).exists(), link
            assert not anchor or anchor in anchors(page(path or name)), link


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 70, 130])
def test_every_exit_code_is_explained(code):
    assert re.search(rf"^\| {code} \| \w", page("README.md"), re.MULTILINE)


def test_variables_of_the_readme_are_read_by_the_package():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "dflash").rglob("*.py"))
    for variable in set(re.findall(r"\bDFLASH_[A-Z_]+\b", page("README.md"))):
        assert f'"{variable}"' in sources, variable


@pytest.mark.parametrize("figure", MEANINGS)
def test_every_figure_of_a_report_is_defined_in_the_methodology(figure):
    assert f"**{figure}**" in page("METHODOLOGY.md")


def test_every_metric_is_defined_in_the_methodology():
    text = page("METHODOLOGY.md")
    metrics = (summary.arm_metrics, summary.pair_metrics, summary.load_metrics)
    source = "".join(inspect.getsource(function) for function in metrics)
    names = re.findall(r'^ +"(\w+)": ', source, re.MULTILINE)
    assert len(names) > 30
    assert [name for name in names if f"`{name}`" not in text] == []
