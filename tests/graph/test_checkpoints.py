"""Training that stops and goes on: checkpoints, pickles and copies of sources over arrays."""

import copy
import pickle
import threading

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad import graph as g

from tests.graph.networks import loss_of
from tests.graph.test_updates import OPTIMIZERS
from tests.rejects import rejects
from tests.tolerance import assert_same_bytes

SHAPE = (3, 2, 2, 4)
GAMMA = {"gamma": np.full(4, 1.5, np.float32), "beta": np.full(4, 0.5, np.float32)}


def sources(optimizer):
    """A source of each kind, always with the same numbers."""
    rng = np.random.default_rng(7)
    w, b = rng.standard_normal((4, 1, 1, 4)).astype(np.float32), np.full(4, 0.25, np.float32)
    arrays = {name: array.copy() for name, array in GAMMA.items()}
    statistics = {"mean": np.zeros(4, np.float32), "variance": np.ones(4, np.float32)}
    how = {"epsilon": 0.25, "optimizer": optimizer}
    return [
        mg.ArrayConvolutionDataSource(w, b, optimizer=optimizer),
        mg.ArrayBatchNormalizationDataSource(**arrays, **statistics, **how),
        mg.ArrayInstanceNormalizationDataSource(**{n: a.copy() for n, a in GAMMA.items()}, **how),
        mg.ArrayGroupNormalizationDataSource(
            **{n: a.copy() for n, a in GAMMA.items()}, number_of_groups=2, **how
        ),
    ]


def network(device, own):
    node = g.ConvolutionNode(g.ImageNode("x"), own[0])
    for kind, source in zip(("Batch", "Instance", "Group"), own[1:], strict=True):
        node = getattr(g, f"{kind}NormalizationNode")(node, source)
    graph = g.Graph(device, result_images=loss_of(node).training_graph(), results_are_needed=False)
    graph.format = mg.ChannelFormat.FLOAT32
    return graph


def train(graph, steps):
    rng = np.random.default_rng(11)
    for _ in range(steps):
        graph(rng.standard_normal(SHAPE).astype(np.float32), np.ones(SHAPE, np.float32))


def arrays_of(own):
    return [array for source in own for array in source.checkpoint().values()]


def assert_same_arrays(actual, expected):
    assert list(actual) == list(expected)
    for name, array in actual.items():
        assert_same_bytes(array, expected[name])


def through_files(_device, own, tmp_path, optimizer):
    """Write every source to one file, and new sources from it."""
    saved = {
        f"{i}/{name}": array
        for i, source in enumerate(own)
        for name, array in source.checkpoint().items()
    }
    np.savez(tmp_path / "checkpoint.npz", allow_pickle=False, **saved)
    fresh = sources(optimizer)
    with np.load(tmp_path / "checkpoint.npz", allow_pickle=False) as file:
        for i, source in enumerate(fresh):
            source.restore({n.partition("/")[2]: file[n] for n in file if n.startswith(f"{i}/")})
    return fresh


WAYS = {
    "checkpoint": through_files,
    # Whose optimizers are on the default device, which may be another one.
    "pickle": lambda device, own, *_: [
        source.copy(device) for source in pickle.loads(pickle.dumps(own))
    ],
    "copy": lambda device, own, *_: [source.copy(device) for source in own],
}


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_if_it_had_not_stopped(device, tmp_path, name, way):
    own = sources(OPTIMIZERS[name](device))
    graph = network(device, own)
    train(graph, 3)
    again = way(device, own, tmp_path, OPTIMIZERS[name](device))
    for old, new in zip(arrays_of(own), arrays_of(again), strict=True):
        assert_same_bytes(old, new)
    graph.reload_from_data_sources()
    train(graph, 2)
    other = network(device, again)
    train(other, 2)
    for old, new in zip(arrays_of(own), arrays_of(again), strict=True):
        assert_same_bytes(old, new)
    if name == "adam":  # two that begin anew do something else
        anew = [source.copy(device) for source in again]
        for source in anew:
            source.restore({n: a for n, a in source.checkpoint().items() if n in source._arrays})
        train(network(device, anew), 2)
        train(network(device, again), 2)
        assert not np.array_equal(anew[0].checkpoint()["weights"], again[0].checkpoint()["weights"])


def test_a_pickled_graph_goes_on(device):
    own = sources(mg.Adam(0.01, device=device))
    graph = network(device, own)
    train(graph, 3)
    own[0].load()
    again = pickle.loads(pickle.dumps(graph)).copy(device)
    graph.reload_from_data_sources()
    train(graph, 2)
    train(again, 2)
    x, labels = np.ones(SHAPE, np.float32), np.zeros(SHAPE, np.float32)
    graph.reload_from_data_sources()
    again.reload_from_data_sources()
    assert_same_bytes(again(x, labels).losses[0], graph(x, labels).losses[0])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_graph_goes_on_from_a_file(device, tmp_path, name):
    own = sources(OPTIMIZERS[name](device))
    graph = network(device, own)
    train(graph, 3)
    saved = graph.checkpoint()
    np.savez(tmp_path / "checkpoint.npz", allow_pickle=False, **saved)
    fresh = sources(OPTIMIZERS[name](device))
    again = network(device, fresh)
    train(again, 1)  # not to be seen afterwards
    with np.load(tmp_path / "checkpoint.npz", allow_pickle=False) as file:
        again.restore(file)
    for restored in (own, fresh):
        for array, expected in zip(arrays_of(restored), saved.values(), strict=True):
            assert_same_bytes(array, expected)
    for each in (graph, again):
        train(each, 2)
    for (key, old), new in zip(
        graph.checkpoint().items(), again.checkpoint().values(), strict=True
    ):
        assert key.startswith(("0/", "1/", "2/", "3/"))
        assert_same_bytes(new, old)
    assert not np.array_equal(graph.checkpoint()["0/weights"], saved["0/weights"])


def test_names_in_a_checkpoint_of_a_graph(device):
    def chain(*labels):
        w = np.ones((4, 1, 1, 4), np.float32)
        own = [mg.ArrayConvolutionDataSource(w.copy(), label=label) for label in labels]
        node = g.ImageNode("x")
        for source in (*own, own[0]):  # which two nodes have
            node = g.ConvolutionNode(node, source)
        return g.Graph(device, node)

    graph = chain("first", None, "twice", "twice", "part/last")
    names = ["first", "1", "2", "3", "part/last"]
    assert list(graph.checkpoint()) == [f"{name}/weights" for name in names]
    graph.restore(graph.checkpoint())
    with rejects(ValueError, "two data sources go by the name of 1"):
        chain("first", None, "1").checkpoint()


def test_a_graph_restores_everything_or_nothing(device):
    own = sources(mg.Adam(0.01, device=device))
    graph = network(device, own)
    train(graph, 1)
    saved = graph.checkpoint()
    train(graph, 1)
    before = graph.checkpoint()
    of_all = "checkpoint must be of a graph with the data sources 0, 1, 2, 3; it has "
    one = {"4/gamma": saved["3/gamma"], "4/beta": saved["3/beta"]}
    wrong = [
        ({n: a for n, a in saved.items() if n[0] != "2"}, f"{of_all}nothing of 2"),
        (saved | {"weights": saved["0/weights"]}, f"{of_all}weights besides"),
        (saved | one, f"{of_all}4 besides"),
        (one, f"{of_all}nothing of 0, 1, 2, 3 and 4 besides"),
        (
            saved | {"3/gamma": np.ones(5, np.float32)},
            "of 3: ArrayGroupNormalizationDataSource.restore: gamma must have shape (4,), got (5,)",
        ),
        ({n: a for n, a in saved.items() if n != "3/beta"}, "no beta"),
    ]
    for checkpoint, words in wrong:
        with rejects(ValueError, f"Graph.restore: {words}" if "of 3" in words else words):
            graph.restore(checkpoint)
        assert_same_arrays(graph.checkpoint(), before)
    for given in ("checkpoint.npz", None, list(saved)):
        words = "checkpoint must be a mapping of str to arrays, as checkpoint() and numpy.load"
        for restores in (graph, own[0]):
            with rejects(TypeError, f"{words} return, got {type(given).__name__}"):
                restores.restore(given)
    graph.restore(saved)
    assert_same_arrays(graph.checkpoint(), saved)


@pytest.mark.filterwarnings("ignore:Graph. no weights are updated")
def test_what_is_restored_may_share_memory_with_the_sources(device):
    own = sources(None)
    graph = network(device, own)
    gamma, beta = own[2].gamma, own[3].gamma
    gamma[:], beta[:] = 2, 3
    saved = graph.checkpoint()
    graph.restore(saved | {"2/gamma": own[3].gamma, "3/gamma": own[2].gamma})
    assert_same_bytes(gamma, np.full(4, 3, np.float32))
    assert_same_bytes(beta, np.full(4, 2, np.float32))
    own[2].restore({"gamma": own[2].beta, "beta": own[2].gamma})
    assert_same_bytes(own[2].gamma, saved["2/beta"])
    assert_same_bytes(own[2].beta, np.full(4, 3, np.float32))


@pytest.mark.filterwarnings("ignore:Graph. no weights are updated")
def test_numbers_that_overflow_change_nothing_where_warnings_are_errors(device):
    own = sources(None)
    graph = network(device, own)
    before = graph.checkpoint()
    wrong = {name: array + 1 for name, array in before.items()} | {"3/beta": np.full(4, 1e300)}
    with pytest.raises(RuntimeWarning, match="overflow"):
        graph.restore(wrong)
    assert_same_arrays(graph.checkpoint(), before)


def test_a_graph_that_is_being_encoded_has_no_checkpoint(queue):
    own = sources(mg.SGD(0.1, device=queue.device))
    graph = network(queue.device, own)
    saved = graph.checkpoint()
    x = np.random.default_rng(3).standard_normal(SHAPE, dtype=np.float32)
    images = mg.ImageBatch.from_array(queue.device, x)
    labels = mg.LossLabels.batch(queue.device, np.zeros(SHAPE, np.float32))
    command_buffer = queue.command_buffer()
    graph.encode_batch(command_buffer, images, [labels])
    for call in (graph.checkpoint, lambda: graph.restore(saved)):
        with pytest.raises(mg.errors.GraphError):
            call()
    command_buffer.commit()
    assert not np.array_equal(graph.checkpoint()["0/weights"], saved["0/weights"])


def test_another_graph_that_is_being_encoded_is_in_the_way_too(queue):
    own = sources(mg.SGD(0.1, device=queue.device))
    graph, other = (network(queue.device, own) for _ in range(2))
    saved = graph.checkpoint()
    x = np.random.default_rng(3).standard_normal(SHAPE, dtype=np.float32)
    command_buffer = queue.command_buffer()
    other.encode_batch(
        command_buffer,
        mg.ImageBatch.from_array(queue.device, x),
        [mg.LossLabels.batch(queue.device, np.zeros(SHAPE, np.float32))],
    )
    for call in (graph.checkpoint, lambda: graph.restore({n: a + 1 for n, a in saved.items()})):
        with rejects(RuntimeError, "is written by a command buffer that has not been committed"):
            call()
    assert_same_bytes(own[0].weights_array, saved["0/weights"])
    assert_same_bytes(own[1].gamma, saved["1/gamma"])
    command_buffer.commit()
    graph.restore(saved)
    assert_same_arrays(graph.checkpoint(), saved)


def test_other_graphs_take_what_is_restored_when_they_reload(device):
    own = sources(None)[:1]
    node = g.ConvolutionNode(g.ImageNode("x"), own[0])
    graph, other = (g.Graph(device, node, format=mg.ChannelFormat.FLOAT32) for _ in range(2))
    x = np.ones(SHAPE, np.float32)
    before = graph(x).result
    graph.restore({name: 2 * array for name, array in graph.checkpoint().items()})
    assert_same_bytes(graph(x).result, 2 * before)
    assert_same_bytes(other(x).result, before)
    other.reload_from_data_sources()
    assert_same_bytes(other(x).result, 2 * before)


def test_a_checkpoint_waits_for_an_update_by_the_cpu(device, queue):
    class Doubles(mg.ArrayConvolutionDataSource):
        def update_cpu(self, *_):
            self.weights_array *= 2
            return True

    node = g.ConvolutionNode(g.ImageNode("x"), Doubles(WEIGHTS.copy()))
    node.training_style = g.TrainingStyle.CPU
    graph = g.Graph(device, node.training_graph(g.ImageNode("dy"))[0], False)
    x = mg.ImageBatch.from_array(device, np.ones(SHAPE, np.float32))
    command_buffer = queue.command_buffer()
    graph.encode_batch(command_buffer, [x, x])
    command_buffer.commit()
    assert_same_arrays(graph.checkpoint(), {"0/weights": 2 * WEIGHTS})


def test_a_graph_without_data_sources_has_an_empty_checkpoint(device):
    graph = g.Graph(device, g.NeuronReLUNode(g.ImageNode("x")))
    assert graph.checkpoint() == {}
    graph.restore({})
    with rejects(ValueError, "with the data sources (none); it has 0 besides"):
        graph.restore({"0/weights": WEIGHTS})


def test_sources_that_are_not_over_arrays_have_no_checkpoint(device):
    class Own(mg.ConvolutionDataSource):
        def descriptor(self):
            return mg.ConvolutionDescriptor(
                1, 1, input_feature_channels=4, output_feature_channels=4
            )

        def data_type(self):
            return mg.DataType.FLOAT32

        def weights(self):
            return np.ones((4, 1, 1, 4), np.float32)

        def bias_terms(self):
            return None

        def load(self):
            return True

        def purge(self):
            pass

    graph = g.Graph(device, g.ConvolutionNode(g.ImageNode("x"), Own()))
    words = "has a data source that is not over arrays, Own: save what it has by itself"
    with rejects(TypeError, words):
        graph.checkpoint()
    with rejects(TypeError, words):
        graph.restore({})


def test_what_a_checkpoint_has(device):
    shapes = {"weights": (4, 1, 1, 4), "biases": (4,)}
    kinds = {
        "sgd": [],
        "momentum": ["momentum"],
        "rmsprop": ["sum_of_squares"],
        "adam": ["momentum", "velocity"],
    }
    for name, histories in kinds.items():
        own = sources(OPTIMIZERS[name](device))
        assert list(own[0].checkpoint()) == ["weights", "biases", "steps"]
        train(network(device, own), 2)
        found = own[0].checkpoint()
        kept = {f"{kind}_of_{n}": shape for kind in histories for n, shape in shapes.items()}
        assert {n: array.shape for n, array in found.items()} == shapes | {"steps": ()} | kept
        assert found["steps"] == 2
        assert not any(np.shares_memory(array, own[0].weights_array) for array in found.values())
        assert list(own[1].checkpoint())[:5] == ["gamma", "beta", "mean", "variance", "steps"]


def test_inference_takes_the_arrays_alone(device):
    own = sources(mg.Adam(0.01, device=device))
    train(network(device, own), 2)
    for source, plain in zip(own, sources(None), strict=True):
        saved = source.checkpoint()
        plain.restore(saved)
        assert "steps" not in plain.checkpoint()
        for name, array in plain.checkpoint().items():
            assert_same_bytes(array, saved[name])
    for more in ("bias", "mean"):
        with pytest.raises(ValueError, match=f"{more} besides"):
            mg.ArrayConvolutionDataSource(WEIGHTS.copy()).restore(
                {"weights": WEIGHTS, more: BIASES, "steps": 3}
            )
    half = mg.ArrayConvolutionDataSource(np.zeros((4, 1, 1, 4), np.float16))
    half.restore({"weights": own[0].weights_array})  # rounded, as NumPy rounds
    assert_same_bytes(half.weights_array, own[0].weights_array.astype(np.float16))


class Own(mg.ArrayConvolutionDataSource):
    """With a constructor and attributes of its own."""

    def __init__(self, filters, momentum=0.9):
        super().__init__(np.ones((filters, 1, 1, 4), np.float32), np.zeros(filters))
        self.momentum = momentum
        self.velocity = np.zeros_like(self.weights_array)
        self.seen = [np.zeros(2)]
        self.lock = threading.Lock()

    def __getstate__(self):
        return {name: value for name, value in super().__getstate__().items() if name != "lock"}


def test_sources_of_ones_own_keep_what_they_have(device):
    source = Own(4, momentum=0.5)
    source.velocity[...] = 3
    source.extra = "kept"
    copied = source.copy(device)
    for other in (pickle.loads(pickle.dumps(source)), copy.deepcopy(source), copied):
        assert type(other) is Own
        assert (other.momentum, other.extra) == (0.5, "kept")
        assert other.velocity.max() == 3
        for mine, theirs in (
            (source.weights_array, other.weights_array),
            (source.velocity, other.velocity),
            (source.seen[0], other.seen[0]),
        ):
            assert_same_bytes(mine, theirs)
            assert not np.shares_memory(mine, theirs)
    mg.Convolution(copied, device=device)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_keeps_the_history(device, protocol):
    own = sources(mg.Adam(0.01, device=device))
    train(network(device, own), 2)
    again = pickle.loads(pickle.dumps(own, protocol))
    assert again[0].optimizer is again[1].optimizer
    for old, new in zip(arrays_of(own), arrays_of(again), strict=True):
        assert_same_bytes(old, new)


def test_sources_show_what_they_are(device):
    descriptor = mg.ConvolutionDescriptor(
        3,
        3,
        input_feature_channels=8,
        output_feature_channels=8,
        stride_in_pixels_x=2,
        stride_in_pixels_y=2,
        groups=2,
    )
    source = mg.ArrayConvolutionDataSource(
        np.ones((8, 3, 3, 4), np.float32),
        descriptor=descriptor,
        label="conv1",
        optimizer=mg.Adam(0.01, device=device),
    )
    assert repr(source) == (
        "ArrayConvolutionDataSource(float32 (8, 3, 3, 4), no biases, stride (2, 2), 2 groups, "
        "label 'conv1', trained by Adam)"
    )
    shown = (
        "ConvolutionDescriptor(3, 3, input_feature_channels=8, output_feature_channels=8, "
        "stride_in_pixels_x=2, stride_in_pixels_y=2, groups=2)"
    )
    assert repr(descriptor) == shown
    assert repr(mg.Convolution(source, device=device).descriptor) == shown


WEIGHTS, BIASES = np.full((4, 1, 1, 4), 2, np.float32), np.full(4, 3, np.float32)
MOMENTUM = {"momentum_of_weights": WEIGHTS, "momentum_of_biases": BIASES}
BOTH = {"weights": WEIGHTS, "biases": BIASES}
WRONG = [
    ({"weights": WEIGHTS}, ValueError, "it has weights: no biases"),
    ({}, ValueError, "it has nothing: no weights, biases"),
    ({**BOTH, "gamma": BIASES}, ValueError, "it has weights, biases, gamma: gamma besides"),
    ({**BOTH, "velocity_of_weights": WEIGHTS}, ValueError, "velocity_of_weights besides"),
    ({**BOTH, "momentum_of_weights": WEIGHTS}, ValueError, ": no steps, momentum_of_biases"),
    ({**BOTH, "weights": BIASES}, ValueError, r"weights must have shape \(4, 1, 1, 4\), got \(4,"),
    (
        {**BOTH, **MOMENTUM, "steps": 1, "momentum_of_biases": WEIGHTS},
        ValueError,
        r"biases must have shape",
    ),
    ({**BOTH, "weights": [[1], [1, 2]]}, ValueError, "weights is no array"),
    ({**BOTH, "weights": WEIGHTS * 1j}, TypeError, "weights must be float32, got complex64"),
    ({**BOTH, "weights": [["a"]]}, TypeError, "weights must be an array of numbers, got list"),
    ({**BOTH, **MOMENTUM}, ValueError, ": no steps"),
    ({**BOTH, "steps": 1.5}, TypeError, "steps must be int64, got float64"),
    ({**BOTH, "steps": [1]}, ValueError, r"steps must have shape \(\), got \(1,\)"),
    ({**BOTH, "steps": -1}, ValueError, "steps must be from 0"),
]


@pytest.mark.parametrize(("checkpoint", "error", "words"), WRONG)
def test_wrong_checkpoints_change_nothing(device, checkpoint, error, words):
    own = sources(mg.SGD(0.1, momentum_scale=0.9, device=device))
    train(network(device, own), 1)
    before = own[0].checkpoint()
    with pytest.raises(error, match=f"ArrayConvolutionDataSource.restore: .*{words}"):
        own[0].restore(checkpoint)
    assert_same_arrays(own[0].checkpoint(), before)


def test_adam_needs_the_moments_that_belong_to_its_steps(device):
    plain = sources(mg.SGD(0.1, device=device))
    train(network(device, plain), 3)
    saved = plain[0].checkpoint()
    own = sources(mg.Adam(0.01, device=device))[0]
    with pytest.raises(ValueError, match="weights, biases, steps: no momentum_of_weights"):
        own.restore(saved)
    assert own.checkpoint()["steps"] == 0
    own.restore({**saved, "steps": 0})
    assert_same_bytes(own.weights_array, saved["weights"])
    sources(mg.SGD(0.1, momentum_scale=0.9, device=device))[0].restore(saved)


def test_arrays_that_cannot_be_written_are_not_restored():
    fixed = WEIGHTS.copy()
    fixed.flags.writeable = False
    source = mg.ArrayConvolutionDataSource(fixed)
    with pytest.raises(ValueError, match="restore: weights of the source cannot be written"):
        source.restore({"weights": WEIGHTS})


def test_a_checkpoint_waits_for_the_last_update(device, queue):
    own = sources(mg.SGD(0.1, momentum_scale=0.9, device=device))
    graph = network(device, own)
    x = mg.ImageBatch.from_array(device, np.random.default_rng(0).random(SHAPE, np.float32))
    command_buffer = queue.command_buffer()
    graph.encode_batch(
        command_buffer, [x], [mg.LossLabels.batch(device, np.zeros(SHAPE, np.float32))]
    )
    with pytest.raises(
        RuntimeError, match="Buffer is written by a command buffer that has not been committed"
    ):  # nobody has committed it
        own[0].checkpoint()
    command_buffer.commit()
    assert own[0].checkpoint()["momentum_of_weights"].any()
    command_buffer.wait_until_completed()
