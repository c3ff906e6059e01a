"""Progress of transfers, without a terminal."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import toolkit.cli.progress
from toolkit.cli.progress import Progress
from toolkit.plan.execute import StepProgress


def test_lines_without_a_terminal_have_rate_and_remaining_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(toolkit.cli.progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with Progress(False) as progress:
        for after, done, total in (
            (0.0, 1_000_000_000, 5_300_000_000),  # what was there before is no part of the rate
            (5.0, 1_500_000_000, 5_300_000_000),
            (10.5, 2_050_000_000, 5_300_000_000),
            (30.5, 2_050_000_000, 5_300_000_000),  # stalled: no remaining time
            (50.5, 4_050_000_000, 0),
            (61.0, 5_300_000_000, 5_300_000_000),
            (81.0, 5_300_000_000, 5_300_000_000),  # the container engine unpacks the image
        ):
            clock.now = 100.0 + after
            progress(StepProgress("gpu1", "send toolkit:gpu", done, total))
    assert capsys.readouterr().err.splitlines() == [
        "     ...  gpu1: send toolkit:gpu: 2050 of 5300 MB, 100.0 MB/s, 32.5 s left",
        "     ...  gpu1: send toolkit:gpu: 2050 of 5300 MB, 0.0 MB/s",
        "     ...  gpu1: send toolkit:gpu: 4050 MB, 100.0 MB/s",
        "     ...  gpu1: send toolkit:gpu: 5300 of 5300 MB, 119.0 MB/s",
        "     ...  gpu1: send toolkit:gpu: all 5300 MB sent; the host is storing the data",
    ]
