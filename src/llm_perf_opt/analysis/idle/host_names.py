"""What names on the host say: which calls wait, launch or allocate, which ranges load data, which wait for other ranks."""

from __future__ import annotations

import re

# Names as nsys prints them carry a version ("cudaMemcpy_v3020"), driver calls begin with "cu", HIP with "hip".
_SYNC_CALL = re.compile(
    r"synchronize|^\[CUDA synchronization\]|^(?:cuda|cu|hip)Memcpy(?!\w*Async)", re.IGNORECASE
)
_LAUNCH_CALL = re.compile(r"launch|memcpy\w*async|memset|memprefetch", re.IGNORECASE)
_ALLOCATION_CALL = re.compile(
    r"^(?:cuda|cu|hip)(?:Malloc|Free|MemAlloc|MemFree|MemCreate|MemMap|MemUnmap|MemSetAccess|MemAddress|MemRelease"
    r"|HostAlloc|HostRegister|HostUnregister|ExtMalloc|ModuleUnload|MemPool)",
    re.IGNORECASE,
)
_DATA = re.compile(
    r"data_?loader|dataset|data[_ ]?load|load[_ ]?(?:next[_ ]?)?(?:batch|data|image|sample|input|page)|next[_ ]?batch"
    r"|get[_ ]?batch|fetch[_ ]?(?:batch|data|input)|\bcollate|collate_fn|read[_ ]?(?:image|file|batch|data|page)"
    r"|(?:decode|open)[_ ]?(?:image|jpe?g|png|pdf)|\bpre[_-]?process(?:ing|_inputs?|_images?)?\b|image[_ ]?processor"
    r"|augment|input[_ ]?pipeline|prepare[_ ]?(?:batch|data)\b",
    re.IGNORECASE,
)
_TOKENISING = re.compile(
    r"(?<!de)(?<!de-)tokeni[sz]|apply_chat_template|batch_encode|encode_batch", re.IGNORECASE
)
_DATA_FRAME = re.compile(
    r"torch/utils/data/|/?datasets/\w+\.py|tokenization_\w+\.py|/?tokenizers/|image_processing_\w+\.py|/?PIL/|/?torchvision/io/"
    r"|: (?:load|read|fetch|next|get|prepare|tokeni[sz]e|collate)_?(?:next_)?(?:batch|data|image|sample|input|page|file|text|fn)(?:e?s)?$"
    r"|: (?:tokeni[sz]e|collate)\w*$",
    re.IGNORECASE,
)
_RANK_WAIT = re.compile(
    r"^(?:gloo|ucc|mpi)[:_]|c10d::(?:barrier|monitored_barrier)|\bbarrier\b", re.IGNORECASE
)
_COMPILING = re.compile(
    r"torch[._]?(?:compile|_dynamo|_inductor)|inductor|triton.*compil|compile_fx|ptxas|nvrtc", re.IGNORECASE
)
_BOOKKEEPING = re.compile(r"^(?:ProfilerStep|Iteration|Trace|PyTorch Profiler|ProfilerStart|step ?#?\d+$)")


def is_sync_call(name: str) -> bool:
    """Whether a CUDA call makes the host wait for the device."""
    return bool(_SYNC_CALL.search(name))


def is_launch_call(name: str) -> bool:
    """Whether a CUDA call hands work to the device."""
    return bool(_LAUNCH_CALL.search(name)) and not is_sync_call(name)


def is_allocation_call(name: str) -> bool:
    """Whether a CUDA call allocates or frees memory: the driver may stop the device for it."""
    return bool(_ALLOCATION_CALL.search(name))


def is_tokenising(name: str) -> bool:
    """Whether a range or frame turns text into tokens."""
    return bool(_TOKENISING.search(name))


def is_data_loading(name: str) -> bool:
    """Whether a range or frame prepares the input of the model."""
    return bool(_DATA.search(name)) or is_tokenising(name)


def is_data_frame(name: str) -> bool:
    """Whether a Python frame (``file.py(12): function``) prepares the input of the model."""
    return bool(_DATA_FRAME.search(name))


def is_rank_wait(name: str) -> bool:
    """Whether a range or operator is a collective that the host itself waits in."""
    return bool(_RANK_WAIT.search(name))


def is_compiling(name: str) -> bool:
    """Whether a range or frame compiles code."""
    return bool(_COMPILING.search(name))


def is_bookkeeping(name: str) -> bool:
    """Whether a range only counts steps, and says nothing of what is done in it."""
    return bool(_BOOKKEEPING.match(name))
