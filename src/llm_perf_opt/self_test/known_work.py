"""The known program: so many rounds of so many matrix products and sums, each in a named range. All counts follow from here.

A sum of two contiguous float32 tensors into a third is one kernel on every accelerator, and a matrix product at least one
(a library may split it), so counts of sums are exact and counts of products a least number.
"""

from __future__ import annotations

ROUNDS = 5
PRODUCTS = 3
"""Matrix products of a round."""
SUMS = 4
"""Sums of a round."""
SIDE = 256
ROUND_RANGE, PRODUCT_RANGE, SUM_RANGE = "self_test_round", "self_test_products", "self_test_sums"
EXPECTED_RANGES = {ROUND_RANGE: ROUNDS, PRODUCT_RANGE: ROUNDS, SUM_RANGE: ROUNDS}
EXPECTED_OPERATORS = {"aten::mm": ROUNDS * PRODUCTS, "aten::add": ROUNDS * SUMS}
EXPECTED_SUM_KERNELS = ROUNDS * SUMS
LEAST_PRODUCT_KERNELS = ROUNDS * PRODUCTS
EXPECTED_PRODUCT_FLOPS = ROUNDS * PRODUCTS * 2 * SIDE**3
EXPECTED_ADDITIONS = SIDE * SIDE
"""Floating-point additions of one sum."""
ENGINE_MODES = {
    "eager": (),
    "graphs": ("model.cuda_graphs=true", "model.cache=static"),
    "compile": ("model.compile=true", "model.cache=static"),
}
"""How the engine is run → its settings."""
RANKS = 2
REDUCED_ELEMENTS = 1 << 20
EXPECTED_REDUCED = sum(range(1, RANKS + 1))
"""Rank r adds r + 1 to each element."""
