"""Handwritten digits with Keras on TensorFlow, and Horovod (`toolkit image build --with tensorflow`).

toolkit run train_keras.py --epochs 10
"""

from __future__ import annotations

import argparse
import gzip
import io
from pathlib import Path

import checkpoint
import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow import broadcast_object

DATA = Path(__file__).with_name("digits.csv.gz")
TEST_EVERY = 5  # as in digits.py, which requires PyTorch


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--batch-size", type=int, default=32, help="pictures per rank and step")
    parser.add_argument("--checkpoints", metavar="DIR", type=Path, default=Path("checkpoints"))
    return parser.parse_args()


class Checkpoints(tf.keras.callbacks.Callback):
    """Callback that saves weights and optimizer state after each epoch; only for rank 0."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        arrays = [*self.model.get_weights(), *(each.numpy() for each in self.model.optimizer.variables)]
        checkpoint.save(self.folder, epoch + 1, lambda file: np.savez(file, *arrays))


def restore(data: bytes, model: tf.keras.Model) -> None:
    """Load a checkpoint without its learning rate, which depends on the number of ranks."""
    with np.load(io.BytesIO(data)) as held:
        arrays = [held[name] for name in held.files]
    count = len(model.get_weights())
    model.set_weights(arrays[:count])
    model.optimizer.build(model.trainable_variables)
    for variable, value in zip(model.optimizer.variables, arrays[count:], strict=True):
        if "learning_rate" not in variable.name:
            variable.assign(value)


def main() -> None:
    args = arguments()

    # 1. Connect to the other ranks, and select the GPU by the local rank.
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
        tf.config.experimental.set_memory_growth(gpus[hvd.local_rank()], True)
    tf.config.threading.set_intra_op_parallelism_threads(1)  # faster for such a small model
    tf.keras.utils.set_random_seed(1)

    with gzip.open(DATA, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    pictures, labels = rows[:, :64].reshape(-1, 8, 8, 1) / 16, rows[:, 64].astype(np.int64)
    test = np.arange(len(rows)) % TEST_EVERY == 0
    # 2. Each rank trains on its own part of the pictures. All parts have the same size.
    own = np.random.default_rng(1).permutation(np.flatnonzero(~test))
    own = own[: len(own) // size * size][rank::size]

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu", input_shape=(8, 8, 1)),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPool2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )
    # 3. Scale the learning rate, because a step now processes `size` times as many pictures.
    # 4. The wrapper averages the gradients in every step.
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(args.lr * size, momentum=0.9))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])

    # 5. All ranks resume from the checkpoint of rank 0, because only rank 0 writes checkpoints.
    found = checkpoint.latest(args.checkpoints) if rank == 0 else None
    held = broadcast_object((found.step, found.path.read_bytes()) if found else None, root_rank=0)
    first = 0
    if held is not None:
        first = held[0]
        restore(held[1], model)
        if rank == 0:
            print(f"continues after epoch {first} of {args.epochs}")
    # MetricAverageCallback of Horovod 0.28 uses Keras 3 even if Keras 2 is selected, and fails.
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    # 6. Only rank 0 writes and prints.
    callbacks += [Checkpoints(args.checkpoints)] if rank == 0 else []
    model.fit(
        pictures[own],
        labels[own],
        batch_size=args.batch_size,
        epochs=args.epochs,
        initial_epoch=first,
        callbacks=callbacks,
        verbose=2 if rank == 0 else 0,
    )
    _, result = model.evaluate(pictures[test], labels[test], verbose=0)
    print(f"rank {rank}: test accuracy {result:.4f}")
    if rank == 0:
        print(f"test accuracy {result:.4f} on {size} ranks")


if __name__ == "__main__":
    main()
