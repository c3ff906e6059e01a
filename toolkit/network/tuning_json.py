"""What was tuned as JSON, as it is kept on main and handed to jobs.

    {"tuned": [{"engine": "mpi", "hosts": [["gpu1", "10.0.0.1", 2], …], "when": "2026-01-02 03:04",
      "env": {"OMPI_MCA_…": "…"}, "rules": [[65536, 5, 65536], …], "why": ["…"],
      "timings": [["streamed", "5:65536", 4194304, 0.35], …]}, …]}

A rule is bytes from which it holds, algorithm, bytes of a segment; a timing is trial, algorithm with its
segment, bytes, seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from toolkit.network.trials import Algorithm
from toolkit.network.tuning import Rule, Timing, Tuning
from toolkit.protocol.bench import AlgorithmTime, Tuned, TunedFile
from toolkit.protocol.decode import DecodeError, decode_json


def tuning_json(tuning: Tuning) -> dict[str, Any]:
    """Return one tuning as a JSON object."""
    return {
        "engine": tuning.engine,
        "hosts": [list(host) for host in tuning.hosts],
        "when": tuning.when,
        "env": dict(tuning.env),
        "rules": [[r.size, r.algorithm.number, r.algorithm.segment] for r in tuning.rules],
        "why": list(tuning.why),
        "timings": [[t.trial, t.algorithm.word, t.size, t.seconds] for t in tuning.timings],
    }


def tunings_text(tunings: Iterable[Tuning]) -> str:
    """Return the text of the file that is kept."""
    return json.dumps({"tuned": [tuning_json(tuning) for tuning in tunings]}, indent=1) + "\n"


def parse_tunings(text: str) -> tuple[Tuning, ...]:
    """Return what the file says; nothing when it is not there or cannot be understood."""
    try:
        return tuple(map(_tuning, decode_json(TunedFile, text).tuned))
    except DecodeError:
        return ()


def parse_timings(trial: str, rows: Sequence[AlgorithmTime]) -> tuple[Timing, ...]:
    """Return what ``toolkit/container/bench/algorithms.py`` printed of one trial."""
    return tuple(Timing(trial, parse_algorithm(row.algorithm), row.bytes, row.seconds) for row in rows)


def parse_algorithm(word: str) -> Algorithm:
    """Return the algorithm of ``NUMBER:SEGMENT``.

    Raises:
        ValueError: it is none.
    """
    number, _, segment = word.partition(":")
    return Algorithm(int(number), int(segment))


def _tuning(item: Tuned) -> Tuning:
    return Tuning(
        engine=item.engine,
        hosts=item.hosts,
        env=tuple(sorted(item.env.items())),
        rules=tuple(Rule(size, Algorithm(number, segment)) for size, number, segment in item.rules),
        why=item.why,
        timings=tuple(
            Timing(trial, parse_algorithm(word), size, seconds) for trial, word, size, seconds in item.timings
        ),
        when=item.when,
    )
