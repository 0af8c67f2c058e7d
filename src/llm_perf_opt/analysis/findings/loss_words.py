"""What to call a loss, and what to do about it: the advice follows the owner of the time."""

from __future__ import annotations

from typing import Literal

from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.model.summary.parallel import IdleOwner

Loss = Literal[
    "exposed-communication",
    "straggler",
    "copies",
    "host-sync",
    "launch-bound",
    "allocation",
    "input-pipeline",
    "host-idle",
    "queued-work",
]

_TITLES: dict[Loss, str] = {
    "exposed-communication": "{who} waits for communication that nothing hides",
    "straggler": "One rank keeps the others waiting",
    "copies": "{who} waits for copies",
    "host-sync": "{who} stops to read results back to the host",
    "launch-bound": "{who} waits for the host to launch work",
    "allocation": "{who} waits for device memory to be allocated or freed",
    "input-pipeline": "{who} waits for its input",
    "host-idle": "{who} waits for the host between launches",
    "queued-work": "{who} has work in the queue that the device does not run",
}

_ADVICE: dict[Loss, str] = {
    "exposed-communication": "Overlap collectives with computing (start them earlier, in smaller buckets, on their own stream), "
    "send fewer bytes (lower precision, fused or fewer collectives), or split the model so that ranks talk less; compare the "
    "bus bandwidth with what the links can do.",
    "straggler": "Look at what that rank does before it enters: more work (uneven batches, longer sequences, another expert "
    "load), a slower or throttled device, or host work that the others do not have. Its own capture tells which.",
    "copies": "Pin host memory (infer.pinned_inputs=true), copy asynchronously, prepare the next input while the device "
    "computes; keep on the device what is used again.",
    "host-sync": "Find .item(), .cpu(), .tolist(), nonzero and boolean indexing inside the loop (expert routing "
    "is the usual place) and keep the decision on the device, or read it one step later.",
    "launch-bound": "Replay the step as a CUDA graph (model.cuda_graphs=true with model.cache=static) or compile it "
    "(model.compile=true with model.cache=static); fuse small kernels; a larger infer.batch_size shares the launches.",
    "allocation": "Let the caching allocator keep its memory: do not call empty_cache in the loop, allocate buffers once, use "
    "expandable segments (run.env.PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True') when sizes vary.",
    "input-pipeline": "Prepare the next input while the device works on this one: more loader workers, prefetch, pinned "
    "memory and asynchronous copies, or the same work on the device; cache what does not change.",
    "host-idle": "Move that work off the thread that feeds the device, or do it ahead, while the device is busy; a decode "
    "step that is replayed (model.cuda_graphs=true with model.cache=static) has none of it.",
    "queued-work": "The host is not the cause. Look for what holds the stream: another process or stream on the device, an event "
    "or a peer it waits for, or kernels that the capture left out.",
}


def title_for(loss: Loss, owner: IdleOwner | None, phase: str) -> str:
    """Return the title of a finding."""
    who = "The run" if phase == WHOLE else phase.capitalize()
    if loss == "input-pipeline" and owner is not None and owner.what == "tokenising":
        return f"{who} waits for text to be tokenised"
    if loss == "host-idle" and owner is not None and owner.what == "compilation":
        return f"{who} waits for code to be compiled"
    return _TITLES[loss].format(who=who)


def advice_for(loss: Loss, owner: IdleOwner | None, hardware: str) -> str:
    """Return what to do about a loss, by who owns the time."""
    if loss == "launch-bound" and hardware == "cpu":
        return (
            "Compile the decode step (model.compile=true with model.cache=static) so that small operators are fused; raise "
            "infer.batch_size."
        )
    if loss == "host-idle" and owner is not None:
        if owner.what == "compilation":
            return "Warm up before measuring; keep shapes static or mark them dynamic, so that nothing is compiled in the loop."
        if owner.what == "not recorded":
            return (
                "Put NVTX ranges around the steps of the program, or record Python frames (with_stack=True), and capture again: "
                "the capture does not say what the host does there. " + _ADVICE[loss]
            )
        if owner.range is not None:
            return f"{_ADVICE[loss]} It happens in {owner.range}."
    return _ADVICE[loss]
