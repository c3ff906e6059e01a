"""Throughput of a rank, parsed from its output: steps, steps/s, samples/s.

The patterns cover progress bars, common training loops, and the trainers named next to them.
"""

from __future__ import annotations

import re
from collections import deque

from toolkit.protocol.names import OWN_LINE

# A rank can print any line, so every pattern takes time in proportion to its length: a number begins where no
# digit precedes it, and no two repetitions that match the same characters follow each other. The bounds on
# digits keep numbers finite, and within what int() reads.
_NUMBER = (
    r"((?<![\d.,])\d{1,3}(?:,\d{3}){1,5}(?:\.\d{1,30})?"
    r"|(?<!\d)\d{1,15}(?:\.\d{1,30})?(?:e[+-]?\d{1,2})?)(?!\d)"
)
# As progress bars and training loops have it: 2.19it/s, 3.1 steps/s, 0.5 steps/sec, 4 batches/s.
_STEPS = re.compile(rf"{_NUMBER}\s*(?:it|its|iter|iters|iterations?|steps?|batch|batches)/s(?:ec)?\b", re.I)
# The inverse: 1.27s/it, 0.5 s/step, Keras' 15ms/step; 820us/step.
_SECONDS = re.compile(rf"{_NUMBER}\s*([muµ]?)s(?:ec)?/(?:it|iter|step|batch)\b", re.I)
# Megatron-LM: elapsed time per iteration (ms): 512.3
_MILLISECONDS = re.compile(rf"per (?:iteration|step) \(ms\)\s*[:=]\s*{_NUMBER}", re.I)
_SAMPLES = re.compile(
    rf"{_NUMBER}\s*(?:samples?|images?|imgs?|tokens?|tok|examples?|sentences?|sequences?)/s(?:ec)?\b", re.I
)
# The number after its name: train_samples_per_second: 812.3; "steps_per_second": 3; samples/sec: 7.8;
# torchvision's img/s: 812.3. Evaluation metrics are excluded.
_NAMED = re.compile(
    r"(?<!eval_)(?<!test_)(?<!predict_)(samples|images|img|tokens|steps)(?:_per_sec(?:ond)?|/s(?:ec(?:ond)?)?)"
    rf"[\"']?\s*[:=]\s*[\"']?{_NUMBER}",
    re.I,
)
# DeepSpeed: CurrSamplesPerSec=155.1; torchtitan (tokens): tps: 10,050; timm: Time: 0.312s, 820.51/s
_TRAINERS = re.compile(rf"(?:SamplesPerSec=|\btps:\s*|\bTime:\s*[\d.]+s,\s*(?=[\d.]+/s)){_NUMBER}")
# step 120, step: 120, step=120/1000, iteration 120, global_step 120, [step 120]
_STEP = re.compile(
    r"(?<![a-z])(?:global[_ ])?(?:step|iter|iteration|batch)(?:\s*[:=#])?\s*(\d{1,15})(?![\d.])", re.I
)
_STEP_OF = re.compile(
    r"(?<!\d)(\d{1,15})/\d{1,15}\s*\[\d{1,15}:\d"  # tqdm: 12/100 [00:05<00:40
    # torchvision, MMEngine: Epoch: [2]  [ 150/1251]
    r"|\bEpoch(?:\(train\))?:?\s*\[\d+\]\s*\[\s*(\d{1,15})/\d"
    r"|\bTrain: \d+ \[\s*(\d{1,15})/\d+ \("  # timm: Train: 0 [  50/1251 (  4%)]
    r"|^\s*(\d{1,15})/\d+ (?:[━\u2578]|\[[=>.]|- \d+s)"  # Keras: 12/100 ━━━━, 12/100 [==>..., 100/100 - 1s
)
# A progress bar of Hugging Face's libraries that prepares data: examples, files or bytes, not steps. Below
# 1 per second, tqdm prints the inverse: 2.52s/files.
_PREPARES = re.compile(
    r"\[[\d:]+(?:<[\d:?]+)?, *[\d.?]+(?: ?(?:examples|files|[kMGTP]?B)/s|s/ ?(?:examples|files|B)\b)"
    r"|^\s*Fetching \d+ files:"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Casefolded, as every character is that matches without regard to case: the micro sign becomes U+03BC.
_PARTS = {"": 1.0, "m": 1e3, "u": 1e6, "\u03bc": 1e6}
# Of a longer line only the end is used, where trainers print their numbers.
_LONGEST_LINE = 4096
# Window in seconds over which throughput is computed from step numbers.
_WINDOW_S = 30.0


class StepRate:
    """Throughput that one rank has printed; newer values replace older ones."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.steps_per_s: float | None = None
        self.samples_per_s: float | None = None
        self.line = ""
        self._said_at: float | None = None
        self._steps: deque[tuple[float, int]] = deque()
        self._rest = ""

    def feed(self, data: bytes, now: float) -> None:
        """Process the output of the rank up to `now`, in seconds of any clock."""
        text = self._rest + data.decode(errors="replace")
        # A progress bar overwrites its own line or deletes it.
        *lines, self._rest = re.split(r"[\r\n\b]+", text)
        self._rest = self._rest[-_LONGEST_LINE:]
        for line in lines:
            line = _COLOUR.sub("", line[-_LONGEST_LINE:])
            if line.strip() and not line.startswith(OWN_LINE):
                self._take(line, now)

    def _take(self, line: str, now: float) -> None:
        self.line = line.strip()[:300]
        if _PREPARES.search(line):
            return
        steps, samples = _steps_per_s(line), _samples_per_s(line)
        if samples is not None:
            self.samples_per_s = samples
        if steps is not None:
            self.steps_per_s, self._said_at = steps, now
        if (step := _step(line)) is not None:
            self._count(step, now)

    def _count(self, step: int, now: float) -> None:
        if self.step is not None and step < self.step:
            self._steps.clear()  # another epoch, or another loop
        self.step = step
        if self._steps and self._steps[-1][0] == now:
            self._steps.pop()  # output that arrived at once was printed over an unknown time
        self._steps.append((now, step))
        while now - self._steps[0][0] > _WINDOW_S and len(self._steps) > 2:
            self._steps.popleft()
        (then, first), (_, last) = self._steps[0], self._steps[-1]
        # Values printed by the script are better, because it knows what it excludes. They expire.
        printed = self._said_at is not None and now - self._said_at <= _WINDOW_S
        if not printed and now > then and last > first:
            self.steps_per_s = (last - first) / (now - then)


def _steps_per_s(line: str) -> float | None:
    for name, value in reversed(_NAMED.findall(line)):
        if name.casefold() == "steps":
            return _number(value)
    if found := _STEPS.findall(line):
        return _number(found[-1])
    for value, part in reversed(_SECONDS.findall(line)):
        if each := _number(value):
            return _PARTS[part.casefold()] / each
    if (found := _MILLISECONDS.findall(line)) and (each := _number(found[-1])):
        return 1e3 / each
    return None


def _samples_per_s(line: str) -> float | None:
    for name, value in reversed(_NAMED.findall(line)):
        if name.casefold() != "steps":
            return _number(value)
    found = _SAMPLES.findall(line) or _TRAINERS.findall(line)
    return _number(found[-1]) if found else None


def _step(line: str) -> int | None:
    if found := _STEP.findall(line):
        return int(found[-1])
    if found := _STEP_OF.findall(line):
        return int("".join(found[-1]))
    return None


def _number(text: str) -> float:
    return float(text.replace(",", ""))
