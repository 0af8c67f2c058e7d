"""What the findings and verdicts mean, for readers who do not build models. Keys are those of the summary."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.model.summary import Finding

PHASES = {
    "preprocess": "preparing the input",
    "vision": "looking at the image",
    "encode": "taking in the input",
    "prefill": "reading the request",
    "mixed": "reading requests and writing answers in the same step",
    "decode": "writing the answer",
    "all": "the recording as a whole",
}
BOUNDS = {
    "compute": "limited by how fast the processor can calculate",
    "memory": "limited by how fast data can be read from memory",
    "launch": "mostly waiting for instructions: the processor could do more but is not told to in time",
    "sync": "mostly waiting because the program stops to look at intermediate results",
    "communication": "mostly busy with accelerators talking to one another",
    "host": "mostly waiting while the computer does other work, such as preparing the next input",
    "queue": "mostly waiting for something that the recording does not show",
    "copy": "mostly busy moving data between the computer and the accelerator",
    "balanced": "well balanced: calculating and reading memory take about the same time",
    "unknown": "what holds it back cannot be told from this measurement",
}
STAGES = {
    "program": "timing the program",
    "static_analysis": "counting the model's calculations",
    "torch_profiler": "timing the model and recording its operations",
    "telemetry": "watching clock, power and memory",
    "nsys": "recording what the accelerator does",
    "ncu": "measuring single programs on the accelerator",
    "direct_inference": "answering the requests without measuring",
}


@dataclass(frozen=True, slots=True)
class Plain:
    """A finding in everyday words: what is wrong, what to do."""

    problem: str
    action: str


FINDINGS = {
    "launch-bound": Plain(
        "The processor waits for its next instruction",
        "Have the engineers hand over the whole series of steps at once instead of one by one, or answer several "
        "requests together.",
    ),
    "host-sync": Plain(
        "The program stops to look at intermediate results",
        "Have the engineers keep those decisions on the accelerator, so that it never has to wait.",
    ),
    "exposed-communication": Plain(
        "The accelerators spend much time talking to one another, and calculate nothing meanwhile",
        "Have the engineers let them talk while they calculate, or say less.",
    ),
    "straggler": Plain(
        "One accelerator is slower than the others, and all of them wait for it",
        "Find out why that one is late: more work, a slower device, or a busy computer.",
    ),
    "input-pipeline": Plain(
        "The accelerator waits for its next input to be prepared",
        "Prepare the next input while the current one is being worked on.",
    ),
    "allocation": Plain(
        "The accelerator waits while memory is reserved and given back",
        "Have the engineers reserve the memory once and keep it.",
    ),
    "host-idle": Plain(
        "The accelerator waits while the computer does something else",
        "Have the engineers do that work at another time, or beside it.",
    ),
    "queued-work": Plain(
        "The accelerator has work and does not start it",
        "Have the engineers look for what else uses the accelerator at that time.",
    ),
    "growing-cache": Plain(
        "The program copies everything it has read so far for every word it writes",
        "Have the engineers reserve room for the whole answer, so that nothing needs to be copied.",
    ),
    "memory-movement": Plain(
        "Much time goes into copying and rearranging data, not into calculating",
        "Have the engineers find those copies and leave them out.",
    ),
    "dispatch": Plain(
        "Much time goes into preparing many small calculations, not into calculating",
        "Have the engineers put the small calculations together, or answer several requests together.",
    ),
    "full-precision": Plain(
        "The model calculates with more digits than it usually needs",
        "Let it calculate with fewer digits, and check that the answers stay as good.",
    ),
    "full-precision-kernels": Plain(
        "Parts of the model calculate with more digits than they usually need",
        "Find those parts, let them calculate with fewer digits, and check that the answers stay as good.",
    ),
    "eager-attention": Plain(
        "The model compares words with one another in a roundabout way",
        "Have the engineers switch on the fused version of that step; the answers stay the same.",
    ),
    "misaligned-gemm": Plain(
        "Some tables have sizes that the processor reads slowly",
        "Have the engineers round those sizes up.",
    ),
    "old-flash-attention": Plain(
        "An older program is used for a step that has a faster one on this accelerator",
        "Have the engineers try the newer one, and check that the answers stay as good.",
    ),
    "far-from-measured": Plain(
        "Some steps take much longer than others measured for the same work on the same accelerator",
        "Have the engineers find out why, first of all whether the software is up to date.",
    ),
    "unfused-elementwise": Plain(
        "Much time goes into very small calculations",
        "Let a compiler join them into fewer, larger ones.",
    ),
    "copy-kernels": Plain(
        "Time is lost copying and converting data",
        "Keep the data in one form from start to end.",
    ),
    "copies": Plain(
        "The accelerator waits for data from the computer",
        "Prepare the next input while the current one is being worked on.",
    ),
    "more-work-than-needed": Plain(
        "The program calculates more than the model asks for",
        "Use software that skips the parts of the model a word does not need.",
    ),
    "kv-cache-growth": Plain(
        "The model's working memory grows with the length of the text and slows it down",
        "Use shorter requests or smaller images, or store that memory with fewer digits.",
    ),
    "module-gap": Plain(
        "One part of the model runs far slower than the machine could",
        "Have the engineers look at that part first: a faster version of it, or fewer digits.",
    ),
    "vision-dominated-ttft": Plain(
        "Looking at the image takes most of the time before the first word",
        "Use smaller images where quality allows, or work on several pages together.",
    ),
    "underfilled-grids": Plain(
        "The pieces of work are too small to keep the accelerator busy",
        "Answer several requests together, so that each piece is larger.",
    ),
    "throttled": Plain(
        "The device was slowed down while it worked, by heat or by a limit",
        "Have cooling, the power limit and the share of the machine looked after, then measure again.",
    ),
    "padding-waste": Plain(
        "Short requests are filled up to the length of long ones",
        "Group requests of similar length.",
    ),
}
"""Finding id → everyday words. A finding that is not listed is shown in its own words."""

MEASUREMENT = {
    "noisy-timings": "The measurements varied from one repetition to the next, so small differences mean nothing.",
    "warm-up-pollution": (
        "The first repetition was slower than the others, which makes the typical times look a little worse."
    ),
    "profiler-pollution": (
        "Recording the details slowed the program down; the times on this page were taken without recording."
    ),
}
"""Findings about the measurement itself: they say how far to trust the page, not what to change."""


def in_plain_words(finding: Finding) -> Plain:
    """Return everyday words for a finding."""
    return FINDINGS.get(finding.id) or Plain(finding.title, finding.advice)
