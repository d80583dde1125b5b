"""The combined loss and its labels against the oracle, and the rules of their encodes."""

import copy
import pickle
import re
from dataclasses import replace

import mpsgrad as mg
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.oracle import load, store
from tests.images import FORMATS, Work, empty, filled, read
from tests.loss import cases, oracle
from tests.loss.oracle import Loss
from tests.rejects import rejects
from tests.repeats import check_thread_independence
from tests.tolerance import (
    Guarded,
    assert_close,
    assert_exact,
    assert_same_bytes,
    grid,
    rng_for,
    ulps_for,
)


def descriptor(loss):
    """The library's form of the oracle's loss."""
    return mg.LossDescriptor(
        getattr(mg.LossType, loss.type),
        getattr(mg.ReductionType, loss.reduction),
        reduce_across_batch=loss.reduce_across_batch,
        weight=loss.weight,
        label_smoothing=loss.label_smoothing,
        number_of_classes=loss.number_of_classes,
        epsilon=loss.epsilon,
        delta=loss.delta,
    )


def kernel(loss, device):
    return mg.Loss(descriptor(loss), device=device)


def allowed(channels, dtype=np.float32):
    """ULPs of an element: one rounding a channel of a softmax, few others, two functions."""
    return ulps_for(channels + 8, dtype, functions=4)


def as_images(losses, loss, count):
    """What a call returns, in the shape of the oracle's loss images."""
    if loss.reduction == "NONE":
        return losses
    if loss.reduce_across_batch:
        return np.concatenate([losses.reshape(1), np.zeros(count - 1, np.float32)]).reshape(
            count, 1, 1, 1
        )
    return losses.reshape(count, 1, 1, 1)


def check_gradient(loss, actual, y, t, w=None):
    scale = oracle.derivative_scale(loss, y, t)
    factor = np.abs(oracle.element_weights(loss, y.shape, w))
    assert_close(
        actual,
        oracle.combined_gradient(loss, y, t, w),
        ulps=allowed(y.shape[3], actual.dtype),
        scale=scale * factor,
        floor=1e-30,
        nonzero=0.02 if y.shape[3] < 100 else 0.0005,  # a cross entropy is 0 but for one channel
    )


def check_losses(loss, actual, y, t, w=None):
    assert actual.dtype == np.float32
    assert_close(
        actual,
        oracle.loss_images(loss, y, t, w),
        ulps=allowed(y.shape[3]),
        scale=oracle.loss_scale(loss, y, t, w),
        floor=1e-30,
        nonzero=0.02,
    )


def inputs(rng, loss, shape):
    return cases.predictions(rng, loss, shape), cases.labels(rng, loss, shape)


# --- Arithmetic --------------------------------------------------------------

EVERY = cases.LOSSES + cases.VARIED
quiet = pytest.mark.filterwarnings("ignore:Loss. label_smoothing adds:RuntimeWarning")


@quiet
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("loss", EVERY, ids=cases.name)
def test_every_loss(device, loss, weighted, rng):
    if weighted and loss.type == "COSINE_DISTANCE":
        weighted = False
        loss = replace(loss, weight=-0.75)
    shape = (3, 2, 5, 3)
    y, t = inputs(rng, loss, shape)
    w = cases.weights(rng, shape) if weighted else None
    gradient, losses = kernel(loss, device)(y, t, w)
    check_gradient(loss, gradient, y, t, w)
    check_losses(loss, as_images(losses, loss, 3), y, t, w)


@pytest.mark.parametrize("shape", [*cases.SHAPES, (2, 1, 1, 1000), (2, 65, 65, 21)], ids=str)
@pytest.mark.parametrize("kind", oracle.TYPES)
def test_every_shape(device, shape, kind, rng):
    loss = Loss(kind, "SUM" if kind == "COSINE_DISTANCE" else "MEAN")
    y, t = inputs(rng, loss, shape)
    gradient, losses = kernel(loss, device)(y, t)
    check_gradient(loss, gradient, y, t)
    check_losses(loss, as_images(losses, loss, shape[0]), y, t)


# Few pixels, and more than a loop takes at once; neither fills vectors.
@pytest.mark.parametrize("size", [(3, 5), (47, 45)], ids=str)
@pytest.mark.parametrize("channels", range(2, 12))
@pytest.mark.parametrize("reduction", ["NONE", "MEAN"])
def test_softmax_of_few_channels(device, channels, size, reduction, rng):
    loss = Loss(
        "SOFT_MAX_CROSS_ENTROPY", reduction, label_smoothing=0.25, number_of_classes=channels
    )
    y, t = inputs(rng, loss, (2, *size, channels))
    gradient, losses = kernel(loss, device)(y, t)
    check_gradient(loss, gradient, y, t)
    check_losses(loss, as_images(losses, loss, 2), y, t)


@pytest.mark.parametrize("row", cases.VALUES, ids=lambda row: cases.name(row.loss))
def test_printed_values(device, row):
    y, t = (np.array(v, np.float32).reshape(1, 1, -1) for v in (row.y, row.t))
    printed = {"atol": 5.1e-7, "rtol": 4e-7}
    gradient, losses = kernel(row.loss, device)(y, t)
    np.testing.assert_allclose(gradient.ravel(), row.gradient, **printed)
    np.testing.assert_allclose(losses, row.sum, **printed)
    if row.mean is not None:
        _, losses = kernel(replace(row.loss, reduction="MEAN"), device)(y, t)
        np.testing.assert_allclose(losses, row.mean, **printed)
    if row.elements is not None:
        _, losses = kernel(replace(row.loss, reduction="NONE"), device)(y, t)
        np.testing.assert_allclose(losses.ravel(), row.elements, **printed)


# Two images of two pixels and one channel.
Y = np.array([1.0, 2, 3, 4], np.float32).reshape(2, 1, 2, 1)
W = np.array([1.0, 0, 2, 1], np.float32).reshape(2, 1, 2, 1)


@pytest.mark.parametrize(
    ("reduction", "separate", "across"),
    [
        ("NONE", (1, 0, 18, 16), (1, 0, 18, 16)),
        ("SUM", (1, 34), 35),
        ("MEAN", (0.5, 17), 8.75),
        ("SUM_BY_NON_ZERO_WEIGHTS", (1, 17), 35 / 3),
    ],
)
def test_printed_reductions(device, reduction, separate, across):
    for batch, expected in ((False, separate), (True, across)):
        loss = Loss("MEAN_SQUARED_ERROR", reduction, batch)
        gradient, losses = kernel(loss, device)(Y, np.zeros_like(Y), W)
        assert_exact(np.ravel(losses), np.float32(np.ravel(expected)))
        assert_exact(gradient.ravel(), [2, 0, 12, 8])


def test_the_first_loss_image_gets_the_batch(device):
    states = mg.LossLabels.batch(device, np.zeros_like(Y), W)
    work = Work(device)
    with work:
        kernel(Loss("MEAN_SQUARED_ERROR", "SUM", True), device).encode_batch(
            work.buffer, mg.ImageBatch.from_array(device, Y), states, allocator=mg.DEFAULT
        )
        mg.synchronize(states, work.buffer)
    assert [state.loss.item() for state in states] == [35, 0]


def test_the_other_loss_images_become_zero(device):
    """Whatever a loss by itself has left there."""
    states = mg.LossLabels.batch(device, np.zeros_like(Y), W)
    losses = []
    for across in (False, True):
        with Work(device) as work:
            kernel(Loss("MEAN_SQUARED_ERROR", "SUM", across), device).encode_batch(
                work.buffer, mg.ImageBatch.from_array(device, Y), states, allocator=mg.DEFAULT
            )
            mg.synchronize(states, work.buffer)
        losses.append([state.loss.item() for state in states])
    assert losses[1] == [35, 0]
    assert losses[0][1] != 0
    assert sum(losses[0]) == 35


@pytest.mark.parametrize("kind", ["MEAN_SQUARED_ERROR", "MEAN_ABSOLUTE_ERROR", "HUBER", "HINGE"])
def test_exact_sums(device, kind, rng):
    """Small multiples of a power of two: every product and sum is a float32."""
    loss = Loss(kind, "SUM", weight=0.5, delta=2.0)
    y, w = grid(rng, (2, 5, 3, 6), step=0.5), grid(rng, (2, 5, 3, 6))
    t = rng.integers(0, 2, y.shape).astype(np.float32)
    gradient, losses = kernel(loss, device)(y, t, w)
    assert_exact(gradient, oracle.combined_gradient(loss, y, t, w), nonzero=0.1)
    assert_exact(losses, oracle.loss_images(loss, y, t, w).ravel())


@pytest.mark.parametrize("channels", [1, 7, 16, 17, 48, 1000])
def test_softmax_of_equal_logits(device, channels):
    """Any common offset, even a large one, leaves ln(channels)."""
    y = np.full((1, 1, channels), 1e4, np.float32)
    t = np.zeros_like(y)
    t[..., -1] = 1
    gradient, loss = kernel(Loss("SOFT_MAX_CROSS_ENTROPY"), device)(y, t)
    np.testing.assert_allclose(loss, np.log(channels), rtol=3e-7, atol=1e-7)
    np.testing.assert_allclose(gradient, 1 / channels - t, rtol=3e-6, atol=1e-7)


def test_losses_of_many_elements_are_summed_wide(device):
    """A float32 running sum of a million ones and one would be short by its last digits."""
    y = np.full((1, 500, 500, 4), np.float32(1.0001), np.float32)
    _, losses = kernel(Loss("MEAN_ABSOLUTE_ERROR"), device)(y, np.zeros_like(y))
    np.testing.assert_allclose(losses, float(np.float32(1.0001)) * 1e6, rtol=1e-7)


def test_labels_of_zero_silence_infinite_factors(device):
    if device.kind != "cpu":
        pytest.skip("what MPS does outside moderate inputs is not documented")
    zero, one = np.zeros((1, 1, 2), np.float32), np.array([1, 0], np.float32).reshape(1, 1, 2)
    categorical = kernel(Loss("CATEGORICAL_CROSS_ENTROPY"), device)
    gradient, loss = categorical(zero, zero)
    assert_exact(gradient, zero)
    assert loss == 0
    assert categorical(zero, one)[1] == np.inf
    divergence = kernel(Loss("KULLBACK_LEIBLER_DIVERGENCE"), device)
    assert divergence(np.full_like(zero, -np.inf), zero)[1] == 0
    gradient, loss = kernel(Loss("LOG", epsilon=0.0), device)(one, one)
    assert_exact(gradient.ravel(), [-1, 1])
    assert loss == 0
    softmax = kernel(Loss("SOFT_MAX_CROSS_ENTROPY"), device)
    gradient, loss = softmax(np.array([0, -np.inf], np.float32).reshape(1, 1, 2), one)
    assert_exact(gradient, zero)
    assert loss == 0


def test_nan_shows(device):
    if device.kind != "cpu":
        pytest.skip("what MPS does outside moderate inputs is not documented")
    y = np.zeros((2, 1, 1, 20), np.float32)
    y[0, 0, 0, 11] = np.nan
    t = np.ones_like(y)
    for kind in oracle.TYPES:
        if kind in ("COSINE_DISTANCE", "KULLBACK_LEIBLER_DIVERGENCE", "HINGE"):
            continue  # their gradients do not depend on the value
        gradient, losses = kernel(Loss(kind), device)(y, t)
        assert np.isnan(gradient[0, 0, 0, 11]), kind
        assert np.isnan(losses[0]), kind
        assert not np.isnan(gradient[1]).any(), kind


def test_equal_values_have_no_absolute_gradient(device):
    y = np.array([1, 2, -3], np.float32).reshape(1, 1, 3)
    gradient, _ = kernel(Loss("MEAN_ABSOLUTE_ERROR"), device)(y, np.ones_like(y))
    assert_exact(gradient.ravel(), [0, 1, -1])


@pytest.mark.parametrize("weight", [0.0, 2.0])
@pytest.mark.parametrize("across", [False, True])
def test_a_count_of_zero_gives_zero(device, across, weight):
    loss = Loss("MEAN_SQUARED_ERROR", "SUM_BY_NON_ZERO_WEIGHTS", across, weight=weight)
    factors = None if weight == 0 else np.zeros_like(Y)
    gradient, losses = kernel(loss, device)(Y, np.zeros_like(Y), factors)
    assert not losses.any()
    assert not gradient.any()


@pytest.mark.parametrize("axes", [(2, 1, 1, 1), (2, 3, 5, 1), (1, 1, 1, 4)], ids=str)
def test_weights_are_repeated_along_axes_of_length_1(device, axes):
    rng = rng_for(f"repeated {axes}")
    weights = rng.standard_normal(axes, np.float32)
    labels = rng.standard_normal(X.shape, np.float32)
    whole = np.ascontiguousarray(np.broadcast_to(weights, X.shape))
    descriptor = mg.LossDescriptor(mg.LossType.MEAN_SQUARED_ERROR, mg.ReductionType.SUM)
    for kernel in (mg.Loss(descriptor, device=device), mg.ForwardLoss(descriptor, device=device)):
        few, all_of_them = kernel(X, labels, weights), kernel(X, labels, whole)
        assert_same_bytes(np.concatenate(few, None), np.concatenate(all_of_them, None))
    if axes[0] == 1:
        one = mg.Loss(descriptor, device=device)
        assert_same_bytes(one(X[0], labels[0], weights[0])[0], one(X, labels, whole)[0][0])


def test_tiny_weights_count(device):
    """The product of the weights is no float32, but not 0 either."""
    if device.kind != "cpu":
        pytest.skip("whether a product that is no float32 counts as 0 is not documented")
    loss = Loss("MEAN_SQUARED_ERROR", "SUM_BY_NON_ZERO_WEIGHTS", weight=1e-30)
    w = np.array([1e-30, 1.0], np.float32).reshape(1, 2, 1)
    _, losses = kernel(loss, device)(np.ones_like(w), np.zeros_like(w), w)
    np.testing.assert_allclose(losses, 0.5e-30, rtol=1e-6)


# --- Images ------------------------------------------------------------------


@pytest.mark.parametrize("result", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("kind", ["SOFT_MAX_CROSS_ENTROPY", "HUBER"])
def test_every_format(device, kind, source, result, rng):
    loss = Loss(kind, "MEAN", delta=0.25)
    shape = (2, 3, 4, 5)
    stored = store(rng.uniform(0, 1, shape).astype(np.float32), source)
    targets = store(rng.uniform(0, 1, shape).astype(np.float32), source)
    y, t = (load(v) for v in (stored, targets))
    labels = [mg.LossLabels(device, image) for image in filled(device, t, source)]
    work = Work(device)
    with work:
        images = empty(device, shape, result)
        kernel(loss, device).encode_batch(work.buffer, filled(device, y, source), labels, images)
        work.result(images)
        mg.synchronize(labels, work.buffer)
    exact = oracle.combined_gradient(loss, y, t)
    actual = read(images)
    if result.startswith("unorm"):
        exact = np.clip(exact, 0, 1)
    assert_close(
        actual,
        exact,
        ulps=allowed(5, actual.dtype),
        scale=oracle.derivative_scale(loss, y, t),
        nonzero=0.05,
    )
    check_losses(loss, np.stack([label.loss for label in labels]), y, t)
    assert_close(labels[0].labels, t[0], ulps=1)


def check_batch(one, y, t, w, size, kind):
    """Compare a batch with encodes of its three samples; return the batch's gradient."""
    device = one.device
    sources = filled(device, y, kind=kind)
    batch = mg.LossLabels.batch(device, t, w, loss_image_size=size)
    single = [mg.LossLabels(device, t[i], w[i], size) for i in range(3)]
    work = Work(device)
    with work:
        together = one.encode_batch(work.buffer, sources, batch, allocator=mg.DEFAULT)
        work.result(together)
        apart = [
            work.result(one.encode(work.buffer, sources[i], single[i], allocator=mg.DEFAULT))
            for i in range(3)
        ]
        mg.synchronize(batch, work.buffer)
        mg.synchronize(single, work.buffer)
    for i in range(3):
        assert_same_bytes(together[i].read(), apart[i].read())
        assert_same_bytes(batch[i].loss, single[i].loss)
    return read(together)


@pytest.mark.parametrize("kind", ["batch", "list"])
@pytest.mark.parametrize("reduction", ["NONE", "MEAN"])
def test_batches_equal_single_encodes(device, kind, reduction, rng):
    loss = Loss("SOFT_MAX_CROSS_ENTROPY", reduction)
    shape = (3, 4, 2, 6)
    y, t = inputs(rng, loss, shape)
    w = cases.weights(rng, shape)
    size = (2, 4, 6) if reduction == "NONE" else (1, 1, 1)
    gradient = check_batch(kernel(loss, device), y, t, w, size, kind)
    check_gradient(loss, gradient, y, t, w)


@pytest.mark.parametrize("channels", [3, 4])
def test_channel_windows(device, channels, rng):
    """Labels have the size of what is read of the source."""
    loss = Loss("SOFT_MAX_CROSS_ENTROPY", "MEAN")
    y, t = inputs(rng, loss, (2, 3, 5, channels))
    wide = rng.standard_normal((2, 3, 5, 12)).astype(np.float32)
    wide[..., 4 : 4 + channels] = y
    one = kernel(loss, device)
    one.source_feature_channel_offset = 4
    one.source_feature_channel_max_count = channels
    one.destination_feature_channel_offset = 8
    labels = mg.LossLabels.batch(device, t)
    images = empty(device, wide.shape, fill=7.0)
    work = Work(device)
    with work:
        one.encode_batch(work.buffer, filled(device, wide), labels, images)
        work.result(images)
        mg.synchronize(labels, work.buffer)
    result = read(images)
    check_gradient(loss, result[..., 8 : 8 + channels], y, t)
    check_losses(loss, np.stack([label.loss for label in labels]), y, t)
    assert_exact(result[..., :8], np.full((2, 3, 5, 8), 7.0))
    if device.kind == "cpu":  # what a GPU stores up to the end of the slice is its business
        assert_exact(result[..., 8 + channels :], np.zeros((2, 3, 5, 4 - channels)), nonzero=0)


def test_channel_views(device, rng):
    """Labels and weights that are views of wider images."""
    loss = Loss("SIGMOID_CROSS_ENTROPY", "SUM_BY_NON_ZERO_WEIGHTS")
    shape = (1, 3, 5, 4)
    y, t = inputs(rng, loss, shape)
    w = cases.weights(rng, shape)
    wide = filled(device, np.concatenate([w, t, y], axis=-1), kind="list")[0]
    views = [wide.sub_image_with_feature_channel_range(c, 4) for c in (0, 4, 8)]
    labels = mg.LossLabels(device, views[1], views[0])
    assert labels.labels_image is views[1]
    assert labels.weights_image is views[0]
    work = Work(device)
    with work:
        result = work.result(
            kernel(loss, device).encode(work.buffer, views[2], labels, allocator=mg.DEFAULT)
        )
        labels.synchronize(work.buffer)
    check_gradient(loss, result.read()[None], y, t, w)
    check_losses(loss, labels.loss[None], y, t, w)


@settings(max_examples=60)
@given(
    kind=st.sampled_from(oracle.TYPES),
    reduction=st.sampled_from(oracle.REDUCTIONS),
    across=st.booleans(),
    shape=st.tuples(*(st.integers(1, n) for n in (4, 9, 9, 20))),
    weighted=st.booleans(),
)
def test_memory_layout_never_changes_a_bit(device, kind, reduction, across, shape, weighted):
    """Views of wider images go row by row, dense batches in whole images."""
    if kind == "COSINE_DISTANCE":
        reduction, weighted = "SUM", False
    loss = Loss(kind, reduction, across)
    rng = np.random.default_rng(sum(shape))
    y, t = inputs(rng, loss, shape)
    w = cases.weights(rng, shape) if weighted else None
    gradient, losses = kernel(loss, device)(y, t, w)
    check_gradient(loss, gradient, y, t, w)
    check_losses(loss, as_images(losses, loss, shape[0]), y, t, w)
    one = kernel(loss, device)
    one.source_feature_channel_offset = 4
    one.destination_feature_channel_offset = 4
    padded = np.concatenate([np.zeros((*shape[:3], 4), np.float32), y], axis=-1)
    size = (shape[2], shape[1], shape[3]) if reduction == "NONE" else (1, 1, 1)
    labels = mg.LossLabels.batch(device, t, w, loss_image_size=size)
    work = Work(device)
    with work:
        images = empty(device, padded.shape)
        one.encode_batch(work.buffer, filled(device, padded), labels, images)
        work.result(images)
        mg.synchronize(labels, work.buffer)
    assert_same_bytes(np.ascontiguousarray(read(images)[..., 4:]), gradient)
    others = as_images(losses, loss, shape[0])
    if reduction == "NONE":
        assert_same_bytes(np.stack([label.loss for label in labels]), others)
    else:  # the rows are summed in another order
        check_losses(loss, np.stack([label.loss for label in labels]), y, t, w)


@pytest.mark.parametrize("kind", oracle.TYPES)
def test_threads_and_runs_give_the_same_bytes(device, kind, rng):
    loss = Loss(kind, "SUM")
    y, t = inputs(rng, loss, (3, 40, 41, 10))
    check_thread_independence(lambda: kernel(loss, device)(y, t))


# --- Array calls -------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("reduction", ["NONE", "MEAN"])
def test_out(device, dtype, single, reduction, rng):
    loss = Loss("MEAN_SQUARED_ERROR", reduction)
    shape = (3, 2, 5, 3)
    y, t = inputs(rng, loss, shape)
    arguments = (y[0], t[0]) if single else (y, t)
    guard = Guarded(shape[1:] if single else shape, dtype, skew=3)
    gradient, losses = kernel(loss, device)(*arguments, out=guard.array)
    guard.check()
    assert np.shares_memory(gradient, guard.array)
    check_gradient(
        loss, gradient[None] if single else gradient, *(v[: 1 if single else 3] for v in (y, t))
    )
    count = 1 if single else 3
    expected = {"NONE": arguments[0].shape, "MEAN": () if single else (count,)}[reduction]
    assert losses.shape == expected


def test_loss_shapes(device):
    y = np.ones((3, 2, 5, 4), np.float32)
    for loss, expected in (
        (Loss("HUBER", "NONE"), y.shape),
        (Loss("HUBER", "NONE", True), y.shape),
        (Loss("HUBER", "MEAN"), (3,)),
        (Loss("HUBER", "MEAN", True), ()),
    ):
        assert kernel(loss, device)(y, 0 * y)[1].shape == expected
        single = expected[1:]
        assert kernel(loss, device)(y[0], 0 * y[0])[1].shape == single


def test_half_precision_predictions(device, rng):
    loss = Loss("SOFT_MAX_CROSS_ENTROPY", "MEAN")
    y, t = inputs(rng, loss, (3, 2, 5, 3))
    half = y.astype(np.float16)
    gradient, losses = kernel(loss, device)(half, t)
    assert gradient.dtype == np.float16
    check_gradient(loss, gradient, half.astype(np.float32), t)
    check_losses(loss, losses.reshape(3, 1, 1, 1), half.astype(np.float32), t)


X = np.zeros((2, 3, 5, 4), np.float32)
CALLS = {
    "prediction dtype": (lambda k: k(X.astype(np.float64), X), TypeError,
                         "predictions must be float32 or float16, got float64"),
    "label dtype": (lambda k: k(X, X.astype(np.float16)), TypeError,
                    "labels must be float32, got float16"),
    "label double": (lambda k: k(X, X.astype(np.float64)), TypeError, "labels must be float32"),
    "label classes": (lambda k: k(X, [1, 2]), TypeError,
                      "labels must be float32, got int64; mg.one_hot(labels, count) makes such"),
    "label numbers": (lambda k: k(X, np.ones(2, np.float32)), ValueError,
                      "got (2,); mg.one_hot makes labels of class numbers, which are integers"),
    "label rows": (lambda k: k(X, np.ones((2, 10), np.float32)), ValueError,
                   "got (2, 10); labels.reshape(2, 1, 1, 10) makes an image of each row"),
    "weight dtype": (lambda k: k(X, X, X.astype(np.int32)), TypeError,
                     "weights must be float32, got int32; np.asarray(weights, np.float32) makes"),
    "prediction axes": (lambda k: k(X[0, 0], X), ValueError, "predictions must have shape (N, H"),
    "label shape": (lambda k: k(X, X[..., :3]), ValueError,
                    "labels have shape (2, 3, 5, 3), but predictions have (2, 3, 5, 4)"),
    "label axes": (lambda k: k(X[:1], X[0]), ValueError,
                   "labels have shape (3, 5, 4), but predictions have (1, 3, 5, 4)"),
    "weight shape": (lambda k: k(X[0], X[0], X[0, :2]), ValueError,
                     "weights have shape (2, 5, 4), but predictions have (3, 5, 4); axes "),
    "weight axes": (lambda k: k(X, X, X[0]), ValueError,
                    "weights have shape (3, 5, 4), but predictions have (2, 3, 5, 4)"),
    "out shape": (lambda k: k(X, X, out=X[0].copy()), ValueError, "out must have shape"),
    "out read only": (lambda k: k(X, X, out=np.broadcast_to(np.float32(0), X.shape)), ValueError,
                      "out must be writable"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), CALLS.values(), ids=CALLS)
def test_rejects_arrays(device, call, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call(kernel(Loss("HUBER", "NONE"), device))


# --- Order of events ---------------------------------------------------------


def test_the_loss_is_readable_only_when_it_is_there(device, queue):
    labels = mg.LossLabels(device, np.zeros((1, 1, 3), np.float32))
    with pytest.raises(RuntimeError, match="undefined until a loss kernel has written it"):
        _ = labels.loss
    source = filled(device, np.ones((1, 1, 1, 3), np.float32), kind="list")[0]
    one = kernel(Loss("MEAN_SQUARED_ERROR"), device)
    command_buffer = queue.command_buffer()
    labels.synchronize(command_buffer)
    one.encode(command_buffer, source, labels, allocator=mg.DEFAULT)
    with pytest.raises(RuntimeError, match="only after synchronize"):
        _ = labels.loss
    labels.synchronize(command_buffer)
    with pytest.raises(RuntimeError, match="commit it and call wait"):
        _ = labels.loss
    command_buffer.commit()
    with rejects(RuntimeError, "Image is written by a command buffer that nobody has waited for"):
        _ = labels.loss
    command_buffer.wait_until_completed()
    assert labels.loss.item() == 3
    assert labels.loss_image.read().shape == (1, 1, 1)
    command_buffer = queue.command_buffer()
    one.encode(command_buffer, source, labels, allocator=mg.DEFAULT)
    with pytest.raises(RuntimeError, match="only after synchronize"):
        _ = labels.loss
    command_buffer.commit()
    command_buffer.wait_until_completed()


def test_label_images_are_read_when_the_kernel_runs(device, queue):
    source = filled(device, np.full((1, 1, 1, 2), 3.0, np.float32), kind="list")[0]
    image = filled(device, np.zeros((1, 1, 1, 2), np.float32), kind="list")[0]
    labels = mg.LossLabels(device, image)
    command_buffer = queue.command_buffer()
    kernel(Loss("MEAN_SQUARED_ERROR"), device).encode(
        command_buffer, source, labels, allocator=mg.DEFAULT
    )
    labels.synchronize(command_buffer)
    image.write(np.ones((1, 1, 2), np.float32))
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert labels.loss.item() == 8


def test_label_arrays_are_copied(device):
    array = np.zeros((2, 1, 1, 2), np.float32)
    copied = mg.LossLabels.batch(device, array)
    single = mg.LossLabels(device, array[0])
    lent = mg.LossLabels.batch(device, array, copy=False)
    array[...] = 5
    assert_exact(copied[1].labels, np.zeros((1, 1, 2)))
    assert_exact(single.labels, np.zeros((1, 1, 2)))
    if device.kind == "cpu":
        assert_exact(lent[1].labels, np.full((1, 1, 2), 5.0))


def test_labels_that_are_used_in_place_are_contiguous(device):
    for array, words in (
        (
            np.zeros((2, 3, 4, 6), np.float32)[..., ::2],
            "LossLabels: labels must be C-contiguous to be used in place",
        ),
        (np.zeros(97, np.uint8)[1:].view(np.float32).reshape(2, 1, 4, 3), "must be aligned"),
    ):
        with pytest.raises(ValueError, match=words):
            mg.LossLabels.batch(device, array, copy=False)
        assert len(mg.LossLabels.batch(device, array)) == 2


def test_a_dropped_command_buffer_leaves_no_loss(device, queue):
    kind = mg.LossDescriptor(mg.LossType.MEAN_SQUARED_ERROR, mg.ReductionType.SUM)
    labels = mg.LossLabels.batch(device, np.zeros((1, 1, 1, 2), np.float32))
    x = mg.ImageBatch.from_array(device, np.full((1, 1, 1, 2), 2, np.float32))
    dropped = queue.command_buffer()
    mg.Loss(kind, device=device).encode(dropped, x, labels, allocator=mg.DEFAULT)
    labels[0].synchronize(dropped)
    del dropped
    with pytest.raises(RuntimeError, match="undefined until a loss kernel has written it"):
        _ = labels[0].loss
    again = queue.command_buffer()
    mg.Loss(kind, device=device).encode(again, x, labels, allocator=mg.DEFAULT)
    labels[0].synchronize(again)
    again.commit()
    again.wait_until_completed()
    assert labels[0].loss.item() == 8


def test_read_counts(device, queue):
    """Sources, labels and weights lose a count; the gradient starts with one."""
    command_buffer = queue.command_buffer()
    d = mg.ImageDescriptor(3, 2, 4)
    source, target, weight = (mg.TemporaryImage(command_buffer, d) for _ in range(3))
    source.read_count = 2
    labels = mg.LossLabels(device, target, weight)
    one = kernel(Loss("HUBER"), device)
    gradient = one.encode(command_buffer, source, labels)
    assert gradient.is_temporary
    assert (source.read_count, target.read_count, weight.read_count) == (1, 0, 0)
    assert gradient.read_count == 1
    with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
        one.encode(command_buffer, source, labels)
    assert source.read_count == 1
    for image in (source, gradient):
        image.read_count = 0
    command_buffer.commit()
    command_buffer.wait_until_completed()


def test_one_temporary_as_source_and_labels(device, queue):
    command_buffer = queue.command_buffer()
    source = mg.TemporaryImage(command_buffer, mg.ImageDescriptor(3, 2, 4))
    labels = mg.LossLabels(device, source)
    one = kernel(Loss("HUBER"), device)
    with rejects(mg.errors.ReadCountError, "TemporaryImage: cannot lower read count 1 by 2"):
        one.encode(command_buffer, source, labels)
    source.read_count = 2
    one.encode(command_buffer, source, labels).read_count = 0
    assert source.read_count == 0
    command_buffer.commit()
    command_buffer.wait_until_completed()


def test_a_predicate_skips_the_kernel(device, queue):
    labels = mg.LossLabels(device, np.zeros((1, 1, 3), np.float32))
    source = filled(device, np.ones((1, 1, 1, 3), np.float32), kind="list")[0]
    command_buffer = queue.command_buffer()
    command_buffer.predicate = mg.Predicate(mg.Buffer(device, np.zeros(1, np.uint32)))
    kernel(Loss("MEAN_SQUARED_ERROR"), device).encode(
        command_buffer, source, labels, allocator=mg.DEFAULT
    )
    labels.synchronize(command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert labels.loss.item() == 0


# --- Labels ------------------------------------------------------------------


def test_labels_from_arrays(device, rng):
    t, w = (rng.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(2))
    labels = mg.LossLabels(device, t, w, (3, 2, 4))
    assert_exact(labels.labels, t)
    assert_exact(labels.weights, w)
    image = labels.loss_image
    assert (image.width, image.height, image.feature_channels) == (3, 2, 4)
    assert mg.LossLabels(device, t).weights is None
    assert mg.LossLabels(device, t).weights_image is None
    assert (labels.read_count, labels.is_temporary) == (0, False)
    assert labels.resource_size == 3 * 4 * t.size
    assert repr(labels) == "LossLabels(3x2x4 float32, weights)"
    strided = np.asfortranarray(t)
    assert_exact(mg.LossLabels(device, strided).labels, t)


def test_label_batches_share_an_allocation(device, rng):
    t, w = (rng.standard_normal((5, 2, 3, 4)).astype(np.float32) for _ in range(2))
    labels = mg.LossLabels.batch(device, t, w, loss_image_size=(3, 2, 4))
    assert len(labels) == 5
    for i, label in enumerate(labels):
        assert isinstance(label, mg.LossLabels)
        assert_exact(label.labels, t[i])
        assert_exact(label.weights, w[i])
        assert label.loss_image.width == 3
    batch = mg.ImageBatch([label.labels_image for label in labels])
    assert_exact(batch.to_array(), t)


def test_data_descriptor_layouts(device, rng):
    t = rng.standard_normal((2, 3, 4)).astype(np.float32)
    hwc = mg.LossDataDescriptor(t)
    assert (hwc.size, hwc.bytes_per_row, hwc.bytes_per_image) == ((3, 2, 4), 48, 96)
    assert_exact(hwc.to_array(), t)
    chw = mg.LossDataDescriptor(np.ascontiguousarray(t.transpose(2, 0, 1)), mg.DataLayout.CHW)
    assert (chw.size, chw.bytes_per_row, chw.bytes_per_image) == ((3, 2, 4), 12, 24)
    assert_exact(chw.to_array(), t)
    assert_exact(mg.LossLabels(device, chw, hwc).labels, t)
    assert_exact(mg.LossLabels(device, chw, hwc).weights, t)


def test_data_descriptor_with_gaps(rng):
    block = rng.standard_normal((2, 16)).astype(np.float32)
    padded = mg.LossDataDescriptor(block, mg.DataLayout.HWC, (3, 2, 4))
    padded.bytes_per_row = 64
    assert_exact(padded.to_array(), block[:, :12].reshape(2, 3, 4))
    planes = rng.standard_normal((4, 3, 8)).astype(np.float32)
    chw = mg.LossDataDescriptor(planes, mg.DataLayout.CHW, (5, 2, 4))
    chw.bytes_per_row, chw.bytes_per_image = 32, 96
    assert_exact(chw.to_array(), planes[:, :2, :5].transpose(1, 2, 0))
    other = copy.copy(chw)
    other.bytes_per_row = 36
    assert chw.bytes_per_row == 32


BAD_DATA = {
    "dtype": (lambda: mg.LossDataDescriptor(np.zeros((1, 1, 1))), TypeError,
              "data must be a NumPy array of float32, got ndarray of float64"),
    "axes": (lambda: mg.LossDataDescriptor(np.zeros((2, 2), np.float32)), ValueError, "3 axes"),
    "short": (lambda: mg.LossDataDescriptor(np.zeros(5, np.float32), mg.DataLayout.HWC, (1, 2, 3)),
              ValueError, "data of 20 bytes does not hold 1x2x3 float32"),
    "size": (lambda: mg.LossDataDescriptor(np.zeros(5, np.float32), mg.DataLayout.HWC, (0, 2, 3)),
             ValueError, "size must be positive"),
    "two numbers": (lambda: mg.LossDataDescriptor(np.zeros(5, np.float32), mg.DataLayout.HWC,
                                                  (2, 3)), ValueError, "(width, height, channels)"),
    "order": (lambda: mg.LossDataDescriptor(np.zeros((2, 3, 4), np.float32).T), ValueError,
              "C-contiguous"),
    "huge": (lambda: mg.LossDataDescriptor(np.zeros(4, np.float32), mg.DataLayout.HWC,
                                           (2**31, 2**31, 1)), ValueError, "data of 16 bytes"),
    "one number": (lambda: mg.LossDataDescriptor(np.zeros(6, np.float32), mg.DataLayout.HWC, 6),
                   TypeError, "size must be (width, height, channels), got int"),
    "bytes": (lambda: mg.LossDataDescriptor(np.zeros(6, np.float32), mg.DataLayout.HWC, b"abc"),
              TypeError, "size must be (width, height, channels), got bytes"),
    "fraction": (lambda: mg.LossDataDescriptor(np.zeros(6, np.float32), mg.DataLayout.HWC,
                                               (1.5, 2, 3)), TypeError, "size[0] must be an int"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), BAD_DATA.values(), ids=BAD_DATA)
def test_rejects_data(call, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call()


def test_labels_over_read_only_arrays_stay(device):
    array = np.zeros((1, 2, 2, 3), np.float32)
    array.flags.writeable = False
    (labels,) = mg.LossLabels.batch(device, array, array, copy=False)
    for image in (labels.labels_image, labels.weights_image):
        with pytest.raises(ValueError, match="over a read-only array"):
            image.write(np.ones((2, 2, 3), np.float32))


@pytest.mark.parametrize("strides", [(44, 96), (50, 96), (48 + 64, 96), (2**62, 96)])
def test_rejects_strides_outside_the_data(strides):
    data = mg.LossDataDescriptor(np.zeros((2, 3, 4), np.float32))
    data.bytes_per_row, data.bytes_per_image = strides
    with pytest.raises(ValueError, match="do not fit data of 96 bytes"):
        data.to_array()


@pytest.mark.parametrize("strides", [(8, 2**62), (2**62, 40), (8, 44), (20, 40)])
def test_rejects_planes_outside_the_data(strides):
    data = mg.LossDataDescriptor(np.zeros((3, 5, 2), np.float32), mg.DataLayout.CHW)
    data.bytes_per_row, data.bytes_per_image = strides
    with pytest.raises(ValueError, match="do not fit data of 120 bytes"):
        data.to_array()


def test_rows_may_lie_far_apart():
    numbers = np.arange(20, dtype=np.float32)
    data = mg.LossDataDescriptor(numbers, mg.DataLayout.HWC, (2, 2, 2))
    data.bytes_per_row = 64
    assert_exact(data.to_array().ravel(), np.r_[numbers[:4], numbers[16:]])
    one = mg.LossDataDescriptor(numbers, mg.DataLayout.CHW, (20, 1, 1))
    one.bytes_per_row = one.bytes_per_image = 2**62  # no second row, no second channel
    assert_exact(one.to_array().ravel(), numbers)


F = np.zeros((2, 3, 4), np.float32)
BAD_LABELS = {
    "dtype": (lambda d: mg.LossLabels(d, F.astype(np.float64)), TypeError,
              "labels must be float32, got float64"),
    "weights dtype": (lambda d: mg.LossLabels(d, F, F.astype(np.float16)), TypeError,
                      "weights must be float32, got float16"),
    "kind": (lambda d: mg.LossLabels(d, [1.0]), TypeError,
             "labels must be an array, a LossDataDescriptor or an Image, got list"),
    "axes": (lambda d: mg.LossLabels(d, F[None]), ValueError,
             "labels must have shape (H, W, C), got (1, 2, 3, 4)"),
    "batch axes": (lambda d: mg.LossLabels.batch(d, F), ValueError,
                   "labels must have shape (N, H, W, C), got (2, 3, 4)"),
    "empty": (lambda d: mg.LossLabels(d, F[:0]), ValueError, "labels must not be empty"),
    "weights size": (lambda d: mg.LossLabels(d, F, F[:1]), ValueError,
                     "weights are 3x1x4, but labels are 3x2x4"),
    "weights count": (lambda d: mg.LossLabels.batch(d, F[None], np.stack([F, F])), ValueError,
                      "there are 1 images of labels, but 2 of weights"),
    "loss size": (lambda d: mg.LossLabels(d, F, None, (0, 1, 1)), ValueError, "loss_image_size"),
    "loss numbers": (lambda d: mg.LossLabels(d, F, None, (1, 1)), ValueError,
                     "loss_image_size must be (width, height, channels), got 2 numbers"),
    "container": (lambda d: mg.LossLabels(d, mg.Image(d, mg.ImageDescriptor(1, 1, 1, 2))),
                  ValueError, "labels must hold one image, got 2"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), BAD_LABELS.values(), ids=BAD_LABELS)
def test_rejects_labels(device, call, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call(device)


# --- What is invalid ---------------------------------------------------------


class Encode:
    """One encode of three images of 5x4x3 whose parts a test replaces."""

    def __init__(self, device):
        self.device = device
        self.loss = Loss("MEAN_SQUARED_ERROR", "SUM")
        self.sources = self.images()
        self.labels = self.make_labels()
        self.destinations = self.images()
        self.change = lambda _: None

    def images(self, *shape, channel_format="float32"):
        return empty(self.device, shape or (3, 4, 5, 3), channel_format)

    def make_labels(self, shape=(3, 4, 5, 3), weights=False, **arguments):
        array = np.zeros(shape, np.float32)
        return mg.LossLabels.batch(self.device, array, array if weights else None, **arguments)

    def run(self, command_buffer):
        one = kernel(self.loss, self.device)
        self.change(one)
        one.encode_batch(command_buffer, self.sources, self.labels, self.destinations)


def set_to(**values):
    return lambda encode: [setattr(encode, name, value) for name, value in values.items()]


def use(**makers):
    return lambda encode: [setattr(encode, name, make(encode)) for name, make in makers.items()]


NONE_LOSS = Loss("MEAN_SQUARED_ERROR", "NONE")
WHOLE = (5, 4, 3)
REJECTED = {
    "label width": (use(labels=lambda e: e.make_labels((3, 4, 4, 3))), ValueError,
                    "labels are 4x4x3, but the source is 5x4x3"),
    "label channels": (use(labels=lambda e: e.make_labels((3, 4, 5, 4))), ValueError,
                       "labels are 5x4x4, but the source is 5x4x3"),
    "label count": (use(labels=lambda e: e.labels[:2]), ValueError,
                    "labels has 2 entries, expected 3"),
    "no labels": (set_to(labels=[]), ValueError, "labels has 0 entries"),
    "one for all": (use(labels=lambda e: e.labels[0]), ValueError, "labels has 1 entries"),
    "label class": (use(labels=lambda e: [mg.State(e.device, 4) for _ in range(3)]), TypeError,
                    "labels must be LossLabels, got State"),
    "label images": (use(labels=lambda e: list(e.images())), TypeError, "labels must hold states"),
    "twice the same": (use(labels=lambda e: [e.labels[0], e.labels[1], e.labels[0]]), ValueError,
                       "labels holds the same object twice"),
    "some weights": (use(labels=lambda e: [*e.make_labels(weights=True)[:2], e.labels[2]]),
                     ValueError, "some labels have weights and some have none"),
    "loss size for none": (set_to(loss=NONE_LOSS), ValueError,
                           "1x1x1, but a source of 5x4x3 and this reduction need 5x4x3"),
    "loss size for sum": (use(labels=lambda e: e.make_labels(loss_image_size=WHOLE)), ValueError,
                          "5x4x3, but a source of 5x4x3 and this reduction need 1x1x1"),
    "cosine with weights": (use(loss=lambda _: Loss("COSINE_DISTANCE"),
                                labels=lambda e: e.make_labels(weights=True)), ValueError,
                            "COSINE_DISTANCE takes no weights"),
    "offset": (set_to(change=lambda k: setattr(k, "offset", mg.Offset(1, 0))), ValueError,
               "offset must be (0, 0, 0), got (1, 0, 0)"),
    "clip": (set_to(change=lambda k: setattr(k, "clip_rect", mg.Region((0, 0), (5, 4)))),
             ValueError, "clip_rect must be NO_CLIP"),
    "destination size": (use(destinations=lambda e: e.images(3, 5, 4, 3)), ValueError,
                         "destination is 4x5, but source is 5x4"),
    "destination channels": (use(destinations=lambda e: e.images(3, 4, 5, 2)), ValueError,
                             "do not fit a destination of 2 channels"),
    "destination count": (use(destinations=lambda e: e.images(2, 4, 5, 3)), ValueError,
                          "source has 3 images, but destination has 2"),
    "destination is source": (use(destinations=lambda e: e.sources), ValueError,
                              "destination shares memory with source"),
    "destination is labels": (
        use(destinations=lambda e: [label.labels_image for label in e.labels]), ValueError,
        "destination shares memory with labels"),
    "destination is weights": (
        lambda e: (set_to(labels=e.make_labels(weights=True))(e),
                   set_to(destinations=[label.weights_image for label in e.labels])(e)),
        ValueError, "destination shares memory with weights"),
    "source is loss": (
        lambda e: (set_to(labels=e.make_labels(loss_image_size=WHOLE), loss=NONE_LOSS)(e),
                   set_to(sources=[label.loss_image for label in e.labels])(e)),
        ValueError, "the loss image shares memory with source"),
    "destination is loss": (
        lambda e: (set_to(labels=e.make_labels(loss_image_size=WHOLE), loss=NONE_LOSS)(e),
                   set_to(destinations=[label.loss_image for label in e.labels])(e)),
        ValueError, "destination shares memory with the loss image"),
    "single source": (use(sources=lambda e: e.sources[0]), TypeError,
                      "must both be single images or both be batches"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects(device, queue, change, error, words):
    encode = Encode(device)
    encode.run(queue.command_buffer())
    change(encode)
    with pytest.raises(error, match=re.escape(words)):
        encode.run(queue.command_buffer())


def test_rejects_a_container(device, queue):
    container = empty(device, (2, 4, 5, 3), kind="container")
    labels = mg.LossLabels(device, np.zeros((4, 5, 3), np.float32))
    one = kernel(Loss("HUBER"), device)
    other = empty(device, (2, 4, 5, 3), kind="container")
    with pytest.raises(ValueError, match="must hold one image; pass several as a batch"):
        one.encode(queue.command_buffer(), container, labels, other)
    with pytest.raises(ValueError, match="takes images that hold one image, got 2"):
        one.encode(queue.command_buffer(), container, labels)


def test_the_encodes_without_labels_are_not_offered(device, queue):
    images = filled(device, X)
    one = kernel(Loss("HUBER"), device)
    with pytest.raises(TypeError, match=r"labels is missing, which must be a LossLabels or "):
        one.encode_batch(queue.command_buffer(), images)
    with pytest.raises(TypeError, match="an encode needs labels"):
        mg.UnaryKernel.encode_batch(one, queue.command_buffer(), images, allocator=mg.DEFAULT)
    assert one.result_state(images[0], images[1]) is None


BAD_FIELDS = {
    "classes": ({"number_of_classes": 0}, "number_of_classes must be at least 1, got 0"),
    "weight nan": ({"weight": float("nan")}, "weight must be a number, got nan"),
    "delta": ({"delta": 0.0}, "delta must be positive, got 0"),
    "delta nan": ({"delta": float("nan")}, "delta must be positive, got nan"),
    "epsilon": ({"epsilon": -1e-9}, "epsilon must not be negative"),
    "smoothing": ({"label_smoothing": 1.5}, "label_smoothing must be in [0, 1], got 1.5"),
    "smoothing negative": ({"label_smoothing": -0.5}, "label_smoothing must be in [0, 1]"),
    "smoothing nan": ({"label_smoothing": float("nan")}, "label_smoothing must be in [0, 1]"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "words"), BAD_FIELDS.values(), ids=BAD_FIELDS)
def test_rejects_descriptors(fields, words):
    plain = {"loss_type": mg.LossType.LOG, "reduction_type": mg.ReductionType.SUM}
    with pytest.raises(ValueError, match=re.escape(words)):
        mg.LossDescriptor(**{**plain, **fields})
    d = mg.LossDescriptor(**plain)
    ((name, value),) = fields.items()
    before = getattr(d, name)
    with pytest.raises(ValueError, match=re.escape(words)):
        setattr(d, name, value)
    assert getattr(d, name) == before


@pytest.mark.parametrize("reduction", ["NONE", "MEAN", "SUM_BY_NON_ZERO_WEIGHTS"])
def test_cosine_distance_has_one_reduction(reduction):
    words = "LossDescriptor: the only valid reduction_type of COSINE_DISTANCE is SUM"
    other = getattr(mg.ReductionType, reduction)
    with pytest.raises(ValueError, match=words):
        mg.LossDescriptor(mg.LossType.COSINE_DISTANCE, other)
    cosine = mg.LossDescriptor(mg.LossType.COSINE_DISTANCE, mg.ReductionType.SUM)
    huber = mg.LossDescriptor(mg.LossType.HUBER, other)
    for d, name, value in (
        (cosine, "reduction_type", other),
        (huber, "loss_type", mg.LossType.COSINE_DISTANCE),
    ):
        before = d.copy()
        with pytest.raises(ValueError, match=words):
            setattr(d, name, value)
        assert d == before


def test_smoothing_over_another_number_of_classes_warns_once(device):
    loss = Loss("SOFT_MAX_CROSS_ENTROPY", label_smoothing=0.5)
    one = kernel(loss, device)
    with pytest.warns(RuntimeWarning, match="number_of_classes is 1, but the source has 4"):
        one(X, X)
    one(X, X)
    kernel(replace(loss, number_of_classes=4), device)(X, X)
    kernel(replace(loss, label_smoothing=0.0), device)(X, X)
    for kind in oracle.TYPES:  # no other asks for the number of classes
        if kind != "SOFT_MAX_CROSS_ENTROPY":
            kernel(replace(loss, type=kind), device)(X, X)


# --- Objects -----------------------------------------------------------------


def test_enumerations():
    for i, name in enumerate(oracle.TYPES):
        assert int(getattr(mg.LossType, name)) == i
    for i, name in enumerate(oracle.REDUCTIONS):
        assert int(getattr(mg.ReductionType, name)) == i


def test_defaults(device):
    d = mg.LossDescriptor(mg.LossType.HUBER, mg.ReductionType.MEAN)
    assert (d.reduce_across_batch, d.weight, d.label_smoothing) == (False, 1.0, 0.0)
    assert (d.number_of_classes, d.epsilon, d.delta) == (1, np.float32(1e-7), 1.0)
    one = mg.Loss(d, device=device)
    d.delta = 5.0
    assert one.delta == 1.0
    assert one.loss_type == mg.LossType.HUBER
    assert one.reduction_type == mg.ReductionType.MEAN
    assert one.destination_image_allocator is mg.TEMPORARY
    for name in ("weight", "delta", "loss_type"):
        with rejects(AttributeError, f"Loss.{name} is read-only"):
            setattr(one, name, getattr(one, name))


DUPLICATES = [
    copy.copy,
    copy.deepcopy,
    lambda o: o.copy(),
    lambda o: pickle.loads(pickle.dumps(o)),
    lambda o: type(o).from_bytes(o.to_bytes()),
]


@pytest.mark.parametrize("duplicate", DUPLICATES)
def test_copies_are_equal_and_apart(device, duplicate):
    one = kernel(cases.VARIED[0], device)
    one.label, one.source_feature_channel_offset = "one", 4
    other = duplicate(one)
    assert type(other) is mg.Loss
    assert other.descriptor == one.descriptor
    assert (other.label, other.source_feature_channel_offset) == ("one", 4)
    other.label = "other"
    assert one.label == "one"


def test_descriptors_compare_and_show(device):
    d = descriptor(cases.VARIED[4])
    assert pickle.loads(pickle.dumps(d)) == d == d.copy()
    assert repr(d) == "LossDescriptor(LossType.HUBER, ReductionType.SUM, delta=0.25)"
    assert d != descriptor(cases.VARIED[5])
    assert repr(mg.Loss(d, device=device)) == f"Loss(descriptor={d!r}, device={device.kind!r})"


# --- Classes ------------------------------------------------------------------------


def test_one_hot_labels_of_classes(device):
    pixels = np.array([[[0, 2], [1, 2]], [[2, 2], [0, 0]]], np.uint8)
    labels = mg.one_hot(pixels, 3)
    assert labels.dtype == np.float32
    assert_exact(labels, np.eye(3)[pixels])
    assert_exact(mg.one_hot([1, 0], 2), np.array([[0, 1], [1, 0]]).reshape(2, 1, 1, 2))
    assert mg.one_hot(np.zeros(0, int), 2).shape == (0, 1, 1, 2)
    with rejects(TypeError, "one_hot: count must be an int, got float"):
        mg.one_hot([0], 2.0)
    for count in (0, -3, 2**70):
        with rejects(ValueError, f"one_hot: count must be from 1 to 2**31 - 1, got {count}"):
            mg.one_hot([0], count)
    kind = mg.LossDescriptor(mg.LossType.SOFT_MAX_CROSS_ENTROPY, mg.ReductionType.SUM)
    scores = np.zeros((2, 2, 2, 3), np.float32)
    _, losses = mg.Loss(kind, device=device)(scores, labels)
    assert losses == pytest.approx(4 * np.log(3), rel=1e-6)


@pytest.mark.parametrize(
    ("classes", "error", "words"),
    [
        ([0.5], TypeError, "one_hot: classes must be integers, got float64"),
        ([True], TypeError, "one_hot: classes must be integers, got bool"),
        ([[0, 1]], ValueError, "one_hot: classes must have shape (N,) or (N, H, W), got (1, 2)"),
        ([0, 3], ValueError, "one_hot: classes must be from 0 to 2, got 0 to 3"),
        ([-1, 2], ValueError, "one_hot: classes must be from 0 to 2, got -1 to 2"),
        ("cat", TypeError, "one_hot: classes must be an array of numbers, got str"),
    ],
)
def test_one_hot_rejects(classes, error, words):
    with rejects(error, words):
        mg.one_hot(classes, 3)
