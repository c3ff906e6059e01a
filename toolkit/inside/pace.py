"""How fast a rank goes, by what it prints: steps, steps a second, samples a second."""

from __future__ import annotations

import re
from collections import deque

_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
# As progress bars and training loops have it: 2.19it/s, 3.1 steps/s, 0.5 steps/sec, 4 batches/s.
_STEPS = re.compile(rf"{_NUMBER}\s*(?:it|its|iter|iters|iterations?|steps?|batch|batches)/s(?:ec)?\b", re.I)
# The same the other way round: 1.27s/it, 0.5 s/step.
_SECONDS = re.compile(rf"{_NUMBER}\s*s(?:ec)?/(?:it|iter|step|batch)\b", re.I)
_SAMPLES = re.compile(
    rf"{_NUMBER}\s*(?:samples?|images?|imgs?|tokens?|tok|examples?|sentences?|sequences?)/s(?:ec)?\b", re.I
)
# train_samples_per_second: 812.3; "steps_per_second": 3
_NAMED = re.compile(rf"(samples|images|tokens|steps)_per_sec(?:ond)?[\"']?\s*[:=]\s*[\"']?{_NUMBER}", re.I)
# step 120, step: 120, step=120/1000, iteration 120, global_step 120, [step 120]
_STEP = re.compile(r"(?<![a-z])(?:global[_ ])?(?:step|iter|iteration|batch)\s*[:=#]?\s*(\d+)(?![\d.])", re.I)
# tqdm:  12/100 [00:05<00:40
_BAR = re.compile(r"(\d+)/\d+\s*\[\d+:\d+")
# Between the first and the last of so many seconds a pace is taken from the numbers of steps.
_WINDOW_S = 30.0


class Pace:
    """What one rank has said of its pace; newer words replace older ones."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.steps_per_s: float | None = None
        self.samples_per_s: float | None = None
        self.line = ""
        self._said_pace = False
        self._steps: deque[tuple[float, int]] = deque()
        self._rest = ""

    def feed(self, data: bytes, now: float) -> None:
        """Take what the rank has printed up to `now`, in seconds of any clock."""
        text = self._rest + data.decode(errors="replace")
        # A progress bar writes over its own line.
        *lines, self._rest = re.split(r"[\r\n]", text)
        self._rest = self._rest[-4096:]
        for line in lines:
            if line.strip():
                self._take(line, now)

    def _take(self, line: str, now: float) -> None:
        self.line = line.strip()[:300]
        named = {name.lower(): float(value) for name, value in _NAMED.findall(line)}
        if (found := _last(_SAMPLES, line)) is not None:
            self.samples_per_s = found
        for name in ("samples", "images", "tokens"):
            self.samples_per_s = named.get(name, self.samples_per_s)
        steps = named.get("steps", _last(_STEPS, line))
        if steps is None and (each := _last(_SECONDS, line)):
            steps = 1 / each
        if steps is not None:
            self.steps_per_s, self._said_pace = steps, True
        numbers = _STEP.findall(line) or _BAR.findall(line)
        if numbers:
            self._count(int(numbers[-1]), now)

    def _count(self, step: int, now: float) -> None:
        if self.step is not None and step < self.step:
            self._steps.clear()  # another epoch, or another loop
        self.step = step
        if self._steps and self._steps[-1][0] == now:
            self._steps.pop()  # what came at once was printed over some time that nobody knows
        self._steps.append((now, step))
        while now - self._steps[0][0] > _WINDOW_S and len(self._steps) > 2:
            self._steps.popleft()
        (then, first), (_, last) = self._steps[0], self._steps[-1]
        # What the script says itself is better: it knows what it leaves out.
        if not self._said_pace and now > then and last > first:
            self.steps_per_s = (last - first) / (now - then)


def _last(pattern: re.Pattern[str], line: str) -> float | None:
    found = pattern.findall(line)
    return float(found[-1]) if found else None
