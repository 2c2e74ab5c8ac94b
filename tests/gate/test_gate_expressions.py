from __future__ import annotations

import math

import pytest

from dflash.errors import UsageError
from dflash.gate.expressions import default_gates, load_gate_file, parse_gate, parse_gate_file


@pytest.mark.parametrize(
    ("text", "quantity", "change", "below", "above"),
    [
        ("speedup:-5%", "speedup", -0.05, None, None),
        ("tpot_s:+2.5%", "tpot_s", 0.025, None, None),
        (" tpot_s : + 5 % ", "tpot_s", 0.05, None, None),
        ("agreement:<0.99", "agreement", None, 0.99, None),
        ("agreement:<99%", "agreement", None, 0.99, None),
        ("error_rate:>0", "error_rate", None, None, 0.0),
        ("ttft_s_p99:>0.5", "ttft_s_p99", None, None, 0.5),
    ],
)
def test_an_expression_is_read(text, quantity, change, below, above):
    gate = parse_gate(text)
    assert (gate.quantity, gate.change, gate.below, gate.above) == (quantity, change, below, above)


def test_an_expression_is_kept_without_its_spaces():
    assert parse_gate(" speedup :\n-5 % ").text == "speedup:-5%"


def test_the_minimum_effect_is_a_logarithm():
    assert parse_gate("speedup:-5%").minimum_effect == pytest.approx(-math.log(0.95))
    assert parse_gate("tpot_s:+5%").minimum_effect == pytest.approx(math.log(1.05))
    assert parse_gate("error_rate:>0").minimum_effect == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("speedup", "cannot be read"),
        ("speedup:5%", "cannot be read"),
        ("speedup:-5", "a change without %"),
        ("spedup:-5%", "there is no quantity 'spedup'"),
        ("speedup:+5%", "a change to the better of speedup: write -5%"),
        ("tpot_s:-5%", "a change to the better of tpot_s"),
        ("speedup:-100%", "fall by that much"),
        ("agreement:>0.9", "a higher agreement is better: write agreement:<0.9"),
        ("error_rate:<0.1", "a lower error_rate is better: write error_rate:>0.1"),
        ("error_rate:+5%", "gated by a limit, not by a change: write error_rate:>0"),
        ("outputs_unchanged:-5%", "write outputs_unchanged:<1"),
        ("tpot_s:+1.2.3%", "is no number"),
        ("spedup:-5%", "did you mean speedup?"),
        ("agreement:<99", "agreement is a share, 0 to 1: write agreement:<0.99"),
        ("agreement:<0", "this can never fail: write agreement:<1"),
        ("error_rate:>1", "this can never fail"),
        ("error_rate:>200%", "is a share"),
        ("speedup:<0", "this can never fail"),
        ("tpot_s:>0", "this fails always"),
    ],
)
def test_a_wrong_expression_names_the_fault_and_the_mend(text, words):
    with pytest.raises(UsageError) as caught:
        parse_gate(text)
    assert words in str(caught.value)
    assert repr(text) in str(caught.value)


def test_the_defaults_are_marked_as_such():
    gates = default_gates()
    assert [gate.text for gate in gates] == [
        "speedup:-5%",
        "acceptance_length:-2%",
        "tpot_s:+5%",
        "agreement:<0.99",
        "error_rate:>0",
    ]
    assert all(gate.is_default for gate in gates)


FILE = """
[other]
left = "alone"

[gate]
fail-if = ["speedup:-5%", "error_rate:>0"]
allow = ["machine.gpu_driver"]
strict = true

[[gate.for]]
dataset = "gsm8k"
block-size = 8
fail-if = "acceptance_length:-1%"
"""


def test_a_gate_file_is_read():
    file = parse_gate_file(FILE, "gates.toml")
    assert [gate.text for gate in file.gates] == ["speedup:-5%", "error_rate:>0", "acceptance_length:-1%"]
    assert file.gates[2].only == {"dataset": "gsm8k", "block_size": 8}
    assert file.allow == ("machine.gpu_driver",)
    assert file.strict


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gate", "is no TOML"),
        ("x = 1", "no table [gate]"),
        ("[gate]\nfail_if = []", "unknown key 'fail_if'"),
        ("[gate]\nfail-if = 3", "fail-if is no list"),
        ("[gate]\nfail-if = []", "names no gate"),
        ("[gate]\nfail-if = ['speedup:-5%']\nstrict = 'yes'", "of the wrong type"),
        ("[[gate.for]]\nblock-size = 'x'\nfail-if = 'speedup:-5%'", "of the wrong type"),
        ("[[gate.for]]\nmodel = 'x'\nfail-if = 'speedup:-5%'", "unknown key 'model'"),
        ("[gate]\nfor = 3", "for is no list of tables"),
    ],
)
def test_a_wrong_gate_file_is_refused(text, words):
    with pytest.raises(UsageError) as caught:
        parse_gate_file(text, "gates.toml")
    assert words in str(caught.value)


def test_a_mark_of_the_encoding_is_read_over(tmp_path):
    (tmp_path / "gates.toml").write_text(FILE, encoding="utf-8-sig")
    assert len(load_gate_file(tmp_path / "gates.toml").gates) == 3


def test_a_gate_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        load_gate_file(tmp_path / "none.toml")
