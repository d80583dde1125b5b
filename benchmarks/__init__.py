"""The benchmarks: every kernel on layers of real networks, against what else computes them.

`python -m benchmarks` in a checkout, `mpsgrad bench` with an installed package, which holds this
one as ``mpsgrad.benchmarks``. A family is one module with a function ``cases`` and one line in
`FAMILIES`.
"""

__all__ = ["FAMILIES"]

FAMILIES = (
    "convolution",
    "sub_pixel_convolution",
    "convolution_transpose",
    "fully_connected",
    "pooling",
    "batch_normalization",
    "group_normalization",
    "local_normalization",
    "gram_matrix",
    "arithmetic",
    "neuron",
    "softmax",
    "dropout",
    "upsampling",
    "resize",
    "reshape",
    "reduction",
    "loss",
    "optimizer",
    "training",
    "encode",
)
