"""Which cells are compared, and every refusal by the name of its field."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gated_runs import ENVIRONMENT, MACHINE, compare, made_up, only

from dflash.errors import UsageError
from dflash.gate.pairing import check_field, pair_cells
from dflash.results.fingerprint import machine_fingerprint, machine_name, same_machine

GATES = ("acceptance_length:-2%", "tpot_s:+5%")
OF_WORKLOAD = {
    "prompts_digest": "d2",
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 20,
    "seed": 1,
    "reasoning": "on",
    "max_new_tokens": 64,
    "num_prompts": 12,
    "dtype": "float32",
    "target": "another-4b",
    "target_revision": "r2",
}
OF_ARM = {"acceptance_rule": "rejection", "draft": "another-draft", "server_args": ("--fast",)}
OF_CONFIG = {
    "server_args": ["--fast"],
    "attn_implementation": "eager",
    "route": "completions",
    "arrivals": "constant",
}
OF_MACHINE = {
    "cpu": "another CPU",
    "num_cpus": 4,
    "memory_gib": 31.0,
    "architecture": "aarch64",
    "gpus": ["made-up GPU, 40 GiB"],
    "gpu_driver": "1.2.4",
}


def environment(part: str, **changes):
    return {**ENVIRONMENT, part: {**ENVIRONMENT[part], **changes}}


def verdicts(new, **rules) -> dict[str, str]:
    report = compare(made_up(), new, *GATES, **rules)
    return {
        item.gate.quantity: item.verdict for item in report.comparisons if item.pair.cell.arm.name == "dflash"
    }


def check_refused(new, field: str) -> None:
    """Refused for everything, the field named, and let pass when it is allowed."""
    report = compare(made_up(), new, *GATES)
    refused = [item for item in report.comparisons if item.pair.cell.arm.name == "dflash"]
    assert [item.verdict for item in refused] == ["incomparable"] * 2
    assert all(item.reason.startswith(f"{field} differs: ") for item in refused)
    assert all(f"--allow {field}" in item.reason for item in refused)
    assert report.exit_code == 5
    assert "incomparable" not in verdicts(new, allow=(field,)).values()


@pytest.mark.parametrize(("field", "value"), OF_WORKLOAD.items())
def test_another_workload_is_refused(field, value):
    check_refused(made_up("new", workload={field: value}), field)


@pytest.mark.parametrize(("field", "value"), OF_ARM.items())
def test_another_arm_is_refused(field, value):
    check_refused(made_up("new", arm={field: value}), field)


@pytest.mark.parametrize(("field", "value"), OF_CONFIG.items())
def test_other_engine_arguments_are_refused(field, value):
    check_refused(made_up("new", config={"suite": "ci", field: value}), field)


def test_another_setting_that_the_engine_tells_is_refused():
    check_refused(
        made_up("new", environment=environment("engine", attn_implementation="eager")),
        "engine.attn_implementation",
    )


def test_prompts_that_were_rendered_to_other_tokens_are_refused():
    new = made_up("new")
    records = tuple(
        replace(record, prompt_digest="other") if record.prompt_id == "gsm8k/3" else record
        for record in new.records
    )
    check_refused(replace(new, records=records), "prompt_tokens")


def test_later_turns_after_other_answers_are_left_out():
    base, new = made_up(), made_up("new")

    def with_second_turns(run, changed: str):
        second = tuple(
            replace(record, turn=1, prompt_digest=changed if record.prompt_id == "gsm8k/3" else "same")
            for record in run.records
        )
        return replace(run, records=(*run.records, *second))

    report = compare(with_second_turns(base, "a"), with_second_turns(new, "b"), *GATES)
    assert {item.verdict for item in report.comparisons} == {"same"}
    assert {item.num_left_out for item in report.comparisons} == {1}


def test_a_cell_that_did_not_complete_is_refused():
    new = made_up("new")
    cells = tuple(replace(cell, status="interrupted") for cell in new.info.cells)
    check_refused(replace(new, info=replace(new.info, cells=cells)), "status")


@pytest.mark.parametrize(("field", "value"), OF_MACHINE.items())
def test_another_machine_is_refused_for_times_alone(field, value):
    new = made_up("new", environment=environment("machine", **{field: value}))
    assert verdicts(new) == {"acceptance_length": "same", "tpot_s": "incomparable"}
    reason = next(
        item.reason
        for item in compare(made_up(), new, "tpot_s:+5%").comparisons
        if item.verdict == "incomparable"
    )
    assert reason.startswith(f"machine.{field} differs: ")
    assert verdicts(new, allow=(f"machine.{field}",))["tpot_s"] == "same"
    assert verdicts(new, allow=("machine",))["tpot_s"] == "same"


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("threads", {"OMP_NUM_THREADS": "1"}),
        ("engine", {"device": "another GPU"}),
        ("engine", {"num_threads": 3}),
    ],
)
def test_other_threads_and_devices_are_refused_for_times_alone(part, changes):
    new = made_up("new", environment=environment(part, **changes))
    assert verdicts(new) == {"acceptance_length": "same", "tpot_s": "incomparable"}


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("machine", {"os": "Linux 6.9.9-another"}),
        ("machine", {"host": "another"}),
        ("machine", {"memory_gib": 62.4}),
        ("threads", {"CUDA_VISIBLE_DEVICES": "1"}),
    ],
)
def test_kernel_host_and_a_little_memory_do_not_matter(part, changes):
    new = made_up("new", environment=environment(part, **changes))
    report = compare(made_up(), new, *GATES)
    assert {item.verdict for item in report.comparisons} == {"same"}
    assert report.notes == ()


def test_versions_and_the_drafts_revision_are_listed():
    new = made_up(
        "new",
        arm={"draft_revision": "r8"},
        environment={**environment("versions", dflash="0.2.0"), "git": {"commit": "abc"}},
    )
    report = compare(made_up(), new, *GATES)
    assert {item.verdict for item in report.comparisons} == {"same"}
    assert {note.partition(":")[0] for note in report.notes} == {
        "draft_revision",
        "versions.dflash",
        "git.commit",
    }


def test_what_is_let_pass_is_said():
    report = compare(made_up(), made_up("new", workload={"seed": 3}), *GATES, allow=("seed",))
    assert any(note.startswith("let pass by --allow: seed: 0 in the base, 3") for note in report.notes)


@pytest.mark.parametrize("field", ["tempature", "machine.host", "os", "dataset"])
def test_an_unknown_field_cannot_be_allowed(field):
    with pytest.raises(UsageError, match="no such field"):
        check_field(field)


def test_another_block_size_is_another_cell():
    report = compare(made_up(), made_up("new", arm={"block_size": 4}), *GATES)
    assert only_reason(report) == {"the new run lacks this cell"}
    assert "only in the new run, compared with nothing: dflash B=4 on gsm8k" in report.notes


def only_reason(report) -> set[str]:
    return {item.reason for item in report.comparisons if item.pair.cell.arm.name == "dflash"}


def test_cells_that_share_a_place_are_paired_by_what_they_are():
    base, new = made_up(), made_up("new")
    cell = base.info.cells[1]
    short = replace(cell, cell_id="s", workload=replace(cell.workload, max_new_tokens=32))
    one = replace(base.info, cells=(cell, short))
    other = replace(new.info, cells=(short, cell))
    pairs = pair_cells(one, other)
    assert [(pair.base, pair.new) for pair in pairs] == [(short, short), (cell, cell)]


def test_retired_cells_are_left_alone():
    base, new = made_up(), made_up("new")
    retired = replace(base.info.cells[1], cell_id="old", status="retired")
    pairs = pair_cells(replace(base.info, cells=(*base.info.cells, retired)), new.info)
    assert [pair.base.cell_id for pair in pairs if pair.base] == ["b", "d"]


def test_times_of_a_shared_device_are_incomparable():
    new = made_up("new")
    cells = tuple(replace(cell, is_timed=False) for cell in new.info.cells)
    comparison = only(compare(made_up(), replace(new, info=replace(new.info, cells=cells)), "tpot_s:+5%"))
    assert (comparison.verdict, comparison.reason) == (
        "incomparable",
        "no time was kept, because processes shared a device",
    )


def test_a_machine_has_a_name_and_is_known_again():
    one = machine_fingerprint({"machine": MACHINE})
    assert machine_name(one).startswith("1x-made-up-gpu-80-gib-")
    assert machine_name(machine_fingerprint({"machine": {**MACHINE, "gpus": None}})).startswith(
        "8x-made-up-cpu-"
    )
    assert same_machine(one, machine_fingerprint({"machine": {**MACHINE, "memory_gib": 62.3, "os": "x"}}))
    assert not same_machine(one, machine_fingerprint({"machine": {**MACHINE, "memory_gib": 60.0}}))
