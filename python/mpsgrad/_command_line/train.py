"""Train a small convolutional network on real digits, through gradient kernels.

Two convolutions, pooling, a fully connected layer, softmax cross entropy and Adam, and with
--batch-norm batch normalization: all of it kernels of this package, encoded into command buffers;
the weights never leave the device between steps. A fifth of the images is held out and gives the
accuracy at the end. The same seed gives the same weights, bit for bit, on one machine, whether or
not training stopped on the way at a --checkpoint.

Examples
--------
  mpsgrad train
  mpsgrad train --epochs 5 --batch-size 64 --seed 3
  mpsgrad train --data mine.npz --save weights.npz    # x: (N, H, W, C), y: (N,)
  mpsgrad train --epochs 50 --checkpoint run.npz      # goes on where it was stopped
"""

from __future__ import annotations

import hashlib
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad._command_line.checkpoint import Checkpoint
from mpsgrad._command_line.data import load_digits, load_file, split
from mpsgrad._command_line.report import UserError, open_device, print_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from mpsgrad._command_line.data import Examples
    from mpsgrad._command_line.network import Network

__all__ = ["add_arguments", "run"]


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_positive.__name__ = "positive integer"  # argparse puts it into its message


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--epochs", type=_positive, default=15, help="passes over the images (15)")
    parser.add_argument("--batch-size", type=_positive, default=32, help="images a step (32)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, split and order (0)")
    parser.add_argument("--learning-rate", type=float, default=0.002, help="of Adam (0.002)")
    parser.add_argument(
        "--device", choices=["auto", "cpu", "metal"], default="auto", help="what runs it (auto)"
    )
    parser.add_argument(
        "--data",
        metavar="FILE.npz",
        help="train on x (N, H, W, C), floating point or uint8, and integer labels y (N,)",
    )
    parser.add_argument(
        "--batch-norm",
        action="store_true",
        help="normalize each convolution's result over the batch",
    )
    parser.add_argument(
        "--save",
        metavar="FILE.npz",
        help="write what was trained: each layer's weights (O, H, W, I) and biases, and with "
        "--batch-norm gamma, beta, mean and variance",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="FILE.npz",
        help="go on from this file if it is there, and write it after every epoch",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, and no bar")


@contextmanager
def _progress(epochs: int, images: int, quiet: bool) -> Iterator[Any]:
    """Give a function ``(images seen, epoch, loss, images a second)`` that draws the bar."""
    if quiet:
        yield lambda *_: None
        return
    try:
        from rich import progress
    except ImportError as error:
        raise UserError(
            "the progress bar needs rich, which is not installed; "
            "run: pip install rich, or give --json"
        ) from error
    columns = (
        progress.TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("loss {task.fields[loss]:.4f}"),
        progress.TextColumn("{task.fields[rate]:,.0f} images/s"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns) as bar:
        task = bar.add_task(
            "train", total=epochs * images, epoch=1, epochs=epochs, loss=float("nan"), rate=0.0
        )

        def update(seen: int, epoch: int, loss: float, rate: float) -> None:
            bar.update(task, completed=seen, epoch=epoch, loss=loss, rate=rate)

        yield update


def _epochs(
    network: Network,
    examples: Examples,
    options: argparse.Namespace,
    losses: list[float],
    checkpoint: Checkpoint | None,
    show: Any,
) -> float:
    """Train; add the mean loss of each epoch to those there are, and return the seconds it took."""
    one_hot = examples.one_hot()
    done = seen = len(losses) * len(examples)
    start = time.perf_counter()
    for epoch in range(len(losses) + 1, options.epochs + 1):
        order = np.random.default_rng([options.seed, epoch]).permutation(len(examples))
        total = 0.0
        for first in range(0, len(order), options.batch_size):
            which = order[first : first + options.batch_size]
            loss = network.train_step(examples.x[which], one_hot[which])
            if not np.isfinite(loss):
                raise UserError(
                    f"the loss became {loss} in epoch {epoch}; try a smaller --learning-rate"
                )
            total += loss * len(which)
            seen += len(which)
            show(seen, epoch, loss, (seen - done) / (time.perf_counter() - start))
        losses.append(total / len(order))
        if checkpoint is not None:
            checkpoint.write(network, losses)
    return time.perf_counter() - start


def run(options: argparse.Namespace) -> int:
    """Train, test, report."""
    device = open_device(options.device)
    if not np.isfinite(options.learning_rate):
        raise UserError(f"--learning-rate must be finite, got {options.learning_rate}")
    if options.seed < 0:
        raise UserError(f"--seed must not be negative, got {options.seed}")
    examples = load_file(options.data) if options.data else load_digits()
    rng = np.random.default_rng(options.seed)
    parts = split(examples, rng)
    from mpsgrad._command_line.network import Network

    height, width, channels = examples.x.shape[1:]
    try:
        network = Network(
            device,
            (height, width, channels),
            examples.classes,
            rng,
            learning_rate=options.learning_rate,
            batch_norm=options.batch_norm,
        )
    except ValueError as error:
        raise UserError(
            f"cannot build the network for {height}x{width}x{channels}: {error}"
        ) from error
    checkpoint, losses = None, []
    if options.checkpoint:
        names = ("batch_norm", "batch_size", "learning_rate", "seed")
        settings = {f"--{name.replace('_', '-')}": getattr(options, name) for name in names}
        settings["shape of x"] = list(examples.x.shape)
        checkpoint = Checkpoint(options.checkpoint, {**settings, "classes": examples.classes})
        losses = checkpoint.restore(network)
    begun = len(losses)
    quiet = options.json or not sys.stderr.isatty()
    with _progress(options.epochs, len(parts.training), quiet) as show:
        seconds = _epochs(network, parts.training, options, losses, checkpoint, show)
    accuracy = float(np.mean(network.predict(parts.held_out.x) == parts.held_out.y))
    weights = network.weights()
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(weights[name].tobytes())
    saved = None
    if options.save:
        saved = options.save if options.save.endswith(".npz") else f"{options.save}.npz"
        try:
            np.savez(saved, allow_pickle=False, **weights)
        except OSError as error:
            raise UserError(f"{saved}: cannot be written ({error})") from error
    result = {
        "device": device.kind,
        "device_name": device.name,
        "images": {"training": len(parts.training), "held_out": len(parts.held_out)},
        "shape": [height, width, channels],
        "classes": examples.classes,
        "epochs": len(losses),
        "epochs_before": begun,
        "batch_size": options.batch_size,
        "batch_norm": options.batch_norm,
        "seed": options.seed,
        "losses": losses,
        "seconds": seconds,
        "images_per_second": (len(losses) - begun) * len(parts.training) / seconds,
        "held_out_accuracy": accuracy,
        "weights_sha256": digest.hexdigest(),
        "saved": saved,
        "checkpoint": None if checkpoint is None else str(checkpoint.path),
    }
    if options.json:
        print_json(result)
    else:
        _summary(result)
    return 0


def _summary(result: dict[str, Any]) -> None:
    """Print the result for people."""
    images = result["images"]
    size = "x".join(str(extent) for extent in result["shape"])
    epochs = "1 epoch" if result["epochs"] == 1 else f"{result['epochs']} epochs"
    if result["epochs_before"]:
        epochs += f", {result['epochs_before']} of them before"
    rows = [
        ("device", f"{result['device']} ({result['device_name']})"),
        ("trained on", f"{images['training']} images of {size} (H, W, C), {epochs}"),
        (
            "loss",
            f"{result['losses'][0]:.4f} in the first epoch, {result['losses'][-1]:.4f} in the last",
        ),
        ("speed", f"{result['images_per_second']:,.0f} images/s, {result['seconds']:.1f} s"),
        ("accuracy", f"{result['held_out_accuracy']:.2%} of {images['held_out']} held-out images"),
        ("weights", f"sha256 {result['weights_sha256'][:16]}, seed {result['seed']}"),
    ]
    if result["saved"]:
        rows.append(("saved", f"{result['saved']}, weights as (O, H, W, I)"))
    if result["checkpoint"]:
        rows.append(("checkpoint", f"{result['checkpoint']}; more --epochs go on from it"))
    for name, value in rows:
        print(f"{name:<11}{value}")
