"""How the numbers of one step lie in the ring: what the graph writes and the host reads.

A row is `[step, step of the loss, loss, batch size]`, then one block for each call of an optimizer's `apply`:
`[step, loss scale, learning rate, optimizer step, n half sums of squares]`. What is seldom needed has a ring
of its own for each part of a block: `[step, input, label, weight non-finite, n half sums, n counts, n largest
absolute values, n shares of zeros]`, written only in a step whose half sums or loss are suspicious, or where
the host asks for it. Under XLA, which has no such branch, those numbers up to the counts take the place of
the half sums in the row itself. Where the half sums were left out to save time they are `NOT_MEASURED`.
"""

from __future__ import annotations

ROW_HEAD = 4
BLOCK_HEAD = 4
EXTRAS = ("input_nonfinite", "label_nonfinite", "weight_nonfinite")
NOT_MEASURED = -1.0  # neither counts nor half sums are ever negative
# A float32 sum of squares below this has lost terms to underflow: squares below 1.2e-38 are denormal or 0.
SMALLEST_SAFE_SUM = 1e-30


def details_width(variables: int) -> int:
    """Return how many numbers the details of so many variables take in the row itself."""
    return len(EXTRAS) + 2 * variables


def part_width(variables: int) -> int:
    """Return how many numbers they take in a ring of their own: their sizes come with them."""
    return details_width(variables) + 2 * variables
