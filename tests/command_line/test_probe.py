"""`mpsgrad probe` where there is nobody to ask. Its questions are tested in tests/metal."""

import mpsgrad as mg
import pytest
from mpsgrad import _core
from mpsgrad.__main__ import main


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_without_a_metal_device_one_line_says_so(capsys, monkeypatch, options):
    def absent(kind):
        raise mg.errors.DeviceError(f"Device: no {kind} here")

    monkeypatch.setattr(mg, "Device", absent)
    assert main(["probe", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "mpsgrad probe: Device: no metal here\n")


def test_only_a_device_over_a_framework_can_be_asked():
    cpu = mg.Device("cpu")
    for ask in (
        lambda: _core._probe_pooling_descriptor(cpu, 7, 2, 3, 0),
        lambda: _core._probe_descriptors(cpu, mg.ChannelFormat.FLOAT32, 0),
        lambda: _core._probe_reads_of_shared_source(cpu),
        lambda: _core._probe_archived_properties(cpu),
        lambda: _core._probe_steps_of_state_encode(cpu),
    ):
        with pytest.raises(mg.errors.UnsupportedError, match="'cpu' has no framework to ask"):
            ask()
