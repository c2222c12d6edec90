from __future__ import annotations

from trainvitals_server.speed import WINDOW_S, Speedometer


def driven(*marks: tuple[float, int]) -> Speedometer:
    meter = Speedometer()
    for now, step in marks:
        meter.note("run", step, now)
    return meter


def test_it_is_the_slope_of_the_last_seconds() -> None:
    meter = driven((0.0, 0), (1.0, 1000), (100.0, 2000), (102.0, 2050), (104.0, 2100))
    assert meter.steps_per_s("run", 104.0) == 25.0


def test_one_mark_silence_and_an_unknown_run_have_no_speed() -> None:
    assert driven((0.0, 5)).steps_per_s("run", 1.0) is None
    assert driven((0.0, 5), (1.0, 6)).steps_per_s("run", 1.0 + WINDOW_S + 0.1) is None
    assert driven().steps_per_s("nobody", 0.0) is None


def test_a_resume_that_goes_back_begins_anew() -> None:
    assert driven((0.0, 500), (1.0, 600), (2.0, 100), (3.0, 130)).steps_per_s("run", 3.0) == 30.0
