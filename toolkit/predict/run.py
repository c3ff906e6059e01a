"""A prediction of training time, from what a person says, what was measured and a probed script."""

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
    """A prediction with what it is made of.

    Args:
        source: where the network's figures are from.
        note: about which hosts it is; empty where the hosts file says it.
        probed: what a run of the script told, None where none was made.
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
    """Return what a step would take on 1 … N hosts; contacts nobody but by ``probe``.

    Args:
        inventory: None for hosts that nobody has bought yet.
        probe: runs the script that ``options.probe`` names, which is given to it, and returns what it saw.

    Raises:
        BadInput: names all that is wrong with the options, or with them and the measurements together.
    """
    ask = parse_options(options)
    rows, note = hosts_of(ask, inventory, measured)
    network, source = assemble(rows, ask.given, measured)
    probed = None
    if options.probe:
        if inventory is None or probe is None:
            raise BadInput("command line", (Problem("--probe", "runs on a cluster: it needs a hosts file"),))
        probed = probe(inventory, options.probe)
    load = load_of(ask, probed)
    return Predicted(network, load, predict(network, load), source, ask, note, probed)
