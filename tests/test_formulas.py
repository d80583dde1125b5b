"""The formulas that pages of docs/ print are those that the oracles compute."""

import math
import re
from pathlib import Path

import mpsgrad as mg
import numpy as np
import pytest

from tests.loss import oracle as loss_oracle
from tests.neuron import oracle as neuron_oracle

DOCS = Path(__file__).resolve().parent.parent / "docs"
ROW = re.compile(r"^\| `([A-Z_]+)` \|(.*)\|$", re.MULTILINE)

NUMPY = {"erf": lambda x: neuron_oracle.erf(x).astype(float)} | {
    word.__name__: word
    for word in (np.clip, np.exp, np.log, np.maximum, np.minimum, np.sign, np.sqrt, np.sum, np.tanh)
}
NUMPY |= {"abs": abs, "pi": math.pi, "where": np.where}


def rows(page):
    """Return the cells of the table under "Formulas", without their marks as code."""
    section = (DOCS / page).read_text().partition("\n## Formulas\n")[2].partition("\n## ")[0]
    return {
        kind: [cell.strip(" `") for cell in cells.split("|")]
        for kind, cells in ROW.findall(section)
    }


def value(formula, **names):
    return np.broadcast_to(eval(formula, {"__builtins__": {}}, NUMPY | names), names["x"].shape)


def same(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


NEURONS = rows("neuron.md")


def test_the_table_of_neurons_is_whole():
    assert list(NEURONS) == list(mg.NeuronType.__members__)


@pytest.mark.parametrize("kind", NEURONS)
@pytest.mark.parametrize("given", [{}, {"a": 0.375, "b": 0.75, "c": 2.5}, {"a": 1.5, "b": 3.0}])
def test_neurons(kind, given):
    defaults, forward, slope = NEURONS[kind]
    x = np.array([-3.0, -0.7, -0.25, 0.3, 0.9, 1.0, 2.0, 2.5])
    if kind in ("POWER", "LOGARITHM"):
        x = abs(x)
    standard = mg.NeuronDescriptor(mg.NeuronType[kind], data=[0.5] if kind == "PRELU" else None)
    parameters = dict(pair.split("=") for pair in defaults.split(", ") if pair)
    for name, number in parameters.items():
        assert getattr(standard, name) == np.float32(float(number))
    used = {name: given.get(name, getattr(standard, name)) for name in parameters}
    c = used.get("c")
    names = used | {"C": math.e if c == -1 else c, "data": 0.5, "x": x}
    options = {"data": [0.5] * x.size} if kind == "PRELU" else used
    same(value(forward, **names), neuron_oracle.forward(kind, x, **options))
    same(value(slope, **names), neuron_oracle.slope(kind, x, **options))


LOSSES = rows("loss.md")


def test_the_table_of_losses_is_whole():
    assert list(LOSSES) == list(mg.LossType.__members__)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("given", [{}, {"delta": 0.25, "epsilon": 0.125}])
def test_losses(kind, given):
    element, gradient = LOSSES[kind]
    loss = loss_oracle.Loss(kind, **given)
    y = np.array([0.1, 0.3, 0.55, 0.9, 0.7])
    t = np.array([0.5, 0.2, 1.0, 0.0, 0.125])
    if kind == "KULLBACK_LEIBLER_DIVERGENCE":
        t = np.maximum(t, 0.0625)
    names = {"x": y, "y": y, "t": t, "delta": loss.delta, "epsilon": loss.epsilon}
    images = y.reshape(1, 1, 1, -1), t.reshape(1, 1, 1, -1)
    same(value(element, **names), loss_oracle.elements(loss, *images).ravel())
    same(value(gradient, **names), loss_oracle.derivative(loss, *images).ravel())
