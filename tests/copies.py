"""Every way to copy a kernel, each ending on the kernel's own device."""

import copy
import pickle

# What was pickled comes back on the default device, whichever it was made on.
WAYS = {
    "copy()": lambda kernel: kernel.copy(),
    "copy(device)": lambda kernel: kernel.copy(kernel.device),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "to_bytes": lambda kernel: type(kernel).from_bytes(kernel.to_bytes(), kernel.device),
    **{
        f"pickle {n}": lambda kernel, n=n: pickle.loads(pickle.dumps(kernel, n)).copy(kernel.device)
        for n in range(6)
    },
}
