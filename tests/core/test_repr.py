"""`repr` of kernels, even of those whose constructor raised."""

import mpsgrad as mg


def test_a_kernel_shows_its_parameters(device):
    kernel = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.RELU, 0.5), device=device)
    kind = device.kind
    expected = (
        f"Neuron(descriptor=NeuronDescriptor(NeuronType.RELU, a=0.5, b=0, c=0), device={kind!r})"
    )
    assert repr(kernel) == expected


def test_a_kernel_without_a_constructor_call_can_be_shown():
    assert repr(mg.Neuron.__new__(mg.Neuron)) == "<Neuron that was never constructed>"
