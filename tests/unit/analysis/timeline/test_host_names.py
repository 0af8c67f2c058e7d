"""What names on the host say of themselves."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.timeline import idle as names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cudaDeviceSynchronize_v3020", True),
        ("cuStreamSynchronize", True),
        ("cudaEventSynchronize", True),
        ("hipDeviceSynchronize", True),
        ("cudaMemcpy_v3020", True),
        ("hipMemcpy", True),
        ("hipMemcpyWithStream", True),
        ("cuMemcpyDtoH_v2", True),
        ("[CUDA synchronization] Stream sync", True),
        ("cudaMemcpyAsync_v3020", False),
        ("cuMemcpyDtoHAsync_v2", False),
        ("hipMemcpyAsync", False),
        ("cudaStreamWaitEvent_v3020", False),
        ("cudaLaunchKernel_v7000", False),
    ],
)
def test_calls_that_make_the_host_wait(name: str, expected: bool) -> None:
    assert names.is_sync_call(name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cudaMalloc_v3020", True),
        ("cudaFree", True),
        ("cudaFreeHost", True),
        ("cudaMallocAsync", True),
        ("cudaHostAlloc", True),
        ("cuMemCreate", True),
        ("cuMemMap", True),
        ("cuMemUnmap", True),
        ("hipMalloc", True),
        ("hipFree", True),
        ("hipExtMallocWithFlags", True),
        ("cudaMemcpyAsync", False),
        ("cudaMemsetAsync", False),
        ("cudaLaunchKernel", False),
        ("my_cudaMalloc_range", False),
    ],
)
def test_calls_that_allocate(name: str, expected: bool) -> None:
    assert names.is_allocation_call(name) is expected


@pytest.mark.parametrize(
    "name",
    [
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "[pl][profile]dataloader_next",
        "load_batch",
        "load next batch",
        "fetch_data",
        "read_image",
        "decode_jpeg",
        "open pdf",
        "preprocess",
        "pre-processing",
        "image_processor",
        "collate_fn",
        "prepare_batch",
        "tokenize",
        "Tokeniser.encode",
    ],
)
def test_ranges_that_prepare_input(name: str) -> None:
    assert names.is_data_loading(name)


@pytest.mark.parametrize(
    "name",
    [
        "decode",
        "decode_step",
        "decode step 12",
        "prefill",
        "module:model.layers.0",
        "aten::embedding",
        "forward",
        "sample",
        "load_state_dict",
        "loading weights",
        "all_gather",
        "postprocess",
        "detokenize",
        "incremental de-tokenisation",
    ],
)
def test_ranges_that_do_not(name: str) -> None:
    assert not names.is_data_loading(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch/utils/data/dataloader.py(701): __next__", True),
        ("site-packages/PIL/Image.py(830): load", True),
        ("transformers/tokenization_utils_base.py(2021): __call__", True),
        ("transformers/models/clip/image_processing_clip.py(120): preprocess", True),
        ("app/serve.py(12): load_batch", True),
        ("app/serve.py(12): tokenize_prompts", True),
        ("app/serve.py(12): get_inputs", True),
        ("torch/nn/modules/module.py(1739): _wrapped_call_impl", False),
        ("app/model.py(40): forward", False),
        ("app/load_batch.py(3): step", False),  # a file's name is not what is done in it
    ],
)
def test_python_frames_that_prepare_input(name: str, expected: bool) -> None:
    assert names.is_data_frame(name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gloo:all_reduce", True),
        ("gloo:barrier", True),
        ("ucc:allgather", True),
        ("c10d::barrier", True),
        ("c10d::monitored_barrier", True),
        ("dist barrier", True),
        ("nccl:all_reduce", False),  # returns at once: the device does the waiting
        ("c10d::allreduce_", False),
        ("record_param_comms", False),
    ],
)
def test_collectives_that_the_host_waits_in(name: str, expected: bool) -> None:
    assert names.is_rank_wait(name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ProfilerStep#3", True),
        ("Iteration 7", True),
        ("step 12", True),
        ("step#12", True),
        ("PyTorch Profiler (0)", True),
        ("step 12 forward", False),
        ("decode_step", False),
        ("training", False),
    ],
)
def test_ranges_that_only_count(name: str, expected: bool) -> None:
    assert names.is_bookkeeping(name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch._dynamo.convert_frame", True),
        ("TorchDynamo Cache Lookup", False),
        ("compile_fx.<locals>.inner", True),
        ("torch/_inductor/codecache.py(1): load", True),
        ("triton.compiler.compile", True),
        ("Torch-Compiled Region: 0/0", False),  # runs what was compiled
        ("aten::mm", False),
    ],
)
def test_ranges_that_compile(name: str, expected: bool) -> None:
    assert names.is_compiling(name) is expected
