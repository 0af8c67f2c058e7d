"""What generated nsys exports are made of: the kernels of a decoder layer, and the tables of three schema generations.

Column names, order and types are those of real exports of nsys 2022.4, 2024.2 and 2026.2.
"""

from __future__ import annotations

# (kernel short name, demangled, prefill ns, decode ns, sub-range)
LAYER = [
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::bfloat16tofloat32_copy_kernel_cuda, std::array<char *, (unsigned long)2>>(int, T2, T3)",
        9800,
        1500,
        0,
    ),
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::pow_tensor_scalar_kernel_impl<float, float>, std::array<char *, (unsigned long)2>>(int, T2, T3)",
        9100,
        1400,
        0,
    ),
    (
        "reduce_kernel",
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, (int)4>>(T3)",
        8300,
        2400,
        0,
    ),
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::rsqrt_kernel_cuda, std::array<char *, (unsigned long)2>>(int, T2, T3)",
        1900,
        1300,
        0,
    ),
    (
        "elementwise_kernel",
        "void at::native::elementwise_kernel<(int)128, (int)2, at::native::BinaryFunctor<float, float, float, MulFunctor>>(int, T3)",
        12300,
        1500,
        0,
    ),
    ("gemm_q", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_tn", 212000, 21500, 1),
    ("gemm_k", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", 58000, 6600, 1),
    ("gemm_k", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", 58000, 6600, 1),
    (
        "CatArrayBatchedCopy",
        "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<(unsigned int)2>, unsigned int, (int)4, (int)64, (int)64>(T1 *, at::native::<unnamed>::CatArrInputTensorMetadata<T1, T2, T4, T5>, at::native::<unnamed>::TensorSizeStride<T2, (unsigned int)4>, int, T2)",
        7900,
        1900,
        1,
    ),
    (
        "elementwise_kernel",
        "void at::native::elementwise_kernel<(int)128, (int)4, at::native::CUDAFunctor_add<c10::BFloat16>>(int, T3)",
        6100,
        1400,
        1,
    ),
    (
        "flash_fwd_kernel",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, (bool)0, (bool)0, cutlass::bfloat16_t, Flash_kernel_traits<(int)128, (int)128, (int)64, (int)4, cutlass::bfloat16_t>>, (bool)0, (bool)1, (bool)0, (bool)0, (bool)1, (bool)1, (bool)0, (bool)0>(Flash_fwd_params)",
        96000,
        7800,
        1,
    ),
    ("gemm_q", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_tn", 212000, 21500, 1),
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char *, (unsigned long)3>>(int, T2, T3)",
        6100,
        1400,
        0,
    ),
    (
        "reduce_kernel",
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, (int)4>>(T3)",
        8300,
        2400,
        0,
    ),
    ("gemm_up", "ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn", 731000, 73100, 2),
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::silu_kernel, std::array<char *, (unsigned long)2>>(int, T2, T3)",
        18200,
        1600,
        2,
    ),
    ("gemm_up", "ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn", 731000, 73100, 2),
    ("triton_poi_fused_mul_silu_0", "triton_poi_fused_mul_silu_0", 27100, 1700, 2),
    ("gemm_dn", "ampere_bf16_s16816gemm_bf16_256x64_ldg8_f2f_stages_64x4_tn", 742000, 74000, 2),
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char *, (unsigned long)3>>(int, T2, T3)",
        6100,
        1400,
        0,
    ),
]
SUB = (None, "attn", "mlp")

INT, T, R = "INTEGER", "TEXT", "REAL"
IN, TN = "INTEGER NOT NULL", "TEXT NOT NULL"


def tables(schema: str) -> dict[str, list[tuple[str, str]]]:
    """Return table → columns (name, declaration) of one generation."""
    new, v26 = schema != "2022.4", schema == "2026.2"
    kern = (
        [("start", IN), ("end", IN), ("deviceId", IN), ("contextId", IN)]
        + ([("greenContextId", INT)] if new else [])
        + [
            ("streamId", IN),
            ("correlationId", INT),
            ("globalPid", INT),
            ("demangledName", IN),
            ("shortName", IN),
            ("mangledName", INT),
            ("launchType", INT),
            ("cacheConfig", INT),
            ("registersPerThread", IN),
            ("gridX", IN),
            ("gridY", IN),
            ("gridZ", IN),
            ("blockX", IN),
            ("blockY", IN),
            ("blockZ", IN),
            ("staticSharedMemory", IN),
            ("dynamicSharedMemory", IN),
            ("localMemoryPerThread", IN),
            ("localMemoryTotal", IN),
            ("gridId", IN),
            ("sharedMemoryExecuted", INT),
            ("graphNodeId", INT),
            ("sharedMemoryLimitConfig", INT),
        ]
    )
    if v26:
        kern += [
            (c, INT)
            for c in (
                "qmdBulkReleaseDone",
                "qmdPreexitDone",
                "qmdLastCtaDone",
                "graphId",
                "clusterX",
                "clusterY",
                "clusterZ",
                "clusterSchedulingPolicy",
                "maxPotentialClusterSize",
                "maxActiveClusters",
                "sharedMemoryRequestedPercentage",
            )
        ]
        kern += [("tensorSizeMinusOneElements", TN)]
    tabs = {
        "StringIds": [("id", IN + " PRIMARY KEY"), ("value", TN)],
        "TARGET_INFO_GPU": [
            ("vmId", IN),
            ("id", IN),
            ("name", T),
            ("busLocation", T),
            ("isDiscrete", INT),
            ("l2CacheSize", INT),
            ("totalMemory", INT),
            ("memoryBandwidth", INT),
            ("clockRate", INT),
            ("smCount", INT),
            ("pwGpuId", INT),
            ("uuid", T),
            ("luid", INT),
            ("chipName", T),
            ("cuDevice", INT),
            ("ctxswDevPath", T),
            ("ctrlDevPath", T),
            ("revision", INT),
            ("nodeMask", INT),
            ("constantMemory", INT),
            ("maxIPC", INT),
            ("maxRegistersPerBlock", INT),
            ("maxShmemPerBlock", INT),
            ("maxShmemPerBlockOptin", INT),
            ("maxShmemPerSm", INT),
            ("maxRegistersPerSm", INT),
            ("threadsPerWarp", INT),
            ("asyncEngines", INT),
            ("maxWarpsPerSm", INT),
            ("maxBlocksPerSm", INT),
            ("maxThreadsPerBlock", INT),
            ("maxBlockDimX", INT),
            ("maxBlockDimY", INT),
            ("maxBlockDimZ", INT),
            ("maxGridDimX", INT),
            ("maxGridDimY", INT),
            ("maxGridDimZ", INT),
            ("computeMajor", INT),
            ("computeMinor", INT),
            ("smMajor", INT),
            ("smMinor", INT),
        ],
        "TARGET_INFO_SYSTEM_ENV": [
            ("globalVid", INT if new else IN),
            ("devStateName", TN),
            ("name", TN),
            ("nameEnum", IN),
            ("value", TN),
        ],
        "TARGET_INFO_SESSION_START_TIME": [("utcEpochNs", INT), ("utcTime", T), ("localTime", T)]
        + ([("systemClockNs", INT)] if v26 else []),
        "ANALYSIS_DETAILS": [("globalVid", IN), ("duration", IN), ("startTime", IN), ("stopTime", IN)],
        "PROCESSES": [("globalPid", INT), ("pid", INT), ("name", T)],
        "ThreadNames": [("nameId", IN), ("priority", INT), ("globalTid", INT)],
        "CUPTI_ACTIVITY_KIND_KERNEL": kern,
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            ("start", IN),
            ("end", IN),
            ("eventClass", IN),
            ("globalTid", INT),
            ("correlationId", INT),
            ("nameId", IN),
            ("returnValue", IN),
            ("callchainId", INT),
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [("start", IN), ("end", IN), ("deviceId", IN), ("contextId", IN)]
        + ([("greenContextId", INT)] if new else [])
        + [
            ("streamId", IN),
            ("correlationId", INT),
            ("globalPid", INT),
            ("bytes", IN),
            ("copyKind", IN),
            ("deprecatedSrcId", INT),
            ("srcKind", INT),
            ("dstKind", INT),
            ("srcDeviceId", INT),
            ("srcContextId", INT),
            ("dstDeviceId", INT),
            ("dstContextId", INT),
            ("migrationCause", INT),
            ("graphNodeId", INT),
            ("virtualAddress", INT),
        ]
        + ([("copyCount", INT)] if v26 else []),
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
            ("start", IN),
            ("end", IN),
            ("deviceId", IN),
            ("contextId", IN),
        ]
        + ([("greenContextId", INT)] if new else [])
        + [("streamId", IN), ("correlationId", INT), ("globalPid", INT)]
        + ([("deprecatedSyncType", INT)] if v26 else [])
        + [("syncType", IN), ("eventId", IN)]
        + ([("eventSyncId", INT)] if v26 else []),
        "NVTX_EVENTS": [
            ("start", IN),
            ("end", INT),
            ("eventType", IN),
            ("rangeId", INT),
            ("category", INT),
            ("color", INT),
            ("text", T),
            ("globalTid", INT),
            ("endGlobalTid", INT),
            ("textId", INT),
            ("domainId", INT),
            ("uint64Value", INT),
            ("int64Value", INT),
            ("doubleValue", R),
            ("uint32Value", INT),
            ("int32Value", INT),
            ("floatValue", R),
            ("jsonTextId", INT),
            ("jsonText", T),
        ]
        + ([("binaryData", T)] if v26 else []),
        "ENUM_NSYS_EVENT_TYPE": [("id", IN + " PRIMARY KEY"), ("name", T), ("label", T)],
        "ENUM_CUDA_MEMCPY_OPER": [("id", IN + " PRIMARY KEY"), ("name", T), ("label", T)],
        "ENUM_CUDA_MEM_KIND": [("id", IN + " PRIMARY KEY"), ("name", T), ("label", T)],
        ("META_DATA_EXPORT" if new else "EXPORT_META_DATA"): [("name", TN), ("value", T)],
    }
    if v26:
        tabs["TARGET_INFO_CUDA_DEVICE"] = [
            ("gpuId", INT),
            ("cudaId", IN),
            ("pid", IN),
            ("uuid", T),
            ("numMultiprocessors", INT),
        ]
    return tabs
