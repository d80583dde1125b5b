"""The object-detection loss against the oracle, and the rules of its descriptor and encodes."""

import copy
import pickle
import re
from dataclasses import replace

import mpsgrad as mg
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.copies import WAYS
from tests.core.oracle import load, store
from tests.images import FORMATS, Work, empty, filled, read
from tests.loss import cases, oracle, yolo
from tests.loss.cases import YOLOCase
from tests.loss.oracle import Loss
from tests.loss.test_loss import as_images, check_batch
from tests.loss.test_loss import descriptor as part_descriptor
from tests.loss.yolo import YOLO
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

PARTS = ("xy", "wh", "confidence", "classes")
ANCHORS = ((1.0, 2.0), (2.0, 1.0))
LABEL = (0.25, 0.5, 1, 2, 1, 0, 1)
PAIR = YOLOCase("pair", 2, (3, 2), 2, ANCHORS)


def descriptor(d):
    """The library's form of the oracle's descriptor."""
    result = mg.YOLOLossDescriptor(
        *(getattr(mg.LossType, getattr(d, part).type) for part in PARTS),
        getattr(mg.ReductionType, d.reduction),
        d.anchors,
        reduce_across_batch=d.reduce_across_batch,
        rescore=d.rescore,
        scale_xy=d.scale_xy,
        scale_wh=d.scale_wh,
        scale_no_object=d.scale_no_object,
        scale_object=d.scale_object,
        scale_class=d.scale_class,
        min_iou_for_object_presence=d.min_iou_for_object_presence,
        max_iou_for_object_absence=d.max_iou_for_object_absence,
    )
    for part in PARTS:
        setattr(result, f"{part}_loss_descriptor", part_descriptor(getattr(d, part)))
    return result


def kernel(d, device):
    return mg.YOLOLoss(descriptor(d), device=device)


def allowed(d, channels, dtype=np.float32):
    """ULPs of an element: one rounding a class of a softmax, few others, and the functions of both.

    Three more products: a factor, the derivative of a sigmoid, a weight.
    """
    classes = channels // len(d.anchors) - 5
    return ulps_for(classes + 12, dtype, functions=8)


def check_gradient(d, actual, y, t, w=None):
    factor = 1.0 if w is None else np.abs(w)
    assert_close(
        actual,
        yolo.gradient(d, y, t, w),
        ulps=allowed(d, y.shape[3], actual.dtype),
        scale=yolo.gradient_scale(d, y, t) * factor,
        floor=1e-30,
        nonzero=0.01,  # confidences, and the boxes that are present
    )


def check_losses(d, actual, y, t, w=None):
    assert actual.dtype == np.float32
    assert_close(
        actual,
        yolo.loss_images(d, y, t, w),
        ulps=allowed(d, y.shape[3]),
        scale=yolo.loss_scale(d, y, t, w),
        floor=1e-30,
        nonzero=0.01,
    )


def inputs(rng, d, case, **arguments):
    t = cases.yolo_labels(rng, case, **arguments)
    return cases.yolo_predictions(rng, d, case, t), t


# --- Arithmetic --------------------------------------------------------------


@pytest.mark.parametrize("rescore", [True, False], ids=["rescored", "plain"])
@pytest.mark.parametrize("reduction", oracle.REDUCTIONS)
@pytest.mark.parametrize("across", [False, True], ids=["", "batch"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_every_reduction(device, reduction, across, rescore, weighted, rng):
    case = cases.YOLO_CASES[2]
    d = YOLO(case.anchors, reduction=reduction, reduce_across_batch=across, rescore=rescore)
    y, t = inputs(rng, d, case)
    w = cases.weights(rng, case.shape) if weighted else None
    gradient, losses = kernel(d, device)(y, t, w)
    check_gradient(d, gradient, y, t, w)
    check_losses(d, as_images(losses, d, case.batch), y, t, w)


@pytest.mark.parametrize("reduction", ["NONE", "MEAN"])
@pytest.mark.parametrize("case", [*cases.YOLO_CASES, *cases.YOLO_LAYERS], ids=str)
def test_every_shape(device, case, reduction, rng):
    d = YOLO(case.anchors, reduction=reduction)
    y, t = inputs(rng, d, case)
    gradient, losses = kernel(d, device)(y, t)
    check_gradient(d, gradient, y, t)
    check_losses(d, as_images(losses, d, case.batch), y, t)


@pytest.mark.parametrize("kind", [kind for kind in oracle.TYPES if kind != "COSINE_DISTANCE"])
@pytest.mark.parametrize("part", PARTS)
def test_every_loss_of_every_part(device, part, kind, rng):
    small = tuple((width / 8, height / 8) for width, height in ANCHORS)
    case = YOLOCase("small anchors", 2, (5, 4), 3, small)  # so that logarithms are positive
    settings = {"weight": 0.75, "label_smoothing": 0.3, "number_of_classes": 3}
    loss = Loss(kind, epsilon=0.01, delta=0.25, **settings)
    d = replace(YOLO(case.anchors, reduction="NONE"), **{part: loss})
    y, t = inputs(rng, d, case, sizes=(0.5, 1.5))
    gradient, losses = kernel(d, device)(y, t)
    check_gradient(d, gradient, y, t)
    check_losses(d, losses, y, t)


@pytest.mark.parametrize(
    "changed",
    [
        {"scale_xy": 3.0, "scale_wh": 0.5, "scale_class": 7.0},
        {"scale_object": 2.0, "scale_no_object": 0.25},
        {"scale_object": 0.0},
        {"scale_no_object": 0.0},
        {"min_iou_for_object_presence": 0.4},
        {"min_iou_for_object_presence": 2.0},
        {"max_iou_for_object_absence": 0.6},
        {"max_iou_for_object_absence": 0.0},
    ],
    ids=str,
)
def test_scales_and_thresholds(device, changed, rng):
    case = YOLOCase("wide", 1, (6, 5), 3, cases.YOLO_CASES[2].anchors)
    plain = YOLO(case.anchors, reduction="NONE")
    d = replace(plain, **changed)
    y, t = inputs(rng, d, case)
    gradient, losses = kernel(d, device)(y, t)
    check_gradient(d, gradient, y, t)
    check_losses(d, losses, y, t)
    assert (losses != kernel(plain, device)(y, t)[1]).any()  # inputs on which it matters


@pytest.mark.parametrize("rescore", [True, False], ids=["rescored", "plain"])
@pytest.mark.parametrize("kind", ["SIGMOID_CROSS_ENTROPY", "MEAN_SQUARED_ERROR", "HUBER"])
def test_objects_that_are_not_certain(device, kind, rescore, rng):
    """A label's confidence is multiplied by the overlap, or is itself what is aimed at."""
    case = cases.YOLO_CASES[2]
    d = YOLO(case.anchors, confidence=Loss(kind), reduction="NONE", rescore=rescore)
    t = cases.yolo_labels(rng, case)
    boxes = t.reshape(*case.shape[:3], len(case.anchors), -1)
    boxes[..., 4] *= rng.choice(np.float32([0.25, 0.5, 0.75]), boxes.shape[:3])[..., None]
    y = cases.yolo_predictions(rng, d, case, t)
    gradient, losses = kernel(d, device)(y, t)
    check_gradient(d, gradient, y, t)
    check_losses(d, losses, y, t)


def test_labels_in_one_anchor_alone(device, rng):
    case = YOLOCase("alone", 2, (6, 5), 3, cases.YOLO_CASES[2].anchors)
    d = YOLO(case.anchors, reduction="NONE")
    t = cases.yolo_labels(rng, case)
    boxes = t.reshape(*case.shape[:3], len(case.anchors), -1)
    alone = rng.integers(0, len(case.anchors), boxes.shape[:3])[..., None]
    boxes[alone != np.arange(len(case.anchors))] = 0
    y = cases.yolo_predictions(rng, d, case, t)
    gradient, losses = kernel(d, device)(y, t)
    check_gradient(d, gradient, y, t)
    check_losses(d, losses, y, t)


def test_printed_values(device):
    y = np.array([0, 0, 0.5, 0, 1, 2, 0] + [0] * 7, np.float32).reshape(1, 1, -1)
    t = np.array(LABEL * 2, np.float32).reshape(1, 1, -1)
    losses = [0.625, 0, 1.249950, 0, 70.673103, 0, 4.253856] + [0] * 7
    slopes = [1.25, 0, 4.999900, -0.0001, 12.452792, 1.761594, -1.761594] + [0] * 7
    printed = {"atol": 1e-6, "rtol": 4e-7}
    gradient, whole = kernel(YOLO(ANCHORS, reduction="NONE"), device)(y, t)
    np.testing.assert_allclose(whole.ravel(), losses, **printed)
    np.testing.assert_allclose(gradient.ravel(), slopes, **printed)
    _, loss = kernel(YOLO(ANCHORS), device)(y, t)
    np.testing.assert_allclose(loss, 76.801909, **printed)
    _, loss = kernel(YOLO(ANCHORS, reduction="MEAN"), device)(y, t)
    np.testing.assert_allclose(loss, 76.801909 / 14, **printed)


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_exact_sums(device, weighted, rng):
    """Small multiples of a power of two, of which no function is taken: sums are exact."""
    exact = Loss("MEAN_SQUARED_ERROR")
    d = YOLO(ANCHORS, exact, exact, exact, exact, scale_xy=0.0, scale_wh=0.0, rescore=False)
    t = cases.yolo_labels(rng, PAIR)
    t[t > 0] = 1  # every box fits anchor 0 best, and overlaps the other by half or less
    y = grid(rng, PAIR.shape, step=0.5)
    for a in range(2):
        y[..., 7 * a : 7 * a + 4] = 0
        y[..., 7 * a + 2] = -8  # no overlap to speak of
    w = grid(rng, PAIR.shape) if weighted else None
    gradient, losses = kernel(d, device)(y, t, w)
    assert_exact(gradient, yolo.gradient(d, y, t, w), nonzero=0.1)
    assert_exact(losses, yolo.loss_images(d, y, t, w).ravel())


def test_a_cell_without_object_only_has_confidence(device):
    d = YOLO(ANCHORS, reduction="NONE")
    zeros = np.zeros((1, 1, 14), np.float32)
    gradient, losses = kernel(d, device)(zeros, zeros)
    confidence = np.tile([0, 0, 0, 0, 1, 0, 0], 2)
    np.testing.assert_allclose(losses.ravel(), 5 * np.log(2) * confidence, rtol=1e-6)
    assert_exact(gradient.ravel(), 2.5 * confidence)


def test_the_lowest_of_equal_anchors_is_the_best(device):
    d = YOLO(((1.0, 1.0),) * 3, reduction="NONE")
    t = np.tile(np.float32([0.5, 0.5, 1, 1, 1, 1]), 3).reshape(1, 1, 18)
    y = np.zeros((1, 1, 3, 6), np.float32)
    y[..., 2:4] = 2  # boxes of e^2 overlap the label by e^-4
    _, losses = kernel(d, device)(y.reshape(1, 1, 18), t)
    present = losses.reshape(3, 6)[:, 2] != 0
    assert present.tolist() == [True, False, False]


def test_what_does_not_count_is_zero_whatever_it_is(device):
    if device.kind != "cpu":
        pytest.skip("what MPS does outside moderate inputs is not documented")
    d = YOLO(ANCHORS, reduction="NONE")
    t = np.zeros((1, 1, 2, 14), np.float32)
    t[..., 0, :] = LABEL * 2
    y = np.zeros((1, 1, 2, 2, 7), np.float32)
    y[..., 1, :, :] = np.inf, np.nan, -np.inf, np.nan, 0, np.nan, np.inf
    y[..., 0, 1, 4:] = np.nan  # the anchor that is ignored
    gradient, losses = kernel(d, device)(y.reshape(1, 1, 2, 14), t)
    for result in (gradient, losses):
        assert not np.isnan(result).any()
        assert np.count_nonzero(result[..., 1, :]) == 2
        assert not np.signbit(result[result == 0]).any()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_nan_and_infinity_show_where_they_count(device, number):
    if device.kind != "cpu":
        pytest.skip("what MPS does outside moderate inputs is not documented")
    d = YOLO(ANCHORS, reduction="NONE")
    t = np.array(LABEL * 2, np.float32).reshape(1, 1, 1, 14)
    for channel in range(7):
        y = np.zeros((1, 1, 1, 14), np.float32)
        y[..., channel] = number
        _, losses = kernel(d, device)(y, t)
        if channel < 2 and number == np.inf:
            assert losses[..., channel] > 0  # a centre at the cell's border
        else:
            assert not np.isfinite(losses).all(), channel


def test_far_centres_keep_a_relative_gradient(device):
    """The slope of a sigmoid at 20 is no 1 - 1."""
    if device.kind != "cpu":
        pytest.skip("how MPS computes the slope of a sigmoid is not documented")
    d = YOLO(((1.0, 1.0),), xy=Loss("MEAN_ABSOLUTE_ERROR"), scale_xy=1.0)
    y = np.array([20, 40, 0, 0, 0, 0], np.float32).reshape(1, 1, 6)
    t = np.array([0.5, 0.5, 1, 1, 1, 1], np.float32).reshape(1, 1, 6)
    gradient, _ = kernel(d, device)(y, t)
    np.testing.assert_allclose(gradient.ravel()[:2], np.exp([-20.0, -40.0]), rtol=1e-6)


def test_parts_are_the_losses_of_the_kernels(device, rng):
    """A kernel of a part, given what the whole gives it, finds the same losses and gradients."""
    case = YOLOCase("one anchor", 1, (4, 3), 5, ((1.0, 1.0),))
    d = YOLO(case.anchors, reduction="NONE", rescore=False)
    y, t = inputs(rng, d, case)
    t[...] = t[0, 0, 0]  # the same object in every cell
    one = kernel(d, device)
    gradient, losses = one(y, t)
    for part, channels, factor in (
        (one.loss_confidence, slice(4, 5), d.scale_object),
        (one.loss_classes, slice(5, None), d.scale_class),
    ):
        assert type(part) is mg.Loss
        own = part(np.ascontiguousarray(y[..., channels]), np.ascontiguousarray(t[..., channels]))
        np.testing.assert_allclose(gradient[..., channels], factor * own[0], rtol=2e-6, atol=1e-6)
        np.testing.assert_allclose(losses[..., channels], factor * own[1], rtol=2e-6, atol=1e-6)


# --- Images ------------------------------------------------------------------


@pytest.mark.parametrize("result", FORMATS)
@pytest.mark.parametrize("source", ["float32", "float16"])
def test_every_format(device, source, result, rng):
    case = cases.YOLO_CASES[1]
    d = YOLO(case.anchors, reduction="MEAN")
    while True:
        y, t = inputs(rng, d, case)
        y, t = (load(store(v, source)) for v in (y, t))
        split = (v.reshape(*case.shape[:3], 2, 7).astype(np.float64) for v in (y, t))
        if np.abs(np.subtract.outer(yolo.assign(d, *split).iou, (0.7, 0.3))).min() > 1e-4:
            break
    labels = [mg.LossLabels(device, image) for image in filled(device, t, source)]
    work = Work(device)
    with work:
        images = empty(device, case.shape, result)
        kernel(d, device).encode_batch(work.buffer, filled(device, y, source), labels, images)
        work.result(images)
        mg.synchronize(labels, work.buffer)
    exact = yolo.gradient(d, y, t)
    actual = read(images)
    if result.startswith("unorm"):
        exact = np.clip(exact, 0, 1)
    assert_close(
        actual,
        exact,
        ulps=allowed(d, case.shape[3], actual.dtype),
        scale=yolo.gradient_scale(d, y, t),
        floor=1e-30,
        nonzero=0.01,
    )
    check_losses(d, np.stack([label.loss for label in labels]), y, t)


@pytest.mark.parametrize("kind", ["batch", "list"])
@pytest.mark.parametrize("reduction", ["NONE", "MEAN"])
def test_batches_equal_single_encodes(device, kind, reduction, rng):
    case = cases.YOLO_CASES[2]
    d = YOLO(case.anchors, reduction=reduction)
    y, t = inputs(rng, d, case)
    w = cases.weights(rng, case.shape)
    size = (*case.grid, case.shape[3]) if reduction == "NONE" else (1, 1, 1)
    check_gradient(d, check_batch(kernel(d, device), y, t, w, size, kind), y, t, w)


@settings(max_examples=30)
@given(
    batch=st.integers(1, 3),
    grid_size=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    anchors=st.integers(1, 12),
    classes=st.integers(1, 9),
    reduction=st.sampled_from(oracle.REDUCTIONS),
    across=st.booleans(),
    weighted=st.booleans(),
)
def test_memory_layout_never_changes_a_bit(
    device, batch, grid_size, anchors, classes, reduction, across, weighted
):
    """Views of wider images go row by row, dense batches in whole images."""
    rng = rng_for(f"{batch} {grid_size} {anchors} {classes}")
    sizes = tuple(map(tuple, rng.uniform(0.3, 3, (anchors, 2)).tolist()))
    case = YOLOCase("drawn", batch, grid_size, classes, sizes)
    d = YOLO(sizes, reduction=reduction, reduce_across_batch=across)
    y, t = inputs(rng, d, case)
    w = cases.weights(rng, case.shape) if weighted else None
    gradient, losses = kernel(d, device)(y, t, w)
    check_gradient(d, gradient, y, t, w)
    check_losses(d, as_images(losses, d, batch), y, t, w)
    one = kernel(d, device)
    one.source_feature_channel_offset = 4
    one.source_feature_channel_max_count = case.shape[3]
    one.destination_feature_channel_offset = 4
    padding = np.full((*case.shape[:3], 4), 7, np.float32)
    padded = np.concatenate([padding, y, padding], axis=-1)
    size = (*grid_size, case.shape[3]) if reduction == "NONE" else (1, 1, 1)
    labels = mg.LossLabels.batch(device, t, w, loss_image_size=size)
    work = Work(device)
    with work:
        images = empty(device, padded.shape)
        one.encode_batch(work.buffer, filled(device, padded), labels, images)
        work.result(images)
        mg.synchronize(labels, work.buffer)
    assert_same_bytes(np.ascontiguousarray(read(images)[..., 4 : 4 + case.shape[3]]), gradient)
    if reduction == "NONE":
        assert_same_bytes(np.stack([label.loss for label in labels]), losses)
    else:  # the rows are summed in another order
        check_losses(d, np.stack([label.loss for label in labels]), y, t, w)


def test_threads_and_runs_give_the_same_bytes(device, rng):
    case = cases.YOLO_LAYERS[1]
    d = YOLO(case.anchors)
    y, t = inputs(rng, d, case)
    check_thread_independence(lambda: kernel(d, device)(y, t))


# --- Array calls -------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("single", [False, True])
def test_out(device, dtype, single, rng):
    case = cases.YOLO_CASES[1]
    d = YOLO(case.anchors)
    y, t = inputs(rng, d, case)
    y, t = (v[:1] for v in (y, t)) if single else (y, t)
    arguments = (y[0], t[0]) if single else (y, t)
    guard = Guarded(arguments[0].shape, dtype, skew=3)
    gradient, losses = kernel(d, device)(*arguments, out=guard.array)
    guard.check()
    assert np.shares_memory(gradient, guard.array)
    check_gradient(d, gradient[None] if single else gradient, y, t)
    assert losses.shape == (() if single else (case.batch,))


def test_read_counts(device, queue):
    """Sources, labels and weights lose a count; the gradient starts with one."""
    command_buffer = queue.command_buffer()
    source, target, weight = (
        mg.TemporaryImage(command_buffer, mg.ImageDescriptor(3, 2, 14)) for _ in range(3)
    )
    source.read_count = 2
    one = kernel(YOLO(ANCHORS), device)
    gradient = one.encode(command_buffer, source, mg.LossLabels(device, target, weight))
    assert (source.read_count, target.read_count, weight.read_count) == (1, 0, 0)
    assert (gradient.is_temporary, gradient.read_count) == (True, 1)
    source.read_count = gradient.read_count = 0
    command_buffer.commit()
    command_buffer.wait_until_completed()


# --- What is invalid ---------------------------------------------------------


def labels(device, shape=(2, 3, 14), weights=None, **arguments):
    return mg.LossLabels(device, np.zeros(shape, np.float32), weights, **arguments)


def encode(device, queue, d=YOLO(ANCHORS), channels=14, own=None, change=lambda _: None):  # noqa: B008
    one = kernel(d, device)
    change(one)
    source = filled(device, np.zeros((1, 2, 3, channels)), kind="list")[0]
    own = labels(device, (2, 3, channels)) if own is None else own(device)
    places = empty(device, (1, 2, 3, channels), kind="list")[0]
    return one.encode(queue.command_buffer(), source, own, places)


WHOLE = YOLO(ANCHORS, reduction="NONE")
REJECTED = {
    "channels": ({"channels": 15}, ValueError, "source has 15 channels, but 2 anchor boxes need"),
    "classes": ({"channels": 10}, ValueError, "source has 10 channels, but 2 anchor boxes need"),
    "window": ({"change": lambda k: setattr(k, "source_feature_channel_max_count", 13)},
               ValueError, "source has 13 channels, but 2 anchor boxes need"),
    "label size": ({"own": lambda d: labels(d, (2, 2, 14))}, ValueError,
                   "YOLOLoss: labels are 2x2x14, but the source is 3x2x14"),
    "label class": ({"own": lambda d: mg.State(d, 4)}, TypeError,
                    "YOLOLoss: labels must be LossLabels, got State"),
    "loss size": ({"d": WHOLE}, ValueError,
                  "1x1x1, but a source of 3x2x14 and this reduction need 3x2x14"),
    "reduced loss size": ({"own": lambda d: labels(d, loss_image_size=(3, 2, 14))}, ValueError,
                          "3x2x14, but a source of 3x2x14 and this reduction need 1x1x1"),
    "offset": ({"change": lambda k: setattr(k, "offset", mg.Offset(1, 0))}, ValueError,
               "offset must be (0, 0, 0), got (1, 0, 0)"),
    "clip": ({"change": lambda k: setattr(k, "clip_rect", mg.Region((0, 0), (3, 2)))}, ValueError,
             "clip_rect must be NO_CLIP"),
}  # fmt: skip


@pytest.mark.parametrize(("changed", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects(device, queue, changed, error, words):
    encode(device, queue)
    with pytest.raises(error, match=re.escape(words)):
        encode(device, queue, **changed)


def test_rejected_encodes_change_nothing(device, queue):
    command_buffer = queue.command_buffer()
    source = mg.TemporaryImage(command_buffer, mg.ImageDescriptor(3, 2, 15))
    own = labels(device, (2, 3, 15))
    with pytest.raises(ValueError, match="source has 15 channels"):
        kernel(YOLO(ANCHORS), device).encode(command_buffer, source, own)
    assert source.read_count == 1
    with pytest.raises(RuntimeError, match="undefined"):
        _ = own.loss
    source.read_count = 0
    command_buffer.commit()


def test_the_encodes_without_labels_are_not_offered(device, queue):
    images = filled(device, np.zeros((2, 3, 2, 14), np.float32))
    one = kernel(YOLO(ANCHORS), device)
    with pytest.raises(TypeError, match=r"labels is missing, which must be a LossLabels or "):
        one.encode_batch(queue.command_buffer(), images)
    with pytest.raises(TypeError, match="YOLOLoss: an encode needs labels"):
        mg.UnaryKernel.encode_batch(one, queue.command_buffer(), images, allocator=mg.DEFAULT)


TYPES = [getattr(mg.LossType, getattr(YOLO(ANCHORS), part).type) for part in PARTS]
BAD_ANCHORS = {
    "none": (np.zeros((0, 2)), ValueError, "anchor_boxes must hold at least one box"),
    "shape": (np.ones((2, 3)), ValueError, "anchor_boxes must have shape (boxes, 2), got (2, 3)"),
    "axes": (np.ones(4), ValueError, "anchor_boxes must have shape (boxes, 2), got (4,)"),
    "zero": (((1, 1), (1, 0)), ValueError, "anchor_boxes must be positive and finite, got 1x0"),
    "negative": (((-1, 1),), ValueError, "anchor_boxes must be positive and finite, got -1x1"),
    "nan": (((1, np.nan),), ValueError, "anchor_boxes must be positive and finite, got 1xnan"),
    "infinite": (((np.inf, 1),), ValueError, "anchor_boxes must be positive and finite, got inf"),
    "bytes": (b"1234567", ValueError, "anchor_boxes must be 8 bytes a box, got 7 bytes"),
    "no bytes": (b"", ValueError, "anchor_boxes must hold at least one box"),
    "kind": ("boxes", TypeError, "anchor_boxes must be an array of numbers, or bytes, got str"),
}


@pytest.mark.parametrize(("anchors", "error", "words"), BAD_ANCHORS.values(), ids=BAD_ANCHORS)
def test_rejects_anchors(anchors, error, words):
    with pytest.raises(error, match=re.escape(f"YOLOLossDescriptor: {words}")):
        mg.YOLOLossDescriptor(*TYPES, mg.ReductionType.SUM, anchors)
    d = descriptor(YOLO(ANCHORS))
    with pytest.raises(error, match=re.escape(words)):
        d.anchor_boxes = anchors
    assert_exact(d.anchor_boxes, ANCHORS)


def test_rejects_descriptors(device):
    with pytest.raises(ValueError, match="anchor_boxes has 2 boxes, but number_of_anchor_boxes is"):
        mg.YOLOLossDescriptor(*TYPES, mg.ReductionType.SUM, ANCHORS, 3)
    d = descriptor(YOLO(ANCHORS))
    with pytest.raises(TypeError, match="xy_loss_descriptor must be a LossDescriptor, got float"):
        d.xy_loss_descriptor = 1.0
    with rejects(AttributeError, "YOLOLossDescriptor.number_of_anchor_boxes is read-only"):
        d.number_of_anchor_boxes = 3
    with pytest.raises(ValueError, match="read-only"):
        d.anchor_boxes[0, 0] = 5
    with pytest.raises(TypeError, match="descriptor must be a YOLOLossDescriptor, got LossDescr"):
        mg.YOLOLoss(d.xy_loss_descriptor, device=device)


@pytest.mark.parametrize("part", PARTS)
def test_no_part_can_be_a_cosine_distance(device, part):
    d = descriptor(YOLO(ANCHORS))
    getattr(d, f"{part}_loss_descriptor").loss_type = mg.LossType.COSINE_DISTANCE
    words = f"YOLOLoss: {part}_loss_descriptor cannot be a COSINE_DISTANCE"
    with pytest.raises(ValueError, match=words):
        mg.YOLOLoss(d, device=device)


def test_smoothing_over_another_number_of_classes_warns_once(device):
    smooth = Loss("SOFT_MAX_CROSS_ENTROPY", label_smoothing=0.5)
    zeros = np.zeros((1, 1, 14), np.float32)
    one = kernel(YOLO(ANCHORS, classes=smooth), device)
    with pytest.warns(RuntimeWarning, match="number_of_classes is 1, but the source has 2 classes"):
        one(zeros, zeros)
    one(zeros, zeros)
    kernel(YOLO(ANCHORS, classes=replace(smooth, number_of_classes=2)), device)(zeros, zeros)
    kernel(YOLO(ANCHORS, classes=replace(smooth, type="HUBER")), device)(zeros, zeros)


# --- Objects -----------------------------------------------------------------


def test_defaults(device):
    d = mg.YOLOLossDescriptor(*TYPES, mg.ReductionType.MEAN, ANCHORS, 2)
    assert (d.rescore, d.reduce_across_batch, d.number_of_anchor_boxes) == (True, False, 2)
    assert (d.scale_xy, d.scale_wh, d.scale_no_object) == (10, 10, 5)
    assert (d.scale_object, d.scale_class) == (100, 2)
    assert d.min_iou_for_object_presence == np.float32(0.7)
    assert d.max_iou_for_object_absence == np.float32(0.3)
    assert [getattr(d, f"{part}_loss_descriptor").loss_type for part in PARTS] == TYPES
    assert d.wh_loss_descriptor.reduction_type == mg.ReductionType.MEAN
    assert_exact(d.anchor_boxes, ANCHORS)
    assert d.anchor_boxes.dtype == np.float32
    other = mg.YOLOLossDescriptor(*TYPES, mg.ReductionType.MEAN, np.float32(ANCHORS).tobytes())
    assert other == d
    one = mg.YOLOLoss(d, device=device)
    assert one.destination_image_allocator is mg.TEMPORARY
    names = (
        "scale_xy",
        "scale_wh",
        "scale_no_object",
        "scale_object",
        "scale_class",
        "min_iou_for_object_presence",
        "max_iou_for_object_absence",
        "reduction_type",
        "reduce_across_batch",
        "number_of_anchor_boxes",
    )
    for name in names:
        assert getattr(one, name) == getattr(d, name), name
        with rejects(AttributeError, f"YOLOLoss.{name} is read-only"):
            setattr(one, name, getattr(one, name))
    assert_exact(one.anchor_boxes, ANCHORS)
    assert not hasattr(one, "rescore")


def test_a_kernel_copies_its_descriptor(device):
    d = descriptor(YOLO(ANCHORS))
    one = mg.YOLOLoss(d, device=device)
    before = one.descriptor
    assert before == d
    d.scale_xy = 3
    d.wh_loss_descriptor.delta = 0.5
    d.anchor_boxes = ((1, 1),)
    assert one.descriptor == before != d
    assert (one.scale_xy, one.loss_wh.delta, one.number_of_anchor_boxes) == (10, 1, 2)


def test_the_reduction_of_the_whole_overrules_those_of_the_parts(device, rng):
    d = YOLO(ANCHORS, reduction="MEAN", reduce_across_batch=True)
    y, t = inputs(rng, d, PAIR)
    mixed = descriptor(d)
    mixed.xy_loss_descriptor.reduction_type = mg.ReductionType.NONE
    mixed.classes_loss_descriptor.reduction_type = mg.ReductionType.SUM
    one = mg.YOLOLoss(mixed, device=device)
    assert_exact(one(y, t)[1], kernel(d, device)(y, t)[1])
    for part in (one.loss_xy, one.loss_wh, one.loss_confidence, one.loss_classes):
        assert (part.reduction_type, part.reduce_across_batch) == (mg.ReductionType.MEAN, True)
        assert part.device == device


@pytest.mark.parametrize("duplicate", WAYS.values(), ids=WAYS)
def test_copies_are_equal_and_apart(device, duplicate):
    d = YOLO(ANCHORS, wh=Loss("HUBER", delta=0.25), rescore=False, scale_xy=3.0)
    one = kernel(d, device)
    one.label, one.source_feature_channel_offset = "one", 4
    other = duplicate(one)
    assert type(other) is mg.YOLOLoss
    assert other.descriptor == one.descriptor
    assert (other.label, other.source_feature_channel_offset) == ("one", 4)
    assert other.device == one.device
    other.label = "other"
    assert one.label == "one"


def test_descriptors_compare_copy_and_show(device):
    d = descriptor(YOLO(ANCHORS, wh=Loss("HUBER", delta=0.25), scale_xy=3.0, rescore=False))
    for other in (pickle.loads(pickle.dumps(d)), d.copy(), copy.copy(d), copy.deepcopy(d)):
        assert type(other) is mg.YOLOLossDescriptor
        assert other == d
        other.wh_loss_descriptor.delta = 2
        assert other != d
    assert d != "descriptor"
    text = (
        "YOLOLossDescriptor("
        "xy_loss_descriptor=LossDescriptor(LossType.MEAN_SQUARED_ERROR, ReductionType.SUM), "
        "wh_loss_descriptor=LossDescriptor(LossType.HUBER, ReductionType.SUM, delta=0.25), "
        "confidence_loss_descriptor=LossDescriptor(LossType.SIGMOID_CROSS_ENTROPY, "
        "ReductionType.SUM), classes_loss_descriptor=LossDescriptor("
        "LossType.SOFT_MAX_CROSS_ENTROPY, ReductionType.SUM), ReductionType.SUM, "
        "anchor_boxes=[[1.0, 2.0], [2.0, 1.0]], rescore=False, scale_xy=3.0)"
    )
    assert repr(d) == text
    assert repr(mg.YOLOLoss(d, device=device)) == (
        f"YOLOLoss(descriptor={text}, device={device.kind!r})"
    )
