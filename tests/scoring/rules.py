"""Rules: what names each label of a trace or a program rightly. Tables only."""

from __future__ import annotations

DIVERGENCE = frozenset({"gradual_divergence", "fast_divergence", "immediate_blowup"})
NONFINITE = frozenset({"sudden_nan", "nonfinite_gradient", "nonfinite_weight"})

HEALTHY = frozenset({"healthy", "healthy_short", "loss_scale_low_but_learning", "transient_nonfinite_grad"})
NAMED_BY: dict[str, frozenset[str]] = {  # label of a trace -> the kinds that name it rightly
    "immediate_blowup": frozenset({"immediate_blowup"}),
    "fast_divergence_to_nan": DIVERGENCE,
    "gradual_divergence_to_nan": frozenset({"gradual_divergence"}),
    "sudden_nan": frozenset({"sudden_nan", "nonfinite_gradient"}),
    "finite_divergence": DIVERGENCE,
    "nonfinite_grad_norm": frozenset({"nonfinite_gradient", "exploding_gradient", "immediate_blowup"}),
    "nonfinite_loss": DIVERGENCE | NONFINITE,
    "no_learning": frozenset({"plateau", "silent_constant", "vanishing_gradient"}),
    "stuck_high_lr": DIVERGENCE | {"plateau", "silent_constant"},
    "spike_no_recovery": DIVERGENCE | {"loss_spike"},
    "spike_recovers": frozenset({"loss_spike"}),
    "spike_with_loss_scale_drop": DIVERGENCE | {"loss_spike", "loss_scale_collapse", "exploding_gradient"},
    "early_divergence": DIVERGENCE,
    "loss_scale_collapse": frozenset({"loss_scale_collapse", "loss_scale_stuck_low"}),
    "grad_spike_then_nan": frozenset({"exploding_gradient", "sudden_nan", "fast_divergence"}),
    "intermittent_nan": frozenset({"bad_batch", "sudden_nan"}),
    "nan_masked_as_zero_loss": frozenset({"silent_constant", "nonfinite_gradient"}),
}
NOTE_IS_ENOUGH = frozenset({  # nothing is lost there, so that nobody need be woken
    "spike_recovers", "no_learning", "stuck_high_lr", "intermittent_nan", "nan_masked_as_zero_loss",
})  # fmt: skip
GRACE_STEPS = 100  # after the first non-finite value: whoever hears later, hears it from the loss itself

LIVE_NONFINITE = NONFINITE | {"bad_batch"}
PROGRAM_NAMED_BY: dict[str, frozenset[str]] = {  # label of a program, or its part before the colon
    "sudden_nan": LIVE_NONFINITE,
    "sudden_nan:fp16_overflow_mask": LIVE_NONFINITE | {"loss_scale_collapse"},
    "sudden_nan:optimizer_state": LIVE_NONFINITE | {"immediate_blowup", "optimizer_epsilon"},
    "gradual_divergence": frozenset({"gradual_divergence", "fast_divergence"}),
    "exploding_gradient": frozenset({"exploding_gradient", "fast_divergence", "immediate_blowup"}),
    "bad_label": frozenset({"runaway_negative_loss", "gradual_divergence"}),
    "spike_recovered": frozenset({"loss_spike", "optimizer_epsilon"}),
    "silent_fp16_overflow": frozenset(
        {"loss_spike", "gradual_divergence", "fast_divergence", "activation_overflow"}
    ),
    "loss_scale_collapse": frozenset({"loss_scale_collapse"}),
    "loss_scale_stuck_low": frozenset({"loss_scale_stuck_low", "loss_scale_collapse"}),
    "custom_loop_misuse": frozenset({"scaler_misuse"}),
    "custom_loop_misuse:accumulator_not_reset": frozenset(
        {"gradual_divergence", "exploding_gradient", "fast_divergence"}
    ),
    "custom_loop_misuse:never_unscaled": frozenset({"scaler_misuse", "immediate_blowup"}),
    "nan_from_start": frozenset({"immediate_blowup"}),
    "nan_in_metric_only": frozenset({"metric_nonfinite"}),
    "nan_in_validation_only": frozenset({"validation_nonfinite"}),
    "oscillation": frozenset({"oscillation", "plateau"}),
    "plateau_no_learning": frozenset({"plateau", "vanishing_gradient", "silent_constant"}),
    "saturation": frozenset({"saturation", "vanishing_gradient", "plateau"}),
    "vanishing_gradient": frozenset({"vanishing_gradient"}),
    "dead_relu": frozenset({"dead_units"}),
}
PROGRAM_NOTE_IS_ENOUGH = frozenset(
    {"spike_recovered", "oscillation", "plateau_no_learning", "saturation", "nan_in_metric_only"}
)
CAUSE: dict[str, frozenset[str]] = {  # label of a program -> the cause that should come first
    "sudden_nan:log0": frozenset({"log_of_zero"}),
    "sudden_nan:div0": frozenset({"division_by_zero"}),
    "sudden_nan:sqrt_grad_at_0": frozenset({"sqrt_gradient_at_zero"}),
    "sudden_nan:pow_grad_at_0": frozenset({"pow_gradient_at_zero"}),
    "sudden_nan:overflow_exp_softmax": frozenset({"exp_overflow"}),
    "sudden_nan:overflow_exp": frozenset({"exp_overflow"}),
    "sudden_nan:fp16_overflow_mask": frozenset({"float16_mask_overflow"}),
    "sudden_nan:fp16_overflow_activation": frozenset({"float16_activation_overflow"}),
    "sudden_nan:bad_input": frozenset({"bad_input"}),
    "sudden_nan:bad_label": frozenset({"bad_label"}),
    "sudden_nan:optimizer_state": frozenset({"optimizer_epsilon", "float16_variables"}),
    "sudden_nan:where_grad": frozenset({"where_gradient"}),
    "gradual_divergence": frozenset({"learning_rate_too_high"}),
    "exploding_gradient": frozenset({"learning_rate_too_high", "no_gradient_clipping"}),
    "bad_label:loss_to_minus_inf": frozenset({"bad_label"}),
    "nan_from_start": frozenset({"initialisation", "log_of_zero", "bad_input", "log_of_negative"}),
    "dead_relu": frozenset({"dead_relu", "learning_rate_too_high"}),
    "custom_loop_misuse:forgot_scale_loss": frozenset({"loss_scale_not_applied"}),
    "custom_loop_misuse:unscaled_twice": frozenset({"gradients_unscaled_twice"}),
    "custom_loop_misuse:never_unscaled": frozenset({"gradients_not_unscaled"}),
    "loss_scale_collapse": frozenset(
        {"loss_scale_floor", "float16_activation_overflow", "bad_input", "float16_overflow"}
    ),
    "plateau_no_learning": frozenset({"learning_rate_too_low", "single_unit_softmax", "constant_output"}),
}
