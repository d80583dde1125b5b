"""What tests of optimizers over the states of normalizations share."""

import mpsgrad as mg

from tests.images import Work


def vectors(device, *lengths):
    return [mg.Vector(device, mg.VectorDescriptor(length)) for length in lengths]


def outcome(device):
    """A place for results: 7 everywhere, with one more value than there are channels."""
    return mg.NormalizationGammaAndBetaState([7] * 4, [7] * 4, device=device)


def run(device, encode):
    with Work(device) as work:
        encode(work.buffer)


def results(state):
    return state.gamma.to_numpy()[:3], state.beta.to_numpy()[:3]
