"""The loss oracle against the printed values and against central differences."""

from dataclasses import replace

import numpy as np
import pytest

from tests.central import STEP, assert_derivative
from tests.loss import cases, oracle, yolo
from tests.loss.oracle import Loss
from tests.loss.yolo import YOLO
from tests.tolerance import assert_close, assert_exact, ulps_for

PRINTED = 5.1e-7  # half a unit of the last printed decimal
SHAPE = (2, 2, 3, 3)


def pixel(*values):
    return np.array(values, np.float64).reshape(1, 1, 1, -1)


def printed(actual, expected):
    np.testing.assert_allclose(np.ravel(actual), np.ravel(expected), atol=PRINTED, rtol=0)


@pytest.mark.parametrize("row", cases.VALUES, ids=lambda row: cases.name(row.loss))
def test_printed_values(row):
    y, t = pixel(*row.y), pixel(*row.t)
    if row.elements is not None:
        printed(oracle.elements(row.loss, y, t), row.elements)
        none = replace(row.loss, reduction="NONE")
        printed(oracle.loss_images(none, y, t), row.elements)
    printed(oracle.loss_images(row.loss, y, t), row.sum)
    printed(oracle.combined_gradient(row.loss, y, t), row.gradient)
    mean = replace(row.loss, reduction="MEAN")
    if row.mean is None:
        with pytest.raises(ValueError, match="reduction SUM"):
            oracle.loss_images(mean, y, t)
    else:
        printed(oracle.loss_images(mean, y, t), row.mean)


# Two images of two pixels and one channel.
Y = np.array([1.0, 2, 3, 4]).reshape(2, 1, 2, 1)
W = np.array([1.0, 0, 2, 1]).reshape(2, 1, 2, 1)


@pytest.mark.parametrize(
    ("reduction", "separate", "across"),
    [
        ("NONE", (1, 0, 18, 16), (1, 0, 18, 16)),
        ("SUM", (1, 34), (35, 0)),
        ("MEAN", (0.5, 17), (8.75, 0)),
        ("SUM_BY_NON_ZERO_WEIGHTS", (1, 17), (11.666667, 0)),
    ],
)
def test_printed_reductions(reduction, separate, across):
    for batch, expected in ((False, separate), (True, across)):
        loss = Loss("MEAN_SQUARED_ERROR", reduction, batch)
        printed(oracle.loss_images(loss, Y, np.zeros_like(Y), W), expected)
        assert_exact(oracle.combined_gradient(loss, Y, np.zeros_like(Y), W).ravel(), [2, 0, 12, 8])


@pytest.mark.parametrize(("across", "expected"), [(False, (1, 0, 6, 4)), (True, (0.5, 0, 3, 2))])
def test_printed_separate_gradient(across, expected):
    loss = Loss("MEAN_SQUARED_ERROR", "MEAN", across)
    result = oracle.separate_gradient(loss, np.ones((2, 1, 1, 1)), Y, np.zeros_like(Y), W)
    assert_exact(result.ravel(), expected)


def inputs(rng, loss, shape=SHAPE):
    """Predictions, labels and weights in float64, away from the kinks of the loss."""
    y = cases.predictions(rng, loss, shape).astype(np.float64)
    t = cases.labels(rng, loss, shape).astype(np.float64)
    distance = {
        "MEAN_ABSOLUTE_ERROR": lambda: y - t,
        "HINGE": lambda: 1 - (2 * t - 1) * y,
        "HUBER": lambda: np.abs(y - t) - loss.delta,
    }.get(loss.type, lambda: np.ones(shape))()
    y = np.where(np.abs(distance) < 4 * STEP, y + 0.1, y)
    if loss.type in ("CATEGORICAL_CROSS_ENTROPY", "LOG"):
        y = 0.25 + y / 2  # the higher derivatives of a logarithm explode towards 0
    return y, t, cases.weights(rng, shape).astype(np.float64)


PLAIN = cases.LOSSES + cases.VARIED
WEIGHTED = [loss for loss in PLAIN if loss.type != "COSINE_DISTANCE"]


@pytest.mark.parametrize(
    ("loss", "weighted"),
    [(loss, False) for loss in PLAIN] + [(loss, True) for loss in WEIGHTED],
    ids=[cases.name(loss) for loss in PLAIN] + [f"{cases.name(loss)}-w" for loss in WEIGHTED],
)
def test_separate_gradient_is_the_derivative(loss, weighted, rng):
    y, t, w = inputs(rng, loss)
    if not weighted:
        w = None
    elif loss.type == "SOFT_MAX_CROSS_ENTROPY":
        w = w[..., :1] * np.ones(SHAPE)  # exact only with one weight per pixel
    g = rng.standard_normal(oracle.loss_images(loss, y, t, w).shape)
    if loss.type == "SOFT_MAX_CROSS_ENTROPY" and loss.reduction == "NONE":
        g = g[..., :1] * np.ones(SHAPE)
    smoothed_to_one = loss.smoothing == 0 or loss.number_of_classes == SHAPE[3]
    if loss.type != "SOFT_MAX_CROSS_ENTROPY" or smoothed_to_one:
        result = oracle.separate_gradient(loss, g, y, t, w)
        assert_derivative(lambda y: oracle.loss_images(loss, y, t, w), y, g, result)

    if loss.type in ("KULLBACK_LEIBLER_DIVERGENCE", "CATEGORICAL_CROSS_ENTROPY"):
        t = np.maximum(t, 0.1)
    result = oracle.separate_gradient(loss, g, y, t, w, labels=True)
    assert_derivative(lambda t: oracle.loss_images(loss, y, t, w), t, g, result)


@pytest.mark.parametrize("loss", cases.LOSSES, ids=cases.name)
def test_combined_gradient_is_that_of_the_sum(loss, rng):
    y, t, w = inputs(rng, loss)
    w = None if loss.type == "COSINE_DISTANCE" else w
    total = Loss(loss.type, "SUM")
    expected = oracle.separate_gradient(total, np.ones((2, 1, 1, 1)), y, t, w)
    # One label in three is not 0, and some of those weigh nothing.
    assert_exact(oracle.combined_gradient(loss, y, t, w), expected, nonzero=0.1)


def test_softmax_gradient_is_literal_where_labels_do_not_sum_to_one():
    loss = Loss("SOFT_MAX_CROSS_ENTROPY")
    result = oracle.combined_gradient(loss, pixel(0, 0), pixel(3, 1), pixel(1, 2))
    assert_exact(result, pixel(0.5 - 3, 2 * (0.5 - 1)))


def test_smoothing_adds_its_whole_amount_with_one_class():
    loss = Loss("SOFT_MAX_CROSS_ENTROPY", label_smoothing=0.25)
    assert_exact(oracle.smooth(loss, pixel(1, 0)), pixel(1, 0.25))
    assert_exact(oracle.smooth(Loss("HINGE", label_smoothing=0.25), pixel(1, 0)), pixel(1, 0))


def test_hinge_maps_labels_to_signs():
    loss = Loss("HINGE", "NONE")
    y, t = pixel(2, 0.5, -0.5, -2), pixel(1, 1, 0, 0)
    assert_exact(oracle.loss_images(loss, y, t), pixel(0, 0.5, 0.5, 0))
    assert_exact(oracle.combined_gradient(loss, y, t), pixel(0, -1, 1, 0))
    assert_exact(oracle.combined_gradient(loss, pixel(1, -1), pixel(1, 0)), pixel(0, 0))


def test_labels_of_zero_silence_infinite_factors():
    zero = pixel(0, 0)
    for kind in ("CATEGORICAL_CROSS_ENTROPY", "KULLBACK_LEIBLER_DIVERGENCE"):
        y = zero if kind.startswith("CAT") else pixel(-np.inf, -np.inf)
        assert_exact(oracle.loss_images(Loss(kind), y, zero), [[[[0]]]])
        assert_exact(oracle.combined_gradient(Loss(kind), y, zero), zero)
    infinite = oracle.loss_images(Loss("CATEGORICAL_CROSS_ENTROPY"), zero, pixel(1, 0))
    assert infinite == np.inf
    silent = oracle.loss_images(Loss("LOG", epsilon=0), pixel(0, 1), pixel(0, 1))
    assert silent == 0


def test_equal_values_have_no_absolute_gradient():
    loss = Loss("MEAN_ABSOLUTE_ERROR")
    assert_exact(oracle.combined_gradient(loss, pixel(1, 2), pixel(1, 1)), pixel(0, 1))


@pytest.mark.parametrize("across", [False, True])
def test_a_count_of_zero_gives_zero(across):
    loss = Loss("MEAN_SQUARED_ERROR", "SUM_BY_NON_ZERO_WEIGHTS", across)
    zero = np.zeros_like(Y)
    assert not oracle.loss_images(loss, Y, zero, zero).any()
    assert not oracle.separate_gradient(loss, np.ones((2, 1, 1, 1)), Y, zero, zero).any()
    weightless = replace(loss, weight=0.0)
    assert not oracle.loss_images(weightless, Y, zero).any()


def test_cosine_distance_rejects_weights_and_reductions():
    loss = Loss("COSINE_DISTANCE")
    with pytest.raises(ValueError, match="no weights image"):
        oracle.loss_images(loss, Y, Y, W)
    with pytest.raises(ValueError, match="no weights image"):
        oracle.separate_gradient(loss, Y[:, :, :1], Y, Y, W)
    with pytest.raises(ValueError, match="reduction SUM"):
        oracle.loss_images(Loss("COSINE_DISTANCE", "NONE"), Y, Y)


def test_cosine_distance_counts_one_per_image():
    loss = Loss("COSINE_DISTANCE", weight=2.0)
    assert_exact(oracle.loss_images(loss, Y, Y).ravel(), [2 * (1 - 5), 2 * (1 - 25)])
    across = replace(loss, reduce_across_batch=True)
    assert_exact(oracle.loss_images(across, Y, Y).ravel(), [2 * (2 - 30), 0])


def test_initial_gradient():
    assert_exact(oracle.initial_gradient(Y), np.ones((2, 1, 2, 1)))


@pytest.mark.parametrize("kind", oracle.TYPES)
def test_scales_cover_a_float32_evaluation(kind, rng):
    """Evaluate with float32 inputs and one float32 rounding per step of the longest formula."""
    loss = Loss(kind)
    shape = (4, 3, 5, 7)
    y, t = cases.predictions(rng, loss, shape), cases.labels(rng, loss, shape)
    values, slopes = formulas(kind, y, t)
    assert values.dtype == slopes.dtype == np.float32
    allowed = ulps_for(shape[3] + 4, functions=4)
    given = {"ulps": allowed, "floor": 1e-30, "nonzero": 0.1}
    assert_close(
        values, oracle.elements(loss, y, t), scale=oracle.elements_scale(loss, y, t), **given
    )
    assert_close(
        slopes, oracle.derivative(loss, y, t), scale=oracle.derivative_scale(loss, y, t), **given
    )
    if kind != "COSINE_DISTANCE":
        total = values.sum(axis=(1, 2, 3), keepdims=True)
        assert_close(
            total,
            oracle.loss_images(loss, y, t),
            ulps=ulps_for(values[0].size + shape[3] + 4, functions=4),
            scale=oracle.loss_scale(loss, y, t),
        )


def formulas(kind, y, t):
    """Element losses and derivatives as printed, in the precision of the arguments."""
    one, two, eps = np.float32(1), np.float32(2), np.float32(1e-7)
    sign = two * t - one
    if kind == "MEAN_ABSOLUTE_ERROR":
        return np.abs(y - t), np.sign(y - t)
    if kind == "MEAN_SQUARED_ERROR":
        return (y - t) ** 2, two * (y - t)
    if kind == "SOFT_MAX_CROSS_ENTROPY":
        below = y - y.max(axis=-1, keepdims=True)
        powers = np.exp(below)
        total = powers.sum(axis=-1, keepdims=True)
        return -t * (below - np.log(total)), powers / total - t
    if kind == "SIGMOID_CROSS_ENTROPY":
        small = np.exp(-np.abs(y))
        value = np.maximum(y, 0 * one) - y * t + np.log1p(small)
        return value, np.where(y >= 0, one, small) / (one + small) - t
    if kind == "CATEGORICAL_CROSS_ENTROPY":
        return -t * np.log(y), -t / y
    if kind == "HINGE":
        margin = one - sign * y
        return np.maximum(margin, 0 * one), np.where(margin > 0, -sign, 0 * one)
    if kind == "HUBER":
        e = np.abs(y - t)
        value = np.where(e <= one, e * e / two, one / two + (e - one))
        return value, np.clip(y - t, -one, one)
    if kind == "COSINE_DISTANCE":
        return -y * t, -t
    if kind == "LOG":
        value = -t * np.log(y + eps) - (one - t) * np.log(one - y + eps)
        upper = y - t + eps - two * eps * t
        return value, upper / (y * (one - y) + eps * (eps + one))
    return t * (np.log(t) - y), -t


# --- Object detection --------------------------------------------------------

ANCHORS = ((1.0, 2.0), (2.0, 1.0))
LABEL = (0.25, 0.5, 1, 2, 1, 0, 1)


def test_printed_object_detection():
    d = YOLO(ANCHORS)
    t = pixel(*LABEL, *LABEL)
    y = pixel(0, 0, 0.5, 0, 1, 2, 0, *[0] * 7)
    split = y.reshape(1, 1, 1, 2, 7), t.reshape(1, 1, 1, 2, 7)
    matches = yolo.assign(d, *split)
    printed(matches.iou, [0.606531, 0.333333])
    assert matches.present.ravel().tolist() == [True, False]
    assert matches.absent.ravel().tolist() == [False, False]
    losses = [0.625, 0, 1.249950, 0, 70.673103, 0, 4.253856]
    printed(yolo.element_losses(d, y, t), losses + [0] * 7)
    printed(yolo.loss_images(d, y, t), 76.801909)
    gradient = [1.25, 0, 4.999900, -0.0001, 12.452792, 1.761594, -1.761594]
    printed(yolo.gradient(d, y, t), gradient + [0] * 7)


@pytest.mark.parametrize("case", cases.YOLO_CASES, ids=str)
@pytest.mark.parametrize("rescore", [True, False], ids=["rescored", "plain"])
def test_object_detection_gradient_is_the_derivative(case, rescore, rng):
    wide = Loss("HUBER", delta=50)  # no kink within reach
    d = YOLO(case.anchors, wh=wide, rescore=rescore, reduction="NONE")
    t = cases.yolo_labels(rng, case).astype(np.float64)
    y = rng.standard_normal(case.shape)
    weights = np.repeat(rng.uniform(0.5, 2, case.shape[:3])[..., None], case.shape[3], axis=-1)
    split = (v.reshape(*case.shape[:3], len(case.anchors), -1) for v in (y, t))
    frozen = yolo.assign(d, *split)
    assert frozen.present.any()

    def losses(y):
        # Matches are constants for the gradient: hold them while y moves.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(yolo, "assign", lambda *_: frozen)
            return yolo.loss_images(d, y, t, weights)

    ones = np.ones(case.shape)
    assert_derivative(losses, y, ones, yolo.gradient(d, y, t, weights))


def test_a_cell_without_object_only_has_confidence():
    d = YOLO(ANCHORS, reduction="NONE")
    zeros = np.zeros((1, 1, 1, 14))
    losses = yolo.loss_images(d, zeros, zeros).reshape(2, 7)
    expected = 5 * np.log(2)
    printed(losses, np.tile([0, 0, 0, 0, expected, 0, 0], (2, 1)))


def test_the_best_anchor_is_present_however_bad_its_prediction():
    y = np.zeros((1, 1, 1, 14))
    y[..., 2:4] = -3  # a far too small box
    t = pixel(*LABEL, *LABEL)
    matches = yolo.assign(YOLO(ANCHORS), y.reshape(1, 1, 1, 2, 7), t.reshape(1, 1, 1, 2, 7))
    assert matches.iou[..., 0] < 0.3
    assert matches.present.ravel().tolist() == [True, False]
    assert matches.absent.ravel().tolist() == [False, False]


def test_a_close_prediction_makes_a_second_anchor_present():
    label = (0.5, 0.5, 1.5, 2, 1, 1, 0)
    t = pixel(*label, *label)
    y = np.zeros((1, 1, 1, 14))
    y[..., 9], y[..., 10] = np.log(1.5 / 2), np.log(2.0)  # anchor 1 predicts the label box
    split = y.reshape(1, 1, 1, 2, 7), t.reshape(1, 1, 1, 2, 7)
    assert yolo.assign(YOLO(ANCHORS), *split).present.ravel().tolist() == [True, True]
    strict = YOLO(ANCHORS, min_iou_for_object_presence=1.0)
    assert yolo.assign(strict, *split).present.ravel().tolist() == [True, False]


def test_object_detection_reductions():
    t = np.concatenate([pixel(*LABEL, *LABEL), np.zeros((1, 1, 1, 14))])
    y = np.zeros((2, 1, 1, 14))
    single = yolo.loss_images(YOLO(ANCHORS), y, t).ravel()
    mean = yolo.loss_images(YOLO(ANCHORS, reduction="MEAN"), y, t).ravel()
    np.testing.assert_allclose(mean, single / 14)
    across = YOLO(ANCHORS, reduction="MEAN", reduce_across_batch=True)
    np.testing.assert_allclose(yolo.loss_images(across, y, t).ravel(), [single.sum() / 28, 0])


def test_labels_of_one_anchor_alone():
    """Anchors fit by what their own labels hold: an empty label fits nothing."""
    y = np.zeros((1, 1, 1, 14))
    t = pixel(*[0] * 7, *LABEL)  # anchor 1 would not be the best for this box
    split = y.reshape(1, 1, 1, 2, 7), t.reshape(1, 1, 1, 2, 7)
    assert yolo.assign(YOLO(ANCHORS), *split).present.ravel().tolist() == [False, True]


@pytest.mark.parametrize("case", cases.YOLO_LAYERS, ids=str)
def test_inputs_have_boxes_of_every_kind(case, rng):
    d = YOLO(case.anchors)
    t = cases.yolo_labels(rng, case)
    y = cases.yolo_predictions(rng, d, case, t)
    boxes = (*case.shape[:3], len(case.anchors), -1)
    m = yolo.assign(d, y.reshape(boxes).astype(np.float64), t.reshape(boxes).astype(np.float64))
    there = t.reshape(boxes)[..., 4] > 0
    more = m.present.sum(axis=-1) > 1  # not only the best anchor
    ignored = there & ~m.present & ~m.absent
    for kind in (m.present, more, ignored, there & m.absent, ~there):
        assert kind.any()
