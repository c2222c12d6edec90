"""How many steps a second the detectors judge, and the memory it takes: a short run and a long one."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator

import numpy as np

from bench.result import Result
from trainvitals.wire import FloatArray, Hello, Layer, Layout
from trainvitals_server.batch import Batch, Series
from trainvitals_server.fold import RunFold

ROUNDS = 5
FRAMES = {"as they come at 1 ms a step": 50, "in full frames": 1024}  # rows of a frame
STEPS, LAYERED_STEPS, LAYERS = 200_000, 20_000, 200
LENGTHS = (50_000, 500_000)  # whose memory is compared
QUICK_SHARE = 0.02


def run(is_quick: bool) -> list[Result]:
    """Measure the fold of one stream, with no server and no store around it."""
    share, rounds = (QUICK_SHARE, 1) if is_quick else (1.0, ROUNDS)
    steps, layered = int(STEPS * share), int(LAYERED_STEPS * share)
    results = [
        _speed(f"judged, {name}", rounds, steps, frame=frame, layers=0) for name, frame in FRAMES.items()
    ]
    results.append(_speed(f"judged, {LAYERS} layers", rounds, layered, frame=1024, layers=LAYERS))
    return [*results, *(_memory(int(length * share)) for length in LENGTHS)]


def _speed(what: str, rounds: int, steps: int, *, frame: int, layers: int) -> Result:
    rates = [steps / _seconds(steps, frame, layers) for _ in range(rounds)]
    signals = "loss, gradient norm and loss scale" + (
        f", gradient norms of {layers} layers" if layers else ""
    )
    method = (
        f"{signals} of a healthy run of {steps:,} steps, {frame} rows a frame, all detectors, one core; "
        f"median of {rounds}"
    )
    return Result(what, f"{np.median(rates):,.0f} steps/s", method)


def _memory(steps: int) -> Result:
    tracemalloc.start()
    fold = _fold(0)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    peak = 0
    for batch in _batches(steps, 1024, 0):
        tracemalloc.reset_peak()
        fold.rows(0, "a", batch)
        peak = max(peak, tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    method = (
        f"largest of Python's allocations while {steps:,} steps are judged, one frame of 1024 rows included"
    )
    size = f"{peak / 1024:,.0f} KiB, saved state {len(fold.dump()) / 1024:,.0f} KiB"
    return Result(f"memory of the detectors, {steps:,} steps", size, method)


def _seconds(steps: int, frame: int, layers: int) -> float:
    fold, spent = _fold(layers), 0.0
    for batch in _batches(steps, frame, layers):
        began = time.perf_counter()
        fold.rows(0, "a", batch)
        spent += time.perf_counter() - began
    return spent


def _fold(layers: int) -> RunFold:
    fold = RunFold("bench")
    fold.hello(Hello(run_id="bench", session_id="a"))
    if layers:
        fold.layout(0, "a", Layout(seq=1, layout_id=1, layers=list(_layers(layers))))
    return fold


def _batches(steps: int, frame: int, layers: int) -> Iterator[Batch]:
    """Yield a run that learns, with the noise of an ordinary one; made as it is judged."""
    rng = np.random.default_rng(0)
    for start in range(0, steps, frame):
        step = np.arange(start, min(start + frame, steps), dtype=np.int64)
        loss = (0.3 + 2.2 * np.exp(-step / (steps / 6))) * (1 + 0.05 * rng.normal(size=len(step)))
        norm = np.exp(0.3 * rng.normal(size=len(step)))
        scale = np.exp2(12.0 + step // 2000 % 3)
        columns = {"loss": _series(loss), "grad_norm": _series(norm), "loss_scale": _series(scale)}
        norms = {"layer_grad_norm": _series(np.exp(0.3 * rng.normal(size=(len(step), layers))))}
        yield Batch(step, columns, norms if layers else {}, _layers(layers))


def _series(values: FloatArray) -> Series:
    return Series(values, np.ones(values.shape, dtype=bool))


def _layers(count: int) -> tuple[Layer, ...]:
    return tuple(Layer(name=f"dense_{place}", kind="Dense") for place in range(count))
