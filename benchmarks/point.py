"""One point of the scaling study, in a process of its own: JSON in, JSON out."""

from __future__ import annotations

import json
import sys

from .machine import use_threads


def main() -> None:
    """Measure the point that the argument describes, and print it with its results."""
    point = json.loads(sys.argv[1])
    use_threads(point["threads"])
    import mpsgrad as mg

    from .scaling import KERNELS
    from .suite import Context
    from .timing import Effort, measure

    context = Context(mg.Device("cpu"), point["kernel"])
    work = KERNELS[point["kernel"]](
        context, *(point[axis] for axis in ("batch", "size", "channels"))
    )
    work.run()
    for output in work.outputs:
        output.samples.compare(output.name, output.read())
    effort = Effort(0.005, 3) if point["quick"] else Effort(0.3, 11)
    point["seconds"] = measure({"": work.run}, effort)[""].median
    point["scratch"] = mg.memory_statistics()["peak"]
    point["arrays"] = work.arrays
    print(json.dumps(point))


main()
