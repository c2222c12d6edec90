"""What a replay saw, in words that can be checked: operands by name, the sample, why the result is bad."""

from __future__ import annotations

import pytest

from trainvitals_server.autopsy_words import autopsy_lines, autopsy_steps
from trainvitals_server.first_bad import FirstBad, Operand


def operand(low: float, high: float, dtype: str = "float32") -> Operand:
    return Operand(dtype=dtype, min=low, max=high)


def line(operation: str, inputs: tuple[Operand, ...], output: Operand, **more: str) -> str:
    report = FirstBad(
        step=37, found="operation", operation=operation, direction=more.get("direction", "forward"),
        gradient_of=more.get("gradient_of", ""), inputs=inputs, output=output,
        n_bad=output.n_nan + output.n_posinf + output.n_neginf, samples=(4,), n_bad_samples=1, batch_size=8,
    )  # fmt: skip
    return autopsy_lines(report)[0]


def test_a_division_names_numerator_and_denominator_and_the_sample_where_both_are_0() -> None:
    text = line("RealDiv", (operand(0.0, 10.26), operand(0.0, 10.5)), Operand(dtype="float32", n_nan=1))
    assert (
        "the numerator was between 0 and 10.26 (float32) and the denominator was between 0 and 10.5" in text
    )
    assert text.endswith("both are 0 at sample 4, and 0 / 0 is NaN.")


def test_a_division_of_something_by_0_is_not_called_0_by_0() -> None:
    text = line("RealDiv", (operand(0.0, 3.0), operand(0.0, 3.0)), Operand(dtype="float32", n_posinf=1))
    assert "0 / 0" not in text


def test_the_gradient_of_a_root_names_the_root_and_the_incoming_gradient() -> None:
    inputs = (operand(0.0, 4.8), operand(-0.03, 0.03))
    text = line("SqrtGrad", inputs, Operand(n_posinf=1), direction="backward", gradient_of="Sqrt")
    assert "the root's value was between 0 and 4.8 (float32) and the incoming gradient was between" in text
    assert text.endswith("the root is 0 at sample 4, where its slope is infinite.")


def test_a_mask_at_the_end_of_float16_says_how_minus_infinity_becomes_nan() -> None:
    inputs = (operand(-277.8, 9.2, "float16"), operand(-65504.0, 0.0, "float16"))
    text = line("AddV2", inputs, Operand(dtype="float16", n_neginf=36))
    assert "-65504 is float16's minimum" in text
    assert "the softmax of such a row is NaN" in text


@pytest.mark.parametrize(
    ("sample", "said"), [(0, "0 (the 1st)"), (4, "4 (the 5th)"), (10, "10 (the 11th)"), (21, "21 (the 22nd)")]
)
def test_one_bad_sample_is_told_by_its_index_and_its_place(sample: int, said: str) -> None:
    report = FirstBad(step=37, found="operation", samples=(sample,), n_bad_samples=1, batch_size=32)
    assert autopsy_steps(report) == [f"In the batch of step 37, sample index {said} is the bad one."]


def test_weights_that_were_bad_before_name_the_update_that_made_them_so() -> None:
    (text,) = autopsy_lines(FirstBad(step=9, found="weight", layer="head/kernel"))
    assert text.startswith("The weights were NaN or infinite before step 9 (first `head/kernel`)")
    assert text.endswith("the update of step 8 made them so.")


def test_weights_that_were_bad_before_any_update_blame_none() -> None:
    (text,) = autopsy_lines(FirstBad(step=0, found="weight"))
    assert text == "The weights were NaN or infinite before step 0: no update had been made."


def test_weights_that_came_bad_into_a_resumed_training_are_no_update_s_fault() -> None:
    report = FirstBad(step=500, found="weight", layer="head/kernel", weights_bad_since=-1)
    assert autopsy_lines(report)[0].endswith("they were so when this training began.")


def test_a_replay_that_went_another_way_names_no_cause_and_says_what_both_saw() -> None:
    notes = ("the loss was finite there and not here", "the weights are some steps old", "it met Log")
    (text,) = autopsy_lines(FirstBad(step=9, found="nothing", is_reproduced=False, met="loss", notes=notes))
    assert "was not reproduced: its loss was not finite, which is not what the training did" in text
    assert "(the loss was finite there and not here; the weights are some steps old)" in text
    assert "stayed finite" not in text
