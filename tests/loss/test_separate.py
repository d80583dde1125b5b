"""The separate forward and gradient kernels and the initial gradient."""

import re
from dataclasses import replace

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.oracle import load, store
from tests.core.test_arrays import Exporter
from tests.images import FORMATS, Work, empty, filled, read
from tests.loss import cases, oracle
from tests.loss.oracle import Loss
from tests.loss.test_loss import (
    DUPLICATES,
    EVERY,
    allowed,
    as_images,
    check_losses,
    descriptor,
    inputs,
)
from tests.rejects import rejects
from tests.repeats import check_thread_independence
from tests.tolerance import Guarded, assert_close, assert_exact, assert_same_bytes

quiet = pytest.mark.filterwarnings("ignore:.*label_smoothing adds:RuntimeWarning")
SHAPE = (3, 2, 5, 3)


def kernels(loss, device, **arguments):
    return (
        mg.ForwardLoss(descriptor(loss), device=device),
        mg.LossGradient(descriptor(loss), device=device, **arguments),
    )


def label_scale(loss, y, t):
    """Magnitude to which the roundings of a derivative by the labels are relative."""
    match loss.type:
        case "SOFT_MAX_CROSS_ENTROPY":
            return oracle.elements_scale(loss, y, np.ones_like(t))
        case "MEAN_SQUARED_ERROR" | "HUBER" | "MEAN_ABSOLUTE_ERROR":
            return oracle.derivative_scale(loss, y, t)
        case "LOG":
            above, below = 1 - y + loss.epsilon, y + loss.epsilon
            return np.abs(np.log(above / below)) + 1 + 1 / above
        case "KULLBACK_LEIBLER_DIVERGENCE":
            return np.abs(np.log(t)) + np.abs(y) + 1
    return np.abs(oracle.label_derivative(loss, y, t)) + np.abs(y)


def incoming(rng, loss, shape):
    """A gradient in the shape of what the forward call returns, and of the loss images."""
    if loss.reduction == "NONE":
        g = rng.standard_normal(shape).astype(np.float32)
        return g, g
    if loss.reduce_across_batch:
        g = np.float32(1.25)
        return g, np.full((shape[0], 1, 1, 1), g)
    g = rng.standard_normal(shape[0]).astype(np.float32)
    return g, g.reshape(-1, 1, 1, 1)


def check_gradient(loss, actual, images, y, t, w, *, labels=False):
    scale = (label_scale if labels else oracle.derivative_scale)(loss, y, t)
    factors = oracle.element_weights(loss, y.shape, w)
    divisors = oracle.divisors(loss, factors)[:, None, None, None]
    assert_close(
        actual,
        oracle.separate_gradient(loss, images, y, t, w, labels=labels),
        ulps=allowed(y.shape[3], actual.dtype),
        scale=scale * np.abs(factors * images) / divisors,
        floor=1e-30,
        nonzero=0.0 if labels and loss.smoothing == 1 else 0.02,  # then the labels are not used
    )


@quiet
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("loss", EVERY, ids=cases.name)
def test_every_loss(device, loss, weighted, rng):
    weighted = weighted and loss.type != "COSINE_DISTANCE"
    y, t = inputs(rng, loss, SHAPE)
    w = cases.weights(rng, SHAPE) if weighted else None
    forward, gradient = kernels(loss, device)
    check_losses(loss, as_images(forward(y, t, w), loss, SHAPE[0]), y, t, w)
    g, images = incoming(rng, loss, SHAPE)
    check_gradient(loss, gradient(g, y, t, w), images, y, t, w)
    if loss.type in ("CATEGORICAL_CROSS_ENTROPY", "KULLBACK_LEIBLER_DIVERGENCE"):
        t = np.maximum(t, np.float32(0.1))
    gradient.compute_label_gradients = True
    check_gradient(loss, gradient(g, y, t, w), images, y, t, w, labels=True)


@pytest.mark.parametrize("shape", [*cases.SHAPES, (2, 1, 1, 1000), (2, 65, 65, 21)], ids=str)
def test_every_shape(device, shape, rng):
    for loss in (Loss("SOFT_MAX_CROSS_ENTROPY", "MEAN"), Loss("HUBER", "NONE", delta=0.5)):
        y, t = inputs(rng, loss, shape)
        forward, gradient = kernels(loss, device)
        check_losses(loss, as_images(forward(y, t), loss, shape[0]), y, t)
        g, images = incoming(rng, loss, shape)
        check_gradient(loss, gradient(g, y, t), images, y, t, None)


@pytest.mark.parametrize(("across", "expected"), [(False, (1, 0, 6, 4)), (True, (0.5, 0, 3, 2))])
def test_printed_gradient(device, across, expected):
    y = np.array([1.0, 2, 3, 4], np.float32).reshape(2, 1, 2, 1)
    w = np.array([1.0, 0, 2, 1], np.float32).reshape(2, 1, 2, 1)
    gradient = kernels(Loss("MEAN_SQUARED_ERROR", "MEAN", across), device)[1]
    g = np.float32(1) if across else np.ones(2, np.float32)
    assert_exact(gradient(g, y, 0 * y, w).ravel(), expected)


def test_out_has_the_shape_of_the_predictions(device):
    y = np.ones((2, 1, 2, 3), np.float32)
    g = np.ones(2, np.float32)
    gradient = kernels(Loss("MEAN_SQUARED_ERROR", "SUM"), device)[1]
    for shape in ((2, 1, 2, 4), (2, 1, 3, 3)):
        out = np.full(shape, 7, np.float32)
        with rejects(ValueError, f"out must have shape (2, 1, 2, 3), got {shape}"):
            gradient(g, y, 0 * y, out=out)
        assert np.all(out == 7)


def test_forward_equals_the_combined_kernel(device, rng):
    """The same losses to the bit, and with SUM the same gradient."""
    for kind in oracle.TYPES:
        loss = Loss(kind, "SUM")
        y, t = inputs(rng, loss, SHAPE)
        forward, gradient = kernels(loss, device)
        combined, losses = mg.Loss(descriptor(loss), device=device)(y, t)
        assert_same_bytes(forward(y, t), losses)
        assert_same_bytes(gradient(np.ones(3, np.float32), y, t), combined)


@pytest.mark.parametrize("channel_format", FORMATS)
def test_every_format(device, channel_format, rng):
    loss = Loss("HUBER", "NONE", delta=0.25)
    stored = [store(rng.uniform(0, 1, SHAPE), channel_format) for _ in range(3)]
    y, t, w = (load(v) for v in stored)
    forward, gradient = kernels(loss, device)
    images = [filled(device, v, channel_format) for v in (y, t, w)]
    work = Work(device)
    with work:
        losses = work.result(forward.encode_batch(work.buffer, *images, allocator=mg.DEFAULT))
        result = empty(device, SHAPE, channel_format)
        gradient.encode_batch(
            work.buffer, images[2], *images[:2], destination_gradients=work.result(result)
        )
    assert losses[0].feature_channel_format == FORMATS[channel_format]
    for actual, exact, scale in (
        (read(losses), oracle.loss_images(loss, y, t, w), oracle.loss_scale(loss, y, t, w)),
        (
            read(result),
            oracle.separate_gradient(loss, w, y, t),
            oracle.derivative_scale(loss, y, t) * w,
        ),
    ):
        if channel_format.startswith("unorm"):
            exact = np.clip(exact, 0, 1)
        assert_close(actual, exact, ulps=allowed(3, actual.dtype), scale=scale, nonzero=0.05)


def test_reduced_losses_in_half_precision(device, rng):
    loss = Loss("HUBER", "MEAN")
    y, t = inputs(rng, loss, SHAPE)
    forward = kernels(loss, device)[0]
    work = Work(device)
    with work:
        result = empty(device, (3, 1, 1, 1), "float16")
        work.result(
            forward.encode_batch(work.buffer, filled(device, y), filled(device, t), None, result)
        )
    assert_close(read(result), oracle.loss_images(loss, y, t), ulps=0.51)


@pytest.mark.parametrize("reduction", ["NONE", "SUM_BY_NON_ZERO_WEIGHTS"])
def test_channel_windows_and_separate_images(device, reduction, rng):
    loss = Loss("SOFT_MAX_CROSS_ENTROPY", reduction)
    y, t = inputs(rng, loss, SHAPE)
    w = cases.weights(rng, SHAPE)
    wide = rng.standard_normal((*SHAPE[:3], 12)).astype(np.float32)
    wide[..., 4:7] = y
    forward, gradient = kernels(loss, device)
    forward.source_feature_channel_offset = 4
    forward.source_feature_channel_max_count = 3
    gradient.secondary_source_feature_channel_offset = 4
    gradient.secondary_source_feature_channel_max_count = 3
    gradient.destination_feature_channel_offset = 8
    _, images = incoming(rng, loss, SHAPE)
    sources = filled(device, wide, kind="list")
    labels = filled(device, t, kind="list"), filled(device, w, kind="list")
    work = Work(device)
    with work:
        losses = work.result(
            forward.encode_batch(work.buffer, sources, *labels, allocator=mg.DEFAULT)
        )
        result = work.result(
            gradient.encode_batch(
                work.buffer, filled(device, images), sources, *labels, allocator=mg.DEFAULT
            )
        )
    check_losses(loss, read(losses), y, t, w)
    actual = read(result)
    assert actual.shape == (*SHAPE[:3], 11)
    assert not actual[..., :8].any()
    check_gradient(loss, np.ascontiguousarray(actual[..., 8:]), images, y, t, w)


@pytest.mark.parametrize("kind", oracle.TYPES)
def test_threads_and_runs_give_the_same_bytes(device, kind, rng):
    loss = Loss(kind, "SUM")
    y, t = inputs(rng, loss, (3, 40, 41, 10))
    forward, gradient = kernels(loss, device)
    check_thread_independence(lambda: (forward(y, t), gradient(np.ones(3, np.float32), y, t)))


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("across", [False, True])
def test_a_count_of_zero_gives_zero(device, across, weight):
    loss = Loss("MEAN_SQUARED_ERROR", "SUM_BY_NON_ZERO_WEIGHTS", across, weight=weight)
    y = np.ones(SHAPE, np.float32)
    w = None if weight == 0 else 0 * y
    forward, gradient = kernels(loss, device)
    assert not forward(y, 0 * y, w).any()
    g = np.float32(1) if across else np.ones(3, np.float32)
    assert not gradient(g, y, 0 * y, w).any()


# --- Settings and states -----------------------------------------------------


def test_settings_may_change_between_encodes(device, rng):
    loss = Loss("LOG", "SUM")
    y, t = inputs(rng, loss, SHAPE)
    forward, gradient = kernels(loss, device)
    for kernel in (forward, gradient):
        kernel.weight, kernel.epsilon = 0.25, 0.125
        kernel.delta, kernel.label_smoothing = 2.0, 0.5
        assert (kernel.delta, kernel.label_smoothing) == (2.0, 0.5)
    changed = replace(loss, weight=0.25, epsilon=0.125)
    check_losses(changed, forward(y, t).reshape(3, 1, 1, 1), y, t)
    g, images = incoming(rng, loss, SHAPE)
    check_gradient(changed, gradient(g, y, t), images, y, t, None)
    for kernel in (forward, gradient):
        for name, value in (
            ("delta", 0.0),
            ("epsilon", -1.0),
            ("label_smoothing", 2.0),
            ("label_smoothing", float("nan")),
        ):
            with pytest.raises(ValueError, match=name):
                setattr(kernel, name, value)
        assert kernel.descriptor == descriptor(replace(changed, delta=2.0, label_smoothing=0.5))
        for name in ("loss_type", "reduction_type", "reduce_across_batch", "number_of_classes"):
            with rejects(AttributeError, f"{type(kernel).__name__}.{name} is read-only"):
                setattr(kernel, name, getattr(kernel, name))


def test_settings_count_at_encode(device, rng):
    loss = Loss("HUBER", "SUM")
    y, t = inputs(rng, loss, SHAPE)
    forward = kernels(loss, device)[0]
    work = Work(device)
    with work:
        result = work.result(
            forward.encode_batch(
                work.buffer, filled(device, y), filled(device, t), allocator=mg.DEFAULT
            )
        )
        forward.weight = 100.0
    check_losses(loss, read(result), y, t)


@pytest.mark.parametrize("temporary", [False, True])
def test_states_override_the_kernel(device, temporary, rng):
    loss = Loss("SIGMOID_CROSS_ENTROPY", "MEAN", label_smoothing=0.25, weight=0.5)
    y, t = inputs(rng, loss, SHAPE)
    forward = kernels(loss, device)[0]
    gradient = kernels(replace(loss, label_smoothing=0.75, weight=3.0), device)[1]
    _, images = incoming(rng, loss, SHAPE)
    sources, labels = filled(device, y), filled(device, t)
    work = Work(device)
    with work:
        losses, states = forward.encode_batch(
            work.buffer,
            sources,
            labels,
            with_state=True,
            temporary_state=temporary,
            allocator=mg.DEFAULT,
        )
        work.result(losses)
        assert len(states) == 3
        assert [state.is_temporary for state in states] == [temporary] * 3
        assert all(isinstance(state, mg.ForwardLossState) for state in states)
        assert (states[0].weight, states[0].label_smoothing) == (0.5, 0.25)
        assert (states[0].epsilon, states[0].delta) == (np.float32(1e-7), 1.0)
        result = work.result(
            gradient.encode_batch(
                work.buffer,
                filled(device, images),
                sources,
                labels,
                None,
                states,
                allocator=mg.DEFAULT,
            )
        )
        assert [state.read_count for state in states] == [0] * 3
    check_losses(loss, read(losses), y, t)
    check_gradient(loss, read(result), images, y, t, None)


def test_explicit_states(device, queue):
    loss = Loss("HUBER", "SUM")
    forward = kernels(loss, device)[0]
    sources, labels = empty(device, SHAPE), empty(device, SHAPE)
    results = empty(device, (3, 1, 1, 1))
    states = forward.result_state_batch(sources, results)
    forward.encode_batch(
        queue.command_buffer(), sources, labels, None, results, destination_states=states
    )
    forward.weight = 2.0
    with pytest.raises(mg.errors.StateError, match="properties changed after result_state"):
        forward.encode_batch(
            queue.command_buffer(), sources, labels, None, results, destination_states=states
        )
    with pytest.raises(ValueError, match="make it with result_state_batch"):
        forward.encode_batch(
            queue.command_buffer(), sources, labels, None, results, with_state=True
        )
    with pytest.raises(TypeError, match="destination_states without destinations"):
        forward.encode_batch(queue.command_buffer(), sources, labels, destination_states=states)
    for wrong in (results[0], 3):
        with pytest.raises(TypeError, match="ForwardLoss: destinations must be an"):
            forward.encode_batch(queue.command_buffer(), sources, labels, None, wrong)
    with pytest.raises(TypeError, match="ForwardLoss: destination_states must be a State"):
        forward.encode_batch(
            queue.command_buffer(), sources, labels, None, results, destination_states=3
        )
    with pytest.raises(TypeError, match="made by a kernel"):
        mg.ForwardLossState()


def test_an_encode_that_fails_leaves_the_offset(device, queue):
    """An encode that creates its destination sets it, as for every kernel, if it succeeds."""
    forward = kernels(Loss("HUBER", "NONE"), device)[0]
    sources, labels = empty(device, SHAPE), empty(device, SHAPE)
    forward.offset = (2, 1, 0)
    with rejects(ValueError, "ForwardLoss: there are 3 sources, but 1 labels"):
        forward.encode_batch(queue.command_buffer(), sources, [labels[0]])
    assert forward.offset == mg.Offset(2, 1, 0)
    forward.encode_batch(queue.command_buffer(), sources, labels, allocator=mg.DEFAULT)
    assert forward.offset == mg.Offset(0, 0, 0)


def test_read_counts(device, queue):
    command_buffer = queue.command_buffer()
    whole = mg.ImageDescriptor(5, 2, 3)

    def batch(d):
        return mg.ImageBatch.temporary(command_buffer, d, 3)

    sources, labels, weights = batch(whole), batch(whole), batch(whole)
    forward, gradient = kernels(Loss("HUBER", "MEAN"), device)
    mg.increment_read_count(sources, 1)
    mg.increment_read_count(labels, 1)
    losses, states = forward.encode_batch(
        command_buffer, sources, labels, weights, with_state=True, temporary_state=True
    )
    counts = [batch[0].read_count for batch in (sources, labels, weights, losses)]
    assert counts == [1, 1, 0, 1]
    result = gradient.encode_batch(command_buffer, losses, sources, labels, None, states)
    counts = [batch[0].read_count for batch in (sources, labels, losses, states, result)]
    assert counts == [0, 0, 0, 0, 1]
    with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
        gradient.encode_batch(command_buffer, empty(device, (3, 1, 1, 1)), sources, labels)
    mg.increment_read_count(result, -1)
    command_buffer.commit()
    command_buffer.wait_until_completed()


def test_from_loss_to_prediction_on_one_command_buffer(device, rng):
    """Forward, ones, gradient: the chain that the separate kernels are for."""
    loss = Loss("SOFT_MAX_CROSS_ENTROPY", "MEAN", True)
    y, t = inputs(rng, loss, SHAPE)
    forward, gradient = kernels(loss, device)
    ones = mg.InitialGradient(device=device)
    sources, labels = filled(device, y), filled(device, t)
    work = Work(device)
    with work:
        losses = forward.encode_batch(work.buffer, sources, labels)
        start = ones.encode_batch(work.buffer, losses)
        result = work.result(
            gradient.encode_batch(work.buffer, start, sources, labels, allocator=mg.DEFAULT)
        )
    check_gradient(loss, read(result), np.ones((3, 1, 1, 1)), y, t, None)


# --- What is invalid ---------------------------------------------------------


class Encode:
    """A forward and a gradient encode of three images of 5x2x3 whose parts a test replaces."""

    def __init__(self, device, *, gradient):
        self.device = device
        self.loss = Loss("HUBER", "MEAN")
        self.is_gradient = gradient
        self.gradients = self.images(3, 1, 1, 1)
        self.sources, self.labels, self.weights = (self.images(*SHAPE) for _ in range(3))
        self.destinations = self.images(*(SHAPE if gradient else (3, 1, 1, 1)))
        self.states = None
        self.change = lambda _: None

    def images(self, *shape):
        return empty(self.device, shape)

    def run(self, command_buffer):
        kernel = kernels(self.loss, self.device)[self.is_gradient]
        self.change(kernel)
        if self.is_gradient:
            kernel.encode_batch(
                command_buffer,
                self.gradients,
                self.sources,
                self.labels,
                self.weights,
                self.states,
                self.destinations,
            )
        else:
            kernel.encode_batch(
                command_buffer, self.sources, self.labels, self.weights, self.destinations
            )


def use(**makers):
    """Replace attributes; a function gets the encode."""

    def change(encode):
        for name, make in makers.items():
            setattr(encode, name, make(encode) if name != "change" else make)

    return change


def foreign_states(encode):
    other = mg.ForwardLoss(descriptor(Loss("LOG", "MEAN")), device=encode.device)
    return other.result_state_batch(encode.sources, encode.images(3, 1, 1, 1))


def states_of_two_encodes(encode):
    forward = kernels(encode.loss, encode.device)[0]
    first = forward.result_state_batch(encode.sources, encode.gradients)
    forward.weight = 10
    return [*first[:2], forward.result_state_batch(encode.sources, encode.gradients)[2]]


def read_only(encode):
    array = np.zeros((3, 2, 5, 3), np.float32)
    array.flags.writeable = False
    return mg.ImageBatch.from_array(encode.device, array)


BOTH = {
    "label size": (use(labels=lambda e: e.images(3, 2, 4, 3)), ValueError,
                   "labels are 4x2x3, but the source is 5x2x3"),
    "label count": (use(labels=lambda e: e.images(2, 2, 5, 3)), ValueError,
                    "there are 3 sources, but 2 labels"),
    "weight size": (use(weights=lambda e: e.images(3, 2, 5, 4)), ValueError,
                    "weights are 5x2x4, but the source is 5x2x3"),
    "weight count": (use(weights=lambda e: e.images(1, 2, 5, 3)), ValueError,
                     "there are 3 sources, but 1 weights"),
    "no labels": (use(labels=lambda _: None), TypeError, "labels must be an Image"),
    "one image": (use(sources=lambda e: e.sources[0]), TypeError,
                  "sources must be an ImageBatch or a list of images, got Image"),
    "one label": (use(labels=lambda e: e.labels[0]), TypeError,
                  "labels must be an ImageBatch or a list of images, got Image"),
    "label states": (use(labels=lambda e: mg.LossLabels.batch(
        e.device, np.zeros(SHAPE, np.float32))), TypeError, "labels must hold images"),
    "cosine with weights": (use(loss=lambda _: Loss("COSINE_DISTANCE")), ValueError,
                            "COSINE_DISTANCE takes no weights"),
    "clip": (use(change=lambda k: setattr(k, "clip_rect", mg.Region((0, 0), (5, 2)))), ValueError,
             "clip_rect must be NO_CLIP"),
    "destination is source": (use(destinations=lambda e: e.sources,
                                  loss=lambda _: Loss("HUBER", "NONE"),
                                  gradients=lambda e: e.images(*SHAPE)), ValueError,
                              "shares memory with source"),
    "destination is labels": (use(destinations=lambda e: e.labels,
                                  loss=lambda _: Loss("HUBER", "NONE"),
                                  gradients=lambda e: e.images(*SHAPE)), ValueError,
                              "shares memory with labels"),
    "destination is weights": (use(destinations=lambda e: e.weights,
                                   loss=lambda _: Loss("HUBER", "NONE"),
                                   gradients=lambda e: e.images(*SHAPE)), ValueError,
                               "shares memory with weights"),
}  # fmt: skip
FORWARD = {
    "offset": (use(change=lambda k: setattr(k, "offset", mg.Offset(0, 1))), ValueError,
               "offset must be (0, 0, 0), got (0, 1, 0)"),
    "destination size": (use(destinations=lambda e: e.images(*SHAPE)), ValueError,
                         "destination is 5x2, but the loss image is 1x1"),
    "unreduced size": (use(loss=lambda _: Loss("HUBER", "NONE")), ValueError,
                       "ForwardLoss: channels 0 to 3 do not fit a destination of 1 channels"),
    "unreduced extent": (use(loss=lambda _: Loss("HUBER", "NONE"),
                             destinations=lambda e: e.images(3, 1, 1, 3)), ValueError,
                         "destination is 1x1, but the loss image is 5x2"),
}  # fmt: skip
GRADIENT = {
    "primary offset": (use(change=lambda k: setattr(k, "primary_offset", mg.Offset(1, 0))),
                       ValueError, "primary_offset must be (0, 0, 0), got (1, 0, 0)"),
    "secondary offset": (use(change=lambda k: setattr(k, "secondary_offset", mg.Offset(1, 0))),
                         ValueError, "secondary_offset must be (0, 0, 0)"),
    "gradient size": (use(gradients=lambda e: e.images(*SHAPE)), ValueError,
                      "source_gradients are 5x2x3, but the loss images are 1x1x1"),
    "unreduced gradient": (use(loss=lambda _: Loss("HUBER", "NONE")), ValueError,
                           "source_gradients are 1x1x1, but the loss images are 5x2x3"),
    "gradient count": (use(gradients=lambda e: e.images(2, 1, 1, 1)), ValueError,
                       "source_gradients has 2 images, but sources has 3"),
    "destination size": (use(destinations=lambda e: e.images(3, 2, 4, 3)), ValueError,
                         "destination_gradients are 4x2, but sources are 5x2"),
    "destination channels": (use(destinations=lambda e: e.images(3, 2, 5, 2)), ValueError,
                             "channels 0 to 3 do not fit destination_gradients of 2 channels"),
    "read-only destination": (use(destinations=read_only), ValueError,
                              "destination_gradients is over a read-only array"),
    "destination twice": (use(destinations=lambda e: [*e.images(1, 2, 5, 3)] * 3), ValueError,
                          "destination_gradients holds the same image twice"),
    "destination count": (use(destinations=lambda e: e.images(2, 2, 5, 3)), ValueError,
                          "sources has 3 images, but destination_gradients has 2"),
    "destination is gradient": (use(destinations=lambda e: e.gradients,
                                    loss=lambda _: Loss("HUBER", "NONE"),
                                    sources=lambda e: e.images(3, 1, 1, 1),
                                    labels=lambda e: e.images(3, 1, 1, 1),
                                    weights=lambda _: None), ValueError,
                                "destination_gradients shares memory with source_gradients"),
    "state class": (use(states=lambda e: [mg.State(e.device, 4) for _ in range(3)]), TypeError,
                    "source_states must come from ForwardLoss, got State"),
    "state count": (use(states=lambda e: kernels(e.loss, e.device)[0].result_state_batch(
        e.sources, e.gradients)[:2]), ValueError, "source_states has 2 entries, expected 3"),
    "state of another loss": (use(states=foreign_states), ValueError,
                              "made by a ForwardLoss of another type or reduction"),
    "states of two encodes": (use(states=states_of_two_encodes), ValueError,
                              "source_states must come from one encode"),
}  # fmt: skip
REJECTED = {
    **{f"{part} {name}": (part == "gradient", *row)
       for part in ("forward", "gradient") for name, row in BOTH.items()},
    **{f"forward {name}": (False, *row) for name, row in FORWARD.items()},
    **{f"gradient {name}": (True, *row) for name, row in GRADIENT.items()},
}  # fmt: skip


@pytest.mark.parametrize(("gradient", "change", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects(device, queue, gradient, change, error, words):
    encode = Encode(device, gradient=gradient)
    encode.run(queue.command_buffer())
    change(encode)
    with pytest.raises(error, match=re.escape(words)):
        encode.run(queue.command_buffer())


def test_only_batch_forms(device, queue):
    forward = kernels(Loss("HUBER"), device)[0]
    image = empty(device, (1, 1, 1, 4), kind="list")[0]
    with pytest.raises(TypeError, match="batch forms only; use encode_batch"):
        forward.encode(queue.command_buffer(), image, image)
    with pytest.raises(TypeError, match="an encode needs labels"):
        mg.UnaryKernel.encode(forward, queue.command_buffer(), image, allocator=mg.DEFAULT)


X = np.zeros(SHAPE, np.float32)
ONES = np.ones(3, np.float32)
CALLS = {
    "label dtype": (lambda f, _: f(X, X.astype(np.float16)), TypeError, "labels must be float32"),
    "label shape": (lambda f, _: f(X, X[:2]), ValueError, "labels have shape (2, 2, 5, 3)"),
    "weight shape": (lambda f, _: f(X, X, X[0]), ValueError, "weights have shape (2, 5, 3)"),
    "gradient shape": (lambda _, g: g(ONES[:2], X, X), ValueError,
                       "source_gradient has shape (2,), but the loss has (3,)"),
    "gradient image": (lambda _, g: g(X, X, X), ValueError, "but the loss has (3,)"),
    "gradient dtype": (lambda _, g: g(np.ones(3), X, X), TypeError,
                       "source_gradient must be float32 or float16, got float64"),
    "single": (lambda _, g: g(ONES, X[0], X[0]), ValueError, "but the loss has ()"),
    "gradient labels": (lambda _, g: g(ONES, X, X[..., :2]), ValueError, "labels have shape"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), CALLS.values(), ids=CALLS)
def test_rejects_arrays(device, call, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call(*kernels(Loss("HUBER", "MEAN"), device))


def test_a_predicate_leaves_zeros(device, queue, rng):
    encode = Encode(device, gradient=True)
    gradient = kernels(encode.loss, device)[1]
    encode.gradients = mg.ImageBatch.from_array(device, np.ones((3, 1, 1, 1), np.float32))
    encode.labels = mg.ImageBatch.from_array(device, rng.normal(size=SHAPE).astype(np.float32))

    def run(command_buffer):
        result = gradient.encode_batch(
            command_buffer, encode.gradients, encode.sources, encode.labels, allocator=mg.DEFAULT
        )
        mg.synchronize(result, command_buffer)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        return result.to_array().copy()

    assert run(queue.command_buffer()).any()  # leaves its memory to the next one
    command_buffer = queue.command_buffer()
    command_buffer.predicate = mg.Predicate(mg.Buffer(device, np.zeros(1, np.uint32)))
    assert not run(command_buffer).any()


def test_incoming_gradients_by_dlpack(device):
    for reduction, incoming in (("MEAN", ONES), ("NONE", np.ones_like(X))):
        gradient = kernels(Loss("HUBER", reduction), device)[1]
        wanted = gradient(incoming, X + 1, X)
        assert_exact(gradient(Exporter(incoming), X + 1, X), wanted)


def test_unreduced_array_gradient(device):
    gradient = kernels(Loss("HUBER", "NONE"), device)[1]
    with pytest.raises(ValueError, match=re.escape("but the loss has (3, 2, 5, 3)")):
        gradient(X[:1], X, X)
    with pytest.raises(ValueError, match=re.escape("but the loss has (2, 5, 3)")):
        gradient(X[:1], X[0], X[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("single", [False, True])
def test_out(device, dtype, single, rng):
    loss = Loss("HUBER", "MEAN")
    y, t = inputs(rng, loss, SHAPE)
    count = 1 if single else 3
    arguments = (y[0], t[0]) if single else (y, t)
    forward, gradient = kernels(loss, device)
    assert forward(*arguments).shape == (() if single else (3,))
    guard = Guarded(arguments[0].shape, dtype, skew=5)
    g = np.float16(1) if single else np.ones(3, np.float16)
    result = gradient(g, *arguments, out=guard.array)
    guard.check()
    assert np.shares_memory(result, guard.array)
    check_gradient(
        loss,
        result.reshape(count, *SHAPE[1:]),
        np.ones((count, 1, 1, 1)),
        y[:count],
        t[:count],
        None,
    )
    assert gradient(g, *arguments).dtype == np.float16


@pytest.mark.parametrize("duplicate", DUPLICATES)
def test_copies_are_equal_and_apart(device, duplicate):
    forward, gradient = kernels(cases.VARIED[0], device, compute_label_gradients=True)
    for one in (forward, gradient):
        one.weight = 0.75
        other = duplicate(one)
        assert type(other) is type(one)
        assert other.descriptor == one.descriptor
        assert other.weight == 0.75
        other.weight = 0.5
        assert one.weight == 0.75
    assert duplicate(gradient).compute_label_gradients


def test_smoothing_over_another_number_of_classes_warns_once(device):
    loss = Loss("SOFT_MAX_CROSS_ENTROPY", label_smoothing=0.5)
    x = np.ones(SHAPE, np.float32)

    def calls(loss):
        forward, gradient = kernels(loss, device)
        return lambda: forward(x, x), lambda: gradient(np.ones(3, np.float32), x, x)

    for call, name in zip(calls(loss), ("ForwardLoss", "LossGradient"), strict=True):
        words = f"^{name}: label_smoothing adds .* number_of_classes is 1, but the source has 3"
        with pytest.warns(RuntimeWarning, match=words) as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]  # not one of the package's
        call()
    for changed in (
        replace(loss, number_of_classes=3),
        replace(loss, label_smoothing=0.0),
        replace(loss, type="SIGMOID_CROSS_ENTROPY"),
    ):
        for call in calls(changed):
            call()


def test_smoothing_of_a_state_warns(device, queue):
    """That the kernel's own descriptor smooths nothing does not matter."""
    smooth, plain = (Loss("SOFT_MAX_CROSS_ENTROPY", label_smoothing=s) for s in (0.5, 0.0))
    forward, gradient = kernels(smooth, device)[0], kernels(plain, device)[1]
    sources, labels = (empty(device, SHAPE, fill=1.0) for _ in range(2))
    states = forward.result_state_batch(sources, empty(device, (3, 1, 1, 1)))
    gradients = empty(device, (3, 1, 1, 1), fill=1.0)
    with pytest.warns(RuntimeWarning, match="^LossGradient: label_smoothing adds"):
        gradient.encode_batch(
            queue.command_buffer(), gradients, sources, labels, None, states, allocator=mg.DEFAULT
        )


# --- Initial gradient --------------------------------------------------------


@pytest.mark.parametrize("channel_format", FORMATS)
@pytest.mark.parametrize("kind", ["batch", "list", "container"])
def test_initial_gradient_is_one_everywhere(device, channel_format, kind):
    sources = empty(device, SHAPE, channel_format, kind=kind, fill=0.5)
    results = empty(device, SHAPE, channel_format, kind=kind)
    kernel = mg.InitialGradient(device=device)
    work = Work(device)
    with work:
        encode = kernel.encode if kind == "container" else kernel.encode_batch
        encode(work.buffer, sources, work.result(results))
    assert_same_bytes(read(results), store(np.ones(SHAPE), channel_format))


def test_initial_gradient_of_a_created_destination(device):
    source = filled(device, np.full((1, 3, 4, 6), np.nan, np.float32), kind="list")[0]
    work = Work(device)
    with work:
        result = work.result(
            mg.InitialGradient(device=device).encode(work.buffer, source, allocator=mg.DEFAULT)
        )
    assert_exact(result.read(), np.ones((3, 4, 6)))
    assert_exact(mg.InitialGradient(device=device)(np.zeros(SHAPE, np.float32)), np.ones(SHAPE))


def test_initial_gradient_in_a_clip_rectangle(device):
    kernel = mg.InitialGradient(device=device)
    kernel.clip_rect = mg.Region((1, 1, 1), (2, 1, 2))
    kernel.destination_feature_channel_offset = 4
    results = empty(device, (3, 3, 4, 9), fill=7.0)
    work = Work(device)
    with work:
        kernel.encode_batch(work.buffer, empty(device, (3, 3, 4, 2)), work.result(results))
    expected = np.full((3, 3, 4, 9), 7.0)
    expected[1:, 1, 1:3, 4:6] = 1
    got = read(results)
    # The rest of the slice is zero on the CPU; what a GPU stores there is its business.
    rest = np.s_[1:, 1, 1:3, 6:8]
    expected[rest] = 0 if device.kind == "cpu" else got[rest]
    assert_exact(got, expected)
