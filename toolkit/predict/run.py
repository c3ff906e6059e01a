"""Prediction of training time from options, measurements and a probed script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.errors import BadInput, Problem
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.links import Network, assemble
from toolkit.network.measured import Measured
from toolkit.predict.ask import Ask, Options, hosts_of, load_of, parse_options
from toolkit.predict.model import Load, Prediction, Probed, predict


@dataclass(frozen=True)
class Predicted:
    """A prediction with its inputs.

    Args:
        source: source of the network's figures.
        note: assumptions about the hosts; empty without one.
        probed: result of a probe of the script, None without a probe.
    """

    network: Network
    load: Load
    prediction: Prediction
    source: str
    ask: Ask
    note: str = ""
    probed: Probed | None = None


def predict_training(
    inventory: Inventory | None,
    options: Options,
    measured: Measured | None = None,
    probe: Callable[[Inventory, str], Probed] | None = None,
) -> Predicted:
    """Predict a training step on 1 … N hosts; only ``probe`` contacts a host.

    Args:
        inventory: None for a cluster that does not exist yet.
        probe: runs the script named in ``options.probe`` and returns the result.

    Raises:
        BadInput: contains all problems of the options, or of the options with the measurements.
    """
    ask = parse_options(options)
    rows, note = hosts_of(ask, inventory, measured)
    network, source = assemble(rows, ask.given, measured)
    probed = None
    if options.probe:
        if inventory is None or probe is None:
            raise BadInput(
                "command line",
                (Problem("--probe", "requires hosts.yaml, because the probe runs on a cluster"),),
            )
        probed = probe(inventory, options.probe)
    load = load_of(ask, probed)
    return Predicted(network, load, predict(network, load), source, ask, note, probed)
